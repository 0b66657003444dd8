"""The table of a sweep, and the comparison of two sets of results."""

import json

import pytest
from scipy import stats

from because_rl.errors import BecauseError
from because_rl.experiments.grid.compare import Runs, compare, read_results, write_table
from because_rl.experiments.grid.runner import Job, cell_file, sweep
from tests.experiments.small_sweep import SmallCompute, small_jobs
from tests.experiments.support import command, tables


def test_the_table_merges_groups_of_seeds(tmp_path):
    head = {"label": "m", "dataset": "because/unlock-medium-v1", "split": "O", "episodes": 4, "spurious": 1}
    head |= {"recipe": {"world": "unlock", "behaviour": "medium"}}
    jobs = [Job(name, {name: head | {"seeds": seeds}}) for name, seeds in (("a", [2, 3]), ("b", [0, 1]), ("c", [4]))]
    results = {
        "a": {"per_seed": [0.5, 1.0], "steps": 4.0, "outcomes": ["1100", "1111"]},
        "b": {"per_seed": [0.0, 0.5], "steps": 10.0, "outcomes": ["0000", "0011"]},
    }
    for job in jobs[:2]:
        sweep([job], lambda job, missing: [(job.key, results[job.key])], tmp_path, workers=0)
    path, (row,) = write_table(jobs, tmp_path)
    assert path == tmp_path / "table.json"
    assert (row["task"], row["seeds"], row["per_seed"]) == ("unlock-O-medium", [0, 1, 2, 3], [0.0, 0.5, 0.5, 1.0])
    assert row["success"] == 0.5
    assert row["steps"] == (4.0 * 6 + 10.0 * 2) / 8
    assert json.loads((tmp_path / "table.json").read_text()) == {"rows": [row]}
    assert (
        (tmp_path / "table.csv")
        .read_text()
        .splitlines()[1]
        .startswith("m,unlock-O-medium,because/unlock-medium-v1,O,4,0.5,")
    )
    before = tables(tmp_path)
    write_table(jobs[::-1], tmp_path)
    assert tables(tmp_path) == before


def test_compare_by_hand():
    a = {"x": Runs([0.9, 0.8, 0.7]), "y": Runs([0.5, 0.5], ["1100", "1010"]), "z": Runs([0.1, 0.2])}
    b = {"x": Runs([0.1, 0.3, 0.2]), "y": Runs([0.5], ["0100"]), "w": Runs([1.0])}
    result = compare(a, b)
    x, y = result["rows"]
    p = stats.ttest_ind([0.9, 0.8, 0.7], [0.1, 0.3, 0.2], equal_var=False, alternative="greater").pvalue
    assert (x["difference"], x["p"], x["p_holm"], x["paired_p"]) == (pytest.approx(0.6), pytest.approx(p), x["p"], None)
    d = stats.ttest_1samp([1.0, -0.5, 0.5, 0.0], 0, alternative="greater").pvalue
    assert (y["p"], y["paired_p"], y["paired_p_holm"]) == (None, pytest.approx(d), pytest.approx(d))
    assert (result["only_a"], result["only_b"]) == (["z"], ["w"])
    assert (result["overall"]["higher"], result["overall"]["better"], result["overall"]["tasks"]) == (1, 1, 2)
    assert result["overall"]["probability_of_improvement"]["value"] == pytest.approx(0.75)
    both = compare({"x": a["x"], "v": a["x"]}, {"x": b["x"], "v": b["x"]}, "two-sided")
    assert both["rows"][0]["p_holm"] == pytest.approx(2 * both["rows"][0]["p"])
    with pytest.raises(BecauseError, match="no task in common"):
        compare({"z": a["z"]}, b)


def test_compare_from_the_command_line(tmp_path):
    jobs, folder = small_jobs(14), tmp_path / "r"
    sweep(jobs, SmallCompute(folder), folder, workers=0)
    write_table(jobs, folder)
    rows = command("compare", f"{folder}:m0", f"{folder / 'table.json'}:m1", "--json").json["rows"]
    assert [row["task"] for row in rows] == ["walk-I-d0", "walk-I-d1", "walk-O-d0", "walk-O-d1"]
    assert all(row["paired_p"] is not None for row in rows)
    shown = command("compare", f"{folder}:m0", f"{folder}:m1")
    assert shown.code == 0
    assert "walk-O-d1" in shown.text
    assert "over 4 tasks" in shown.text
    assert "walk-I-d0 (m3)" in read_results(folder)
    one = read_results(cell_file(folder, "tiny-0000-I"))
    assert list(one) == ["walk-I-d0"]
    assert one["walk-I-d0"].outcomes == SmallCompute(folder).result("tiny-0000-I")["outcomes"]
    for a, message in (
        (folder, "RESULTS:METHOD"),
        (f"{folder}:m9", "no results of m9"),
        (tmp_path / "x", "no results in"),
    ):
        refused = command("compare", a, f"{folder}:m1")
        assert refused.code == 2
        assert message in refused.stderr


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "3",
        '{"rows": [3]}',
        '{"rows": [{"task": "x"}]}',
        '{"rows": [{"per_seed": [1.0]}]}',
        '{"rows": [{"task": "x", "per_seed": ["1"]}]}',
        '{"rows": [{"task": "x", "per_seed": []}]}',
        '{"rows": [{"task": "x", "per_seed": [1.0]}, {"task": "x", "per_seed": [1.0]}]}',
        '{"rows": [{"task": "x", "per_seed": [1.0], "outcomes": ["12"]}]}',
        '{"rows": [{"task": "x", "per_seed": [1.0], "outcomes": ["10", "1"]}]}',
        '{"rows": []}',
        "{",
    ],
)
def test_files_that_are_no_results_are_refused(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(BecauseError, match=r"t\.json"):
        read_results(tmp_path / "t.json")
