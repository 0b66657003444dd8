"""What carries the result: which switches there are on which world, the table and picture, a small real run."""

import json
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest

from because_rl.algorithms.registry import make_method
from because_rl.envs.tasks import WORLDS
from because_rl.errors import BecauseError
from because_rl.experiments import attribution
from because_rl.experiments.attribution import ALONE, PAPER, SWITCHES, Switch, entries, jobs, make_size, write_table
from because_rl.experiments.tuning import tune
from because_rl.experiments.tuning.development import develop_together
from because_rl.experiments.tuning.tune import Round
from because_rl.io import write_json
from tests.experiments.support import SMALL, command


@pytest.mark.parametrize("world", WORLDS)
def test_every_entry_is_another_config_and_the_ladder_ends_at_the_paper(world):
    listed = entries(world)
    configs = [
        json.dumps([e.method, asdict(make_method(e.method, e.settings, world).config)])
        for e in listed
        if e.settings is not None
    ]
    assert len(listed) == 1 + 2 * len(SWITCHES) + len(ALONE) + len(PAPER)
    first = next(s for s in SWITCHES if world in s.worlds)
    assert len(set(configs)) == len(configs) - 1, f"the ladder begins with the switch '{first.name}'"
    last = [e for e in listed if e.settings is not None][-1]
    assert (last.kind, last.method, dict(last.settings)) == ("ladder", "because-paper", {})
    cumulative = [e.settings for e in listed if e.kind == "ladder" and e.method == "because" and e.settings]
    for before, after in pairwise(cumulative):
        assert set(before.items()) - set(after.items()) in (set(), {("prediction", "gated-score")})


def test_where_a_world_has_no_votes_or_proposals_nothing_is_trained():
    unlock, lift = ({e.name: e.settings for e in entries(world)} for world in ("unlock", "lift"))
    assert unlock["mean vote"] is unlock["proposals and value see all"] is lift["no background rows"] is None
    assert lift["the paper's tests and thresholds"] is not None
    count = {world: len(jobs(make_size(worlds=(world,)))) for world in WORLDS}
    assert count == {"lift": 6 * 29, "crash": 6 * 33, "unlock": 6 * 25}


def test_sizes_come_from_a_grid_of_development_seeds(tmp_path):
    grid = tmp_path / "grid.yaml"
    grid.write_text("worlds: [unlock]\npolicies: [medium]\ndataset_seeds: [502]\nseeds: 2\nepisodes: 7\n")
    size = make_size(grid=str(grid))
    assert (size.worlds, size.policies, size.dataset_seeds, size.seeds, size.episodes) == (
        ("unlock",),
        ("medium",),
        (502,),
        2,
        7,
    )
    grid.write_text("dataset_seeds: [3]\n")
    with pytest.raises(BecauseError, match="dataset seed 3"):
        make_size(grid=str(grid))


# The table ---------------------------------------------------------------------------------------------

SMALL_ROUND = Round(worlds=("unlock",), policies=("medium",), given={"ccil": SMALL}, episodes=4, ratio=0.1)


@pytest.fixture
def two_switches(monkeypatch):
    """Two switches of a method that trains in no time; the second changes nothing on Unlock."""
    monkeypatch.setattr(attribution, "OURS", "ccil")
    monkeypatch.setattr(attribution, "SWITCHES", (_switch(greedy=False), _switch("crash", keep=0.5)))
    monkeypatch.setattr(attribution, "ALONE", (_switch(weight=1.0),))
    monkeypatch.setattr(attribution, "PAPER", ())
    monkeypatch.setattr(attribution, "TINY", SMALL_ROUND)


def _switch(*worlds, **settings):
    return Switch(" ".join(settings), settings, worlds or ("unlock",), "ccil")


def test_changes_are_paired_by_dataset_and_missing_ones_are_marked(two_switches, tmp_path):
    for job in jobs(SMALL_ROUND):
        for key, head in job.cells.items():
            seed = head["recipe"]["seed"]
            if head["settings"] == {"weight": 1.0} and seed == 501:
                continue
            rate = (0.5 if seed == 500 else 0.9) - 0.2 * (head["settings"] == {"greedy": False}) * (
                head["split"] == "O"
            )
            write_json(tmp_path / "cells" / f"{key}.json", {"per_seed": [rate], "held_out": None} | head)
    table = write_table(SMALL_ROUND, tmp_path)
    rows = {(row["kind"], row["name"]): row for row in table["rows"]}
    alone = rows["switch", "greedy"]
    assert alone["success_O"] == pytest.approx(0.5)
    assert [alone[f"change_O{end}"] for end in ("", "_low95", "_high95")] == pytest.approx([-0.2] * 3)
    assert rows["ladder", "greedy"]["success_O_low95"] < 0 < alone["change_I"] + 1
    assert rows["switch", "weight"]["datasets"] == 1
    assert (table["trainings"], table["cells"], table["missing"]) == (6, 12, 2)
    text = (tmp_path / "table.md").read_text()
    assert "| greedy | +0.0 ± 0.0 | -20.0 ± 0.0 |" in text
    assert "| weight | +0.0 (1) | +0.0 (1) |" in text
    assert "| keep | = | = |" in text
    assert "2 of 12 cells are missing." in text
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert len(lines) == 1 + len(table["rows"]) == 1 + 6
    picture = (tmp_path / "attribution.svg").read_text()
    assert all(name in picture for name in ("BECAUSE", "greedy", "weight", "split O", "Unlock"))


def test_a_small_attribution_trains_and_is_then_only_read(two_switches, tmp_path, root, compile_cache, monkeypatch):
    scored = []
    monkeypatch.setattr(tune, "develop_together", lambda *a: scored.append(a) or develop_together(*a))
    monkeypatch.setattr(attribution, "ALONE", ())
    monkeypatch.setattr(attribution, "TINY", replace(SMALL_ROUND, dataset_seeds=(500,), splits=("O",)))
    folder = tmp_path / "out" / "attribution"
    run = ("paper", "attribution", "--tiny", "-o", tmp_path / "out", "--compile-cache", compile_cache, "--workers", "0")
    result = command(*run, "--json").json
    assert (result["cells"], result["missing"], result["failed"], len(scored)) == (2, 0, [], 2)
    assert len(list((folder / "cells").glob("*.json"))) == 2
    assert np.isfinite([row["success_O"] for row in result["rows"] if row["settings"] is not None]).all()
    files = {file: (folder / file).read_bytes() for file in ("table.md", "table.csv", "table.json", "attribution.svg")}
    assert [command(*run, *more).code for more in ((), ("--no-run", "--together", "1"))] == [0, 0]
    assert len(scored) == 2
    assert files == {file: (folder / file).read_bytes() for file in files}
    assert "no method" in command(*run, "--methods", "mopo").stderr


def test_the_small_run_trains_every_switch_of_a_world():
    assert len(jobs(replace(attribution.TINY, dataset_seeds=(500,)))) == 24
