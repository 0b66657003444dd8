"""Fitting a user's own log: the graph, the world model and the policy that come out, and what a folder refuses."""

import importlib.util
import json
import shutil
import sys

import gymnasium
import numpy as np
import pytest

from because_rl.algorithms.registry import load_agent
from because_rl.datasets.load import load
from because_rl.discovery.discover import discover
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.runs.fit import fit
from because_rl.runs.fit_page import graph_rows, undetermined_rows, warnings
from tests.support import REPOSITORY, arrays, because, because_process, write

X_ON = FactorSpec(pack(("x", 1, "continuous"), ("on", 1, "binary")), pack(("push", 1, "continuous")))
GOAL = (GoalFactor("far", 0, 1, "continuous", factor="x", relation="at_least"),)
TINY = {
    "hidden": 16,
    "batch": 32,
    "world_steps": 200,
    "energy_steps": 60,
    "check_steps": 40,
    "behaviour_steps": 20,
    "value_steps": 20,
}
TINY |= {"batches": 0, "planner.population": 16, "planner.horizon": 5}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """An HDF5 file of 40 episodes, and beside it the factors with a goal and without."""
    folder = tmp_path_factory.mktemp("log")
    (folder / "goal.json").write_text(json.dumps(FactorSpec(X_ON.state, X_ON.action, GOAL).to_dict()))
    (folder / "no-goal.json").write_text(json.dumps(X_ON.to_dict()))
    return write(folder / "log.hdf5", arrays(40, 10))


@pytest.mark.slow
def test_fit_gives_graph_accuracy_and_policy(log, tmp_path):
    """In short: only the world model is trained. The long version below trains all stages, and its policy acts."""
    out, spec = tmp_path / "fitted", log.parent / "goal.json"
    settings = TINY | {"energy_steps": 0, "check_steps": 0, "behaviour_steps": 0, "value_steps": 0}
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    limits = ("--constraint", "x<=1.5", "--constraint", "push>=-9")
    command = ("fit", log, "--factors", spec, "-o", out, "--seeds", 1, "--goal", 1.0, *limits, *options)
    result = json.loads(because(*command, "--json").stdout)
    expected = {"x": ["x", "push"], "on": ["x", "on"]}
    pairs = result["undetermined"]
    assert all(set(pair) == {"from", "to", "kept", "why", "needs"} for pair in pairs)
    undetermined = {(pair["from"], pair["to"]) for pair in pairs}  # 400 rows cannot exclude everything
    decided = {name: [c for c in causes if (c, name) not in undetermined] for name, causes in result["graph"].items()}
    assert decided == expected
    assert all(pair["from"] in result["graph"][pair["to"]] for pair in pairs if pair["kept"])
    accuracy = {row["factor"]: row for row in result["accuracy"]}
    assert min(row["value"] for row in accuracy.values()) > 0.9
    assert accuracy["x"]["measure"] != accuracy["on"]["measure"]
    assert 0 < result["goal_reached"] < 1
    data = load(out / "datasets/own/log-v0")
    share = float((data.next_state[:, 0] > 1.5).mean())
    assert result["constraints"]["x<=1.5"]["steps"] == pytest.approx(share)
    assert 0 < share < result["constraints"]["x<=1.5"]["episodes"] < 1
    assert result["constraints"]["push>=-9"] == {"steps": 0.0, "episodes": 0.0}
    imagined = result["imagined_policy"]
    assert imagined["steps"] > 0
    assert set(imagined["violations"]) == {"x<=1.5", "push>=-9"}
    assert 0 <= imagined["unlike_data"] <= 1
    page = (out / "report/index.html").read_text()
    assert page.count("<svg") == 2
    assert "Held-out accuracy" in page
    assert "constraint x&lt;=1.5" in page
    assert load_agent(out).seeds == (0,)
    assert [str(limit) for limit in load_agent(out).factors.constraints] == ["x<=1.5", "push>=-9"]
    assert "--resume" in because(*command, code=2).stderr
    with pytest.raises(BecauseError, match="differs in seeds"):
        fit(log, spec, out, seeds=[1], overrides=settings, goal=[1.0], resume=True, constraints=limits[1::2])

    before = {file.name: file.read_bytes() for file in (out / "run").glob("*.npz")}
    (out / "run/world.npz").unlink()  # as if it had been stopped there
    record = json.loads((out / "run/run.json").read_text())
    (out / "run/run.json").write_text(json.dumps(record | {"finished": None}))
    text = " ".join(because(*command, "--resume").stdout.split())
    assert {file.name: file.read_bytes() for file in (out / "run").glob("*.npz")} == before
    assert json.loads((out / "fit.json").read_text())["result"]["accuracy"] == result["accuracy"]
    assert "episodes that end at their goal" in text
    assert "unlike the data" in text


@pytest.mark.slow
def test_fit_without_a_goal_has_no_policy(log, tmp_path):
    """Untrained: the programs to begin with are those of the test above."""
    out = tmp_path / "fitted"
    settings = TINY | {"world_steps": 0, "energy_steps": 0, "check_steps": 0}
    result = fit(log, log.parent / "no-goal.json", out, seeds=[0], overrides=settings)
    assert result["policy"] is None
    assert "no goal" in result["why_no_policy"]
    with pytest.raises(BecauseError, match="has no policy"):
        load_agent(out).act(np.zeros(2))
    shutil.move(out, tmp_path / "moved")
    assert load_agent(tmp_path / "moved").seeds == (0,)


@pytest.fixture
def table(tmp_path):
    """The log as a CSV file, with `x` in tiny units, `on` in words, and a reward where the lamp burns."""
    rows = arrays(40, 10)
    now, after = rows["observations"], rows["next_observations"]
    lines = ["run,x,lamp,push,light"]
    for row in range(400):
        lamp = ("off", "on")[int(now[row, 1])]
        lines.append(f"r{row // 10},{now[row, 0] * 1e-12},{lamp},{rows['actions'][row, 0]},{now[row, 1]}")
        if row % 10 == 9:
            lines.append(f"r{row // 10},{after[row, 0] * 1e-12},{('off', 'on')[int(after[row, 1])]},0,0")
    (tmp_path / "log.csv").write_text("\n".join(lines))
    return tmp_path / "log.csv"


ROLES = ("--state", "x,lamp", "--action", "push", "--episode", "run")


class Lit(gymnasium.Env):
    """Shows x and a lamp that is on, which pays 1 a step."""

    observation_space, action_space = gymnasium.spaces.Box(-9, 9, (3,)), gymnasium.spaces.Box(-9, 9, (1,))

    def reset(self, *, seed=None, options=None):
        return np.array([0.0, 0.0, 1.0]), {}

    def step(self, action):
        assert action.shape == (1,)
        return np.array([0.0, 0.0, 1.0]), 1.0, False, False, {}


@pytest.mark.slow
def test_fit_of_a_table_with_known_edges(table, tmp_path):
    """Only the world model is trained, briefly: a column in tiny units is no constant; the reward has its causes."""
    because("factors", table, *ROLES, "--reward", "light", "-o", tmp_path / "f.yaml")
    settings = TINY | {"energy_steps": 0, "check_steps": 0, "behaviour_steps": 0, "value_steps": 0}
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    edges = ("--force", "lamp->x", "--forbid", "push -> lamp")
    out = tmp_path / "fitted"
    command = ("fit", table, "--factors", tmp_path / "f.yaml", "-o", out, "--seeds", 1, *options, *edges)
    result = json.loads(because(*command, "--json").stdout)
    assert set(result["graph"]["x"]) == {"x", "lamp", "push"}
    assert "push" not in result["graph"]["lamp"]
    assert "lamp" in result["graph"]["light"]
    assert not any("light" in causes for causes in result["graph"].values())
    assert result["log_return"] == pytest.approx(arrays(40, 10)["observations"][:, 1].sum() / 40)
    asked = json.loads((out / "fit.json").read_text())["asked"]
    assert (asked["force"], asked["forbid"]) == ([["lamp", "x"]], [["push", "lamp"]])
    assert next(row for row in result["accuracy"] if row["factor"] == "x")["value"] > 0.9
    assert (result["transitions"], result["notes"]) == (400, [])
    refused = because(*command[:-1], "push->x", "--resume", code=2)
    assert "differs in forbid" in refused.stderr
    data = load(out / "datasets/own/log-v0")
    columns = {"state": ["x", "lamp"], "action": ["push"], "episode": "run", "reward": "light"}
    assert load(table, factors=tmp_path / "f.yaml", **columns).sha256() == data.sha256()
    agent = load_agent(out)
    assert agent.act(np.array([0.0, 0.0, 1.0])).shape == (1,)  # x, lamp=off, lamp=on
    assert agent.rollout(Lit(), episodes=1, most_steps=2).returns.tolist() == [2.0]
    observed, whole = agent.predict(data.state[:5, :3], data.action[:5]), agent.predict(data.state[:5], data.action[:5])
    assert (observed.next_state == whole.next_state).all()
    assert observed.next_state.shape == (5, 4)


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        (441, ("--force", "lamp->y"), "'lamp' -> 'y' is unknown"),
        (441, ("--force", "push->x", "--forbid", "push->x"), "both forced and forbidden"),
        (441, ("--set", "mask=full", "--forbid", "push->x"), "full mask"),
        (210, (), "has 19 episodes"),
        (441, ("--constraint", "y<=1"), "'y<=1' names no factor"),
        (441, ("--missing", "guess"), "'guess' for missing values"),
    ],
)
def test_a_fit_that_cannot_be_writes_nothing(table, tmp_path, rows, more, message):
    because("factors", table, *ROLES, "-o", tmp_path / "f.yaml")
    table.write_text("\n".join(table.read_text().splitlines()[:rows]))
    out = tmp_path / "fitted"
    assert message in because("fit", table, "--factors", tmp_path / "f.yaml", "-o", out, *more, code=2).stderr
    assert not out.exists()


@pytest.mark.long
def test_fit_of_two_seeds_resumes_to_the_same_bits(log, tmp_path):
    spec, out, data = log.parent / "no-goal.json", tmp_path / "fitted", tmp_path / "log.hdf5"
    shutil.copyfile(log, data)
    settings = TINY | {"world_steps": 0}
    result = fit(data, spec, out, seeds=[0, 1], overrides=settings)
    assert all(len(row["per_seed"]) == 2 for row in result["accuracy"])
    before = {file.name: file.read_bytes() for file in (out / "run").glob("*.npz")}
    (out / "run/energy.npz").unlink()
    record = json.loads((out / "run/run.json").read_text())
    (out / "run/run.json").write_text(json.dumps(record | {"finished": None}))
    again = fit(data, spec, out, seeds=[0, 1], overrides=settings, resume=True)
    assert {file.name: file.read_bytes() for file in (out / "run").glob("*.npz")} == before
    assert again["accuracy"] == result["accuracy"]
    shutil.move(out, tmp_path / "moved")
    data.unlink()
    assert load_agent(tmp_path / "moved").seeds == (0, 1)


PENDULUM = {
    "cos": {"cos", "sin", "speed", "torque"},
    "sin": {"cos", "sin", "speed", "torque"},
    "speed": {"sin", "speed", "torque"},
    "reward": {"cos", "speed"},
}
"""What the equations say; exactly, the torque also costs, at most .004 of a reward that goes down to -16."""


def example(name):
    """A script of `examples` as a module."""
    module_spec = importlib.util.spec_from_file_location(name, REPOSITORY / f"examples/{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    """The log of the tutorial, half as long, and beside it the factors proposed for it."""
    folder = tmp_path_factory.mktemp("pendulum")
    example("collect_pendulum").collect(folder / "pendulum.csv", episodes=30)
    roles = ("--state", "cos,sin,speed", "--action", "torque")
    because("factors", folder / "pendulum.csv", *roles, "-o", folder / "factors.yaml")
    return folder / "pendulum.csv"


@pytest.mark.slow
def test_the_pendulum_has_the_graph_of_its_equations(pendulum):
    data = load(pendulum, factors=pendulum.parent / "factors.yaml")
    mask = discover(data, batches=0)
    assert {target: set(mask.parents(target)) for target in mask.targets} == PENDULUM
    assert not mask.kept[mask.inputs.index("reward")].any()


@pytest.mark.long
def test_the_tutorial_ends_with_a_policy_better_than_its_log(pendulum, tmp_path):
    out = tmp_path / "fitted"
    command = ("fit", pendulum, "--factors", pendulum.parent / "factors.yaml", "-o", out, "--seeds", 2)
    result = json.loads(because_process(*command, "--json").stdout)
    assert {target: set(causes) for target, causes in result["graph"].items()} == PENDULUM
    assert min(row["value"] for row in result["accuracy"]) > 0.95
    assert result["uncertainty"]["mixed"] > result["uncertainty"]["held_out"]
    why = json.loads(because_process("explain", out, "--row", 517, "--json").stdout)
    assert {row["factor"] for row in why["inputs"]} == {"cos", "sin", "speed"}
    edges = {(row["from"], row["to"]) for row in why["edges"]}
    assert edges >= {(cause, effect) for effect, causes in PENDULUM.items() for cause in causes}
    assert max(row["change"] for row in why["inputs"]) > why["unchanged"]
    assert (out / "report/explain-517.html").exists()
    example("collect_pendulum")
    policy, operator = example("drive_pendulum").compare(out, episodes=5)
    assert policy.mean() > operator.mean() / 2


def test_undetermined_causes_are_in_brackets_and_listed():
    pairs = [
        {"from": "x", "to": "on", "kept": True, "why": "it follows from push", "needs": "300 more steps"},
        {"from": "site", "to": "on", "kept": False, "why": "constant in episodes", "needs": ""},
    ]
    result = {"graph": {"x": ["x", "push"], "on": ["x", "on"]}, "undetermined": pairs}
    assert [row["causes"] for row in graph_rows(result)] == ["x, push", "[x], on"]
    assert [(row["from"], row["kept"], row["needs"]) for row in undetermined_rows(pairs)] == [
        ("x", "yes", "300 more steps"),
        ("site", "no", ""),
    ]
    assert undetermined_rows([pairs[0] | {"status": "established"}]) == []


FINE = {
    "accuracy": [
        {"factor": "x", "type": "continuous", "measure": "R2", "value": 0.9, "unchanged": 0.0},
        {"factor": "on", "type": "binary", "measure": "right", "value": 0.99, "unchanged": 0.9},
        {"factor": "site", "type": "continuous", "measure": "R2", "value": None, "unchanged": None},
    ],
    "sufficiency": {"x": {"suffices": True}},
    "events": [{"factor": "on", "switches": 40, "recall": 0.9}],
    "undetermined": [],
    "episodes": 100,
    "uncertainty": {"held_out": 0.1, "mixed": 0.5},
    "goal_reached": 0.4,
}


IMAGINED = {"steps": 100, "quantile": 0.95, "unlike_data": 0.05, "violations": {}}
THIN = {"action": "push", "level": "yes", "factor": "on", "context": "no", "rows": 400, "tried": 1, "elsewhere": 0.2}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"accuracy": [FINE["accuracy"][0] | {"value": 0.02}]}, "x is predicted poorly (R2: 0.02"),
        ({"accuracy": [FINE["accuracy"][1] | {"value": 0.93}]}, "on is predicted poorly"),
        ({"sufficiency": {"x": {"suffices": False}}}, "With all inputs x would be predicted better"),
        ({"events": [{"factor": "on", "switches": 40, "recall": 0.1}]}, "Of 40 switches of on the model foresees 10%"),
        ({"undetermined": [{"kept": True}, {"kept": False}]}, "2 pairs are undetermined, 1 of them kept"),
        ({"episodes": 30}, "30 episodes are few"),
        ({"uncertainty": {"held_out": 0.1, "mixed": 0.1}}, "uncertainty hardly tells"),
        ({"thin": [THIN, THIN]}, "push yes was hardly tried where on is no (1 of 400 rows)"),
        ({"imagined_policy": IMAGINED | {"unlike_data": 0.4}}, "40% of the policy's imagined steps are unlike"),
        ({"imagined_policy": IMAGINED | {"violations": {"x<=1": 0.2}}}, "The policy breaks x<=1 in 20.0%"),
        ({"constraints": {"x<=1": {"steps": 1.0, "episodes": 1.0}}}, "No logged step keeps x<=1"),
        ({"goal_reached": 0.0}, "No logged episode reaches its goal"),
        ({"notes": ["2 rows were left out"]}, "2 rows were left out."),
    ],
)
def test_warnings_name_what_to_worry_about(change, says):
    assert warnings(FINE) == []
    (text,) = warnings(FINE | change)
    assert text.startswith(says) or says in text
