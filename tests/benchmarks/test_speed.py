"""The speed benchmarks: what they measure and report, never how fast this machine is."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from because_rl.cli.main import app
from because_rl.datasets.collect import collect
from because_rl.datasets.recipe import Recipe
from because_rl.envs.tasks import world_class
from because_rl.errors import BecauseError
from because_rl.runs.train import load_for_training
from because_rl.training.stage import Stage, start
from benchmarks.__main__ import bench
from benchmarks.speed import training_peer
from benchmarks.speed.planning import make_model, model_operations, planning_speed
from benchmarks.speed.run import run_cost
from benchmarks.speed.training import (
    COLUMNS,
    Lap,
    Stopwatch,
    Timed,
    cached_row,
    make_unmasked,
    summary,
    time_peer,
    times_faster,
    total_cost,
    training_speed,
)

pytestmark = pytest.mark.slow

TINY = {"hidden": 8, "batch": 16}


@pytest.fixture(autouse=True)
def quick_compilation():
    """Programs run only a few steps here: compiling them without optimisation is faster."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


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


def test_a_stage_is_timed_once_for_all_methods_that_share_it():
    rows, shared = {"x": jnp.ones((20, 3)), "y": jnp.ones(20)}, {}
    first, second = (Timed(name, (0, 1), 5, 0.0, shared) for name in ("first", "second"))
    model = first.fit(line(7, {"width": 3}), rows, ())
    assert model.w.shape == (2, 3)
    assert float(model.w[0, 0]) != 0  # it has been trained
    (figures,) = first.stages
    assert {k: figures[k] for k in ("steps", "batch", "parameters")} == {"steps": 7, "batch": 8, "parameters": 4}
    assert figures["steps_per_second"] > 0
    assert figures["compile_seconds"] > 0
    second.fit(line(7, {"width": 3}), rows, ())
    assert second.stages == first.stages
    assert second.stages[0]["timed_in"] == "first"
    second.fit(line(8, {"width": 3}), rows, ())
    second.fit(line(7), rows, ())
    assert [stage["timed_in"] for stage in second.stages] == ["first", "second", "second"]


def test_the_stopwatch_counts_compilation_separately():
    watch = Stopwatch(chunk=50, seconds=1.0)
    watch.laps = [Lap(10.5, 9.0, False), Lap(0.5, 0.5, True), Lap(3.5, 3.0, False), Lap(0.5, 0.5, True)]
    assert watch.read() == {"steps_per_second": 100.0, "cores": pytest.approx(1.0), "compile_seconds": 13.0}


def test_the_stopwatch_notices_compilation():
    watch, double = Stopwatch(chunk=1, seconds=0.0), jax.jit(lambda x: x + x)
    for rows in (1, 1, 2, 2, 1):  # another shape is another program
        double(np.zeros(rows, np.float32))
        watch.lap()
    assert [lap.plain for lap in watch.laps] == [False, True, False, True, True]
    already = Stopwatch(chunk=1, seconds=0.0)
    double(np.zeros(1, np.float32))
    assert not already.lap()
    assert not already.laps[0].plain  # the first lap never counts


def test_training_time_is_the_sum_over_stages():
    common = {"batch": 8, "parameters": 10, "compile_seconds": 1.0, "cores": 2.0}
    stages = [common | {"steps": 300, "steps_per_second": 100.0}, common | {"steps": 700, "steps_per_second": 10.0}]
    training = summary(stages, seeds=4)
    assert training["training_seconds"] == pytest.approx(73)
    assert training["training_cpu_seconds"] == pytest.approx(146)
    assert training["all_seeds_steps_per_second"] == pytest.approx(4 * 1000 / 73)
    row = training | {"method": "td3bc", "seeds": 4, "rest_seconds": 5.0}
    rows = [row, {"method": "mopo", "seeds": 4, "failed": "why"}, row | {"seeds": 1}]
    assert total_cost(rows, 4)["hours"] == pytest.approx((73 + 2 + 5) / 3600)
    assert total_cost(rows, 4)["methods"] == 1
    peers = [
        {"method": training_peer.PEER, "seeds": 1, "steps_per_second": pace, "update_steps_per_second": 20.0}
        for pace in (5.0, 10.0)
    ]
    (many, _) = times_faster(rows + peers, "td3bc")
    assert many["than_peer"] == pytest.approx(4 * 100 / 73)
    assert many["than_its_updates_alone"] == pytest.approx(4 * 50 / 73)
    assert times_faster(rows, "td3bc") == []


def test_stored_rows_are_not_measured_again(tmp_path):
    job, calls = {"method": "td3bc", "seeds": 1}, []

    def work():
        calls.append(1)
        return {"steps_per_second": len(calls)}

    assert [cached_row(tmp_path, {"chunk": 1}, job, work)["steps_per_second"] for _ in range(2)] == [1, 1]
    assert cached_row(tmp_path, {"chunk": 2}, job, work)["steps_per_second"] == 2
    assert cached_row(None, {"chunk": 1}, job, work)["steps_per_second"] == 3


def test_a_failed_method_reports_why_and_is_tried_again(tmp_path):
    job = {"method": "td3bc", "seeds": 1}

    def fails():
        raise BecauseError("Got a NaN.", need="a number.", fix="look.")

    failed = cached_row(tmp_path, {}, job, fails)
    assert failed["failed"].startswith("BecauseError: Got a NaN.")
    assert cached_row(tmp_path, {}, job, lambda: {"steps_per_second": 1})["steps_per_second"] == 1


def test_wrong_names_and_numbers_are_refused_first(root):
    with pytest.raises(BecauseError, match="no method 'tdbc'"):
        training_speed("unlock-random-n10", ["td3bc", "tdbc"], root=root)
    with pytest.raises(BecauseError, match="seeds=0"):
        training_speed("unlock-random-n10", ["td3bc"], 0, root=root)


def trace_fit(stage, data, fixed, seeds, *, chunk, report):
    """Traces a step of the stage instead of training it: its shapes are checked, nothing is compiled."""
    key, row = jax.random.key(0), {name: values[: stage.batch] for name, values in data.items()}
    jax.eval_shape(lambda key: stage.loss(stage.init(key, fixed), fixed, row, key), key)
    shapes = jax.eval_shape(lambda fixed: start(stage, fixed, seeds), fixed)
    progress = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes)
    while True:
        report(stage, progress, {})


def time_td3bc(root, file):
    """The training command for a tiny TD3+BC: one row for it and one for its variant on action columns."""
    sizes = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
    words = ["training", "--data", "unlock-random-n10", "--method", "td3bc", "--seeds", "1", "--chunk", "2"]
    done = CliRunner().invoke(bench, [*words, *sizes, "--seconds", "0", "--root", str(root), "-o", str(file), "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(file.read_text())
    assert json.loads(done.stdout) == result
    ours = [row for row in result["rows"] if row["method"] != training_peer.PEER]
    assert [row["method"] for row in ours] == ["td3bc", COLUMNS]
    assert not [row["failed"] for row in ours if "failed" in row]
    assert all(row["batch"] == 16 and row["stages"][0]["steps"] == 100_000 for row in ours)
    assert all(row["steps_per_second"] > 0 and row["parameters"] > 1000 for row in ours)
    assert (result["peer"] == training_peer.MISSING) == (not training_peer.installed())
    assert bool(result["times_faster"]) == training_peer.installed()


def test_the_training_command_times_td3bc_also_on_action_columns(root, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.speed.training.fit", trace_fit)
    time_td3bc(root, tmp_path / "speed.json")


@pytest.mark.long
def test_the_training_command_trains_while_it_times(root, tmp_path):
    time_td3bc(root, tmp_path / "speed.json")


def test_masks_are_full_so_that_nothing_is_discovered():
    assert make_unmasked({}, "unlock", "because").config.mask == "full"
    assert make_unmasked({"batch": 7}, "unlock", "td3bc").config.batch == 7


@pytest.mark.skipif(not training_peer.installed(), reason="d3rlpy is not installed")
def test_the_peer_trains_networks_of_our_size(root):
    data = load_for_training("unlock-random-n10", root)
    config = make_unmasked(TINY, "unlock", "td3bc").config
    view, actions = training_peer.columns(data)
    x, u, h = view.size, len(actions.middle), config.hidden
    actor, critic = ((a + 1) * h + (h + 1) * h + (h + 1) * b for a, b in ((x, u), (x + u, 1)))
    row = time_peer(data, config, 4, 0.0, threads=1)
    assert row["parameters"] == 2 * (actor + 2 * critic)  # each has a slow copy
    assert row["steps_per_second"] > 0
    assert row["update_steps_per_second"] > 0


def time_experiment(root, file):
    """The row of ``run`` for a tiny TD3+BC."""
    words = ["run", "--data", "unlock-random-n10", "--method", "td3bc", "--episodes", "2", "--root", str(root)]
    words += [part for name, value in (TINY | {"steps": 4}).items() for part in ("--set", f"{name}={value}")]
    done = CliRunner().invoke(bench, [*words, "-o", str(file)])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(file.read_text())["rows"]
    assert row["episodes"] == 4
    assert set(row["success"]) == {"I", "O"}
    assert row["seconds"] == pytest.approx(row["train"] + row["evaluate"], abs=0.2)
    return row


def test_the_run_command_times_train_and_evaluate(root, tmp_path, monkeypatch):
    """The command lines are parsed as `because` would parse them, but not run."""
    parsed, caches = {}, []

    def run(command, capture_output, env):
        assert command[1:3] == ["-m", "because_rl"]
        name, *options = command[3:]
        parsed[name] = typer.main.get_command(app).commands[name].make_context(name, options).params
        caches.append(env["JAX_COMPILATION_CACHE_DIR"])
        output = {"splits": {split: {"success": 0.5} for split in "IO"}}
        failed = 2 * (parsed[name].get("method") == "tdbc")
        return SimpleNamespace(returncode=failed, stdout=json.dumps(output), stderr=b"no method 'tdbc'")

    monkeypatch.setattr("benchmarks.speed.run.subprocess", SimpleNamespace(run=run))
    time_experiment(root, tmp_path / "cost.json")
    train, evaluate = parsed["train"], parsed["evaluate"]
    assert (train["method"], train["data"], train["seeds"]) == ("td3bc", "unlock-random-n10", 1)
    assert list(train["settings"]) == ["hidden=8", "batch=16", "steps=4"]
    assert (evaluate["run"], evaluate["split"], evaluate["episodes"]) == (train["output"], "IO", 2)
    assert Path(train["root"]) == Path(evaluate["root"]) == root
    assert len(set(caches)) == 1
    assert "because-cost-" in caches[0]  # a new cache, in which nothing is compiled yet
    with pytest.raises(BecauseError, match=r"'because train' ended with exit code 2.*no method 'tdbc'"):
        run_cost("unlock-random-n10", "tdbc", root=root)


@pytest.mark.long
def test_an_experiment_is_timed_in_separate_processes(root, tmp_path):
    row = time_experiment(root, tmp_path / "cost.json")
    assert min(row["train"], row["evaluate"]) > 0
    with pytest.raises(BecauseError, match="'because train' ended with exit code 2"):
        run_cost("unlock-random-n10", "tdbc", root=root)


@pytest.mark.slow
def test_planning_speed_counts_the_operations_of_the_model():
    result = planning_speed(16, ("crash",), episodes=2, population=8, horizon=2, matmul=64)
    (row,) = result["rows"]
    assert row["evaluations_per_second"] * row["milliseconds_per_plan"] == pytest.approx(1000 * 8 * 2)
    assert row["flops_per_second"] == pytest.approx(row["evaluations_per_second"] * row["flops_per_evaluation"])
    assert row["share_of_peak"] == pytest.approx(row["flops_per_second"] / result["matmul_flops_per_second"])
    assert result["provenance"]["config"]["hidden"] == 16
    larger = model_operations(*make_model(world_class("crash").make_factors(1), hidden=64))
    assert larger > 2 * row["flops_per_evaluation"] > 1e4
