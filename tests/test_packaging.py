"""What a plain ``pip install because-rl`` gives: commands that need no simulator, types, and a readable description."""

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import yaml

from because_rl import __version__, provenance
from because_rl.errors import BecauseError
from because_rl.io import read_text
from benchmarks.lock import hashed
from tests.runs.small import DATA, SETTINGS
from tests.support import REPOSITORY, arrays, because, write

# Each line of stdin is a command, which must end well or, after "!", with exit code 2.
WITHOUT_SIMULATORS = textwrap.dedent("""
    import contextlib, io, json, sys

    BLOCKED = {"minigrid", "highway_env", "robosuite", "mujoco", "numba", "cv2", "pygame"}

    class Block:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in BLOCKED:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Block())
    from because_rl.cli.main import main
    import because_rl.runs.fit

    for line in sys.stdin:
        failing, words = line.startswith("!"), json.loads(line.lstrip("!"))
        sys.argv, stderr, code = ["because", *words], io.StringIO(), 0
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(stderr):
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
        assert code == (2 if failing else 0), (words, stderr.getvalue())
        if failing:
            print(stderr.getvalue().splitlines()[-1])
    assert not BLOCKED & {name.partition(".")[0] for name in sys.modules}
""")


@pytest.mark.slow
@pytest.mark.parametrize("with_fit", [False, pytest.param(True, marks=pytest.mark.long)])
def test_commands_that_need_no_simulator_import_none(tmp_path, with_fit):
    """Three commands that need one name the extra to install. The training is that of tests/runs, which is cached."""
    log, spec, root = write(tmp_path / "log.hdf5", arrays(40, 10)), tmp_path / "factors.yaml", ("--root", str(tmp_path))
    untrained = {"mask": "full", "hidden": 16, "batch": 32, "world_steps": 0, "energy_steps": 0}
    commands = [
        ["tasks"],
        *(["factors", world] for world in ("lift", "unlock", "crash")),
        *(["graph", world, "-o", str(tmp_path / f"{world}.svg")] for world in ("lift", "unlock", "crash")),
        ["collect", "unlock-medium", "--episodes", "20", "--workers", "1", *root],
        ["train", "ccil", "--data", DATA, "--seeds", "2", "--chunk", "10", *options(SETTINGS), *root],
        ["factors", str(log), "-o", str(spec)],
    ]
    if with_fit:
        fit = ["fit", str(log), "--factors", str(spec), "-o", str(tmp_path / "fitted"), "--seeds", "1"]
        commands.append([*fit, *options(untrained)])
    failing = [
        ["show", "unlock-I-expert", "-o", str(tmp_path / "a.png")],
        ["show", "crash-I-expert", "-o", str(tmp_path / "a.png")],
        ["collect", "lift-medium", "--workers", "1", *root],
    ]
    lines = [*map(json.dumps, commands), *("!" + json.dumps(words) for words in failing)]
    command = [sys.executable, "-c", WITHOUT_SIMULATORS]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    for line, extra in zip(done.stdout.splitlines(), ("unlock", "crash", "lift"), strict=True):
        assert f"pip install 'because-rl[{extra}]'" in line


def options(settings):
    return [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]


def test_version_is_one_line_and_the_same_everywhere():
    words = because("--version").stdout.split()
    assert words[:2] == ["because-rl", __version__]
    assert words[2::2] == ["(Python", "jax"]
    assert yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())["version"] == __version__


def test_readme_for_an_index_has_no_relative_links():
    spec = spec_from_file_location("setup_script", REPOSITORY / "setup.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.readme_for_an_index((REPOSITORY / "README.md").read_text())
    assert "](https://sites.google.com/view/be-cause)" in text
    assert text.count("](") == text.count("](https://")
    assert "![" not in text


NAMES = {"pillow": "PIL", "pyyaml": "yaml", "opencv-python-headless": "cv2", "highway-env": "highway_env"}
"""Packages whose modules have another name."""
NEEDED_BY_ROBOSUITE = {"opencv-python-headless", "termcolor"}
"""It is installed without its dependencies: see pyproject.toml."""
WITH_ANOTHER = {"jaxlib": "jax", "jaxtyping": "equinox", "robosuite": "mujoco", "pygame": "highway-env"}
"""Imported modules that come with a declared package, or are installed beside it."""
IF_INSTALLED = {"pyarrow"}
"""Imported for one kind of file alone; the error without it says what to install."""


def imported_modules(folder):
    """The outside modules that the code imports, at the top or anywhere else."""
    modules = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules.add(str(node.module).partition(".")[0])
    return modules - set(sys.stdlib_module_names) - {"because_rl"}


def test_every_dependency_is_imported_and_every_import_declared():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    texts = [
        *project["dependencies"],
        *(t for extra in ("unlock", "crash", "lift", "ray", "export") for t in extras[extra]),
    ]
    declared = {re.match(r"[\w-]+", text)[0] for text in texts}
    imported = imported_modules(REPOSITORY / "because_rl")
    modules = {NAMES.get(package, package) for package in declared - NEEDED_BY_ROBOSUITE}
    assert modules - imported == set()
    assert {module for module in imported - modules - IF_INSTALLED if WITH_ANOTHER.get(module) not in declared} == set()


def test_every_dependency_is_in_the_lock_with_version_and_hashes():
    pins = [line for line in read_text(REPOSITORY / "requirements.lock").splitlines() if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.+!]+( --hash=sha256:[0-9a-f]{64})+", pin)] == []
    locked = {re.match(r"[\w.-]+", pin)[0].lower().replace("_", "-") for pin in pins}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    texts = [*project["dependencies"], *(t for texts in project["optional-dependencies"].values() for t in texts)]
    assert {re.match(r"[\w-]+", text)[0].lower() for text in texts} - locked == set()


def test_the_lock_takes_hashes_of_files_that_linux_installs():
    """Of `kept`, all; of `others` (another version, package, system or Python), none."""
    kept = ("a_b-1.0-py3-none-any.whl", "a_b-1.0.tar.gz", "A.b-1.0-py2.py3-none-any.whl")
    kept += ("a_b-1.0-cp311-cp311-manylinux_2_28_aarch64.whl", "a_b-1.0-cp39-abi3-musllinux_1_2_x86_64.whl")
    others = ("a_b-1.0.1-py3-none-any.whl", "a_b_c-1.0-py3-none-any.whl", "a_b-1.0-cp311-cp311-win_amd64.whl")
    others += ("a_b-1.0-cp314-cp314-manylinux_2_28_x86_64.whl", "a_b-1.0-cp313-cp313t-manylinux_2_28_x86_64.whl")
    others += ("a_b-1.0-cp311-cp311-manylinux_2_28_ppc64le.whl", "a_b-1.0-cp312-abi3-macosx_11_0_arm64.whl")
    files = [(name, f"{number}") for number, name in enumerate(kept + others)]
    lines = hashed("# a comment\na-b==1.0 --hash=sha256:old\n", lambda name: files).splitlines()
    assert lines == ["# a comment", "a-b==1.0 " + " ".join(f"--hash=sha256:{n}" for n in range(len(kept)))]
    with pytest.raises(BecauseError, match=r"no file of a-b==2\.0"):
        hashed("a-b==2.0", lambda name: files)


def test_package_has_its_types_and_lists_its_data():
    data = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    listed = {file for name, globs in data.items() for g in globs for file in folder(name).glob(g)}
    kept = {
        file for file in (REPOSITORY / "because_rl").rglob("*") if file.is_file() and "__pycache__" not in file.parts
    }
    assert {file for file in kept if file.suffix != ".py"} == listed
    assert REPOSITORY / "because_rl/py.typed" in listed


def folder(package):
    return REPOSITORY.joinpath(*package.split("."))


def test_revision_is_not_that_of_a_repository_around_the_package(tmp_path, monkeypatch):
    monkeypatch.delenv("BECAUSE_REVISION", raising=False)
    commit = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "theirs")
    for arguments in (("init", "-q"), commit):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    (tmp_path / "because_rl").mkdir()
    (tmp_path / "because_rl/provenance.py").write_text("")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "because_rl/provenance.py"))
    assert provenance.revision().startswith("unknown")
