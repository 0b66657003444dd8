"""Rules that no linter knows: plain words, short files, short test names, docs that name only what exists."""

import ast
import importlib
import re

import pytest

from tests.support import REPOSITORY

BANNED = {"told", "found", "some", "apart", "of", "mine", "seen"}
"""As identifiers: they name nothing. Use the noun of the field."""
BANNED_IN_KEYS = {"told", "some", "apart", "seen"}
"""As words of dictionary keys, which users meet as metrics and columns."""
SOURCES = [path for folder in ("because_rl", "benchmarks", "tests") for path in (REPOSITORY / folder).rglob("*.py")]
DOCS = [*(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
MODULE = re.compile(r"\b(?:because_rl|benchmarks)(?:\.[A-Za-z_]\w*)+")
FILE = re.compile(r"\b(?:because_rl|benchmarks|tests)/[\w/]+\.py\b")


def identifiers(tree):
    """(line, name) of every name that the code defines or uses."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name


def keys(tree):
    """(line, word) of every word of a dictionary's literal keys: 'reward' and 'scale' of {"reward_scale": 1}."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield from ((key.lineno, word) for word in key.value.split("_"))


def place(path):
    return str(path.relative_to(REPOSITORY))


@pytest.mark.parametrize("path", SOURCES, ids=place)
def test_no_banned_identifiers(path):
    tree = ast.parse(path.read_text())
    assert [(line, name) for line, name in identifiers(tree) if name in BANNED] == []
    assert [(line, word) for line, word in keys(tree) if word in BANNED_IN_KEYS] == []


@pytest.mark.parametrize("path", [path for path in SOURCES if "tests" not in path.parts], ids=place)
def test_no_file_over_400_lines(path):
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name.startswith("test_")], ids=place)
def test_test_names_have_at_most_12_words(path):
    names = re.findall(r"^def test_(\w+)", path.read_text(), re.M)
    assert [name for name in names if len(name.split("_")) > 12] == []


GATES = ("io.py", "reading.py", "hdf5.py", "hdf5_reader.py")
OPENING = re.compile(r"(?<![\w.])open\(|\.(?:read_bytes|write_text|write_bytes)\(|read_text\(\)|np\.load\(|h5py\.File")


def test_files_are_opened_by_the_gates_alone():
    """Text of the package itself may be read, as UTF-8; a saved history, which has just been written, as well."""
    opened = {
        place(path): lines
        for path in (REPOSITORY / "because_rl").rglob("*.py")
        if path.name not in GATES and (lines := OPENING.findall(path.read_text("utf-8")))
    }
    assert opened == {
        "because_rl/experiments/grid/source.py": [".read_bytes("],  # the source, to hash it
        "because_rl/runs/folder.py": ["np.load("],
    }


@pytest.mark.parametrize("path", DOCS, ids=place)
def test_docs_name_modules_and_files_that_exist(path):
    text = path.read_text()
    assert [file for file in FILE.findall(text) if not (REPOSITORY / file).exists()] == []
    assert [name for name in MODULE.findall(text) if not exists(name)] == []


def exists(name):
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        file = REPOSITORY.joinpath(*parts[:length])
        if file.is_dir() or file.with_suffix(".py").exists():
            break
    if length == len(parts):
        return True
    module = importlib.import_module(".".join(parts[:length]))
    return hasattr(module, parts[length])


def test_the_rules_see_what_they_forbid():
    assert BANNED & {name for _, name in identifiers(ast.parse("def f(of): told = x.seen(some=1)"))} == {
        *("of", "told", "seen", "some")
    }
    assert BANNED_IN_KEYS & {word for _, word in keys(ast.parse('{"reward_told": 1, "apart": 2}'))} == {"told", "apart"}
    assert OPENING.findall("open(p); p.read_bytes(); p.read_text(); np.load(p); reopen(p); os.open(p)") == [
        *("open(", ".read_bytes(", "read_text()", "np.load(")
    ]
    assert not exists("because_rl.models.training")
    assert exists("because_rl.transitions.Transitions")
