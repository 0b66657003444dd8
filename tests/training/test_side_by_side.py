"""Works side by side: each gets what it would get alone, and what they share is compiled once."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from because_rl.errors import BecauseError
from because_rl.training import side_by_side, stage
from because_rl.training.side_by_side import Program, Team, describe, run_program
from because_rl.training.stage import Stage, fit
from tests.training.line import line_data, same_bits

TRACED = []


def init(key, fixed):
    return {"w": jax.random.normal(key, (3,)), "b": jnp.zeros(())}


def line_loss(shift, model, fixed, batch, key):
    TRACED.append(key)
    noise = 0.1 * jax.random.normal(key, batch["y"].shape)
    error = batch["x"] @ model["w"] + model["b"] - batch["y"] + shift + noise
    return (error**2).mean() + fixed * model["b"] ** 2, {"bias": model["b"]}


def train(rows, shift, seeds, steps=20, name="line", start=None):
    data = {key: values[:rows] for key, values in line_data(ROWS[-1]).items()}
    loss = partial(line_loss, jnp.asarray(shift))
    line = Stage(name, init, loss, steps, batch=16, rule=optax.adam(0.01))
    metrics = []
    result = fit(line, data, jnp.ones(len(seeds)), seeds, start, chunk=10, report=lambda *got: metrics.append(got[2]))
    return result, metrics


ROWS = (50, 200)
WORKS = [partial(train, ROWS[0], 0.0, [0, 1]), partial(train, ROWS[1], 2.0, [5, 8])]


@pytest.fixture
def merged(monkeypatch, request):
    """As on a GPU or not; with few rows to a step, so that datasets differ in length after they are filled up."""
    monkeypatch.setattr(side_by_side, "merges", lambda: request.param)
    monkeypatch.setattr(stage, "ROW_STEP", 64)
    TRACED.clear()
    return request.param


@pytest.mark.parametrize("merged", [True, False], indirect=True)
def test_datasets_side_by_side_equal_each_alone(merged):
    alone = [work() for work in WORKS]
    once = len(TRACED) // len(WORKS)
    TRACED.clear()
    together = Team().run(WORKS)
    if merged:
        assert len(TRACED) == once  # one program, though rows, values and seeds differ
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert merged or same_bits(alone, together)
    assert not np.allclose(together[0][0].params["w"], together[1][0].params["w"], atol=1e-3)


@pytest.mark.parametrize("merged", [True], indirect=True)
def test_works_that_differ_get_what_they_get_alone(merged):
    """One goes on from a checkpoint, one has another loss, one trains twice; all wait for one another where it pays."""
    half = train(ROWS[0], 0.0, [0, 1], steps=10)[0]
    names = []

    def twice(again):
        first = train(ROWS[1], 1.0, [3, 4])
        second = train(ROWS[1], 1.0, [3, 4], name="line-2") if again else first
        names.append(f"later {again}")
        return train(ROWS[1], 1.0, [3, 4], name="later"), second

    works = [partial(train, ROWS[0], 0.0, [0, 1], start=half), partial(twice, True), partial(twice, False)]
    alone = [work() for work in works]
    names.clear()
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(Team().run(works)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert names == ["later False", "later True"]


@pytest.mark.parametrize("merged", [True], indirect=True)
def test_an_error_of_one_work_leaves_the_others(merged):
    fine, broken, refused = Team().run(
        [WORKS[0], partial(train, ROWS[1], np.nan, [5, 8]), partial(train, ROWS[1], 0.0, [1], start=3)]
    )
    np.testing.assert_allclose(fine[0].params["w"], WORKS[0]()[0].params["w"], rtol=1e-5)
    assert isinstance(broken, BecauseError)
    assert "not finite at step 0, seed 5" in str(broken)
    assert isinstance(refused, AttributeError)


def test_works_that_do_not_fit_together_run_in_parts(monkeypatch):
    sizes = []

    def merge(function):
        def merged(arguments):
            sizes.append(len(arguments))
            if len(arguments) > 2:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
            return [function(*each) for each in arguments]

        return merged

    monkeypatch.setattr(side_by_side, "merges", lambda: True)
    monkeypatch.setattr(side_by_side, "_merge", merge)
    program, team = Program("double", lambda x: 2 * x, "double"), Team()
    works = [partial(run_program, program, jnp.asarray(k)) for k in range(5)]
    assert [int(x) for x in team.run(works)] == [0, 2, 4, 6, 8]
    assert sizes == [5, 3, 2, 2]
    assert [int(x) for x in team.run(works)] == [0, 2, 4, 6, 8]  # remembered


def test_an_interrupt_ends_all_works(monkeypatch):
    ended = []

    def work(name):
        try:
            run_program(Program("any", lambda x: x, "any"), jnp.zeros(()))
        finally:
            ended.append(name)

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(side_by_side, "_run_one", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Team().run([partial(work, 1), partial(work, 2)])
    assert sorted(ended) == [1, 2]


def test_functions_are_described_by_code_and_what_they_close_over():
    def add(number):
        return lambda x: x + number

    def subtract(number):
        return lambda x: x - number

    array = np.arange(3.0)
    assert describe((add(1), {"a": add(array)})) == describe((add(1), {"a": add(array.copy())}))
    different = [add(1), add(2), add(1.0), add(array), add(array + 1), subtract(1), partial(add(1)), add({1})]
    assert len({describe(one) for one in different}) == len(different)
