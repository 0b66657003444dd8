"""Training on rows that are drawn block by block from more than fits in memory."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.training import stage as stages
from because_rl.training.run import Run
from because_rl.training.stage import Stage, StreamedRows


class Level(eqx.Module):
    value: jax.Array


def distance(model, fixed, batch, key):
    loss = ((model.value - batch["x"]) ** 2).mean()
    return loss, {}


class Source:
    """Rows around 3; remembers the blocks."""

    def __init__(self):
        self.blocks = []

    def draw(self, rng, count):
        self.blocks.append(3 + 0.1 * rng.normal(size=count))
        return {"x": self.blocks[-1]}


def stage(steps=400):
    return Stage("level", lambda key, fixed: Level(jnp.zeros(())), distance, steps, 32, 0.05)


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.setattr(stages, "STREAMED_ROWS", 64)
    return StreamedRows({"x": jnp.zeros(20)}, Source())


def test_a_stage_trains_on_what_the_source_gives(rows):
    run = Run([0, 1], chunk=100)
    trained = run.fit(stage(), rows, ())
    np.testing.assert_allclose(trained.value, 3, atol=0.1)
    assert [len(block) for block in rows._source.blocks] == [64] * 4
    assert len({float(block[0]) for block in rows._source.blocks}) == 4
    assert len(rows["x"]) == 20  # what takes all rows at once sees the sample


def test_a_stopped_training_goes_on_with_the_same_blocks(rows, tmp_path):
    class Stopped(Exception):
        pass

    def stop(name, done, total, metrics):
        if done == 200:
            raise Stopped

    whole = Run([0], chunk=100).fit(stage(), rows, ())
    with pytest.raises(Stopped):
        Run([0], tmp_path, stop, chunk=100).fit(stage(), rows, ())
    resumed = Run([0], tmp_path, chunk=100).fit(stage(), rows, ())
    np.testing.assert_array_equal(whole.value, resumed.value)


def test_streamed_stages_are_not_shared_between_runs(rows, tmp_path):
    shared = Stage("level", lambda key, fixed: Level(jnp.zeros(())), distance, 10, 32, 0.05, settings={})
    Run([0], tmp_path / "a", chunk=10, shared=tmp_path / "shared").fit(shared, rows, ())
    assert not (tmp_path / "shared").exists() or not list((tmp_path / "shared").glob("level*"))
