"""The paper's experiments: numbers from hand-made cells, which trainings they share, and a small real one."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from because_rl.envs.tasks import make_batch, world_class
from because_rl.errors import BecauseError
from because_rl.evaluation.mismatch import episodic_loss
from because_rl.evaluation.oracle_unlock import _unlock_model
from because_rl.evaluation.rollout import layouts
from because_rl.experiments.grid.cells import find_cells, missing_jobs
from because_rl.experiments.grid.compute import TrainAndEvaluate
from because_rl.experiments.grid.grid import Grid
from because_rl.experiments.grid.runner import cell_file
from because_rl.experiments.paper import scale as scales
from because_rl.experiments.paper.catalogue import EXPERIMENTS, select_experiments, write_all
from because_rl.experiments.paper.experiment import check_same_data, merge_jobs, write_experiment
from because_rl.experiments.paper.measure import Measure
from because_rl.experiments.paper.numbers import paper_numbers, paper_success
from because_rl.experiments.paper.scale import TINY, Scale, make_scale
from because_rl.experiments.paper.success import BASELINES, TASKS
from because_rl.io import write_json
from because_rl.planning.value_iteration import ValueIteration
from tests.experiments.support import SMALL as SMALL_SETTINGS
from tests.experiments.support import command

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
    """Finished cells where `rates` of the head gives success rates; of ten scenes the first ones are solved."""
    cells = {}
    for key, head in ((key, head) for job in jobs for key, head in job.cells.items()):
        per_seed = rates(head) if "method" in head else None  # the oracle planner has none
        if per_seed is not None:
            outcomes = ["1" * round(10 * rate) + "0" * (10 - round(10 * rate)) for rate in per_seed]
            cells[key] = {**head, "per_seed": per_seed, "outcomes": outcomes, "success": float(np.mean(per_seed))}
    return cells


def rates_by_hand(head):
    return RATES.get((head["method"], head["recipe"]["world"], head["split"]))


def read_table(text, heading=None):
    """Rows of the first Markdown table (after a heading), by the first column."""
    lines = (text if heading is None else text[text.index(heading) :]).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}


# The paper's numbers ------------------------------------------------------------------------------------


def test_paper_numbers_are_complete_and_its_misprint_is_corrected():
    numbers = paper_numbers()
    for method in (*BASELINES, "because"):
        assert set(numbers["overall"][method]) == {*TASKS, "Overall-I", "Overall-O"}
    ours = [paper_success("overall", "because", task).mean for task in TASKS if "-I-" in task]
    assert np.mean(ours) == pytest.approx(numbers["overall"]["because"]["Overall-I"][0], abs=0.06)
    assert paper_success("overall", "cdl", "lift-I-random").mean == 19.2
    assert paper_success("ablation", "because", "lift-I-random").mean == 33.8
    assert paper_success("overall", "because-paper", "lift-I-random") is None


# Tables ------------------------------------------------------------------------------------------------


def test_the_visual_table_joins_the_datasets():
    scale = replace(SMALL, visual_draws=(0, 1, 2))
    table = EXPERIMENTS["table-visual"]
    jobs = table.jobs(scale)
    assert {job.cells[key]["recipe"]["visual"] for job in jobs for key in job.cells} == {True}
    rates = {"because": [0.9, 0.8, 1.0], "mopo": [0.1, 0.2, 0.0]}
    cells = hand_made(jobs, lambda head: [rates[head["method"]][head["recipe"]["seed"]]] if "split" in head else None)
    read = {"frames": 9, "read": {"all": 1.0}, "rollouts": {"1": {"all": 0.9}, "8": {"all": 0.8}}}
    recovery = {"splits": {"I": read, "O": read}, "edges": {"f1": 0.96}}
    measured = [(k, head) for job in jobs for k, head in job.cells.items() if head.get("measure") == "recovery"]
    cells |= {key: {**head, "recovery": recovery} for key, head in measured}
    product = table.make(scale, jobs, cells)
    half = stats.t.ppf(0.975, 2) * 10 / np.sqrt(3)
    row = read_table(product.text)["unlock-O-medium"]
    assert row == {"MOPO": f"10.0 ± {half:.1f}", "BECAUSE": f"**90.0 ± {half:.1f}**"}
    assert read_table(product.text, "## Beside the paper")["unlock-O-medium"]["BECAUSE"] == "90.0 / 71.6"
    factors = read_table(product.text, "## Factors read")["medium"]
    assert (factors["8 steps"], factors["edge F1"]) == ("0.800 (0.800)", "0.960 (0.960)")
    assert len(product.tables["factors"]) == 6


def test_table_by_hand():
    jobs = EXPERIMENTS["table-overall"].jobs(SMALL)
    cells = hand_made(jobs, rates_by_hand)
    product = EXPERIMENTS["table-overall"].make(SMALL, jobs, cells)
    success = read_table(product.text)
    half = stats.t.ppf(0.975, 2) * 10 / np.sqrt(3)  # of rates that are 10 points apart
    assert success["unlock-O-medium"] == {"MOPO": f"10.0 ± {half:.1f}", "BECAUSE": f"**90.0 ± {half:.1f}**"}
    assert success["crash-O-medium"]["MOPO"] == f"**90.0 ± {half:.1f}**"
    assert success["unlock-I-medium"] == {"MOPO": "**100.0 ± 0.0**", "BECAUSE": "**100.0 ± 0.0**"}  # both are best
    assert success["Overall-O"]["BECAUSE"].startswith("70.0 ±")
    assert success["Overall-O"]["BECAUSE"].endswith("(2)")  # and not bold: seven tasks are missing
    assert "crash-I-medium" not in success

    rows = {(row["task"], row["method"]): row for row in product.rows}
    p = {
        t: stats.ttest_ind(RATES["because", t, "O"], RATES["mopo", t, "O"], equal_var=False).pvalue
        for t in ("unlock", "crash")
    }
    assert rows["unlock-O-medium", "mopo"]["because_p"] == pytest.approx(p["unlock"])
    assert rows["unlock-O-medium", "mopo"]["because_p_holm"] == pytest.approx(3 * p["unlock"])  # the least of three
    assert rows["unlock-I-medium", "mopo"]["because_p"] == 1.0
    assert rows["crash-O-medium", "mopo"]["because_p"] == pytest.approx(p["crash"])
    assert rows["crash-O-medium", "mopo"]["because_difference"] == pytest.approx(-0.4)
    assert rows["Overall-O", "mopo"]["because_p_holm"] is None  # means are not counted
    assert (
        "significantly better in 1 of 3 pairs (1 with Holm's adjustment), significantly worse in 1 (1)" in product.text
    )
    assert "164 of 180" in product.text

    judged = read_table(product.text, "## Is BECAUSE better?")
    assert judged["unlock-O-medium"]["MOPO"].endswith("**")
    assert judged["crash-O-medium"]["MOPO"].endswith("‡")
    beside = read_table(product.text, "## Beside the paper")
    assert beside["unlock-O-medium"] == {"MOPO": "10.0 / 39.5", "BECAUSE": "90.0 / 68.8"}
    assert beside["Overall-O"]["BECAUSE"] == "70.0 / 43.0"
    least = read_table(product.text, "## The least of the seeds")
    assert least["unlock-O-medium"] == {"oracle planner": "-", "MOPO": "0", "BECAUSE": "80"}
    together = read_table(product.text, "## All tasks together")["MOPO"]
    assert (together["tasks"], together["P(BECAUSE is better)"][:4]) == ("3", "0.50")


def test_pairs_are_draws_where_seeds_have_data_of_their_own():
    """Both methods are better on the same draws, which Welch's test cannot see."""
    scale = replace(SMALL, grid=replace(SMALL.grid, worlds=("unlock",), own_data=1000))
    rates = {"because": [0.3, 0.7, 1.0], "mopo": [0.2, 0.5, 0.9]}

    def of_draw(head):
        (seed,) = head["seeds"]
        return [rates[head["method"]][seed]]

    jobs = EXPERIMENTS["table-overall"].jobs(scale)
    product = EXPERIMENTS["table-overall"].make(scale, jobs, hand_made(jobs, of_draw))
    row = {(row["task"], row["method"]): row for row in product.rows}["unlock-O-medium", "mopo"]
    paired = stats.ttest_rel(rates["because"], rates["mopo"]).pvalue
    assert row["because_p_paired"] == pytest.approx(paired)
    assert paired < 0.1 < 0.5 < row["because_p"]
    assert (row["seeds"], row["worst"]) == (3, 0.2)
    assert "a dataset, a graph and scenes of its own" in product.text
    assert all(experiment.jobs(scale) is not None for experiment in EXPERIMENTS.values())


def test_results_from_two_versions_of_a_dataset_are_refused():
    cells = {key: {"dataset": "because/unlock-medium-v1", "data_sha256": key[0]} for key in ("a1", "a2", "b1")}
    with pytest.raises(BecauseError, match="from 2 versions of it: a1, b1"):
        check_same_data(cells, draft=False)
    assert check_same_data(cells, draft=True) == ["Results of because/unlock-medium-v1 are from 2 versions of it."]
    del cells["b1"]
    assert check_same_data(cells, draft=False) == []


def test_rank_correlation_with_the_paper():
    scale = replace(SMALL, grid=replace(SMALL.grid, policies=("random", "medium", "expert")), only=("because",))
    jobs = EXPERIMENTS["table-overall"].jobs(scale)
    theirs = {task: paper_success("overall", "because", task).mean for task in TASKS}

    def upside_down(head):
        task = f"{head['recipe']['world']}-{head['split']}-{head['recipe']['behaviour']}"
        return [1 - theirs[task] / 100] * 3

    product = EXPERIMENTS["table-overall"].make(scale, jobs, hand_made(jobs, upside_down))
    last = read_table(product.text[product.text.index("| method | tasks |") :])
    assert last["BECAUSE"] == {"tasks": "12", "rank correlation with the paper": "-1.00"}


def test_files_without_any_cells(tmp_path):
    done = write_all(
        ["table-overall", "table-ablation", "fig-samples", "fig-mismatch", "fig-ebm"], SMALL, tmp_path, tmp_path / "out"
    )
    assert all(row["cells"] == 0 and row["missing"] > 0 for row in done)
    assert "Nothing yet." in (tmp_path / "out" / "table-overall.md").read_text()
    assert not list((tmp_path / "out").glob("*.svg"))


# Cells -------------------------------------------------------------------------------------------------


def test_a_cell_of_another_version_counts_on_request_only(tmp_path):
    jobs = EXPERIMENTS["table-overall"].jobs(SMALL)
    cells = hand_made(jobs, rates_by_hand)
    for n, (key, cell) in enumerate(cells.items()):
        old = {**cell, "code": "older", "config": {**cell["config"], "gone": 1}, "provenance": {"when": "2024"}}
        old["dataset"] = cell["dataset"].replace("-v1", "-v0")
        write_json(cell_file(tmp_path, f"{key}-older" if n else key), old if n else cell)
    assert list(find_cells(jobs, tmp_path)) == list(cells)[:1]
    of_any_version = find_cells(jobs, tmp_path, any_code=True)
    assert list(of_any_version) == list(cells)
    assert {cell["dataset"] for cell in of_any_version.values()} == {cell["dataset"] for cell in cells.values()}
    assert missing_jobs(jobs, tmp_path) == jobs
    never_computed = {key for job in jobs for key in job.cells} - set(cells)
    assert never_computed
    assert {key for job in missing_jobs(jobs, tmp_path, any_code=True) for key in job.cells} == never_computed
    other = [key for key, cell in cells.items() if cell["method"] == "mopo"][-1]
    write_json(
        cell_file(tmp_path, f"{other}-older"),
        {**cells[other], "code": "older", "config": {**cells[other]["config"], "members": 99}},
    )
    assert other not in find_cells(jobs, tmp_path, any_code=True)
    assert {key for job in missing_jobs(jobs, tmp_path, any_code=True) for key in job.cells} == never_computed | {other}
    write_experiment("table-overall", EXPERIMENTS["table-overall"], SMALL, jobs, of_any_version, tmp_path)
    text = (tmp_path / "table-overall.md").read_text()
    assert f"A draft: {len(cells) - 1} results were computed by other versions of the source" in text
    assert text.splitlines()[0].endswith("(draft)")


def test_experiments_share_their_trainings():
    jobs = {name: EXPERIMENTS[name].jobs(Scale()) for name in EXPERIMENTS}
    job_keys = {name: {job.key for job in named} for name, named in jobs.items()}
    assert len(job_keys["fig-samples"]) == 2 * 3 * 4  # methods, worlds, ratios
    assert len(job_keys["fig-samples"] & job_keys["table-overall"]) == 6  # the whole data
    assert len(job_keys["fig-spurious"] & job_keys["table-overall"]) == 6  # level 1
    assert job_keys["table-mismatch"] < job_keys["table-overall"]
    assert len(job_keys["table-mismatch"]) == 6
    assert len(job_keys["table-ablation"] & job_keys["table-overall"]) == 9
    merged = merge_jobs(*jobs.values())
    assert len({job.key for job in merged}) == len(merged) == len(set().union(*job_keys.values()))
    one = next(job for job in merged if job.key in job_keys["table-mismatch"])
    measures = [cell["measure"] for cell in one.cells.values() if "measure" in cell]
    assert measures.count("mismatch") == 2
    assert len(one.cells) - len(measures) == 2  # splits, without subcases: no table shows them
    assert job_keys["fig-energy"] < job_keys["table-overall"]
    assert len(job_keys["fig-energy"]) == 9


# Figures -----------------------------------------------------------------------------------------------


def test_sensitivity_by_hand():
    scale = replace(SMALL, ratios=(0.5, 1.0), knob_policies=("medium",))
    jobs = EXPERIMENTS["fig-samples"].jobs(scale)

    def rates(head):
        whole = head["recipe"]["episodes"] in (200, 1000)
        base = rates_by_hand(head)
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
    for key, head in ((key, head) for job in jobs for key, head in job.cells.items()):
        failing = head["split"] == "I" and head["method"] == "mopo"
        cells[key] = {
            **head,
            "outcomes": ["000", "00"] if failing else ["100", "10"],
            "loss": [[1.0, 3.0, 5.0], [2.0, 4.0]],
        }
    scale = replace(SMALL, mismatch_policies=("medium",))
    product = EXPERIMENTS["table-mismatch"].make(scale, jobs, cells)
    rows = {(row["method"], row["split"]): row for row in product.rows}
    row = rows["because", "O"]  # 1 and 2 succeed, 3, 4 and 5 fail: one of the ten ways to choose two of five
    assert (row["succeeded"], row["failed"], row["u"]) == (2, 3, 0.0)
    assert row["p"] == pytest.approx(0.1)
    assert row["w1"] == pytest.approx(4.0 - 1.5)
    assert rows["mopo", "I"]["p"] is None
    assert rows["mopo", "I"]["loss_succeeded"] is None
    assert EXPERIMENTS["fig-mismatch"].make(scale, jobs, cells).figure is not None


def test_episodic_loss_of_a_model_in_which_nothing_moves():
    """The first seed plans in the true world and always moves; the second always takes an action without effect."""
    factors, horizon = world_class("unlock").make_factors(1), world_class("unlock").horizon
    planner = ValueIteration(_unlock_model, factors, horizon)
    idle = next(
        n
        for n, code in enumerate(np.asarray(factors.codes, np.float32))
        if all((_unlock_model(s[None], code[None]).state[0] == s).all() for s in first_states())
    )
    agent = SimpleNamespace(
        seeds=(0, 1),
        factors=factors,
        parameters=jnp.zeros(2),
        learned=SimpleNamespace(successor=lambda p, s, a: (s + p, jnp.log(0.9), 0.0)),
    )
    agent.start = lambda worlds, seed: agent
    agent.act = lambda state, goal, left: np.stack([planner.act(state[0], goal[0], left), np.full(len(goal[1]), idle)])
    losses = episodic_loss(agent, "unlock", "O", 6)
    assert losses.success.tolist() == [[True] * 6, [False] * 6]
    np.testing.assert_allclose(losses.loss[0], -np.log(0.1), rtol=1e-4)
    np.testing.assert_allclose(losses.loss[1], -np.log(0.9), rtol=1e-4)
    np.testing.assert_array_equal(losses.wrong, [[1.0] * 6, [0.0] * 6])


def first_states():
    batch = make_batch("unlock", "O")
    return batch.reset(layouts("unlock", "O", 6)).state


# The command -------------------------------------------------------------------------------------------


def test_wrong_names_are_refused():
    for wrong, message in (
        (lambda: select_experiments("table-overal"), "table-overall"),
        (lambda: make_scale(methods=["mopoo"]), "mopo"),
        (lambda: make_scale(worlds=["moon"]), "unlock"),
        (lambda: make_scale(policies=["best"]), "expert"),
    ):
        with pytest.raises(BecauseError, match=message):
            wrong()


def test_the_help_names_every_experiment():
    from because_rl.cli.paper import NAMES

    assert NAMES.split(", ") == list(EXPERIMENTS)


@pytest.mark.slow
def test_from_nothing_to_files_and_nothing_twice(tmp_path, root, compile_cache, monkeypatch):
    small = replace(TINY, settings={"ccil": SMALL_SETTINGS}, grid=replace(TINY.grid, chunk=20, ratios=(0.1,)))
    monkeypatch.setattr(scales, "TINY", replace(small, graph_shares={"unlock": 0.1}, oracle_episodes={"unlock": 5}))

    def run(name, *more):
        paper = ("paper", name, "--tiny", "--results", tmp_path / "r", "--workers", 0, "--worlds", "unlock")
        ended = command(*paper, "--methods", "ccil", "--compile-cache", compile_cache, "--root", root, "--json", *more)
        return ended.json["made"]

    for name in ("table-overall", "table-oracle", "fig-graphs", "fig-envs"):
        (made,) = run(name)
        assert made["missing"] == 0
        for file in made["files"]:
            assert Path(file).stat().st_size > 0
        assert ("fig" in name) == (len(made["files"]) == 4)
        assert json.loads(Path(made["files"][0]).with_suffix(".json").read_text())["provenance"]["revision"]
    with open(tmp_path / "r" / "paper" / "table-oracle.csv") as file:
        assert [float(row["success"]) for row in csv.DictReader(file)] == [1.0, 1.0]
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "r" / "cells").iterdir()}
    (again,) = run("table-overall")
    (not_run,) = run("table-overall", "--no-run")
    assert again["cells"] == not_run["cells"] == 4  # two of them of the oracle planner
    assert before == {file: file.stat().st_mtime_ns for file in (tmp_path / "r" / "cells").iterdir()}
    assert not list((root / "sweep").glob("ccil-*"))


def test_a_run_is_kept_until_its_last_cell_is_there(tmp_path):
    scale = replace(TINY, only=("td3bc",))
    job, *_ = EXPERIMENTS["table-overall"].jobs(scale)  # the others are of the oracle planner
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
