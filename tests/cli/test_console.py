"""Tables show text as it is; progress is lines of text where there is no terminal."""

import time

from because_rl.cli import console
from because_rl.cli.console import emit, make_table, progress_bar, sweep_bar, training_bar
from because_rl.experiments.grid.runner import Status


def test_names_in_brackets_are_not_markup(capsys):
    emit(None, False, make_table("[log] a", [{"x[0]": "[x[0]]", "causes": "[push], [/b] and x[0]\\"}]))
    text = capsys.readouterr().out
    for word in ("[log] a", "x[0]", "[x[0]]", "[push], [/b] and x[0]\\"):
        assert word in text


def wait_for_lines(capsys, count):
    """The lines on stderr, once there are at least `count`; and nothing on stdout."""
    lines, deadline = [], time.monotonic() + 20
    while len(lines) < count:
        assert time.monotonic() < deadline, lines
        time.sleep(0.01)
        out, err = capsys.readouterr()
        assert out == ""
        lines += err.splitlines()
    return lines


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(console, "EVERY", 0.05)
    with progress_bar("Discovering [a]", "targets") as report:
        report(0, 4)
        repeated = wait_for_lines(capsys, 2)  # though nothing has happened since
        report(1, 4)
        later = wait_for_lines(capsys, 2)
        report(4, 4)
    assert repeated[0].startswith("Discovering [a]: 0 of 4 targets, 0 s")
    assert later[-1].startswith("Discovering [a]: 1 of 4 targets, ")
    time.sleep(0.2)
    assert [line[:33] for line in capsys.readouterr().err.splitlines()][-1:] == ["Discovering [a]: 4 of 4 targets, "]
    assert capsys.readouterr().err == ""  # it has ended


def test_progress_says_when_each_stage_is_done(capsys, monkeypatch):
    monkeypatch.setattr(console, "EVERY", 1000.0)
    with training_bar("log") as report:
        report("graph", 0, 1, {})
        report("graph", 1, 1, {})
        for done in range(0, 101, 10):
            report("world", done, 100, {"loss": 1.0 / (1 + done)})
    assert capsys.readouterr().err == "log: graph: 1 of 1, 0 s\nlog: world: 100 of 100, loss 0.009901, 0 s\n"
    with sweep_bar("Grid") as show:
        show(Status(5, 6, 1, ("a", "b")))
        show(Status(6, 6, 1, ()))
    assert capsys.readouterr().err == "Grid: 6 of 6 cells, 0 running, 1 failed, 0 s\n"
