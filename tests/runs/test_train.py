"""Training can be stopped at any moment, and nothing that is not sound is ever kept."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from because_rl.algorithms.registry import METHODS, configure, make_method
from because_rl.datasets.collect import collect
from because_rl.datasets.recipe import Recipe
from because_rl.discovery.regression.threads import _openblas
from because_rl.errors import BecauseError
from because_rl.io import read_arrays
from because_rl.planning.shooting import ShootingConfig
from because_rl.rng import stream
from because_rl.runs import evaluate as evaluation
from because_rl.runs.evaluate import evaluate_run, final_and_best
from because_rl.runs.train import load_agent, load_for_training, read_run, train
from because_rl.training.run import Run
from because_rl.training.stage import Stage, fit


@pytest.fixture(scope="module", autouse=True)
def _compile_once(tmp_path_factory):
    """Many runs of few programs."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("cache")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


class Line(NamedTuple):
    """y = w x + b, a slow copy of w, and a clock that no gradient moves."""

    w: jax.Array
    b: jax.Array
    slow: jax.Array
    clock: jax.Array


def line_stage(steps=100, fail_at=-1, break_at=-1, width=3, settings=None):
    """The loss is NaN at step `fail_at` where `fixed` is 1; the model is NaN after step `break_at`."""

    def init(key, fixed):
        w = jax.random.normal(key, (width,))
        return Line(w, jnp.zeros(()), w, jnp.zeros(()))

    def loss(model, fixed, batch, key):
        noise = 0.1 * jax.random.normal(key, batch["y"].shape)
        error = batch["x"] @ model.w + model.b - batch["y"] + noise
        bad = (model.clock == fail_at) & (fixed == 1.0)
        return jnp.where(bad, jnp.nan, (error**2).mean()), {"bias": model.b}

    def after(model, step):
        broken = jnp.where(step == break_at, jnp.nan, 0.0)
        return model._replace(
            slow=0.9 * model.slow + 0.1 * model.w + broken, clock=(step + 1).astype(jnp.float32), b=model.b
        )

    rule = optax.partition(
        {"net": optax.adam(0.01), "still": optax.set_to_zero()}, Line("net", "net", "still", "still")
    )
    return Stage("line", init, loss, steps, batch=16, rule=rule, after=after, settings=settings)


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_chunks_of_one_length_are_one_program(seeds):
    def init(key, fixed):
        return {"w": jax.random.normal(key, (3,)), "b": jnp.full((1,), 0.5)}  # the type of b is weak

    traced, after = [], []

    def loss(model, fixed, batch, key):
        traced.append(key)
        return ((batch["x"] @ model["w"] + model["b"] - batch["y"]) ** 2).mean(), {}

    stage = Stage("chunks", init, loss, steps=40, batch=8)
    data = {"x": jnp.ones((20, 3)), "y": jnp.ones(20)}
    fit(stage, data, jnp.zeros(len(seeds)), seeds, chunk=10, report=lambda *told: after.append(len(traced)))
    assert len(after) == 4
    assert len(set(after)) == 1


def line_data(n=200, width=3):
    rng = stream(0, "line")
    x = rng.normal(size=(n, width)).astype(np.float32)
    return {"x": jnp.asarray(x), "y": jnp.asarray(x @ np.arange(1.0, width + 1, dtype=np.float32))}


def same_bits(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in leaves)


def fixed(seeds):
    return jnp.arange(seeds, dtype=jnp.float32)


# models/training.py ------------------------------------------------------------------------------------


def test_many_seeds_are_as_many_single_runs():
    data, stage = line_data(), line_stage()
    together = fit(stage, data, fixed(3), [5, 1, 8])
    for k, seed in enumerate((5, 1, 8)):
        alone = fit(stage, data, fixed(3)[k : k + 1], [seed])
        for a, b in zip(jax.tree.leaves(together.params), jax.tree.leaves(alone.params), strict=True):
            np.testing.assert_allclose(a[k], b[0], rtol=1e-4, atol=1e-5)
    assert not np.allclose(together.params.w[0], together.params.w[1], atol=1e-4)


def test_the_hook_moves_what_no_gradient_moves():
    """Against plain NumPy: slow_t = 0.9 slow_{t-1} + 0.1 w_t."""
    seen = []
    fit(line_stage(20), line_data(), fixed(1), [0], chunk=1, report=lambda stage, p, metrics: seen.append(p.params))
    slow = np.asarray(seen[0].slow)
    for model in seen[1:]:
        slow = 0.9 * slow + 0.1 * np.asarray(model.w)
        np.testing.assert_allclose(model.slow, slow, rtol=1e-5)
    assert float(seen[-1].clock[0]) == 20


@pytest.mark.parametrize("seed", range(3))
def test_stopped_at_random_chunks_and_resumed_is_the_same_to_the_bit(tmp_path, seed):
    data, stage = line_data(), line_stage(100)
    undisturbed = Run([3, 4], tmp_path / "a", chunk=7)
    wanted = undisturbed.fit(stage, data, fixed(2))
    rng = stream(seed, "stops")

    def stop(stage, done, total, metrics):
        if rng.random() < 0.3:
            raise KeyboardInterrupt

    stops, model = 0, None
    while model is None:
        run = Run([3, 4], tmp_path / "b", stop, chunk=7)
        try:
            model = run.fit(stage, data, fixed(2))
        except KeyboardInterrupt:
            stops += 1
    assert stops >= 2
    assert same_bits(model, wanted)
    assert same_bits(run.history, undisturbed.history)
    a, b = (read_arrays(tmp_path / name / "line.npz") for name in "ab")
    assert same_bits(a, b)
    assert sorted(a) == sorted(b)


def test_a_finished_stage_trains_no_more(tmp_path):
    data = line_data()
    first = Run([0], tmp_path).fit(line_stage(), data, fixed(1))
    before = (tmp_path / "line.npz").stat().st_mtime_ns

    def never(*told):
        raise AssertionError

    assert same_bits(Run([0], tmp_path, never).fit(line_stage(), data, fixed(1)), first)
    assert (tmp_path / "line.npz").stat().st_mtime_ns == before


def test_a_loss_that_is_not_finite_names_stage_step_and_seed_and_keeps_the_last_good_file(tmp_path):
    Run([7, 9], tmp_path, chunk=10).fit(line_stage(30), line_data(), fixed(2))
    good = (tmp_path / "line.npz").read_bytes()
    with pytest.raises(BecauseError, match=r"'line' is not finite at step 37, seed 9"):
        Run([7, 9], tmp_path, chunk=10).fit(line_stage(100, fail_at=37), line_data(), fixed(2))
    assert (tmp_path / "line.npz").read_bytes() == good
    assert read_arrays(tmp_path / "line.npz")[".step"].tolist() == [30, 30]


def test_a_model_that_is_not_finite_is_never_kept(tmp_path):
    """Its loss was finite to the end of the chunk; only what came out was not."""
    with pytest.raises(BecauseError, match=r"at step 10, seed 0"):
        Run([0], tmp_path, chunk=10).fit(line_stage(100, break_at=9), line_data(), fixed(1))
    assert list(tmp_path.iterdir()) == []


def test_data_that_are_not_finite_are_named(tmp_path):
    data = line_data()
    data["y"] = data["y"].at[17].set(jnp.nan)
    with pytest.raises(BecauseError, match=r"'line'.*: y, row 17"):
        Run([0], tmp_path).fit(line_stage(), data, fixed(1))
    assert list(tmp_path.iterdir()) == []


# algorithms/run.py -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-30], lambda b: b[:400] + bytes([b[400] ^ 1]) + b[401:], lambda b: b""]
)
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    Run([0], tmp_path).fit(line_stage(), line_data(), fixed(1))
    path = tmp_path / "line.npz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BecauseError, match="damaged"):
        Run([0], tmp_path).fit(line_stage(), line_data(), fixed(1))


def test_other_shapes_and_other_seeds_are_refused(tmp_path):
    Run([0, 1], tmp_path).fit(line_stage(), line_data(), fixed(2))
    with pytest.raises(BecauseError, match=r"\(2, 3\).*\(2, 4\)"):
        Run([0, 1], tmp_path).fit(line_stage(width=4), line_data(width=4), fixed(2))
    with pytest.raises(BecauseError, match=r"\(3, 3\)"):
        Run([0, 1, 2], tmp_path).fit(line_stage(), line_data(), fixed(3))
    for seeds in ([], [1, 1]):
        with pytest.raises(BecauseError, match="seeds"):
            Run(seeds)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_stage_may_be_short(steps):
    run = Run([0, 1])
    run.fit(line_stage(steps), line_data(), fixed(2))
    assert len(run.history["line"].get("step", ())) == min(steps, 1)


def test_what_is_remembered_is_computed_once(tmp_path):
    for compute in (lambda: {"a": np.arange(3)}, None):
        np.testing.assert_array_equal(Run([0], tmp_path).cached("mask", compute)["a"], np.arange(3))


def test_a_stage_is_trained_once_for_runs_that_share_a_folder(tmp_path):
    told = []

    def run(name, seeds=(0, 1)):
        return Run(seeds, tmp_path / name, lambda *news: told.append(news), shared=tmp_path / "shared")

    first = run("a").fit(line_stage(settings={"hidden": 1}), line_data(), fixed(2))
    trained = len(told)
    again = run("b").fit(line_stage(settings={"hidden": 1}), line_data(), fixed(2))
    assert len(told) == trained > 0
    jax.tree.map(np.testing.assert_array_equal, first, again)
    other = line_data()
    for different in (
        lambda: run("c").fit(line_stage(settings={"hidden": 2}), line_data(), fixed(2)),
        lambda: run("d", (0, 2)).fit(line_stage(settings={"hidden": 1}), line_data(), fixed(2)),
        lambda: run("e").fit(line_stage(settings={"hidden": 1}), {k: v + 1 for k, v in other.items()}, fixed(2)),
        lambda: run("f").fit(line_stage(settings={"hidden": 1}), line_data(), jax.tree.map(lambda a: a + 1, fixed(2))),
        lambda: run("g").fit(line_stage(), line_data(), fixed(2)),
    ):
        before = len(told)
        different()
        assert len(told) > before


# algorithms/registry.py --------------------------------------------------------------------------------


def test_settings_come_from_defaults_then_world_then_overrides():
    assert make_method("td3bc").config.hidden == 256
    assert make_method("td3bc", world="unlock").config.hidden == 64
    config = make_method("td3bc", {"hidden": "32", "tau": "1e-2", "alpha": 3}, "unlock").config
    assert (config.hidden, config.tau, config.alpha, config.critic_rate) == (32, 0.01, 3.0, 3e-3)
    assert isinstance(config.alpha, float)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"beta": "1"}, "no setting 'beta'.*alpha.*delay"),
        ({"hidden": "1.5"}, "hidden='1.5'.*int"),
        ({"alpha": "much"}, "alpha='much'.*float"),
        ({"hidden": "true"}, "hidden='true'.*int"),
        ({"alpha.b": "1"}, "no parts"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, says):
    with pytest.raises(BecauseError, match=says):
        make_method("td3bc", settings)


def test_settings_of_settings():
    @dataclass(frozen=True)
    class Config:
        planner: ShootingConfig = field(default_factory=ShootingConfig)
        sizes: tuple[int, ...] = (1, 2)
        threshold: float | None = None

    made = configure(Config(), {"planner.population": "64", "sizes": "[3]", "threshold": "1e-4"})
    assert (made.planner.population, made.sizes, made.threshold) == (64, (3,), 1e-4)
    assert configure(made, {"planner": {"method": "cem"}, "threshold": "null"}).planner.method == "cem"
    with pytest.raises(BecauseError, match=r"planner.method='luck'.*cem"):
        configure(made, {"planner.method": "luck"})


def test_unknown_methods_are_refused():
    with pytest.raises(BecauseError, match=f"no method 'td4'.*{next(iter(METHODS))}"):
        make_method("td4")


# experiments/train.py ----------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"steps": 40, "hidden": 8, "batch": 16}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("home")
    for seed in (0, 1):
        collect(Recipe.parse("unlock-medium", 20, seed=seed), root)
    train("td3bc", DATA, root, root / "run", range(2), SMALL, chunk=20)
    return root


DATA = "because/unlock-medium-n20-v0"
OTHER = "because/unlock-medium-n20-seed1-v0"


def test_a_run_folder_tells_what_it_is(home):
    known = read_run(home / "run")
    assert known["finished"] == ["td3bc.npz"]
    assert (known["method"], known["dataset"], known["seeds"], known["horizon"]) == ("td3bc", DATA, [0, 1], 15)
    assert known["config"]["hidden"] == 8
    assert known["config"]["tau"] == 0.001
    assert "revision" in known["provenance"]
    lines = [json.loads(line) for line in (home / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["stage"], line["step"], len(line["loss"])) for line in lines] == [("td3bc", 20, 2), ("td3bc", 40, 2)]


@pytest.mark.parametrize(
    "change",
    [
        lambda known: known["config"].update(steps=60),  # it would train on
        lambda known: known.update(seeds=3),
        lambda known: known.update(finished=[{}]),
        lambda known: known.update(sha256=None),
        lambda known: known.update(seconds="1"),
    ],
)
def test_a_run_that_is_not_as_it_was_written_is_refused(home, tmp_path, change):
    shutil.copytree(home / "run", tmp_path / "run")
    known = json.loads((tmp_path / "run" / "run.json").read_text())
    change(known)
    (tmp_path / "run" / "run.json").write_text(json.dumps(known))
    with pytest.raises(BecauseError, match="not what was written"):
        load_agent(tmp_path / "run", home)


def test_a_loaded_agent_acts_as_the_trained_one_and_trains_nothing(home, monkeypatch):
    data = load_for_training(DATA, home)
    trained = make_method("td3bc", SMALL, "unlock").fit(data, Run(range(2), chunk=20))
    before = {file: file.stat().st_mtime_ns for file in (home / "run").iterdir()}
    loaded = load_agent(home / "run", home)
    state, goal = (np.stack([values[:50]] * 2) for values in (data.state, data.goal))
    assert loaded.seeds == (0, 1)
    np.testing.assert_array_equal(loaded.act(state, goal, 9), trained.act(state, goal, 9))
    assert {file: file.stat().st_mtime_ns for file in (home / "run").iterdir()} == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"overrides": SMALL | {"alpha": 0.5}}, r"config.alpha is 0.3 there and 0.5 now"),
        ({"dataset": OTHER}, "data_sha256 is .*dataset is"),
        ({"seeds": range(3)}, r"seeds is \[0, 1\] there and \[0, 1, 2\] now"),
        ({"chunk": 10}, "chunk is 20"),
        ({"resume": False}, "this run already.*--resume"),
    ],
)
def test_a_run_is_not_overwritten_by_another(home, change, says):
    before = {file: file.read_bytes() for file in (home / "run").iterdir()}
    settings = {"dataset": DATA, "seeds": range(2), "overrides": SMALL, "resume": True, "chunk": 20} | change
    with pytest.raises(BecauseError, match=says):
        train("td3bc", root=home, folder=home / "run", **settings)
    assert {file: file.read_bytes() for file in (home / "run").iterdir()} == before


def test_an_unfinished_run_is_not_loaded_and_goes_on(home):
    def stop(*told):
        raise KeyboardInterrupt

    again = ("td3bc", DATA, home, home / "stopped", range(2), SMALL)
    with pytest.raises(KeyboardInterrupt):
        train(*again, stop, chunk=20)
    with pytest.raises(BecauseError, match="not finished"):
        load_agent(home / "stopped", home)
    assert len((home / "stopped" / "metrics.jsonl").read_text().splitlines()) == 1
    known = read_run(home / "stopped")
    assert known["seconds"] > 0
    (home / "stopped" / "run.json").write_text(json.dumps(known | {"seconds": 5000.0}))
    seconds = train(*again, resume=True, chunk=20)["seconds"]
    assert 5000 < seconds < 6000  # those before it was stopped included
    assert train(*again, resume=True, chunk=20)["seconds"] == read_run(home / "stopped")["seconds"] == seconds
    for name in ("td3bc.npz", "metrics.jsonl"):
        assert (home / "stopped" / name).read_bytes() == (home / "run" / name).read_bytes()
    (home / "stopped" / "td3bc.npz").unlink()
    with pytest.raises(BecauseError, match=r"lacks td3bc.npz"):
        load_agent(home / "stopped", home)


def test_there_is_no_run_in_an_empty_folder(home, tmp_path):
    with pytest.raises(BecauseError, match="no run in"):
        evaluate_run(tmp_path, home)


def test_a_run_is_evaluated_in_its_world(home):
    result = evaluate_run(home / "run", home, "O", 5)["O"]
    assert (len(result["per_seed"]), result["episodes"], result["split"]) == (2, 5, "O")
    kept = json.loads((home / "run" / "evaluation-O.json").read_text())
    assert kept["per_seed"] == result["per_seed"]
    assert "revision" in kept["provenance"]
    assert result["final"] == {name: kept[name] for name in result["final"]}
    assert result["best"]["per_seed"] == result["per_seed"]  # there is one round only
    with pytest.raises(BecauseError, match="Got split 'X'"):
        evaluate_run(home / "run", home, "X", 5)


def test_the_best_is_each_seeds_own():
    found = final_and_best([{"per_seed": seeds, "success": sum(seeds) / 2} for seeds in ([0.2, 0.9], [0.6, 0.4])])
    assert found["rounds"] == [0.55, 0.5]
    assert (found["final"]["per_seed"], found["final"]["success"]) == ([0.6, 0.4], 0.5)
    assert (found["best"]["per_seed"], found["best"]["success"]) == ([0.6, 0.9], 0.75)
    assert found["best"]["round"] == [2, 1]


def test_rounds_are_kept_and_go_on_to_the_bit(home, tmp_path, monkeypatch):
    """Three rounds of TD3+BC, which has one stage, end where one round does; stopped in the second they go on."""

    def stop(stage, done, *told):
        if done == 30:
            raise KeyboardInterrupt

    settings = SMALL | {"steps": 50}
    runs = ("one", "three", "stopped")
    one, three, stopped = (("td3bc", DATA, home, tmp_path / run, [3, 4], settings) for run in runs)
    train(*one, chunk=10)
    train(*three, chunk=10, rounds=3)
    with pytest.raises(KeyboardInterrupt):
        train(*stopped, stop, chunk=10, rounds=3)
    assert [file.name for file in (tmp_path / "stopped").glob("round-*")] == ["round-1"]
    train(*stopped, chunk=10, rounds=3, resume=True)
    for name in ("td3bc.npz", "round-1/td3bc.npz", "round-2/td3bc.npz"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "three" / name).read_bytes()
    steps = {k: int(read_arrays(tmp_path / "three" / f"round-{k}" / "td3bc.npz")[".step"][0]) for k in (1, 2)}
    assert steps == {1: 20, 2: 40}
    assert (tmp_path / "one" / "td3bc.npz").read_bytes() == (tmp_path / "three" / "td3bc.npz").read_bytes()
    early, late = (jax.tree.leaves(load_agent(tmp_path / "three", home, k)._actors) for k in (1, 3))
    assert any((a != b).any() for a, b in zip(early, late, strict=True))
    told = []
    monkeypatch.setattr(evaluation, "_apart", lambda world, splits: len(splits) > 1)
    result = evaluate_run(tmp_path / "three", home, "IO", 3, report=lambda done, total: told.append(done / total))
    assert list(result) == ["I", "O"]
    assert told == sorted(told)
    assert told[-1] == 1
    assert len(told) > 6
    alone = evaluate_run(tmp_path / "three", home, "O", 3)["O"]
    assert alone["outcomes"] == result["O"]["outcomes"]  # side by side or not
    assert all(len(of["rounds"]) == 3 and of["best"]["success"] >= of["final"]["success"] for of in result.values())


# The command -------------------------------------------------------------------------------------------


def because(*arguments, root, code=0):
    command = [sys.executable, "-m", "because_rl", *map(str, arguments), "--root", str(root)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.slow
def test_train_and_evaluate_from_the_command_line(home):
    settings = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    command = ("train", "td3bc", "--data", DATA, "--seeds", 2, "--chunk", 20, *settings)
    said = json.loads(because(*command, "--json", root=home).stdout)
    assert said["run"] == str(home / "runs" / "td3bc-unlock-medium-n20")
    assert (home / "runs/td3bc-unlock-medium-n20/td3bc.npz").read_bytes() == (home / "run/td3bc.npz").read_bytes()
    assert "--resume" in because(*command, root=home, code=2).stderr
    assert "kept in" in " ".join(because(*command, "--resume", root=home).stdout.split())
    scored = json.loads(because("evaluate", said["run"], "--split", "I", "--episodes", 4, "--json", root=home).stdout)
    assert len(scored["per_seed"]) == 2
    assert "name=value" in because(*command, "--set", "alpha", root=home, code=2).stderr
    for name in ("train", "evaluate"):
        assert (
            "Example:"
            in subprocess.run(
                [sys.executable, "-m", "because_rl", name, "--help"], capture_output=True, text=True
            ).stdout
        )


KILLS = int(os.environ.get("BECAUSE_KILLS", "6"))
"""Each takes seconds, most of them to start JAX: BECAUSE_KILLS=50 for the whole measure."""

# Modules are imported once and each `because train` is a fork of that process, before JAX has started anything,
# which saves most of the time that a start of Python takes.
KILLER = textwrap.dedent("""
    import os, random, signal, sys, time
    import because_rl.cli.main, because_rl.runs.train, because_rl.envs.unlock.env

    file, kills, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    random.seed(0)
    killed = 0

    def written():
        return os.stat(file).st_mtime_ns if os.path.exists(file) else 0

    while True:
        before, child = written(), os.fork()
        if child == 0:
            sys.argv = ["because", *command, "--resume"]
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            because_rl.cli.main.main()
            os._exit(0)
        if killed < kills:
            if killed % 5:  # mostly among checkpoints, sometimes before the first
                while written() == before and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    time.sleep(0.001)
                time.sleep(random.random() * 0.03)
            else:
                time.sleep(random.random())
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        else:
            print(killed, os.WEXITSTATUS(status))
            break
""")


@pytest.mark.slow
def test_killed_at_random_many_times_and_resumed_is_the_same_to_the_bit(home, tmp_path):
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_COMPILATION_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    environment = os.environ | cache | {"JAX_PERSISTENT_COMPILATION_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    settings = (
        "--set",
        f"steps={100 * KILLS}",
        "--set",
        "hidden=8",
        "--set",
        "batch=16",
        "--chunk",
        "10",
        "--root",
        str(home),
    )
    command = ("train", "td3bc", "--data", DATA, "--seeds", "2", *settings)

    def python(*arguments):
        done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    python("-m", "because_rl", *command, "-o", tmp_path / "calm")
    told = python("-c", KILLER, tmp_path / "killed" / "td3bc.npz", KILLS, *command, "-o", tmp_path / "killed")
    assert told.split() == [str(KILLS), "0"]
    for name in ("td3bc.npz", "metrics.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "calm" / name).read_bytes()
    kept = {"run.json", "metrics.jsonl", "td3bc.npz", "events.out.tfevents.0.because"}
    assert {file.name for file in (tmp_path / "killed").iterdir()} == kept


@pytest.mark.skipif(not _openblas(), reason="this NumPy and SciPy have no OpenBLAS of their own")
def test_a_training_has_one_blas_thread(home, tmp_path):
    """Two wait in busy loops where the cores are wanted elsewhere: seconds become minutes."""
    (count, put), counts = _openblas()[-1], []
    put(2)
    try:
        train("td3bc", DATA, home, tmp_path / "run", [0], SMALL, lambda *told: counts.append(count()), chunk=20)
        assert counts == [1, 1]
        assert count() == 2  # as it was
    finally:
        put(1)


SIDE_BY_SIDE = """
import jax, jax.numpy as jnp
from because_rl.runs.compilation import disable_concurrent_ops
disable_concurrent_ops()

def loss(blocks):
    out = 0.0
    for x in blocks:
        root = jnp.linalg.cholesky(jnp.einsum("bni,bnj->bij", x, x) / 64 + jnp.eye(16))
        out += (jax.scipy.linalg.solve_triangular(root, jnp.swapaxes(x, 1, 2), lower=True) ** 4).sum()
    return out

def step(blocks, _):
    return jax.tree.map(lambda x, g: x - 1e-4 * g, blocks, jax.grad(loss)(blocks)), None

blocks = [jax.random.normal(jax.random.key(k), (50, 128, 16)) for k in range(6)]
print(jnp.isfinite(jax.jit(lambda b: jax.lax.scan(step, b, length=30)[0])(blocks)[0]).all())
"""


def test_many_seeds_on_two_cores_do_not_wait_for_each_other_for_good():
    """Whitening of several kinds at once: without `disable_concurrent_ops` it never ends on two cores."""
    ended = subprocess.run([sys.executable, "-c", SIDE_BY_SIDE], capture_output=True, text=True, timeout=120)
    assert ended.stdout.strip() == "True", ended.stderr
