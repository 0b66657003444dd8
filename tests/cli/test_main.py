"""The contract of every command: JSON alone on stdout, words on stderr, exit codes 0, 2 and 130."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import typer

from because_rl.cli.main import app
from tests.support import because, because_process

COMMANDS = typer.main.get_command(app).commands


@pytest.mark.slow
def test_process_prints_json_alone(tmp_path):
    summary = json.loads(because_process("collect", "unlock-medium", "--episodes", 3, "--json", root=tmp_path).stdout)
    assert summary["episodes"] == 3


def test_process_with_bad_input_ends_with_exit_code_2(tmp_path):
    refused = because_process("collect", "unlock-superb", root=tmp_path, code=2)
    assert refused.stdout == ""
    assert refused.stderr.startswith("because: ")
    assert len(refused.stderr.splitlines()) == 1
    assert "unlock-superb" in refused.stderr


@pytest.mark.slow
def test_interrupted_process_ends_with_exit_code_130(tmp_path):
    command = ["collect", "unlock-random", "--episodes", "1000000", "--root", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "because_rl", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job is started without it
    )
    try:
        while not list(tmp_path.rglob("*.npz")):  # until the first chunk of episodes is kept
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert "run the same command again" in " ".join(stderr.split())
    assert "Traceback" not in stderr


def test_interrupt_of_any_command_is_exit_code_130(monkeypatch, tmp_path):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    for target, command in (
        ("because_rl.runs.train.train", ("train", "td3bc", "--data", "x")),
        ("because_rl.runs.fit.fit", ("fit", "log.hdf5", "-o", tmp_path / "fitted")),
    ):
        monkeypatch.setattr(target, interrupt)
        assert "--resume to continue" in " ".join(because(*command, root=tmp_path, code=130).stderr.split())
    monkeypatch.setattr("because_rl.runs.evaluate.evaluate_run", interrupt)
    assert because("evaluate", tmp_path, code=130).stdout == ""


def test_error_raised_by_an_interrupt_is_exit_code_130_too(monkeypatch, tmp_path):
    """Ctrl-C while numpy writes an archive: closing the archive raises a ValueError of its own."""

    def interrupted_while_writing(*arguments, **options):
        try:
            raise KeyboardInterrupt
        finally:
            raise ValueError("an archive is open")

    monkeypatch.setattr("because_rl.datasets.collect.collect", interrupted_while_writing)
    refused = because("collect", "unlock-medium", root=tmp_path, code=130)
    assert "run the same command again" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("collect", "crash-medium", "--coverage", "0.2"), "only for unlock"),
        (("collect", "unlock-medium", "--episodes", "0"), "0 episodes"),
        (("collect", "unlock-medium", "--spurious", "3"), "spurious=3"),
        (("collect", "unlock-medium", "--seed", "-4"), "seed -4"),
        (("show", "unlock"), "no task 'unlock'"),
        (("check", "nothing"), "no dataset 'nothing'"),
        (("factors", "pong"), "no world 'pong'"),
        (("graph", "unlock", "-o", "a.gif"), "a.gif"),
        (("train", "td3bc", "--data", "nothing", "--set", "alpha"), "name=value"),
        (("fly",), "No such command"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_paragraph(root, arguments, message):
    refused = because(*arguments, code=2)
    assert message in refused.stderr
    assert refused.stdout == ""
    assert list(root.iterdir()) == []


def test_root_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    refused = because("collect", "unlock-medium", root=tmp_path / "file", code=2)
    assert "file" in refused.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name):
    assert f"Example: because {name} " in because(name, "--help").stdout


def test_help_has_no_square_brackets():
    """Typer reads words in square brackets as markup and drops them."""
    texts = [text for command in COMMANDS.values() for text in (command.help, *(p.help for p in command.params))]
    assert len(texts) > 100
    assert not [text for text in texts if text and "[" in text]


def test_environment_is_restored_after_a_command_in_process(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    before, argv = dict(os.environ), sys.argv
    because("--help")
    assert (dict(os.environ), sys.argv) == (before, argv)
