"""The paper's experiments: numbers by hand from hand-made cells, which trainings they share, and a tiny real one."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from because_rl.cli.main import app
from because_rl.envs.tasks import world_class
from because_rl.errors import BecauseError
from because_rl.evaluation.mismatch import episodic_loss
from because_rl.evaluation.oracle_unlock import _unlock_model
from because_rl.experiments.grid.cells import find, lacking
from because_rl.experiments.grid.grid import Grid, TrainAndEvaluate
from because_rl.experiments.grid.runner import cell_file
from because_rl.experiments.paper import study
from because_rl.experiments.paper.catalogue import EXPERIMENTS, chosen, write_all
from because_rl.experiments.paper.measure import Measure
from because_rl.experiments.paper.numbers import paper_numbers, reported
from because_rl.experiments.paper.scale import TINY, Scale, make_scale
from because_rl.experiments.paper.success import BASELINES, TASKS
from because_rl.io import write_json
from because_rl.planning.value_iteration import ValueIteration

SMALL = Scale(
    Grid(worlds=("unlock", "crash"), policies=("medium",), subcases=False, seeds=3, episodes=10),
    only=("because", "mopo"),
)
RATES = {
    ("because", "unlock", "O"): [0.9, 0.8, 1.0],
    ("mopo", "unlock", "O"): [0.1, 0.2, 0.0],
    ("because", "crash", "O"): [0.5, 0.6, 0.4],
    ("mopo", "crash", "O"): [0.9, 1.0, 0.8],
    ("because", "unlock", "I"): [1.0, 1.0, 1.0],
    ("mopo", "unlock", "I"): [1.0, 1.0, 1.0],
}


def hand_made(jobs, rates):
    """Cells with these rates of success, where there are any; of ten scenes the first ones are solved."""
    cells = {}
    for key, told in ((key, told) for job in jobs for key, told in job.cells.items()):
        each = rates(told)
        if each is not None:
            outcomes = ["1" * round(10 * rate) + "0" * (10 - round(10 * rate)) for rate in each]
            cells[key] = {**told, "per_seed": each, "outcomes": outcomes, "success": float(np.mean(each))}
    return cells


def table_of(text, heading=None):
    """Rows of the first Markdown table (after a heading), by the first column."""
    lines = (text if heading is None else text[text.index(heading) :]).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}


# What the paper says -----------------------------------------------------------------------------------


def test_the_paper_s_numbers_are_whole_and_its_slip_is_put_right():
    numbers = paper_numbers()
    for method in (*BASELINES, "because"):
        assert set(numbers["overall"][method]) == {*TASKS, "Overall-I", "Overall-O"}
    ours = [reported("overall", "because", task).mean for task in TASKS if "-I-" in task]
    assert np.mean(ours) == pytest.approx(numbers["overall"]["because"]["Overall-I"][0], abs=0.06)
    assert reported("overall", "cdl", "lift-I-random").mean == 19.2
    assert reported("ablation", "because", "lift-I-random").mean == 33.8
    assert reported("overall", "because-paper", "lift-I-random") is None


# Tables ------------------------------------------------------------------------------------------------


def test_table_by_hand():
    jobs = EXPERIMENTS["table-overall"].jobs(SMALL)
    cells = hand_made(jobs, lambda told: RATES.get((told["method"], told["recipe"]["world"], told["split"])))
    product = EXPERIMENTS["table-overall"].make(SMALL, jobs, cells)
    success = table_of(product.text)
    half = stats.t.ppf(0.975, 2) * 10 / np.sqrt(3)  # of rates that are 10 points apart
    assert success["unlock-O-medium"] == {"MOPO": f"10.0 ± {half:.1f}", "BECAUSE": f"**90.0 ± {half:.1f}**"}
    assert success["crash-O-medium"]["MOPO"] == f"**90.0 ± {half:.1f}**"
    assert success["unlock-I-medium"] == {"MOPO": "**100.0 ± 0.0**", "BECAUSE": "**100.0 ± 0.0**"}  # both are best
    assert success["Overall-O"]["BECAUSE"].startswith("70.0 ±")
    assert success["Overall-O"]["BECAUSE"].endswith("(2)")  # and not bold: seven tasks are missing
    assert "crash-I-medium" not in success

    rows = {(row["task"], row["method"]): row for row in product.rows}
    p = {
        t: stats.ttest_ind(
            RATES["because", t, "O"], RATES["mopo", t, "O"], equal_var=False, alternative="greater"
        ).pvalue
        for t in ("unlock", "crash")
    }
    assert rows["unlock-O-medium", "mopo"]["because_p"] == pytest.approx(p["unlock"])
    assert rows["unlock-O-medium", "mopo"]["because_p_holm"] == pytest.approx(3 * p["unlock"])  # the least of three
    assert rows["unlock-I-medium", "mopo"]["because_p"] == 0.5
    assert rows["crash-O-medium", "mopo"]["because_p"] == pytest.approx(p["crash"])
    assert rows["crash-O-medium", "mopo"]["because_p_worse"] == pytest.approx(1 - p["crash"])
    assert rows["Overall-O", "mopo"]["because_p_holm"] is None  # means are not counted
    assert (
        "significantly better in 1 of 3 pairs (1 with Holm's adjustment), significantly worse in 1 (1)" in product.text
    )
    assert "164 of 180" in product.text

    judged = table_of(product.text, "## Is BECAUSE better?")
    assert judged["unlock-O-medium"]["MOPO"].endswith("**")
    assert judged["crash-O-medium"]["MOPO"].endswith("†")
    beside = table_of(product.text, "## Beside the paper")
    assert beside["unlock-O-medium"] == {"MOPO": "10.0 / 39.5", "BECAUSE": "90.0 / 68.8"}
    assert beside["Overall-O"]["BECAUSE"] == "70.0 / 43.0"


def test_rank_correlation_with_the_paper():
    scale = replace(SMALL, grid=replace(SMALL.grid, policies=("random", "medium", "expert")), only=("because",))
    jobs = EXPERIMENTS["table-overall"].jobs(scale)
    theirs = {task: reported("overall", "because", task).mean for task in TASKS}

    def upside_down(told):
        task = f"{told['recipe']['world']}-{told['split']}-{told['recipe']['behaviour']}"
        return [1 - theirs[task] / 100] * 3

    product = EXPERIMENTS["table-overall"].make(scale, jobs, hand_made(jobs, upside_down))
    last = table_of(product.text[product.text.index("| method | tasks |") :])
    assert last["BECAUSE"] == {"tasks": "12", "rank correlation with the paper": "-1.00"}


def test_nothing_yet_is_said_so(tmp_path):
    done = write_all(
        ["table-overall", "table-ablation", "fig-samples", "fig-mismatch", "fig-ebm"], SMALL, tmp_path, tmp_path / "out"
    )
    assert all(row["cells"] == 0 and row["missing"] > 0 for row in done)
    assert "Nothing yet." in (tmp_path / "out" / "table-overall.md").read_text()
    assert not list((tmp_path / "out").glob("*.svg"))


# Cells -------------------------------------------------------------------------------------------------


def test_a_result_of_another_version_counts_only_when_asked_for(tmp_path):
    jobs = EXPERIMENTS["table-overall"].jobs(SMALL)
    cells = hand_made(jobs, lambda told: RATES.get((told["method"], told["recipe"]["world"], told["split"])))
    for n, (key, cell) in enumerate(cells.items()):
        old = {**cell, "code": "older", "config": {**cell["config"], "gone": 1}, "provenance": {"when": "2024"}}
        write_json(cell_file(tmp_path, f"{key}-older" if n else key), old if n else cell)
    assert list(find(jobs, tmp_path)) == list(cells)[:1]
    found = find(jobs, tmp_path, any_code=True)
    assert list(found) == list(cells)
    assert lacking(jobs, tmp_path) == jobs
    nobodys = {key for job in jobs for key in job.cells} - set(cells)
    assert nobodys
    assert {key for job in lacking(jobs, tmp_path, any_code=True) for key in job.cells} == nobodys
    other = [key for key, cell in cells.items() if cell["method"] == "mopo"][-1]
    write_json(
        cell_file(tmp_path, f"{other}-older"),
        {**cells[other], "code": "older", "config": {**cells[other]["config"], "members": 99}},
    )
    assert other not in find(jobs, tmp_path, any_code=True)
    assert {key for job in lacking(jobs, tmp_path, any_code=True) for key in job.cells} == nobodys | {other}
    study.write("table-overall", EXPERIMENTS["table-overall"], SMALL, jobs, found, tmp_path)
    assert f"{len(cells) - 1} results were computed by another version" in (tmp_path / "table-overall.md").read_text()


def test_experiments_share_their_trainings():
    jobs = {name: EXPERIMENTS[name].jobs(Scale()) for name in EXPERIMENTS}
    of = {name: {job.key for job in mine} for name, mine in jobs.items()}
    assert len(of["fig-samples"]) == 2 * 3 * 4  # methods, worlds, ratios
    assert len(of["fig-samples"] & of["table-overall"]) == 6  # the whole data
    assert len(of["fig-spurious"] & of["table-overall"]) == 6  # level 1
    assert of["table-mismatch"] < of["table-overall"]
    assert len(of["table-mismatch"]) == 6
    assert len(of["table-ablation"] & of["table-overall"]) == 9
    everything = study.merged(*jobs.values())
    assert len({job.key for job in everything}) == len(everything) == len(set().union(*of.values()))
    one = next(job for job in everything if job.key in of["table-mismatch"])
    assert sum(cell.get("measure") == "mismatch" for cell in one.cells.values()) == 2
    looks = [cell["measure"] for cell in one.cells.values() if "measure" in cell]
    assert len(one.cells) - len(looks) == 2  # splits, without subcases: no table shows them
    assert of["fig-energy"] < of["table-overall"]
    assert len(of["fig-energy"]) == 9


# Figures -----------------------------------------------------------------------------------------------


def test_knob_by_hand():
    scale = replace(SMALL, ratios=(0.5, 1.0), knob_policies=("medium",))
    jobs = EXPERIMENTS["fig-samples"].jobs(scale)

    def rates(told):
        whole = told["recipe"]["episodes"] in (200, 1000)
        base = RATES.get((told["method"], told["recipe"]["world"], told["split"]))
        return base if whole or base is None else [rate / 2 for rate in base]

    product = EXPERIMENTS["fig-samples"].make(scale, jobs, hand_made(jobs, rates))
    point = {(r["world"], r["split"], r["share"], r["method"]): r for r in product.rows}
    assert point["unlock", "O", 0.5, "because"]["success"] == pytest.approx(0.45)
    assert point["average", "O", 1.0, "because"]["success"] == pytest.approx(0.7)
    assert point["average", "O", 0.5, "mopo"]["success"] == pytest.approx(0.25)
    assert ("average", "I", 1.0, "because") not in point  # Crash is missing there
    assert point["unlock", "O", 1.0, "because"]["p"] < 0.01 < 0.99 < point["crash", "O", 1.0, "because"]["p"]
    assert len(product.figure.axes) == 6  # unlock, crash, average; I and O


def test_mismatch_by_hand():
    jobs = EXPERIMENTS["table-mismatch"].jobs(replace(SMALL, mismatch_policies=("medium",)))
    cells = {}
    for key, told in ((key, told) for job in jobs for key, told in job.cells.items()):
        failing = told["split"] == "I" and told["method"] == "mopo"
        cells[key] = {
            **told,
            "outcomes": ["000", "00"] if failing else ["100", "10"],
            "loss": [[1.0, 3.0, 5.0], [2.0, 4.0]],
        }
    scale = replace(SMALL, mismatch_policies=("medium",))
    product = EXPERIMENTS["table-mismatch"].make(scale, jobs, cells)
    rows = {(row["method"], row["split"]): row for row in product.rows}
    told = rows["because", "O"]  # 1 and 2 succeed, 3, 4 and 5 fail: one of the ten ways to choose two of five
    assert (told["succeeded"], told["failed"], told["u"]) == (2, 3, 0.0)
    assert told["p"] == pytest.approx(0.1)
    assert told["w1"] == pytest.approx(4.0 - 1.5)
    assert rows["mopo", "I"]["p"] is None
    assert rows["mopo", "I"]["loss_succeeded"] is None
    assert EXPERIMENTS["fig-mismatch"].make(scale, jobs, cells).figure is not None


def test_episodic_loss_of_a_model_in_which_nothing_moves():
    """The first seed plans in the true world and always moves; the second drops what it does not hold, for ever."""
    factors, horizon = world_class("unlock").make_factors(1), world_class("unlock").horizon
    planner = ValueIteration(_unlock_model, factors, horizon)
    idle = next(
        n
        for n, code in enumerate(np.asarray(factors.codes, np.float32))
        if all((_unlock_model(s[None], code[None]).state[0] == s).all() for s in still_states())
    )
    agent = SimpleNamespace(
        seeds=(0, 1),
        factors=factors,
        parameters=jnp.zeros(2),
        learned=SimpleNamespace(successor=lambda p, s, a: (s + p, jnp.log(0.9), 0.0)),
        begin=lambda worlds, seed: None,
        act=lambda state, goal, left: np.stack([planner.act(state[0], goal[0], left), np.full(len(goal[1]), idle)]),
    )
    told = episodic_loss(agent, "unlock", "O", 6)
    assert told.success.tolist() == [[True] * 6, [False] * 6]
    np.testing.assert_allclose(told.loss[0], -np.log(0.1), rtol=1e-4)
    np.testing.assert_allclose(told.loss[1], -np.log(0.9), rtol=1e-4)
    np.testing.assert_array_equal(told.wrong, [[1.0] * 6, [0.0] * 6])


def still_states():
    from because_rl.envs.tasks import make_batch
    from because_rl.evaluation.rollout import layouts

    batch = make_batch("unlock", "O")
    return batch.reset(layouts("unlock", "O", 6)).state


# The command -------------------------------------------------------------------------------------------


def test_wrong_names_are_refused():
    for wrong, told in (
        (lambda: chosen("table-overal"), "table-overall"),
        (lambda: make_scale(methods=["mopoo"]), "mopo"),
        (lambda: make_scale(worlds=["moon"]), "unlock"),
        (lambda: make_scale(policies=["best"]), "expert"),
    ):
        with pytest.raises(BecauseError, match=told):
            wrong()


def test_the_help_names_every_experiment():
    from because_rl.cli.paper import NAMES

    assert NAMES.split(", ") == list(EXPERIMENTS)


@pytest.mark.slow
def test_tiny_from_nothing_to_files_and_nothing_twice(tmp_path, root, monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "false")  # kept as it was when we leave

    def run(name, *more):
        told = ["paper", name, "--tiny", "--results", str(tmp_path / "r"), "--workers", "0", "--worlds", "unlock"]
        done = CliRunner().invoke(app, [*told, "--methods", "td3bc", "--root", str(root), "--json", *more])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["made"]

    for name in ("table-overall", "table-oracle", "fig-graphs", "fig-envs"):
        (made,) = run(name)
        assert made["missing"] == 0
        for file in made["files"]:
            assert Path(file).stat().st_size > 0
        assert ("fig" in name) == (len(made["files"]) == 4)
        assert json.loads(Path(made["files"][0]).with_suffix(".json").read_text())["provenance"]["revision"]
    out = tmp_path / "r" / "paper"
    with open(out / "table-oracle.csv") as file:
        assert [float(row["success"]) for row in csv.DictReader(file)] == [1.0, 1.0]
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "r" / "cells").iterdir()}
    (again,) = run("table-overall")
    (still,) = run("table-overall", "--no-run")
    assert again["cells"] == still["cells"] == 2
    assert before == {file: file.stat().st_mtime_ns for file in (tmp_path / "r" / "cells").iterdir()}
    assert not list((root / "sweep").glob("td3bc-*"))


def test_a_run_stays_until_nothing_more_is_wanted_of_it(tmp_path):
    scale = replace(TINY, only=("td3bc",))
    (job,) = EXPERIMENTS["table-overall"].jobs(scale)
    compute = Measure(TrainAndEvaluate(work=tmp_path / "work"), tmp_path, {job.key: (*job.cells, "more")})
    run = tmp_path / "work" / job.key
    run.mkdir(parents=True)
    for key in job.cells:
        write_json(cell_file(tmp_path, key), {})
    compute.tidy([job], tmp_path)
    assert run.exists()
    write_json(cell_file(tmp_path, "more"), {})
    compute.tidy([job], tmp_path)
    assert not run.exists()
