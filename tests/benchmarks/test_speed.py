"""The training benchmark: rates are steps over seconds, shared stages are timed once, nothing that fails stops it."""

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from because_rl.datasets.collect import collect
from because_rl.datasets.recipe import Recipe
from because_rl.errors import BecauseError
from because_rl.runs.train import load_for_training
from because_rl.training.stage import Stage
from benchmarks.__main__ import bench
from benchmarks.speed import training_peer
from benchmarks.speed.run import run_cost
from benchmarks.speed.training import (
    COLUMNS,
    Lap,
    Stopwatch,
    Timed,
    kept,
    make_openly,
    summary,
    time_peer,
    times_faster,
    training_speed,
    whole,
)

TINY = {"hidden": 8, "batch": 16}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    collect(Recipe.parse("unlock-random", 10), folder)
    return folder


class Line(NamedTuple):
    w: jax.Array
    b: jax.Array


def line(steps, settings=None):
    def loss(model, fixed, batch, key):
        return ((batch["x"] @ model.w + model.b - batch["y"]) ** 2).mean(), {}

    return Stage("line", lambda key, fixed: Line(jnp.zeros(3), jnp.zeros(())), loss, steps, batch=8, settings=settings)


def test_a_stage_is_timed_with_its_own_figures_and_once_for_all_who_share_it():
    rows, shared = {"x": jnp.ones((20, 3)), "y": jnp.ones(20)}, {}
    first, second = (Timed(name, (0, 1), 5, 0.0, shared) for name in ("first", "second"))
    model = first.fit(line(7, {"width": 3}), rows, ())
    assert model.w.shape == (2, 3)
    assert float(model.w[0, 0]) != 0  # it has been trained
    (figures,) = first.stages
    assert {k: figures[k] for k in ("steps", "batch", "parameters")} == {"steps": 7, "batch": 8, "parameters": 4}
    assert figures["steps_per_second"] > 10
    assert figures["compile_seconds"] > 0
    second.fit(line(7, {"width": 3}), rows, ())
    assert second.stages == first.stages
    assert second.stages[0]["timed_in"] == "first"
    second.fit(line(8, {"width": 3}), rows, ())
    second.fit(line(7), rows, ())
    assert [stage["timed_in"] for stage in second.stages] == ["first", "second", "second"]


def test_the_watch_tells_compilation_apart():
    watch = Stopwatch(chunk=50, seconds=1.0)
    watch.laps = [Lap(10.5, 9.0, False), Lap(0.5, 0.5, True), Lap(3.5, 3.0, False), Lap(0.5, 0.5, True)]
    assert watch.read() == {"steps_per_second": 100.0, "cores": pytest.approx(1.0), "compile_seconds": 13.0}


def test_the_watch_hears_what_is_compiled():
    watch, double = Stopwatch(chunk=1, seconds=0.0), jax.jit(lambda x: x + x)
    for rows in (1, 1, 2, 2, 1):  # another shape is another program
        double(np.zeros(rows, np.float32))
        watch.lap()
    assert [lap.plain for lap in watch.laps] == [False, True, False, True, True]
    already = Stopwatch(chunk=1, seconds=0.0)
    double(np.zeros(1, np.float32))
    assert not already.lap()
    assert not already.laps[0].plain  # whatever else the first has to prepare


def test_a_whole_training_takes_the_steps_of_all_its_stages():
    common = {"batch": 8, "parameters": 10, "compile_seconds": 1.0, "cores": 2.0}
    stages = [common | {"steps": 300, "steps_per_second": 100.0}, common | {"steps": 700, "steps_per_second": 10.0}]
    said = summary(stages, seeds=4)
    assert said["training_seconds"] == pytest.approx(73)
    assert said["training_cpu_seconds"] == pytest.approx(146)
    assert said["all_seeds_steps_per_second"] == pytest.approx(4 * 1000 / 73)
    row = said | {"method": "td3bc", "seeds": 4, "rest_seconds": 5.0}
    rows = [row, {"method": "mopo", "seeds": 4, "failed": "why"}, row | {"seeds": 1}]
    assert whole(rows, 4)["hours"] == pytest.approx((73 + 2 + 5) / 3600)
    assert whole(rows, 4)["methods"] == 1
    peers = [
        {"method": training_peer.PEER, "seeds": 1, "steps_per_second": pace, "update_steps_per_second": 20.0}
        for pace in (5.0, 10.0)
    ]
    (many, _) = times_faster(rows + peers, "td3bc")
    assert many["than_peer"] == pytest.approx(4 * 100 / 73)
    assert many["than_its_updates_alone"] == pytest.approx(4 * 50 / 73)
    assert times_faster(rows, "td3bc") == []


def test_what_is_kept_is_not_measured_again(tmp_path):
    job, asked = {"method": "td3bc", "seeds": 1}, []

    def work():
        asked.append(1)
        return {"steps_per_second": len(asked)}

    assert [kept(tmp_path, {"chunk": 1}, job, work)["steps_per_second"] for _ in range(2)] == [1, 1]
    assert kept(tmp_path, {"chunk": 2}, job, work)["steps_per_second"] == 2
    assert kept(None, {"chunk": 1}, job, work)["steps_per_second"] == 3


def test_a_method_that_fails_says_why_and_is_tried_again(tmp_path):
    job = {"method": "td3bc", "seeds": 1}

    def fails():
        raise BecauseError("Got a NaN.", need="a number.", fix="look.")

    failed = kept(tmp_path, {}, job, fails)
    assert failed["failed"].startswith("BecauseError: Got a NaN.")
    assert kept(tmp_path, {}, job, lambda: {"steps_per_second": 1})["steps_per_second"] == 1


def test_wrong_names_and_numbers_are_refused_before_anything_is_measured(root):
    with pytest.raises(BecauseError, match="no method 'tdbc'"):
        training_speed("unlock-random-n10", ["td3bc", "tdbc"], root=root)
    with pytest.raises(BecauseError, match="seeds=0"):
        training_speed("unlock-random-n10", ["td3bc"], 0, root=root)


def test_the_command_times_our_td3bc_as_it_is_and_on_columns(root, tmp_path):
    file = tmp_path / "speed.json"
    sizes = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
    words = ["training", "--data", "unlock-random-n10", "--method", "td3bc", "--seeds", "1", "--chunk", "2"]
    said = CliRunner().invoke(bench, [*words, *sizes, "--seconds", "0", "--root", str(root), "-o", str(file), "--json"])
    assert said.exit_code == 0, said.output
    result = json.loads(file.read_text())
    assert json.loads(said.stdout) == result
    ours = [row for row in result["rows"] if row["method"] != training_peer.PEER]
    assert [row["method"] for row in ours] == ["td3bc", COLUMNS]
    assert all(
        row["steps_per_second"] > 1 and row["batch"] == 16 and row["stages"][0]["steps"] == 20_000 for row in ours
    )
    assert (result["peer"] == training_peer.MISSING) == (not training_peer.installed())
    assert bool(result["times_faster"]) == training_peer.installed()


def test_masks_are_open_so_that_nothing_is_discovered():
    assert make_openly({}, "unlock", "because").config.mask == "full"
    assert make_openly({"batch": 7}, "unlock", "td3bc").config.batch == 7


@pytest.mark.skipif(not training_peer.installed(), reason="d3rlpy is not installed")
def test_the_peer_trains_networks_of_our_size(root):
    data = load_for_training("unlock-random-n10", root)
    config = make_openly(TINY, "unlock", "td3bc").config
    view, actions = training_peer.columns(data)
    x, u, h = view.size, len(actions.middle), config.hidden
    actor, critic = ((a + 1) * h + (h + 1) * h + (h + 1) * b for a, b in ((x, u), (x + u, 1)))
    row = time_peer(data, config, 4, 0.0, threads=1)
    assert row["parameters"] == 2 * (actor + 2 * critic)  # each has a slow copy
    assert row["steps_per_second"] > 1
    assert row["update_steps_per_second"] > 1


@pytest.mark.slow
def test_what_one_experiment_costs_is_timed_by_its_commands(root, tmp_path):
    words = ["run", "--data", "unlock-random-n10", "--method", "td3bc", "--episodes", "2", "--root", str(root)]
    words += [part for name, value in (TINY | {"steps": 4}).items() for part in ("--set", f"{name}={value}")]
    done = CliRunner().invoke(bench, [*words, "-o", str(tmp_path / "cost.json")])
    assert done.exit_code == 0, done.output
    (row,) = json.loads((tmp_path / "cost.json").read_text())["rows"]
    assert row["episodes"] == 4
    assert set(row["success"]) == {"I", "O"}
    assert row["seconds"] == pytest.approx(row["train"] + row["evaluate"], abs=0.2)
    assert min(row["train"], row["evaluate"]) > 0

    with pytest.raises(BecauseError, match="'because train' ended with exit code"):
        run_cost("unlock-random-n10", "tdbc", root=root)
