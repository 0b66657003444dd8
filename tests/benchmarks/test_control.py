"""Policies of fits beside the operators of their logs: the logs, and the comparison."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from because_rl.datasets.load import load
from because_rl.errors import BecauseError
from because_rl.rng import stream
from because_rl.training.play import play
from benchmarks.control.run import MOST_STEPS, PROBLEMS, act, compare, control, find_problem, make_log
from benchmarks.control.td3bc import compare_seeds, make_dataset
from benchmarks.third_party.d3rlpy_peer import read


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_log_has_what_the_environment_did(name):
    problem = replace(PROBLEMS[name], episodes=2)
    log = make_log(problem, np.random.default_rng(0))
    ends = np.flatnonzero(log["terminations"] | log["truncations"])
    assert len(ends) == 2
    assert ends[-1] == len(log["rewards"]) - 1
    inside = np.delete(np.arange(len(log["rewards"]) - 1), ends[:-1])
    np.testing.assert_array_equal(log["next_observations"][inside], log["observations"][inside + 1])
    assert log["observations"].shape[1] == problem.factors.state_size


def test_an_operator_who_slips_less_keeps_the_pole_up_longer():
    rng, returns = np.random.default_rng(0), []
    for slips in (0.0, 0.9):
        problem = replace(PROBLEMS["cartpole"], slips=slips)
        env = gymnasium.make(problem.id)

        def begin(episode, problem=problem):
            return lambda state, steps: act(problem, state, rng)

        returns.append(play(begin, env, 5, 0, MOST_STEPS).returns.mean())
    assert returns[0] > 2 * returns[1]


def test_a_policy_is_better_only_beyond_the_noise_of_episodes():
    operator = np.array([1.0, 2.0, 3.0, 4.0])
    sure = compare((operator + [1.0, 1.1, 0.9, 1.0])[None], operator)
    assert (sure["difference"], sure["better"]) == (pytest.approx(1.0), True)
    noisy = compare((operator + [3.0, -2.5, 3.0, -2.0])[None], operator)
    assert not noisy["better"]
    assert noisy["difference_ci95"][0] < 0 < noisy["difference_ci95"][1]
    assert compare((operator - [1.0, 1.1, 0.9, 1.0])[None], operator)["p"] > 0.99


def test_d3rlpy_reads_the_rows_that_ours_learns_from(tmp_path):
    """By Minari, from the folder that `load` reads."""
    problem = replace(PROBLEMS["pendulum"], episodes=20)
    log = make_log(problem, stream(0, "control", "pendulum"))
    folder = make_dataset(tmp_path, problem)
    theirs, data = read(str(folder)), load(folder)
    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        np.testing.assert_allclose(theirs[name], log[name], rtol=1e-6)
    np.testing.assert_array_equal(data.state[:, :3], theirs["observations"])
    np.testing.assert_array_equal(data.action, theirs["actions"])
    np.testing.assert_allclose(data.reward, log["rewards"], rtol=1e-6)


def test_learners_differ_only_beyond_the_noise_of_seeds():
    assert compare_seeds([1.0, 2.0, 3.0], [1.5, 2.0, 2.5])[1] > 0.9
    difference, p = compare_seeds([1.0, 1.1, 0.9], [2.0, 2.1, 1.9])
    assert difference == pytest.approx(-1.0)
    assert p < 0.01


def test_an_unknown_problem_is_named(tmp_path):
    with pytest.raises(BecauseError, match="no problem 'pole'"):
        control(tmp_path, ["pole"])


def test_the_industrial_benchmark_repeats_itself_and_its_operator_steers():
    pytest.importorskip("industrial_benchmark_python", reason="see benchmarks/control/industrial.py")
    problem = find_problem("industrial")
    env = gymnasium.make(problem.id)
    runs = []
    for _ in range(2):
        state, rows = env.reset(seed=3)[0], []
        for _ in range(60):
            np.random.random()  # noqa: NPY002
            state, reward, *_ = env.step(problem.operator(state))
            rows.append([*state, reward])
        runs.append(np.array(rows))
    np.testing.assert_array_equal(*runs)
    assert np.abs(runs[0][-1, :3] - 25).max() < 1
