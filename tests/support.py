"""What several test files share: the command, small data whose structure is known, and logs as a user writes them."""

import contextlib
import gc
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import h5py
import jax
import numpy as np

from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.rng import stream
from because_rl.transitions import Transitions

REPOSITORY = Path(__file__).resolve().parents[1]
LENGTH = 10
"""Steps of an episode of `logged`."""


class Output(NamedTuple):
    """What a command wrote, by stream."""

    stdout: str
    stderr: str


def because(*arguments, root=None, code=0):
    """Run the command ``because`` in this process, which must end with exit code `code`.

    The environment, sys.argv and the collector's thresholds are as before afterwards. An exception that the command
    does not handle, which would end a process with a traceback, is raised.
    """
    from because_rl.cli.main import main

    stdout, stderr, thresholds = io.StringIO(), io.StringIO(), gc.get_threshold()
    with contextlib.ExitStack() as stack:
        stack.callback(gc.set_threshold, *thresholds)
        stack.enter_context(mock.patch.dict(os.environ, COLUMNS="80"))
        stack.enter_context(mock.patch.object(sys, "argv", _command(arguments, root)))
        stack.enter_context(contextlib.redirect_stdout(stdout))
        stack.enter_context(contextlib.redirect_stderr(stderr))
        try:
            main()
            ended = 0
        except SystemExit as end:
            ended = end.code
    output = Output(stdout.getvalue(), stderr.getvalue())
    assert (ended or 0) == code, output.stderr
    return output


def because_process(*arguments, root=None, code=0, **environment):
    """The same in a process of its own: slower, for tests of what a process does."""
    command = [sys.executable, "-m", "because_rl", *_command(arguments, root)[1:]]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return Output(done.stdout, done.stderr)


def _command(arguments, root):
    return ["because", *map(str, arguments), *(["--root", str(root)] if root else [])]


def logged(factors, state, action, after, goal):
    n = len(state)
    floats = [np.asarray(a, np.float32) for a in (state, action, after, goal, np.zeros(n))]
    episode, step = np.divmod(np.arange(n), LENGTH)
    return Transitions(factors, *floats, np.zeros(n, bool), episode, step, LENGTH)


def small(kind, episodes=12):
    """Random rows with the kinds of factors that a world has, and a distractor of one of them."""
    rng, n = stream(0, kind), episodes * LENGTH
    if kind == "unlock":
        factors = FactorSpec(
            pack(
                ("agent", 4, "categorical", "cells"),
                ("key", 4, "categorical", "cells", True),
                ("door", 4, "binary", "cells"),
                ("cue_2", 3, "categorical", "cue"),
            ),
            pack(("move", 2, "categorical", "move", True), ("pick", 2, "categorical")),
            (GoalFactor("left", 0, 4, "binary", "cells", factor="door"),),
            codes=((1.0, 0.0, 1.0, 0.0), (0.0, 1.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0)),
        )
        state = np.hstack([np.eye(4)[rng.integers(0, 4, n)], np.eye(5)[rng.integers(0, 5, n)][:, :4]])
        state = np.hstack([state, rng.integers(0, 2, (n, 4)), np.eye(3)[rng.integers(0, 3, n)]])
        number = rng.integers(0, 3, n)
        return logged(factors, state, factors.encode_action(number), state[::-1], rng.integers(0, 2, (n, 4)))
    bodies = (("ego", 2, "continuous", "body"), ("car", 2, "continuous", "body"), ("marker_2", 1, "continuous"))
    factors = FactorSpec(
        pack(*bodies, ("flag", 1, "binary")),
        pack(("push", 2, "continuous"), ("gripper", 1, "continuous")),
        (GoalFactor("hit", 0, 1, "binary", factor="flag", relation="at_least"),)
        if kind == "crash"
        else (GoalFactor("high", 0, 1, "continuous", factor="marker_2", relation="at_least"),),
    )
    state = np.hstack([rng.normal(size=(n, 5)), rng.integers(0, 2, (n, 1))])
    gripper = rng.choice([-1.0, 1.0], (n, 1)) if kind == "lift" else rng.normal(size=(n, 1))
    action = np.hstack([np.tanh(state[:, :2]) + 0.1 * rng.normal(size=(n, 2)), gripper])
    return logged(factors, state, action, state + 0.1, rng.random((n, 1)))


def lamps(episodes=20):
    """A lamp that one of two actions switches, and a cue that has no effect."""
    rng, n = stream(0, "lamps"), episodes * LENGTH
    factors = FactorSpec(
        pack(("lamp", 2, "categorical", "light"), ("cue_2", 2, "categorical", "light")),
        pack(("switch", 2, "categorical")),
        (GoalFactor("on", 0, 2, "categorical", factor="lamp"),),
        codes=((1.0, 0.0), (0.0, 1.0)),
    )
    lamp, cue = rng.integers(0, 2, (2, n))
    switch = (rng.random(n) < np.where(lamp, 0.2, 0.9)).astype(int)
    state, after = (np.hstack([np.eye(2)[part], np.eye(2)[cue]]) for part in (lamp, lamp ^ switch))
    return logged(factors, state, np.eye(2)[switch], after, np.eye(2)[np.ones(n, int)])


def of_seed(tree, k):
    return jax.tree.map(lambda a: a[k], tree)


def largest(tree):
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def arrays(episodes=24, length=6, seed=0):
    """A body that is pushed, and a lamp that is on beyond 1; flat, as a user would log them."""
    rng = np.random.default_rng(seed)
    n = episodes * length
    push = rng.normal(size=(n, 1))
    now, after = np.zeros((n, 2)), np.zeros((n, 2))
    for row in range(n):
        now[row] = after[row - 1] if row % length else (rng.normal(), 0)
        x = now[row, 0] + 0.3 * push[row, 0]
        after[row] = x, x > 1
    return {
        "observations": now,
        "actions": push,
        "next_observations": after,
        "episodes": np.repeat(np.arange(episodes), length),
    }


def write(path, tree):
    with h5py.File(path, "w") as file:
        for name, value in tree.items():
            file[name] = value
    return path
