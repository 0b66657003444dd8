"""The documentation holds: the site builds without a warning and fetches nothing, links lead somewhere, commands and
settings exist, and the method that it teaches to write is one."""

import os
import re
import shlex
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import jax
import numpy as np
import pytest
import typer

from because_rl.algorithms.registry import METHODS, configure
from because_rl.cli.main import app
from because_rl.datasets.collect import collect
from because_rl.datasets.recipe import Recipe
from because_rl.errors import BecauseError
from because_rl.runs.train import load_for_training
from because_rl.training.run import Run
from tests.chromium import CHROMIUM, Browser

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")])
TITLE = [page.name for page in PAGES]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[([^\]\n]*)\]\(([^)\s]+)\)")
ELSEWHERE = re.compile(r"""(?:src|<link[^>]*href)=["']?(?:https?:)?//|url\(["']?(?:https?:)?//|@import""")


# The site -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="MkDocs is not installed (pip install 'because-rl[docs]')")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # Not --quiet: warnings that are not told are not counted either, and a strict build would pass.
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_has_every_page_and_its_styles_and_pages_load_nothing_from_elsewhere(site):
    assert {f"{page.stem}.html" for page in ROOT.glob("docs/*.md")} <= {page.name for page in site.iterdir()}
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        found = ELSEWHERE.search(re.sub(r"<pre.*?</pre>", "", file.read_text(), flags=re.DOTALL))
        assert not found, f"{file.relative_to(site)}: {found}"
    assert 'id="L102"' in (site / "source/because_rl/algorithms/because.py.html").read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_the_site_works_from_disk_on_a_phone_in_the_dark_and_its_search_finds(site, tmp_path):
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
def test_links_lead_to_files_and_line_links_to_the_line_that_they_quote(page):
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


# Commands -----------------------------------------------------------------------------------------------
BECAUSE = typer.main.get_command(app)


def written(page):
    """Pieces of code of a page, without prose: the lines of plain code blocks, and what stands in the text."""
    text = page.read_text()
    blocks = [body for language, body in FENCE.findall(text) if language.strip() in ("", "bash", "sh")]
    return [line for block in blocks for line in block.splitlines()] + INLINE.findall(FENCE.sub("", text))


def words_of(line):
    return [word for word in shlex.split(line, comments=True) if word != "..."]


COMMANDS = [
    pytest.param(words_of(line)[1:], id=f"{page.name}: {line.partition('#')[0].strip()}")
    for page in PAGES
    for line in written(page)
    if re.match(r"because\s+[a-z]", line)
] + [
    pytest.param(words_of(line)[1:], id=f"Makefile: {line}")
    for line in re.findall(r"^\t\$\(BIN\)/(because .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
]


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_and_their_options_exist(words):
    command = BECAUSE
    while hasattr(command, "commands"):
        assert words, "a group alone does nothing"
        assert words[0] in command.commands
        command, words = command.commands[words[0]], words[1:]
    _, left, _ = command.make_parser(command.context_class(command)).parse_args(words)
    assert not left, f"more arguments than the command takes: {left}"


def test_many_commands_are_found():
    assert len(COMMANDS) > 60


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
    for line in written(page):
        if line.startswith("make "):
            assert set(words_of(line)[1:]) <= set(known), line


# Methods ------------------------------------------------------------------------------------------------
def test_every_method_is_on_the_page_of_methods_and_no_other():
    table = re.findall(r"^\| \[`([a-z0-9-]+)`\]", (ROOT / "docs/methods.md").read_text(), re.MULTILINE)
    assert sorted(table) == sorted(METHODS)


def test_the_method_that_the_docs_write_learns_and_acts(tmp_path, monkeypatch):
    """The very block of docs/adding_a_method.md, on a small Unlock dataset."""
    blocks = FENCE.findall((ROOT / "docs/adding_a_method.md").read_text())
    (source,) = [body for title, body in blocks if "clone.py" in title]
    file = tmp_path / "clone.py"
    file.write_text(source)
    spec = spec_from_file_location("clone", file)
    clone = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "clone", clone)
    spec.loader.exec_module(clone)
    collect(Recipe.parse("unlock-medium", 20), tmp_path, workers=1)
    data = load_for_training("unlock-medium-n20", tmp_path)
    run = Run([0, 1], chunk=20)
    jax.config.update("jax_disable_most_optimizations", True)  # of programs that run once
    try:
        agent = clone.Clone(clone.CloneConfig(steps=60, batch=64, hidden=16, rate=1e-2)).fit(data, run)
        agent.begin(3, seed=0)
        action = agent.act(np.stack([data.state[:3]] * 2), np.stack([data.goal[:3]] * 2), data.horizon)
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    loss = run.history["clone"]["imitation"]
    assert (loss[-1] < loss[0] - 0.02).all()
    assert action.shape == (2, 3)
    assert np.isin(action, range(len(data.factors.codes))).all()
