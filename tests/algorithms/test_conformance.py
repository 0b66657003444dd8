"""What every method must do: a new name in the registry is tested here without another line.

Each method is trained on the smallest world there is, since most of the time goes into compiling, and all checks share
that training. The losses of a few methods are also traced on the factors of our worlds; the long versions do so for
all, and train methods on such factors.
"""

import contextlib
import subprocess
import sys
from dataclasses import fields, replace
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.registry import METHODS, load_agent, make_method
from because_rl.envs.tasks import world_class
from because_rl.errors import BecauseError
from because_rl.io import read_arrays
from because_rl.planning.agent import PlannerAgent
from because_rl.rng import stream
from because_rl.training import side_by_side
from because_rl.training.run import Run
from because_rl.training.side_by_side import Team
from because_rl.training.stage import skeleton, start
from tests.support import LENGTH, lamps, logged, small

CHUNK = 20
TINY = {
    "hidden": 8,
    "batch": 16,
    "steps": 2 * CHUNK,
    "world_steps": 2 * CHUNK,
    "energy_steps": 2 * CHUNK,
    "check_steps": 0,
}
TINY |= {"behaviour_steps": 2 * CHUNK, "value_steps": 2 * CHUNK, "behaviour_hidden": 8}
TINY |= {"planner.population": 8, "planner.horizon": 3, "alternations": 1}
TINY |= {"langevin.training": 2 * CHUNK, "langevin.steps": 3, "langevin.buffer": 32, "langevin.chains": 8}
TINY |= {"mask": "full", "layers": 1, "features": 8, "worlds": 2, "members": 2, "rate": 3e-3, "critic_rate": 3e-3}
"""Settings of a tiny method; each method takes those that its Config has."""
CLASSES = [entry.method for entry in METHODS.values()]
DISTINCT = [name for n, name in enumerate(METHODS) if METHODS[name].method not in CLASSES[:n]] + ["mopo-plain"]
"""One name for each method class, and one with networks of its own: ablations and presets are left out."""
RESUMED = ("ccil", "td3bc")
"""Always stopped and resumed; the same code does so for all, and the long version tries it with all."""
FALLS = {"mnm": "nll", "icil": "imitation", "td3bc": "critic"}
"""The metric that training lowers, where not every player's loss can fall at once."""


def make(name):
    known = {f.name for f in fields(METHODS[name].config)}
    return make_method(name, {key: value for key, value in TINY.items() if key.partition(".")[0] in known})


@cache
def data_of(world):
    return lamps() if world == "lamps" else small(world)


class Killed(Exception):
    pass


def train(name, world, folder, seeds=(0, 1), stop=False):
    """A run, and its agent; with `stop` the first stage is interrupted after its first chunk and then continued."""

    def kill(stage, done, total, metrics):
        raise Killed

    if stop:
        with contextlib.suppress(Killed):
            make(name).fit(data_of(world), Run(seeds, folder, kill, CHUNK))
    run = Run(seeds, folder, chunk=CHUNK)
    return run, make(name).fit(data_of(world), run)


def acts(agent, data, seeds=2):
    controller = agent.start(5, seed=3)
    state, goal = (np.stack([part[:5]] * seeds) for part in (data.state, data.goal))
    return np.stack([controller.act(state, goal, left) for left in (LENGTH, LENGTH - 1)])


def kept(folder):
    return {
        f"{file.stem} {key}": values
        for file in sorted(folder.glob("*.npz"))
        for key, values in read_arrays(file).items()
    }


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


@pytest.mark.slow
@pytest.mark.parametrize("name", DISTINCT)
def test_a_method_learns_acts_and_loads(name, tmp_path):
    data = data_of("lamps")
    run, agent = train(name, "lamps", tmp_path / "whole")
    for stage, history in run.history.items():
        assert history["step"][-1, 0] == 2 * CHUNK
        loss = history.get(FALLS.get(name, "loss"), history["loss"])
        assert (loss[-1] < loss[0]).all(), stage
    actions = acts(agent, data)
    check_actions(actions, data)
    np.testing.assert_array_equal(actions, acts(agent, data))  # `start` starts anew

    agent.save(tmp_path / "agent")
    loaded = load_agent(tmp_path / "agent")
    np.testing.assert_array_equal(actions, acts(loaded, data))
    assert loaded.description() == agent.description()
    check_calls(agent, loaded, data)


def check_calls(agent, loaded, data):
    """A row, a batch and one seed alone; a loaded agent gives the same bits."""
    batch = agent.act(data.state[:3], data.goal[0])
    np.testing.assert_array_equal(batch, loaded.act(data.state[:3], data.goal[0]))
    np.testing.assert_array_equal(agent.act(data.state[1], data.goal[1], LENGTH), batch[1])
    each = [agent.act(data.state[:3], data.goal[0], seed=seed) for seed in agent.seeds]
    np.testing.assert_array_equal(batch[each[0] == each[1]], each[0][each[0] == each[1]])  # where they agree
    alone = agent.select(agent.seeds[1])
    assert alone.seeds == agent.seeds[1:2]
    assert alone.trained_on == agent.trained_on
    assert {name: values[1:2] for name, values in agent.diagnostics.items()} == alone.diagnostics
    if isinstance(agent, PlannerAgent):
        guess = agent.predict(data.state[:3], data.action[:3])
        assert guess.next_state.shape == data.state[:3].shape
        assert ((guess.uncertainty >= 0) & (guess.uncertainty <= 1)).all()
        np.testing.assert_array_equal(
            agent.predict(data.state[1], int(data.action[1].argmax())).next_state, guess[0][1]
        )
        for ours, theirs in zip(guess, loaded.predict(data.state[:3], data.action[:3]), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    else:
        with pytest.raises(BecauseError, match="no world model"):
            agent.predict(data.state[:3], data.action[:3])


ACT = """
import sys
import numpy as np
from because_rl.algorithms.registry import load_agent
state, goal = np.load(sys.argv[1]), np.load(sys.argv[2])
for folder in sys.argv[3:]:
    np.save(folder + "/../actions.npy", load_agent(folder).act(state, goal))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "world"), [(("because", "icil"), "lamps"), pytest.param(DISTINCT, "crash", marks=pytest.mark.long)]
)
def test_saved_agents_act_the_same_in_another_process(names, world, tmp_path):
    data = data_of(world)
    folders = {name: tmp_path / name / "agent" for name in names}
    expected = {}
    for name, folder in folders.items():
        agent = train(name, world, None)[1]
        agent.save(folder)
        expected[name] = agent.act(data.state[:4], data.goal[:4])
    np.save(tmp_path / "state.npy", data.state[:4])
    np.save(tmp_path / "goal.npy", data.goal[:4])
    files = [tmp_path / "state.npy", tmp_path / "goal.npy", *folders.values()]
    subprocess.run([sys.executable, "-c", ACT, *map(str, files)], check=True)
    for name in names:
        np.testing.assert_array_equal(np.load(tmp_path / name / "actions.npy"), expected[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in RESUMED else pytest.param(name, marks=pytest.mark.long) for name in DISTINCT]
)
def test_a_stopped_training_resumes_to_the_same_bits(name, tmp_path):
    for folder, stop in (("whole", False), ("stopped", True)):
        train(name, "lamps", tmp_path / folder, stop=stop)
    whole, stopped = kept(tmp_path / "whole"), kept(tmp_path / "stopped")
    assert whole.keys() == stopped.keys()
    for key, values in whole.items():
        np.testing.assert_array_equal(values, stopped[key], err_msg=key)


@pytest.mark.long
@pytest.mark.parametrize("world", ["lamps", "crash"])
@pytest.mark.parametrize("name", DISTINCT)
def test_a_seed_learns_the_same_alone(name, world):
    """Compared by its metrics: Adam moves an array whose gradient is all rounding as far as any other.

    Whitened features have no gradient along their scale, so norms of weights get a wider tolerance.
    """
    both, alone = (train(name, world, None, seeds=seeds)[0].history for seeds in ((0, 1), (1,)))
    for stage, history in alone.items():
        for metric, values in history.items():
            rtol = 0.1 if metric in ("norm_mu", "deviation") else 1e-2
            np.testing.assert_allclose(values[:, 0], both[stage][metric][:, 1], rtol=rtol, atol=1e-3, err_msg=metric)
        losses = both[stage]["loss"]
        assert not np.allclose(losses[:, 0], losses[:, 1], rtol=1e-4)  # seeds differ


def other_data(world):
    """Another dataset of a world: the same episodes in another order, the last of them cut off."""
    data = data_of(world)
    rows = stream(0, "order").permutation(data.episodes)[:, None] * LENGTH + np.arange(LENGTH)
    rows, count = rows.reshape(-1), len(data) - 3
    arrays = {name: getattr(data, name)[rows][:count] for name in ("state", "action", "next_state", "goal", "reward")}
    return replace(data, **arrays, **{name: getattr(data, name)[:count] for name in ("terminated", "episode", "step")})


MERGED = ("because", "mopo", "td3bc", "icil", "cdl")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "world", "merged"),
    [(name, "lamps", False) for name in DISTINCT] + [(name, "crash", True) for name in MERGED],
)
def test_datasets_side_by_side_learn_what_each_learns_alone(name, world, merged, monkeypatch):
    """To the bit where they share what is compiled, as on a CPU; to rounding where they are one program."""
    datasets, calls, original = [data_of(world), other_data(world)], [], Team._run_same

    def count_calls(team, group):
        calls.append((group[0].program.name, len(group)))
        return original(team, group)

    def learn_and_act(data):
        run = Run((0, 1), chunk=CHUNK)
        return run.history, acts(make(name).fit(data, run), data)

    alone = [learn_and_act(data) for data in datasets]
    monkeypatch.setattr(side_by_side, "merges", lambda: merged)
    monkeypatch.setattr(Team, "_run_same", count_calls)
    together = Team().run([partial(learn_and_act, data) for data in datasets])
    assert {count for stage, count in calls if stage in alone[0][0]} == {2}
    for (history, actions), (wanted, wanted_actions) in zip(together, alone, strict=True):
        assert history.keys() == wanted.keys()
        for stage, metric in ((name, metric) for name in wanted for metric in wanted[name]):
            tolerance = {"rtol": 1e-2, "atol": 1e-3} if merged else {"rtol": 0.0}
            np.testing.assert_allclose(history[stage][metric], wanted[stage][metric], **tolerance, err_msg=metric)
        np.testing.assert_allclose(actions, wanted_actions, atol=1e-2 if merged else 0.0)
    losses = [next(iter(history.values()))["loss"] for history, _ in together]
    assert not np.allclose(*losses, rtol=1e-4)  # datasets differ


@pytest.mark.parametrize(
    ("name", "where"),
    [(name, "state") for name in DISTINCT]
    + [("because", where) for where in ("action", "next_state", "goal", "reward")],
)
def test_data_that_are_not_finite_are_refused(name, where):
    data = data_of("lamps")
    broken = getattr(data, where).copy()
    broken.reshape(len(data), -1)[7, 0] = np.nan
    with pytest.raises(BecauseError, match=rf"not finite: {where}, row 7"):
        make(name).fit(replace(data, **{where: broken}), Run([0]))


# The worlds ------------------------------------------------------------------------------------------
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "world"),
    [("because", "crash"), ("optimism", "lift"), ("mopo", "unlock"), ("icil", "crash")],
)
def test_it_fits_and_acts_on_the_factors_of_a_world(name, world):
    data = data_of(world)
    check_actions(acts(train(name, world, None)[1], data), data)


class Traced(Run):
    """Traces the loss of each stage for the shapes of the data, and runs nothing."""

    def fit(self, stage, data, fixed):
        if stage.name == "behaviour":
            raise Killed  # from here on all planning methods are the same
        shapes, rest = jax.eval_shape(partial(start, stage, fixed, self.seeds)).params, skeleton(stage, fixed)
        params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        first_seed = partial(jax.tree.map, lambda leaf: leaf[0])
        batch = {name: jnp.asarray(values[: stage.batch]) for name, values in data.items()}

        def loss(params):
            return stage.loss(eqx.combine(params, rest), first_seed(fixed), batch, jax.random.key(0))

        value, metrics = jax.eval_shape(loss, first_seed(params))
        assert {leaf.shape for leaf in jax.tree.leaves((value, metrics))} == {()}
        return eqx.combine(params, rest)


@pytest.mark.parametrize("name", ["because", "mopo", "delphic"])
def test_a_stage_that_runs_share_names_all_settings_that_it_reads(name):
    """Else a run would take what was trained with other settings."""
    method, read, shared = make(name), set(), []
    kind = type(method.config)

    class Recorded(kind):
        def __getattribute__(self, setting):
            read.add(setting)
            return super().__getattribute__(setting)

    class Recording(Traced):
        def fit(self, stage, data, fixed):
            read.clear()
            model = super().fit(stage, data, fixed)
            if stage.settings is not None:
                shared.append(stage.name)
                assert read - {"__class__", "__dict__"} <= stage.settings.keys(), stage.name
            return model

    method.config = Recorded(**{f.name: getattr(method.config, f.name) for f in fields(kind)})
    with contextlib.suppress(Killed):
        method.fit(data_of("lamps"), Recording([0]))
    assert shared


@cache
def random_rows(world, spurious=2):
    """Rows of the world's own factors, at random."""
    factors, rng, n = world_class(world).make_factors(spurious), stream(0, world), 12 * LENGTH

    def rows(group):
        parts = []
        for f in sorted(group, key=lambda f: f.start):
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


TRACED = {"gnn": "unlock", "cdl": "crash", "td3bc": "lift"}
"""The pairs that are always traced; the others take minutes."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "world"),
    [
        pytest.param(name, world, marks=() if TRACED.get(name) == world else pytest.mark.long)
        for name in DISTINCT
        for world in ("unlock", "crash", "lift")
    ],
)
def test_its_losses_can_be_traced_for_a_world_with_distractors(name, world):
    with contextlib.suppress(Killed):
        make(name).fit(random_rows(world), Traced([0, 1]))
