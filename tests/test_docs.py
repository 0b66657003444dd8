"""The documentation is correct: the site builds without a warning and fetches nothing, links lead to files and lines
that exist, commands and settings exist, entry pages are short, and the method that docs/adding_a_method.md writes
trains and acts."""

import os
import re
import shlex
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import typer

import because_rl
from because_rl.algorithms.registry import METHODS, Entry, configure, make_method
from because_rl.cli.main import app
from because_rl.errors import BecauseError
from because_rl.training.run import Run
from benchmarks.__main__ import bench
from tests.chromium import CHROMIUM, Browser
from tests.support import lamps

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])
TITLE = [str(page.relative_to(ROOT)) for page in PAGES]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[(`[^`\n]+`|[^\]\n]*)\]\(([^)\s]+)\)")
"""Text and target of a link; text in backticks may contain brackets."""
ELSEWHERE = re.compile(r"""(?:src|<link[^>]*href)=["']?(?:https?:)?//|url\(["']?(?:https?:)?//|@import""")


# The site -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="MkDocs is not installed (pip install 'because-rl[docs]')")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # Not --quiet: it hides warnings and no longer counts them, and a strict build would pass.
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_loads_nothing_from_elsewhere(site):
    for page in ROOT.glob("docs/**/*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists()
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        remote = ELSEWHERE.search(re.sub(r"<pre.*?</pre>", "", file.read_text(), flags=re.DOTALL))
        assert not remote, f"{file.relative_to(site)}: {remote}"
    assert 'id="L102"' in (site / "source/because_rl/algorithms/because.py.html").read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
@pytest.mark.slow
def test_the_site_works_from_disk_on_a_dark_phone(site, tmp_path):
    with Browser(tmp_path / "chromium") as browser:
        browser.open((site / "concepts.html").as_uri(), width=390, dark=True)
        assert browser.js("document.body.dataset.mdColorScheme") == "slate"
        assert browser.js("document.documentElement.scrollWidth") <= 390
        browser.js(
            "(box => { box.focus(); box.value = 'pessimism'; box.dispatchEvent(new Event('keyup')) })"
            "(document.querySelector('input[name=query]'))"
        )
        browser.wait("document.querySelectorAll('.md-search-result__item').length > 0")
        assert not browser.problems
        assert browser.asked
        assert all(address.startswith(("file:", "data:", "about:", "blob:")) for address in browser.asked)


# Links --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", PAGES, ids=TITLE)
def test_links_lead_to_files_and_to_the_lines_they_quote(page):
    for text, target in LINK.findall(FENCE.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            continue  # MkDocs checks anchors on the page itself
        file = page.parent / path
        assert file.exists(), f"{page.name} links to {path}"
        if re.fullmatch(r"L\d+", anchor):
            lines, number = file.read_text().splitlines(), int(anchor[1:])
            quoted = text.strip("`")
            now = [n for n, line in enumerate(lines, 1) if quoted in line]
            assert number in now, f"{page.name} quotes {quoted!r} as line {number} of {path}; it is in {now}"


# Length -------------------------------------------------------------------------------------------------
LIMITS = {"README.md": 900, "docs/results.md": 1500, "docs/decisions.md": 1500}
"""Words; what exceeds them belongs on a page of docs/notebook."""


def count_words(text):
    """Words that a reader is shown: text of links without targets, tables without lines and separators, no pictures."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)|^```.*$|^\|[-:| ]+\|$|^ *[-#]+ ", "", text, flags=re.MULTILINE)
    text = LINK.sub(r"\1", text).replace("|", " ")
    return len(text.split())


@pytest.mark.parametrize(("page", "limit"), LIMITS.items())
def test_pages_for_newcomers_stay_short(page, limit):
    assert count_words((ROOT / page).read_text()) <= limit


def test_words_are_counted_as_a_reader_sees_them():
    table = "| a | b |\n|:---|---|\n| 1 ± 2 | **x** |\n"
    assert count_words(f"# Title\n\n![a picture](p.png)\n\n- two [`words`](there.md#x)\n\n{table}") == 1 + 2 + 2 + 4


def test_readme_and_quickstart_show_the_same_python():
    (block,) = [body for language, body in FENCE.findall((ROOT / "README.md").read_text()) if language == "python"]
    assert block in (ROOT / "docs/quickstart.md").read_text()


# API ----------------------------------------------------------------------------------------------------
DIRECTIVES = [
    name for page in ROOT.glob("docs/api/*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)
]


def test_every_exported_name_is_on_an_api_page():
    missing = {name for name in getattr(because_rl, "__all__", ()) if not name.startswith("_")}
    missing -= {name.rpartition(".")[2] for name in DIRECTIVES}
    assert not missing
    assert len(DIRECTIVES) == len(set(DIRECTIVES)), "a name is on two pages"


# Commands -----------------------------------------------------------------------------------------------
PROGRAMS = {"because": typer.main.get_command(app), "python -m benchmarks": typer.main.get_command(bench)}
COMMAND = re.compile(rf"({'|'.join(PROGRAMS)})\s+([a-z].*)")


def code_lines(page):
    """The code of a page, without prose: lines of plain code blocks, and what the text has in backticks."""
    text = page.read_text()
    blocks = [body for language, body in FENCE.findall(text) if language.strip() in ("", "bash", "sh")]
    return [line for block in blocks for line in block.splitlines()] + INLINE.findall(FENCE.sub("", text))


def split_words(line):
    return [word for word in shlex.split(line, comments=True) if word != "..."]


LINES = [(title, line) for page, title in zip(PAGES, TITLE, strict=True) for line in code_lines(page)]
LINES += [
    ("Makefile", line) for line in re.findall(r"^\t\$\(BIN\)/(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
]
COMMANDS = [
    pytest.param(match[1], split_words(match[2]), id=f"{title}: {line.partition('#')[0].strip()}")
    for title, line in LINES
    if (match := COMMAND.match(line))
]


@pytest.mark.parametrize(("program", "words"), COMMANDS)
def test_commands_and_their_options_exist(program, words):
    command = PROGRAMS[program]
    while hasattr(command, "commands"):
        assert words, "a group alone does nothing"
        assert words[0] in command.commands
        command, words = command.commands[words[0]], words[1:]
    _, left, _ = command.make_parser(command.context_class(command)).parse_args(words)
    assert not left, f"more arguments than the command takes: {left}"


def test_many_commands_of_both_programs_are_checked():
    programs = [command.values[0] for command in COMMANDS]
    assert programs.count("because") > 60
    assert programs.count("python -m benchmarks") > 10


@pytest.mark.parametrize("page", PAGES, ids=TITLE)
def test_settings_fit_the_config_of_some_method(page):
    for key, value in re.findall(r"--set ([a-z][\w.:]*)=([^\s`]+)", page.read_text()):
        owner, colon, name = key.rpartition(":")
        assert any(fits(METHODS[method], name, value) for method in ([owner] if colon else METHODS)), f"{key}={value}"


def fits(entry, name, value):
    try:
        configure(entry.config(), {name: value})
    except BecauseError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=TITLE)
def test_make_has_the_targets_that_are_named(page):
    known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in code_lines(page):
        if line.startswith("make "):
            assert set(split_words(line)[1:]) <= set(known), line


# Methods ------------------------------------------------------------------------------------------------
def test_every_method_is_on_the_page_of_methods_and_no_other():
    table = re.findall(r"^\| \[`([a-z0-9-]+)`\]", (ROOT / "docs/methods.md").read_text(), re.MULTILINE)
    assert sorted(table) == sorted(METHODS)


@pytest.mark.slow
def test_the_method_that_the_docs_write_learns_and_acts(tmp_path, monkeypatch):
    """The very block of docs/adding_a_method.md, registered and trained on a small dataset."""
    blocks = FENCE.findall((ROOT / "docs/adding_a_method.md").read_text())
    (source,) = [body for title, body in blocks if "entropy.py" in title]
    file = tmp_path / "entropy.py"
    file.write_text(source)
    spec = spec_from_file_location("entropy", file)
    entropy = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "entropy", entropy)
    spec.loader.exec_module(entropy)
    monkeypatch.setitem(METHODS, "entropy", Entry(entropy.Entropy, entropy.EntropyConfig))
    data, run = lamps(), Run([0, 1], chunk=20)
    agent = make_method("entropy", {"world_steps": 60, "batch": 32, "hidden": 16, "rate": 1e-2}).fit(data, run)
    action = agent.act(data.state[:3], data.goal[:3])
    loss = run.history["world"]["nll"]
    assert (loss[-1] < loss[0] - 0.02).all()
    assert action.shape == (3,)
    assert np.isin(action, range(len(data.factors.codes))).all()
    assert (agent.pessimism > 0).all()
