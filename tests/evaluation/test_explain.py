"""What a choice rests on, in a world whose law is written down: a door that opens with a key, or by force at a risk."""

import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.errors import BecauseError
from because_rl.evaluation.explain import Situation, explain_choice
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.bilinear import Outputs, make_gates
from because_rl.models.prepared_data import prepare
from because_rl.planning.agent import PlanningMethod
from because_rl.planning.proposals import PlanningConfig, full_mask
from because_rl.report.explain_page import write_explanation
from because_rl.runs.explain import explain, future_rows, reason_rows
from because_rl.training.run import Run
from because_rl.transitions import Transitions

TAKE, OPEN, FORCE = range(3)
FACTORS = FactorSpec(
    pack(("key", 1, "binary"), ("wind", 1, "binary"), ("door", 1, "binary")),
    pack(("do", 3, "categorical")),
    (GoalFactor("wanted", 0, 1, "binary", factor="door", relation="at_least"),),
    codes=tuple(tuple(row) for row in np.eye(3).tolist()),
)
SURE = 12.0


class Door(PlanningMethod):
    """`take` gives the key, `open` opens with it, and `force` opens without, which the model is unsure about."""

    name, config = "door", PlanningConfig(pessimism=0.9)

    def fit(self, data, seeds=1):
        prepared, run = prepare(data), Run([0])
        gates = make_gates(prepared.layout, full_mask(data.factors))
        return self.make_agent(prepared, run, {"gates": type(gates)(*(part[None] for part in gates))}, {})

    def untrained(self, summary, key):
        return {"gates": make_gates(summary.layout, full_mask(summary.factors))}

    def predict(self, layout, stats, p, state, action):
        key, wind, door = state
        edge = p["gates"].weight[2, 0]
        visible = edge * key + (1 - edge) * 0.9  # of the key, to the door
        opens = jnp.maximum(action[OPEN] * (2 * visible - 1), jnp.maximum(2 * action[FORCE] - 1, 2 * door - 1))
        logits = SURE * jnp.array([2 * jnp.maximum(key, action[TAKE]) - 1, 2 * wind - 1, opens])
        empty = jnp.zeros((1, 0))
        return [Outputs(empty, logit[None, None, None], empty) for logit in logits], action[FORCE]


@pytest.fixture(scope="module")
def agent():
    rng = np.random.default_rng(0)
    state, after = (rng.integers(0, 2, (60, 3)).astype(np.float32) for _ in range(2))
    number, goal, episode = rng.integers(0, 3, 60), np.ones((60, 1)), np.repeat(np.arange(20), 3)
    return Door().fit(Transitions.from_arrays(state, number, after, episode, factors=FACTORS, goal=goal))


def why(agent, state, logged=None):
    others = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]], np.float32)
    return explain_choice(agent, Situation(np.array(state, np.float32), np.ones(1), 3), others, logged)


def test_a_choice_depends_on_the_key_and_its_edge(agent):
    result = why(agent, [0, 1, 0], logged=OPEN)
    assert result["choice"] == {"do": f"level {TAKE}"}
    key, wind = result["inputs"]
    assert (key["factor"], key["change"], key["clear"], key["value"]) == ("key", 1.0, True, "yes")
    assert key["action"] == {"do": f"level {OPEN}"}
    assert (wind["factor"], wind["change"], wind["clear"]) == ("wind", 0.0, False)
    edges = {(row["from"], row["to"]): row for row in result["edges"]}
    assert len(edges) == 4 * 3
    assert edges["key", "door"] == {"from": "key", "to": "door", "change": 1.0, "clear": True}
    assert sum(row["change"] for row in result["edges"]) == 1.0


def test_futures_show_what_uncertainty_costs(agent):
    choice, unpenalised, logged = why(agent, [0, 1, 0], logged=OPEN)["futures"]
    assert [step["action"] for step in choice["steps"]] == [{"do": f"level {TAKE}"}, {"do": f"level {OPEN}"}]
    assert choice["end"] == "the goal is reached at step 2"
    assert choice["steps"][0]["changes"] == {"key": "yes"}
    assert (unpenalised["name"], unpenalised["action"], unpenalised["uncertainty"]) == (
        "without the penalty on uncertainty",
        {"do": f"level {FORCE}"},
        1.0,
    )
    assert logged["end"] == "the goal is reached at step 3"
    (same,) = why(agent, [1, 1, 0], logged=OPEN)["futures"]
    assert same["name"] == "the choice; without the penalty on uncertainty; as logged"


def test_an_agent_without_plans_is_refused(agent):
    with pytest.raises(BecauseError, match="does not plan"):
        explain_choice(object(), Situation(np.zeros(3), np.ones(1), 3), np.zeros((1, 3)))


def test_a_run_without_plans_or_such_a_row_is_refused(agent, tmp_path, monkeypatch):
    monkeypatch.setattr("because_rl.runs.explain.load_agent", lambda folder: agent)
    monkeypatch.setattr("because_rl.runs.explain.load_run_data", lambda folder, root: range(5))
    with pytest.raises(BecauseError, match="0 to 4"):
        explain(tmp_path, row=5)


def test_the_page_tells_what_the_choice_depends_on(agent, tmp_path):
    result = {"row": 7, "episode": 2, "step": 1} | why(agent, [0, 1, 0], logged=OPEN)
    page = write_explanation(tmp_path, result, "a <fit>").read_text()
    assert "a &lt;fit&gt;: why do level 0 in row 7?" in page
    assert "key → door" in page
    assert [row["changed"] for row in reason_rows(result)] == ["key", "key -> door"]
    assert [row["first action"] for row in future_rows(result)] == ["do level 0", "do level 2", "do level 1"]
