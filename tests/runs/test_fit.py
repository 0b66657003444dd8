"""Fitting a user's own log: the graph, the world model and the policy that come out, and what a folder refuses."""

import importlib.util
import json
import shutil

import numpy as np
import pytest

from because_rl.datasets.load import load
from because_rl.datasets.user_dataset import add_action_codes, prepare_log, write_dataset
from because_rl.datasets.user_log import read_log
from because_rl.discovery.discover import discover
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.runs.fit import fit, load_model, load_policy
from because_rl.runs.fit_page import graph_rows, undetermined_rows
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
    command = ("fit", log, "--factors", spec, "-o", out, "--seeds", 1, "--goal", 1.0, *options)
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
    page = (out / "report/index.html").read_text()
    assert page.count("<svg") == 2
    assert "Held-out accuracy" in page
    assert load_policy(out).seeds == (0,)
    assert "--resume" in because(*command, code=2).stderr
    with pytest.raises(BecauseError, match="differs in seeds"):
        fit(log, spec, out, seeds=[1], overrides=settings, goal=[1.0], resume=True)

    before = {file.name: file.read_bytes() for file in (out / "run").glob("*.npz")}
    (out / "run/world.npz").unlink()  # as if it had been stopped there
    record = json.loads((out / "run/run.json").read_text())
    (out / "run/run.json").write_text(json.dumps(record | {"finished": None}))
    text = " ".join(because(*command, "--resume").stdout.split())
    assert {file.name: file.read_bytes() for file in (out / "run").glob("*.npz")} == before
    assert json.loads((out / "fit.json").read_text())["result"]["accuracy"] == result["accuracy"]
    assert "episodes that end at their goal" in text


@pytest.mark.slow
def test_fit_without_a_goal_has_no_policy(log, tmp_path):
    """Untrained: the programs to begin with are those of the test above."""
    out = tmp_path / "fitted"
    settings = TINY | {"world_steps": 0, "energy_steps": 0, "check_steps": 0}
    result = fit(log, log.parent / "no-goal.json", out, seeds=[0], overrides=settings)
    assert result["policy"] is None
    assert "no goal" in result["why_no_policy"]
    with pytest.raises(BecauseError, match="holds no policy"):
        load_policy(out)
    shutil.move(out, tmp_path / "moved")
    assert load_model(tmp_path / "moved").seeds == (0,)


@pytest.fixture
def table(tmp_path):
    """The log as a CSV file, with `x` in tiny units and `on` in words."""
    rows = arrays(40, 10)
    now, after = rows["observations"], rows["next_observations"]
    lines = ["run,x,lamp,push"]
    for row in range(400):
        lamp = ("off", "on")[int(now[row, 1])]
        lines.append(f"r{row // 10},{now[row, 0] * 1e-12},{lamp},{rows['actions'][row, 0]}")
        if row % 10 == 9:
            lines.append(f"r{row // 10},{after[row, 0] * 1e-12},{('off', 'on')[int(after[row, 1])]},0")
    (tmp_path / "log.csv").write_text("\n".join(lines))
    return tmp_path / "log.csv"


ROLES = ("--state", "x,lamp", "--action", "push", "--episode", "run")


@pytest.mark.slow
def test_fit_of_a_table_with_known_edges(table, tmp_path):
    """Only the world model is trained, briefly: a column in tiny units is no constant."""
    because("factors", table, *ROLES, "-o", tmp_path / "f.yaml")
    settings = TINY | {"energy_steps": 0, "check_steps": 0, "behaviour_steps": 0, "value_steps": 0}
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    edges = ("--force", "lamp->x", "--forbid", "push -> lamp")
    out = tmp_path / "fitted"
    command = ("fit", table, "--factors", tmp_path / "f.yaml", "-o", out, "--seeds", 1, *options, *edges)
    result = json.loads(because(*command, "--json").stdout)
    assert set(result["graph"]["x"]) == {"x", "lamp", "push"}
    assert "push" not in result["graph"]["lamp"]
    asked = json.loads((out / "fit.json").read_text())["asked"]
    assert (asked["force"], asked["forbid"]) == ([["lamp", "x"]], [["push", "lamp"]])
    assert next(row for row in result["accuracy"] if row["factor"] == "x")["value"] > 0.9
    assert (result["transitions"], result["notes"]) == (400, [])
    refused = because(*command[:-1], "push->x", "--resume", code=2)
    assert "differs in forbid" in refused.stderr
    data, columns = load(out / "datasets/own/log-v0"), {"state": ["x", "lamp"], "action": ["push"], "episode": "run"}
    assert load(table, factors=data.factors, **columns).sha256() == data.sha256()


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        (441, ("--force", "lamp->y"), "'lamp' -> 'y' is unknown"),
        (441, ("--force", "push->x", "--forbid", "push->x"), "both forced and forbidden"),
        (441, ("--set", "mask=full", "--forbid", "push->x"), "full mask"),
        (210, (), "has 19 episodes"),
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
    assert load_model(tmp_path / "moved").seeds == (0, 1)


CARTPOLE = {
    "position": {"position", "speed"},
    "speed": {"speed", "angle", "push"},
    "angle": {"angle", "spin"},
    "spin": {"angle", "spin", "push"},
}
"""What the equations of the cart and its pole say: positions follow their speeds, and speeds the push and the pole's
weight. Exactly, spin also moves the cart (spin^2 sin angle), in these data by 1/10,000 of what a push does."""


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    """The example's log and the factors proposed for it."""
    module_spec = importlib.util.spec_from_file_location("collect", REPOSITORY / "examples/collect_cartpole.py")
    example = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(example)
    folder = tmp_path_factory.mktemp("cartpole")
    example.collect(folder / "cartpole.hdf5", episodes=40)
    because("factors", folder / "cartpole.hdf5", "-o", folder / "factors.yaml")
    return folder / "cartpole.hdf5"


@pytest.mark.slow
def test_cartpole_has_the_graph_of_its_equations(cartpole, tmp_path):
    log, spec = read_log(cartpole), FactorSpec.from_file(cartpole.parent / "factors.yaml")
    write_dataset(prepare_log(log, add_action_codes(log, spec)), tmp_path / "data")
    data = load(tmp_path / "data")
    mask = discover(data, batches=0)
    sure = {(row["from"], row["to"]) for row in mask.rows() if row["status"] in ("established", "forced")}
    assert {target: {source for source, effect in sure if effect == target} for target in mask.targets} == CARTPOLE
    assert mask.kept.sum() < mask.kept.size  # what is explained without doubt excludes the rest


@pytest.mark.long
def test_fit_of_cartpole_gives_graph_accuracy_and_policy(cartpole, tmp_path):
    settings = TINY | {"world_steps": 800, "hidden": 32, "batch": 64}
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    out = tmp_path / "fitted"
    command = ("fit", cartpole, "--factors", cartpole.parent / "factors.yaml", "-o", out, "--seeds", 1)
    result = json.loads(because_process(*command, *options, "--json").stdout)
    assert {target: set(causes) for target, causes in result["graph"].items()} == CARTPOLE
    assert min(row["value"] for row in result["accuracy"]) > 0.9
    assert result["uncertainty"]["mixed"] > result["uncertainty"]["held_out"]
    agent = load_policy(out)
    pushes = agent.act(np.zeros((2, 4)), np.full(1, 0.5), 80)
    assert pushes.shape == (2, 1)
    assert np.isin(pushes, (0, 1)).all()


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
