"""The check of the rest of a large log against the mask of its sample."""

from dataclasses import replace

import numpy as np
import pytest

from because_rl.discovery.mask import CausalMask
from because_rl.discovery.rest import check_rest
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from because_rl.transitions import Transitions

SPEC = FactorSpec(
    pack(("x", 1, "continuous"), ("y", 1, "continuous"), ("on", 1, "binary")),
    pack(("push", 1, "continuous"), ("valve", 1, "continuous")),
)
EPISODES, LENGTH = 40, 25


def log(seed, valve=0.0, form=lambda v: v, hidden=0.0):
    """x follows from itself and from push, y from itself and x; `valve` moves y; `on` is drawn from x."""
    rng = np.random.default_rng(seed)
    now, steps = {"x": rng.normal(size=EPISODES), "y": rng.normal(size=EPISODES), "on": np.zeros(EPISODES)}, []
    shift = hidden * rng.normal(size=EPISODES)
    for _ in range(LENGTH):
        push = 0.5 * now["x"] + rng.normal(size=EPISODES)
        flow = rng.normal(size=EPISODES)
        noise = 0.3 * rng.normal(size=(2, EPISODES))
        then = {
            "x": 0.8 * now["x"] + 0.5 * push + noise[0],
            "y": 0.7 * now["y"] + 0.5 * np.tanh(now["x"]) + valve * form(flow) + shift + noise[1],
            "on": (now["x"] + rng.normal(size=EPISODES) > 0).astype(float),
        }
        steps.append([np.stack([*part.values()], 1) for part in (now, {"p": push, "v": flow}, then)])
        now = then
    state, action, after = (np.stack(part, 1).reshape(-1, part[0].shape[1]) for part in zip(*steps, strict=True))
    return Transitions.from_arrays(state, action, after, np.arange(EPISODES).repeat(LENGTH), factors=SPEC)


@pytest.fixture(scope="module")
def sample():
    return log(0)


@pytest.fixture(scope="module")
def mask():
    """The true graph, as discovery would decide."""
    parents = {"x": ("x", "push"), "y": ("x", "y"), "on": ("x", "on")}
    kept = np.array([[i in parents[j] for j in SPEC.targets] for i in SPEC.inputs])
    zero = np.zeros(kept.shape)
    status = np.where(kept, "established", "excluded").astype("U12")
    evidence = {"p": zero, "statistic": zero, "effect": zero, "detectable": zero}
    return CausalMask(SPEC.inputs, SPEC.targets, **evidence, status=status, kept=kept, weight=kept.astype(float))


def checked(mask, sample, *chunks):
    numbered = [replace(c, metadata={"rows": [1000 * k, 1000 * (k + 1)]}) for k, c in enumerate(chunks)]
    return check_rest(mask, replace(sample, rest=numbered))


def reopened(result):
    return [(edge["from"], edge["to"]) for edge in result.settings["rest"]["reopened"]]


def test_a_rest_like_the_sample_reopens_nothing(mask, sample):
    result = checked(mask, sample, *(log(seed) for seed in range(1, 7)))
    rest = result.settings["rest"]
    assert reopened(result) == []
    assert (result.kept == mask.kept).all()
    assert (rest["chunks"], rest["rows"], rest["episodes"]) == (6, 6000, 240)
    assert rest["unexplained"]["y"]["rest"] == pytest.approx(rest["unexplained"]["y"]["sample"], rel=0.2)


@pytest.mark.parametrize(("form", "named"), [(lambda v: v, "linear"), (lambda v: v**2 - 1, "even")])
def test_an_edge_that_shows_in_one_chunk_alone_comes_back(mask, sample, form, named):
    result = checked(mask, sample, log(1), log(2, 0.2, form), *(log(seed) for seed in range(3, 9)))
    assert reopened(result) == [("valve", "y")]
    edge = result.settings["rest"]["reopened"][0]
    assert (edge["form"], edge["rows"]) == (named, [1000, 2000])
    place = mask.inputs.index("valve"), mask.targets.index("y")
    assert (result.status[place], result.kept[place], result.weight[place]) == ("undetermined", True, 1)
    assert "rows 1,000 to 2,000" in result.why["valve", "y"]
    assert type(result).from_dict(result.to_dict()).settings["rest"] == result.settings["rest"]


def test_what_the_user_forbade_stays_out(mask, sample):
    status = mask.status.copy()
    status[mask.inputs.index("valve"), mask.targets.index("y")] = "forbidden"
    result = checked(replace(mask, status=status), sample, log(1, 0.5))
    assert reopened(result) == []
    assert result.settings["rest"]["unexplained"]["y"]["worst_rows"] == [0, 1000]


def test_a_hidden_cause_of_episodes_reopens_nothing(mask):
    sample = log(0, hidden=0.3)
    assert reopened(checked(mask, sample, *(log(seed, hidden=0.3) for seed in range(1, 9)))) == []


def test_transitions_without_a_rest_are_refused(mask, sample):
    with pytest.raises(BecauseError, match="no sample"):
        check_rest(mask, sample)
