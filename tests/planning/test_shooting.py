"""Shooting with a point mass whose best plans are known, the goal, and the agent that plans for many worlds."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.prepared_data import action_statistics
from because_rl.planning import agent as planner_agent
from because_rl.planning.goal import attained
from because_rl.planning.learned_model import LearnedModel
from because_rl.planning.shooting import Plan, PlanningModel, ShootingConfig, correlated, first_plan, plan

# A point mass: x' = x + v', v' = v + 0.1 push -----------------------------------------------------------
MASS = FactorSpec(
    pack(("x", 1, "continuous"), ("v", 1, "continuous")),
    pack(("push", 1, "continuous")),
    (GoalFactor("far", 0, 1, "continuous", factor="x", relation="at_least"),),
)
LIMIT = jnp.ones(1)
G = 0.99


def mass_step(penalty, state, action):
    v = state[1] + 0.1 * action[0]
    after = jnp.stack([state[0] + v, v])
    return after, after, penalty * jnp.ones(())


POINT = PlanningModel(
    begin=lambda penalty, state: state,
    advance=mass_step,
    behaviour_policy=lambda penalty, state, goal, noise: 0.5 + noise[1:],
    terminal_value=lambda penalty, state, goal: jnp.full((), 0.25),
)
REST = jnp.zeros(2)
CONFIG = ShootingConfig(population=64, horizon=8, pessimism=0.0, proposals="uniform", hold=4)


@partial(jax.jit, static_argnums=(0, 1))
def best_plan(config, model, penalty, state, goal, before, steps_left):
    return plan(config, MASS, model, penalty, state, goal, before, steps_left, -LIMIT, LIMIT, jax.random.key(0))


def shoot(config, goal, steps_left, before=None, penalty=0.0, state=REST, model=POINT):
    before = first_plan(config, MASS) if before is None else before
    arrays = (jnp.asarray(penalty, jnp.float32), state, jnp.asarray([goal]), before, jnp.asarray(steps_left))
    return best_plan(config, model, *arrays)


def all_out(config, push=1.0):
    return Plan(jnp.full((config.horizon, 1), push), jnp.zeros((config.horizon, 2)), jnp.zeros(()))


@pytest.mark.parametrize("method", ["best", "mppi", "cem"])
@pytest.mark.parametrize("proposals", ["uniform", "behaviour"])
def test_shooting_reaches_the_goal_with_one_compiled_program(method, proposals):
    config = replace(CONFIG, method=method, proposals=proposals)
    program = jax.jit(lambda *rest: plan(config, MASS, POINT, jnp.zeros(()), *rest))
    state, goal, before = REST, jnp.asarray([1.5]), first_plan(config, MASS)
    for t in range(8):
        before = program(state, goal, before, jnp.asarray(8 - t), -LIMIT, LIMIT, jax.random.key(t))
        state = mass_step(0.0, state, before.actions[0])[0]
        if state[0] >= 1.5:
            break
    assert state[0] >= 1.5
    assert program._cache_size() == 1


def rewarded(reward, end):
    """The point mass with a reward and an end of its own, and nothing beyond the horizon."""
    return POINT._replace(
        outcome=lambda penalty, state: (reward(state[0]), end(state[0])), terminal_value=lambda *_: jnp.zeros(())
    )


def test_a_plan_for_rewards_goes_where_they_are_and_stays():
    model = rewarded(lambda x: -jnp.abs(x - 0.3), lambda x: jnp.zeros(()))
    config = replace(CONFIG, population=256, hold=1)
    assert shoot(config, 100.0, 8, model=model).actions[0] > 0.5
    assert shoot(config, 100.0, 8, model=model, state=jnp.asarray([0.6, 0.0])).actions[0] < 0


@pytest.mark.parametrize(("pays", "towards"), [(-1.0, 1), (1.0, -1)])
def test_plans_seek_an_end_where_steps_cost_and_else_shun_it(pays, towards):
    model = rewarded(lambda x: jnp.full((), pays), lambda x: (x > 0.3).astype(jnp.float32))
    moving = jnp.asarray([0.0, 0.05])
    best = shoot(CONFIG, 100.0, 8, model=model, state=moving)
    assert jnp.sign(best.actions[0, 0]) == towards
    whole = sum(pays * G**t for t in range(8))
    assert best.score == pytest.approx(whole, abs=0.01) if pays > 0 else best.score > whole + 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["best", "cem"])
def test_the_last_plan_is_kept(method):
    config = replace(CONFIG, population=8, method=method)
    # Full push all the way: 0.1 * (1 + ... + 8) = 3.6. No draw of knots comes near.
    assert shoot(config, 3.59, 8).score == 0.0
    kept = shoot(config, 3.59, 8, all_out(config))
    np.testing.assert_allclose(kept.actions, 1.0)
    assert kept.score == pytest.approx(G**7, rel=1e-5)


def test_the_last_plan_goes_on_one_step_later():
    config = replace(CONFIG, population=4)
    before = Plan(jnp.linspace(-1.0, 1.0, 8)[:, None], jnp.zeros((8, 2)), jnp.zeros(()))
    after = shoot(config, 100.0, 8, before)  # nothing pays, so the first candidate wins
    np.testing.assert_allclose(after.actions[:-1], before.actions[1:], rtol=1e-6)
    np.testing.assert_allclose(after.actions[-1], before.actions[-1])


def test_warm_starts_keep_the_noise_of_the_behaviour_policy():
    """The policy pushes by a hundredth of its noise; wide noise on actions would reach what the policy does not."""
    config = replace(CONFIG, population=64, warm_start_share=1.0, proposals="behaviour")
    gentle = POINT._replace(behaviour_policy=lambda p, state, goal, noise: 0.01 * jnp.clip(noise[1:], -1.0, 1.0))
    noise = jnp.stack([jnp.zeros(8), jnp.linspace(-1.0, 1.0, 8)], axis=1)
    before = Plan(0.01 * noise[:, 1:], noise, jnp.zeros(()))
    after = shoot(config, 100.0, 8, before, model=gentle)  # nothing pays: the first wins
    np.testing.assert_allclose(after.noise[:-1], noise[1:], rtol=1e-6)
    np.testing.assert_allclose(after.actions[:-1], before.actions[1:], rtol=1e-5)
    far = shoot(config, 0.2, 8, before, model=gentle)
    assert jnp.abs(far.actions).max() <= 0.01


@pytest.mark.parametrize(("steps_left", "score"), [(4, 0.0), (5, G**4), (8, G**4)])
def test_nothing_beyond_the_end_of_the_episode_counts(steps_left, score):
    """Full push is at 1.5 after 5 steps. The terminal value would add 0.25."""
    assert shoot(CONFIG, 1.5, steps_left, all_out(CONFIG)).score == pytest.approx(score, rel=1e-5)


def test_the_terminal_value_counts_while_the_episode_goes_on():
    assert shoot(CONFIG, 100.0, 9).score == pytest.approx(0.25 * G**8, rel=1e-5)
    assert shoot(CONFIG, 100.0, 8).score == 0.0
    # Where the goal was reached there is nothing more to gain.
    assert shoot(CONFIG, 1.5, 9, all_out(CONFIG)).score == pytest.approx(G**4, rel=1e-5)


def test_the_reward_is_paid_once_and_penalties_until_then():
    config = replace(CONFIG, population=1, warm_start_share=1.0, pessimism=0.1)
    alone = shoot(config, 1.5, 8, all_out(config), penalty=1.0)
    assert alone.score == pytest.approx(G**4 - 0.1 * sum(G**t for t in range(4)), rel=1e-5)
    there = shoot(config, 1.5, 8, all_out(config), penalty=1.0, state=jnp.asarray([2.0, 0.0]))
    assert there.score == 0.0


def test_pessimism_changes_the_choice_of_plan():
    """A push costs its size. Boldly it reaches the goal now; gently, later but cheaper."""
    timid = POINT._replace(advance=lambda p, s, a: (*mass_step(p, s, a)[:2], jnp.abs(a[0]) ** 4))
    largest_push = {}
    for pessimism in (0.0, 1.0):
        config = replace(CONFIG, population=512, discount=1.0, pessimism=pessimism)
        best = shoot(config, 0.9, 8, all_out(config), model=timid)
        largest_push[pessimism] = float(jnp.abs(best.actions[:3]).max())
    assert largest_push[0.0] == 1.0
    assert largest_push[1.0] < 0.7


def test_behaviour_proposals_follow_the_policy():
    config = replace(CONFIG, proposals="behaviour", spread=0.0, population=4)
    np.testing.assert_allclose(shoot(config, 100.0, 8).actions, 0.5)
    wide = replace(config, spread=1.0, lasting=0.0)
    actions = shoot(wide, 100.0, 8).actions
    assert float(actions.std()) > 0.1
    assert float(jnp.abs(actions).max()) <= 1.0


def test_lasting_noise_reaches_what_noise_that_comes_and_goes_does_not():
    """The mean push is 0 and its noise white: its effects cancel out, unless a candidate keeps its noise."""
    wandering = POINT._replace(behaviour_policy=lambda p, state, goal, noise: 0.3 * noise[1:])
    config = replace(CONFIG, proposals="behaviour", memory=0.0)
    assert shoot(config, 1.4, 8, model=wandering).score > 0.9
    assert shoot(replace(config, lasting=0.0), 1.4, 8, model=wandering).score == 0.0


def test_uniform_knots_fill_the_box_and_are_held():
    low, high = jnp.asarray([2.0]), jnp.asarray([6.0])
    goal, first = jnp.asarray([1e6]), first_plan(CONFIG, MASS)
    draw = jax.jit(
        jax.vmap(lambda k: plan(CONFIG, MASS, POINT, jnp.zeros(()), REST, goal, first, jnp.asarray(8), low, high, k))
    )
    actions = np.asarray(draw(jax.random.split(jax.random.key(0), 400)).actions)[:, :, 0]
    assert (actions[:, :4] == actions[:, :1]).all()
    assert (actions[:, 4:] == actions[:, 4:5]).all()
    assert np.quantile(actions, [0.0, 0.25, 0.5, 0.75, 1.0]) == pytest.approx([2, 3, 4, 5, 6], abs=0.25)


def test_mppi_averages_by_score():
    config = replace(CONFIG, method="mppi", temperature=1e-4, population=32)
    sharp = shoot(config, 3.59, 8, all_out(config))
    np.testing.assert_allclose(sharp.actions, 1.0, atol=1e-3)
    flat = shoot(replace(config, temperature=1e4, population=512), 3.59, 8)
    assert float(jnp.abs(flat.actions).max()) < 0.2


def test_noise_is_standard_normal_and_autocorrelated():
    noise = np.asarray(correlated(jax.random.key(0), (4000, 10, 2), 0.6))
    assert noise.std(0) == pytest.approx(np.ones((10, 2)), abs=0.05)
    for lag in (1, 2):
        assert np.mean(noise[:, lag:] * noise[:, :-lag]) == pytest.approx(0.6**lag, abs=0.02)
    assert abs(np.mean(noise[:, :, 0] * noise[:, :, 1])) < 0.02


# The goal ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("relation", ["equal", "at_least", "at_most"])
@pytest.mark.parametrize("kind", ["continuous", "binary"])
def test_attained_agrees_with_the_factors_on_definite_states(relation, kind):
    spec = FactorSpec(
        pack(("a", 2, kind), ("b", 1, "continuous")),
        pack(("push", 1, "continuous")),
        (GoalFactor("wanted", 0, 2, kind, factor="a", relation=relation),),
    )
    bits = np.array([[i >> k & 1 for k in range(4)] for i in range(16)], np.float32)
    for row in bits:
        state, goal = np.append(row[:2], 0.5).astype(np.float32), row[2:]
        assert bool(attained(spec, jnp.asarray(state), jnp.asarray(goal))) == bool(spec.reached(state, goal))


def test_attained_is_a_probability_where_events_are():
    spec = FactorSpec(
        pack(("flags", 2, "binary")),
        pack(("push", 1, "continuous")),
        (GoalFactor("wanted", 0, 2, "binary", factor="flags", relation="at_least"),),
    )
    state = jnp.asarray([0.5, 0.2])
    assert attained(spec, state, jnp.asarray([1.0, 1.0])) == pytest.approx(0.1)
    assert attained(spec, state, jnp.asarray([1.0, 0.0])) == pytest.approx(0.5)


@pytest.mark.slow
def test_an_agent_plans_only_for_worlds_not_at_their_goal(monkeypatch):
    """What is planned for one world depends neither on the others nor on how many are planned for at once."""
    actions = action_statistics(np.array([[-1.0], [1.0]], np.float32))
    summary = SimpleNamespace(factors=MASS, actions=actions, horizon=8)
    method = SimpleNamespace(predict=None, config=SimpleNamespace(planner=CONFIG, memory=None))
    learned = LearnedModel(
        imagine=lambda p, state, action: mass_step(0.0, state, action)[1:],
        expect=None,
        successor=None,
        behaviour_policy=POINT.behaviour_policy,
        terminal_value=POINT.terminal_value,
    )
    state, goal = np.zeros((2, 21, 2), np.float32), np.full((2, 21, 1), 1.0, np.float32)

    def acts(together, there):
        monkeypatch.setattr(planner_agent, "CPU_WORLD_BATCH", together)
        monkeypatch.setattr(planner_agent, "split_learned", lambda predict, summary, parameters: (parameters, learned))
        agent = planner_agent.PlannerAgent(method, summary, (0, 1), {"behaviour": jnp.zeros(2)}, np.zeros(2))
        return agent.start(21).act(np.where(there[..., None], [2.0, 0.0], state), goal, 8)

    nobody = np.zeros((2, 21), bool)
    half = nobody.copy()
    half[0, 3:20], half[1] = True, True
    every = acts(100, nobody)
    assert (every > 0).all()
    np.testing.assert_array_equal(acts(4, nobody), every)
    actions = acts(4, half)
    np.testing.assert_array_equal(actions[~half], every[~half])
    assert (actions[half] == 0).any()  # no plan was made for a batch of worlds that are all at their goal
    monkeypatch.setattr(planner_agent.jax, "default_backend", lambda: "gpu")
    for size in (8, 100):
        monkeypatch.setattr(planner_agent, "GPU_WORLD_BATCH", size)
        np.testing.assert_allclose(acts(4, nobody), every, atol=1e-5)
