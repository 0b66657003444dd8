"""A run on disk can be stopped at any moment, keeps only finite numbers, and shares stages with other runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.errors import BecauseError
from because_rl.io import read_arrays
from because_rl.rng import stream
from because_rl.training.run import Run
from tests.training.line import fixed, line_data, line_stage, same_bits


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_stopped_at_random_chunks_and_resumed_gives_the_same_bits(tmp_path, seed):
    data, stage = line_data(), line_stage(95)
    undisturbed = Run([3, 4], tmp_path / "a", chunk=10)
    wanted = undisturbed.fit(stage, data, fixed(2))
    rng = stream(seed, "stops")

    def stop(stage, done, total, metrics):
        if rng.random() < 0.3:
            raise KeyboardInterrupt

    stops, model = 0, None
    while model is None:
        run = Run([3, 4], tmp_path / "b", stop, chunk=10)
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


def test_finished_stage_is_not_trained_again(tmp_path):
    data = line_data()
    first = Run([0, 1], tmp_path, chunk=10).fit(line_stage(20), data, fixed(2))
    before = (tmp_path / "line.npz").stat().st_mtime_ns

    def never(*progress):
        raise AssertionError

    assert same_bits(Run([0, 1], tmp_path, never, chunk=10).fit(line_stage(20), data, fixed(2)), first)
    assert (tmp_path / "line.npz").stat().st_mtime_ns == before


def test_loss_that_is_not_finite_is_named_and_nothing_is_overwritten(tmp_path):
    Run([7, 9], tmp_path, chunk=10).fit(line_stage(30), line_data(), fixed(2))
    good = (tmp_path / "line.npz").read_bytes()
    with pytest.raises(BecauseError, match=r"'line' is not finite at step 37, seed 9"):
        Run([7, 9], tmp_path, chunk=10).fit(line_stage(60, fail_at=37), line_data(), fixed(2))
    assert (tmp_path / "line.npz").read_bytes() == good
    assert read_arrays(tmp_path / "line.npz")[".step"].tolist() == [30, 30]


def test_model_that_is_not_finite_is_not_kept(tmp_path):
    """Its loss is finite to the end of the chunk, the model after the last step is not."""
    with pytest.raises(BecauseError, match=r"at step 10, seed 3"):
        Run([3, 4], tmp_path, chunk=10).fit(line_stage(20, break_at=9), line_data(), fixed(2))
    assert list(tmp_path.iterdir()) == []


def test_data_that_are_not_finite_are_named(tmp_path):
    data = line_data()
    data["y"] = data["y"].at[17].set(jnp.nan)
    with pytest.raises(BecauseError, match=r"'line'.*: y, row 17"):
        Run([0], tmp_path).fit(line_stage(), data, fixed(1))
    assert list(tmp_path.iterdir()) == []


def test_damaged_checkpoint_is_refused(tmp_path):
    Run([0, 1], tmp_path, chunk=10).fit(line_stage(20), line_data(), fixed(2))
    path = tmp_path / "line.npz"
    sound = path.read_bytes()
    for damaged in (sound[:-30], sound[:400] + bytes([sound[400] ^ 1]) + sound[401:], b""):
        path.write_bytes(damaged)
        with pytest.raises(BecauseError, match="damaged"):
            Run([0, 1], tmp_path, chunk=10).fit(line_stage(20), line_data(), fixed(2))


def test_other_shapes_and_other_seeds_are_refused(tmp_path):
    Run([0, 1], tmp_path, chunk=10).fit(line_stage(20), line_data(), fixed(2))
    with pytest.raises(BecauseError, match=r"\(2, 3\).*\(2, 4\)"):
        Run([0, 1], tmp_path).fit(line_stage(width=4), line_data(width=4), fixed(2))
    with pytest.raises(BecauseError, match=r"\(3, 3\)"):
        Run([0, 1, 2], tmp_path).fit(line_stage(), line_data(), fixed(3))
    for seeds in ([], [1, 1]):
        with pytest.raises(BecauseError, match="seeds"):
            Run(seeds)


@pytest.mark.parametrize("steps", [0, 1])
def test_stage_may_be_short(steps):
    run = Run([0, 1])
    run.fit(line_stage(steps), line_data(), fixed(2))
    assert len(run.history["line"].get("step", ())) == min(steps, 1)


def test_cached_arrays_are_computed_once(tmp_path):
    for compute in (lambda: {"a": np.arange(3)}, None):
        np.testing.assert_array_equal(Run([0], tmp_path).cached("mask", compute)["a"], np.arange(3))


def test_one_process_at_a_time_computes_what_is_shared(tmp_path):
    shared = tmp_path / "shared"

    def compute():
        assert [file.suffix for file in shared.iterdir()] == [".lock"]
        return {"a": np.arange(3)}

    for name, given in (("a", compute), ("b", None)):
        Run([0], tmp_path / name, shared=shared).cached("mask", given, {"key": 1})
    (kept,) = shared.iterdir()
    assert kept.suffix == ".npz"
    kept.rename(kept.with_suffix(".lock"))  # as a process leaves it that is killed while it computes
    Run([0], tmp_path / "c", shared=shared).cached("mask", compute, {"key": 1})
    assert list(shared.iterdir()) == [kept]


@pytest.mark.slow
def test_runs_that_share_a_folder_train_a_stage_once(tmp_path):
    reports = []

    def run(name, seeds=(0, 1)):
        return Run(seeds, tmp_path / name, lambda *report: reports.append(report), chunk=10, shared=tmp_path / "shared")

    stage, data = line_stage(20, settings={"hidden": 1}), line_data()
    first = run("a").fit(stage, data, fixed(2))
    trained = len(reports)
    again = run("b").fit(stage, data, fixed(2))
    assert len(reports) == trained > 0
    jax.tree.map(np.testing.assert_array_equal, first, again)
    for different in (
        lambda: run("c").fit(line_stage(20, settings={"hidden": 2}), data, fixed(2)),
        lambda: run("d", (0, 2)).fit(stage, data, fixed(2)),
        lambda: run("e").fit(stage, {k: v + 1 for k, v in data.items()}, fixed(2)),
        lambda: run("f").fit(stage, data, jax.tree.map(lambda a: a + 1, fixed(2))),
        lambda: run("g").fit(line_stage(20), data, fixed(2)),
    ):
        before = len(reports)
        different()
        assert len(reports) > before
