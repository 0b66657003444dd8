"""Ctrl-C and SIGTERM, also while a compiled program runs and while modules are imported."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.support import REPOSITORY, because


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_are_one_line_and_an_exit_code(monkeypatch, tmp_path, number, code):
    def wait(*_, **__):
        os.kill(os.getpid(), number)
        time.sleep(10)

    before = signal.getsignal(signal.SIGTERM)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for target, command in (
            ("because_rl.datasets.collect.collect", ("collect", "unlock-medium")),
            ("because_rl.runs.discover.discover_dataset", ("discover", "x")),
            ("because_rl.runs.evaluate.evaluate_run", ("evaluate", "x")),
            ("because_rl.datasets.load.load", ("check", "x")),
        ):
            monkeypatch.setattr(target, wait)
            ended = because(*command, root=tmp_path, code=code)
            lines = [line for line in ended.stderr.splitlines() if "nterrupted" in line]
            assert len(lines) == 1
            assert ended.stdout == ""
    finally:
        signal.signal(signal.SIGINT, previous)
    assert signal.getsignal(signal.SIGTERM) == before


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )


def test_a_process_that_does_not_end_by_itself_is_ended():
    """A hash that takes minutes stands for a compiled program: Python cannot raise anything before it is done."""
    program = """
        import hashlib
        from because_rl.cli import signals
        signals.GRACE = 0.2
        with signals.signals_handled("because"):
            print("ready", flush=True)
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
    """
    process = start("-c", textwrap.dedent(program))
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        assert process.wait(timeout=20) == 143
        assert time.monotonic() - begin < 5
        assert process.stderr.read() == "because: interrupted.\n"
    finally:
        process.kill()


def test_ctrl_c_during_imports_is_one_line():
    program = """
        import sys
        from because_rl.__main__ import main
        def interrupted(*_):
            raise KeyboardInterrupt
        sys.meta_path.insert(0, type("Finder", (), {"find_spec": staticmethod(interrupted)}))
        main()
    """
    process = start("-c", textwrap.dedent(program))
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (130, "", "because: interrupted.\n")
