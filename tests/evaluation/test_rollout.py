"""Evaluation: all seeds act side by side in the same scenes; and the oracle planners solve their worlds."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from because_rl.datasets.recipe import Recipe
from because_rl.envs.tasks import BEHAVIOURS, WORLDS, make_batch
from because_rl.envs.unlock.batch import unlock_step
from because_rl.envs.unlock.env import CODES
from because_rl.errors import BecauseError
from because_rl.evaluation.oracle_crash import CRASH, SHOOTING, CrashOracle
from because_rl.evaluation.oracle_lift import LiftOracle
from because_rl.evaluation.oracle_planner import make_oracle, oracle_outcome
from because_rl.evaluation.oracle_unlock import UnlockOracle
from because_rl.evaluation.rollout import (
    SUBCASES,
    Outcome,
    evaluate,
    evaluate_together,
    layouts,
    legal,
    roll,
    roll_together,
    summarise,
)
from because_rl.rng import child_seed, stream
from because_rl.runs.oracle import oracle
from because_rl.training.method import Controller


# The oracle planners -----------------------------------------------------------------------------------
@pytest.mark.parametrize("spurious", [1, 4])
def test_unlock_step_is_the_batch_as_a_function(spurious):
    batch = make_batch("unlock", "O", spurious)
    batch.reset(range(200))
    rng = stream(0, "test")
    for _ in range(batch.horizon):
        actions, before, active = batch.random_actions(rng), batch.exact_state(), ~batch.terminated
        batch.step(actions)
        np.testing.assert_array_equal(unlock_step(before, CODES[actions])[active], batch.exact_state()[active])
    # Random walks hardly ever pick and open: place agents on keys and doors, with and without a key.
    state = before.copy()
    state[:, :36] = np.eye(36)[rng.integers(0, 36, 200)]
    state[:100, :36] = state[:100, 72:108] / np.maximum(state[:100, 72:108].sum(1, keepdims=True), 1)
    state[:, :36] = np.eye(36)[state[:, :36].argmax(1)]
    state[:, 108:110] = np.eye(2)[np.arange(200) % 2]
    for action in range(6):
        after = unlock_step(state, CODES[[action] * 200])
        here = np.arange(200), state[:, :36].argmax(1)
        door, key = state[here[0], 72 + here[1]] > 0, state[here[0], 36 + here[1]] > 0
        opened = door & (state[:, 109] > 0) & (action == 5)
        assert (state[:, 72:108].sum(1) - after[:, 72:108].sum(1) == opened).all()
        assert (state[:, 36:72].sum(1) - after[:, 36:72].sum(1) == (key & (action == 4))).all()
        assert opened.any() == (action == 5)


@pytest.mark.parametrize("split", ["I", "O", *SUBCASES["unlock"]])
def test_the_oracle_solves_unlock_in_the_fewest_steps(split):
    outcome = oracle_outcome("unlock", split, 40)
    assert outcome.success.mean() >= 0.95
    np.testing.assert_array_equal(outcome.steps[0], outcome.hidden["fewest_steps"])


def roll_oracle(world, split, oracle, episodes, after_act):
    """Rolls the oracle; `after_act(state, action, steps_left)` is called at every step."""

    def act(observation, steps_left):
        action = oracle.act(observation, steps_left)
        after_act(observation.state, action, steps_left)
        return action

    try:
        return roll(world, split, layouts(world, split, episodes), act, begin=oracle.begin)
    finally:
        oracle.close()


@pytest.mark.slow
def test_the_oracle_solves_crash_with_an_exact_model():
    """With a sixth of the usual candidates, in a program that is quick to compile."""
    oracle, states, predicted = CrashOracle(0, replace(SHOOTING, population=128)), [], []
    advance = jax.jit(jax.vmap(CRASH.advance))

    def after_act(state, action, steps_left):
        states.append(state)
        predicted.append(advance(oracle.slope, jnp.asarray(state), jnp.asarray(action))[0])

    jax.config.update("jax_disable_most_optimizations", True)
    try:
        outcome = roll_oracle("crash", "I", oracle, 3, after_act)
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    assert outcome.success.all()
    for n in range(outcome.steps.min() - 1):
        np.testing.assert_allclose(states[n + 1], predicted[n], atol=1e-4)


@pytest.mark.slow
def test_the_oracle_solves_lift_as_planned():
    oracle, ends = LiftOracle(0, population=2), []

    def after_act(state, action, steps_left):
        """The step at which the plan ends: its actions are zero once the cube is lifted."""
        ends.append(31 - steps_left + int((oracle.plans[0, : steps_left - 1] != 0).any(1).sum()))

    outcome = roll_oracle("lift", "O", oracle, 1, after_act)
    assert outcome.success.all()
    # The model is exact, and the last plan is followed unless another candidate is faster.
    assert outcome.steps[0, 0] == ends[-1] < 30
    assert (np.diff(ends) <= 0).all()


@pytest.mark.long
@pytest.mark.parametrize(("world", "episodes"), [("crash", 20), ("lift", 5)])
@pytest.mark.parametrize("split", ["I", "O"])
def test_the_oracle_solves_many_scenes(world, episodes, split):
    assert oracle_outcome(world, split, episodes).success.mean() >= 0.9


def test_the_oracle_command_reports_intervals():
    result = oracle(["unlock"], ["I"], 5)
    (row,) = result["rows"]
    assert (row["world"], row["split"], row["episodes"], row["success"]) == ("unlock", "I", 5, 1.0)
    assert 0.5 < row["low95"] < 1.0
    assert result["provenance"]["config"]["episodes"] == {"unlock": 5}


@pytest.mark.parametrize("world", WORLDS)
def test_every_world_has_an_oracle(world):
    assert type(make_oracle(world)).__name__ == f"{world.capitalize()}Oracle"


def test_an_unknown_world_is_named():
    with pytest.raises(BecauseError, match="no world 'maze'"):
        oracle(["maze"], ["I"], 5)


# Evaluation --------------------------------------------------------------------------------------------
class TwoSeeds(Controller):
    """Seed 0 plans with the true model; seed 1 always moves up and soon stands at the wall."""

    seeds, sees_pictures = (0, 1), False

    def start(self, worlds, seed):
        self.worlds, self.seed, self.calls = worlds, seed, []
        self.oracle = UnlockOracle()
        self.oracle.begin(make_batch("unlock"))
        return self

    def act(self, state, goal, steps_left):
        self.calls.append((state, steps_left))
        assert state.shape == (2, self.worlds, 110)
        best = self.oracle.planner.act(state[0], goal[0], steps_left)
        return np.stack([best, np.zeros_like(best)])


def test_seeds_act_side_by_side_in_the_same_scenes():
    agent = TwoSeeds()
    outcome = evaluate(agent, "unlock", "O", 12)
    assert outcome.success.shape == outcome.steps.shape == (2, 12)
    assert outcome.success[0].all()
    assert not outcome.success[1].any()
    np.testing.assert_array_equal(outcome.steps[0], outcome.hidden["fewest_steps"])
    assert (outcome.steps[1] == 15).all()
    first = agent.calls[0][0]
    np.testing.assert_array_equal(first[0], first[1])
    assert [steps_left for _, steps_left in agent.calls] == list(range(15, 0, -1))
    batch = make_batch("unlock", "O")
    np.testing.assert_array_equal(first[0], batch.reset(layouts("unlock", "O", 12)).state)
    summary = summarise(outcome)
    assert summary["per_seed"] == [1.0, 0.0]
    assert (summary["low95"], summary["high95"]) == (0.0, 1.0)
    assert summary["steps"] == pytest.approx(outcome.hidden["fewest_steps"].mean())


class OneSeed(TwoSeeds):
    """Picks at random."""

    seeds = (3,)

    def act(self, state, goal, steps_left):
        assert state.shape == (1, self.worlds, 110)
        return stream(self.seed, "pick", steps_left).integers(0, 6, state.shape[:2])


def test_agents_in_one_batch_of_worlds_do_what_each_does_alone():
    agents, ticks = [OneSeed(), TwoSeeds(), OneSeed()], []
    together = evaluate_together(agents, "unlock", "I", 5, tick=lambda: ticks.append(1))
    assert len(ticks) == 15
    for agent, outcome in zip(agents, together, strict=True):
        alone = evaluate(agent, "unlock", "I", 5)
        np.testing.assert_array_equal(outcome.success, alone.success)
        np.testing.assert_array_equal(outcome.steps, alone.steps)
        np.testing.assert_array_equal(outcome.actions[: len(alone.actions)], alone.actions)
        assert outcome.hidden.keys() == alone.hidden.keys()


def test_each_agent_can_act_in_scenes_of_its_own():
    agents = [OneSeed(), TwoSeeds()]
    outcomes = evaluate_together(agents, "unlock", "O", 4, draws=[7, 8])
    batch = make_batch("unlock", "O")
    for agent, draw, outcome in zip(agents, (7, 8), outcomes, strict=True):
        places = layouts("unlock", "O", 4, draw)
        expected = roll_together([agent], "unlock", "O", [places], child_seed(0, "act", "unlock", "O"))[0]
        np.testing.assert_array_equal(outcome.success, expected.success)
        np.testing.assert_array_equal(outcome.actions[: len(expected.actions)], expected.actions)
        batch.reset(places)
        for name, values in outcome.hidden.items():
            np.testing.assert_array_equal(values, batch.hidden()[name])


def test_the_acting_seed_does_not_change_the_scenes():
    one, two = TwoSeeds(), TwoSeeds()
    evaluate(one, "unlock", "I", 4, seed=0)
    evaluate(two, "unlock", "I", 4, seed=1)
    assert one.seed != two.seed
    np.testing.assert_array_equal(one.calls[0][0], two.calls[0][0])
    assert not set(layouts("unlock", "I", 100)) & set(layouts("unlock", "O", 100))


def test_evaluation_scenes_are_in_no_dataset():
    for world, entry in WORLDS.items():
        scenes = {seed for split in ("I", "O") for seed in layouts(world, split, 200)}
        for behaviour in BEHAVIOURS:
            recipe = Recipe.parse(f"{world}-{behaviour}")
            assert not scenes & {recipe.episode_seed(e) for e in range(entry.episodes)}


def test_actions_are_checked_and_clipped_to_the_box():
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)
    np.testing.assert_array_equal(legal(np.array([[2.0, -0.5]]), box), np.array([[1.0, -0.5]], np.float32))
    for bad, space in (
        (np.array([[np.nan, 0.0]]), box),
        (np.array([6]), spaces.Discrete(6)),
        (np.array([-1]), spaces.Discrete(6)),
        (np.array([1.0]), spaces.Discrete(6)),
    ):
        with pytest.raises(BecauseError, match="members of"):
            legal(bad, space)


def test_a_summary_without_success_has_no_steps():
    failed = summarise(Outcome(np.zeros((1, 3), bool), np.full((1, 3), 15), {}))
    assert (failed["success"], failed["low95"], failed["steps"]) == (0.0, 0.0, None)
    with pytest.raises(BecauseError, match="at least 1"):
        layouts("unlock", "I", 0)
