"""Films of a policy: an evaluation keeps two episodes, and the simulator repeats them."""

import numpy as np
import pytest

from because_rl.evaluation.oracle_unlock import UnlockOracle
from because_rl.evaluation.policy_films import keep_episodes, policy_films
from because_rl.evaluation.rollout import layouts, roll
from because_rl.evaluation.scenes import Scenes


@pytest.fixture(scope="module")
def evaluation():
    """The oracle solves the first two of four scenes of Unlock; in the others it stands still."""
    oracle = UnlockOracle(0)

    def act(observation, steps_left):
        return np.where(np.arange(4) < 2, oracle.act(observation, steps_left), 0)

    outcome = roll("unlock", "O", layouts("unlock", "O", 4), act, begin=oracle.begin)
    kept = {"episodes_kept": keep_episodes(outcome)}
    return {"world": "unlock", "split": "O", "spurious": 1, "episodes": 4} | kept


def test_the_simulator_repeats_the_episodes_that_were_kept(evaluation, tmp_path, monkeypatch):
    monkeypatch.setattr("because_rl.evaluation.scenes.FRAMES", 4)
    assert [(e["scene"], e["solved"]) for e in evaluation["episodes_kept"]] == [(0, True), (2, False)]
    assert len(evaluation["episodes_kept"][0]["actions"]) < 15  # to the step that reached the goal
    first = Scenes(tmp_path)
    films = policy_films(evaluation, first)
    first.close()
    assert [film.picture.reached for film in films] == [True, False]
    assert policy_films(evaluation, Scenes(tmp_path, seconds=0)) == films  # drawn once
    late = Scenes(tmp_path / "other", seconds=0)
    assert [film.picture for film in policy_films(evaluation, late)] == [None, None]
    assert late.left_out == 2
