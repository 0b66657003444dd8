"""What every method must do, whichever it is: a new name in the registry is tested here without another word.

Each method is trained on the smallest world there is, as most of the time goes into compiling: with a stop in every
stage, again without one, and one seed of it alone; all checks share these trainings. Then on rows like those of one of
our worlds, distractor and all (slow), and the programs of all three worlds are built, though not run.
"""

import contextlib
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.registry import METHODS, make_method
from because_rl.envs.tasks import world_class
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.io import read_arrays
from because_rl.rng import stream
from because_rl.training.method import Agent
from because_rl.training.run import Run
from because_rl.training.stage import skeleton, start
from because_rl.transitions import Transitions
from tests.support import LENGTH, logged, small

CHUNK = 20
TINY = {"hidden": 8, "batch": 16, "steps": 2 * CHUNK, "world_steps": 2 * CHUNK, "energy_steps": 2 * CHUNK}
TINY |= {"behaviour_steps": 2 * CHUNK, "value_steps": 2 * CHUNK, "behaviour_hidden": 8}
TINY |= {"planner.population": 8, "planner.horizon": 3}
TINY |= {"langevin.training": 2 * CHUNK, "langevin.steps": 3, "langevin.buffer": 32, "langevin.chains": 8}
TINY |= {"mask": "full", "layers": 1, "features": 8, "worlds": 2, "members": 2, "rate": 3e-3, "critic_rate": 3e-3}
"""For whoever has such a setting."""
METHOD_OF = [entry.method for entry in METHODS.values()]

DISTINCT = [name for n, name in enumerate(METHODS) if METHODS[name].method not in METHOD_OF[:n]]
"""Without the names that are other settings of a method before them."""
FALLS = {"mnm": "nll", "icil": "imitation", "td3bc": "critic"}
"""What training lowers, where not every player's loss can fall at once."""


@pytest.fixture(autouse=True, scope="module")
def quickly():
    """Nearly all of the time goes into compiling programs that run once."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def make(name):
    known = {f.name for f in fields(METHODS[name].config)}
    return make_method(name, {key: value for key, value in TINY.items() if key.partition(".")[0] in known})


@cache
def data_of(world):
    return lamps() if world == "lamps" else small(world)


def lamps(episodes=20):
    """A lamp that one of two actions switches, and a cue that tells nothing."""
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


class Killed(Exception):
    pass


def train(name, world, folder, seeds=(0, 1), stops=False):
    """A run, and its agent; `stops`: every stage is interrupted after its first chunk and then continued."""
    stopped = set()

    def report(stage, done, total, metrics):
        if stops and stage not in stopped:
            stopped.add(stage)
            raise Killed

    while True:
        run = Run(seeds, folder, report, CHUNK)
        try:
            return run, make(name).fit(data_of(world), run)
        except Killed:
            pass


def acts(agent, data, seeds=2):
    agent.begin(5, seed=3)
    state, goal = (np.stack([part[:5]] * seeds) for part in (data.state, data.goal))
    return np.stack([agent.act(state, goal, left) for left in (LENGTH, LENGTH - 1)])


def kept(folder):
    return {
        f"{file.stem} {key}": values
        for file in sorted(folder.glob("*.npz"))
        for key, values in read_arrays(file).items()
    }


class Trained(NamedTuple):
    name: str
    folder: Path
    """of a run that was stopped in every stage, and continued"""
    run: Run
    agent: Agent
    first: np.ndarray
    """what the agent does"""


@pytest.fixture(scope="module", params=DISTINCT)
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    run, agent = train(request.param, "lamps", folder, stops=True)
    return Trained(request.param, folder, run, agent, acts(agent, data_of("lamps")))


def check_actions(actions, data):
    """(steps, seeds, worlds[, columns])"""
    if data.factors.codes is not None:
        assert actions.shape == (2, 2, 5)
        assert np.issubdtype(actions.dtype, np.integer)
        assert np.isin(actions, range(len(data.factors.codes))).all()
    else:
        assert actions.shape == (2, 2, 5, data.factors.action_size)
        assert np.isfinite(actions).all()
        assert (actions >= data.action.min(0)).all()
        assert (actions <= data.action.max(0)).all()


def test_it_learns_and_acts_within_the_action_space(trained):
    for stage, history in trained.run.history.items():
        assert history["step"][-1, 0] == 2 * CHUNK
        loss = history.get(FALLS.get(trained.name, "loss"), history["loss"])
        assert (loss[-1] < loss[0]).all(), stage
    check_actions(trained.first, data_of("lamps"))
    np.testing.assert_array_equal(trained.first, acts(trained.agent, data_of("lamps")))  # begin forgets


def test_it_comes_back_from_disk(trained, tmp_path):
    copytree(trained.folder, tmp_path / "copy")
    run = Run([0, 1], tmp_path / "copy", lambda *_: pytest.fail("trained again"), CHUNK)
    agent = make(trained.name).fit(data_of("lamps"), run)
    np.testing.assert_array_equal(trained.first, acts(agent, data_of("lamps")))


def test_a_stop_and_a_repetition_change_no_bit(trained, tmp_path):
    train(trained.name, "lamps", tmp_path)
    once, stopped = kept(tmp_path), kept(trained.folder)
    assert once.keys() == stopped.keys()
    for key, values in once.items():
        np.testing.assert_array_equal(values, stopped[key], err_msg=key)


@pytest.mark.slow
def test_a_seed_learns_the_same_alone(trained):
    """By what it reports: Adam moves an array whose gradient is all rounding as far as any other.

    What is whitened has no gradient along its scale, so norms of weights are held less tightly than what they do.
    """
    alone, _ = train(trained.name, "lamps", None, seeds=(1,))
    for stage, history in alone.history.items():
        both = trained.run.history[stage]
        for metric, values in history.items():
            rtol = 0.1 if metric in ("norm_mu", "deviation") else 1e-2
            np.testing.assert_allclose(values[:, 0], both[metric][:, 1], rtol=rtol, atol=1e-3, err_msg=metric)
        assert not np.allclose(both["loss"][:, 0], both["loss"][:, 1], rtol=1e-4)  # seeds are not all alike


@pytest.mark.parametrize("where", ["state", "action", "next_state", "goal", "reward"])
@pytest.mark.parametrize("name", DISTINCT)
def test_it_says_where_data_are_not_finite(name, where):
    data = data_of("lamps")
    broken = getattr(data, where).copy()
    broken.reshape(len(data), -1)[7, 0] = np.nan
    with pytest.raises(BecauseError, match=rf"not finite: {where}, row 7"):
        make(name).fit(Transitions(**(vars(data) | {where: broken})), Run([0]))


# The worlds ------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "world"), [("because", "crash"), ("optimism", "lift"), ("mopo", "unlock"), ("icil", "crash")]
)
def test_it_fits_and_acts_on_rows_like_a_worlds(name, world):
    data = data_of(world)
    check_actions(acts(train(name, world, None)[1], data), data)


class Built(Run):
    """Builds the program of each stage for the shapes of the data, and runs none of them."""

    def fit(self, stage, data, fixed, of=None):
        if stage.name == "behaviour":
            raise Killed  # from here on all who plan do the same
        shapes, rest = jax.eval_shape(partial(start, stage, fixed, self.seeds)).params, skeleton(stage, fixed)
        params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        of_seed = partial(jax.tree.map, lambda leaf: leaf[0])
        batch = {name: jnp.asarray(values[: stage.batch]) for name, values in data.items()}

        def loss(params):
            return stage.loss(eqx.combine(params, rest), of_seed(fixed), batch, jax.random.key(0))

        value, metrics = jax.eval_shape(loss, of_seed(params))
        assert {leaf.shape for leaf in jax.tree.leaves((value, metrics))} == {()}
        return eqx.combine(params, rest)


@cache
def of_world(world, spurious=2):
    """Rows of the world's own factors, at random."""
    factors, rng, n = world_class(world).make_factors(spurious), stream(0, world), 12 * LENGTH

    def rows(of):
        parts = []
        for f in sorted(of, key=lambda f: f.start):
            if f.type == "continuous":
                parts.append(rng.normal(size=(n, f.width)))
            elif f.type == "binary":
                parts.append(rng.integers(0, 2, (n, f.width)))
            else:
                parts.append(np.eye(f.width + f.optional)[rng.integers(0, f.width + f.optional, n)][:, : f.width])
        return np.hstack(parts)

    numbers = rng.integers(0, len(factors.codes), n) if factors.codes else None
    action = rows(factors.action) if numbers is None else factors.encode_action(numbers)
    return logged(factors, rows(factors.state), action, rows(factors.state), rows(factors.goal))


@pytest.mark.slow
@pytest.mark.parametrize("world", ["unlock", "crash", "lift"])
@pytest.mark.parametrize("name", DISTINCT)
def test_its_programs_can_be_built_for_every_world_and_its_distractors(name, world):
    with contextlib.suppress(Killed):
        make(name).fit(of_world(world), Built([0, 1]))
