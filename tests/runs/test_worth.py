"""`because worth` on the folder of a fit: numbers, verdict, page and refusals."""

import json

import numpy as np
import pytest

import because_rl as br
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from because_rl.runs.fit import fit
from because_rl.runs.worth import FITTED, worth
from tests.runs.test_fit import TINY
from tests.support import because


@pytest.mark.long
def test_the_policy_of_a_fit_is_appraised(tmp_path):
    rng, rows = np.random.default_rng(0), {"observations": [], "actions": [], "rewards": [], "terminations": []}
    rows["truncations"], rows["next_observations"] = [], []
    for _ in range(30):
        x = rng.uniform(-1, 1, 1)
        for t in range(8):
            a = rng.integers(2)
            after = np.clip(x + 0.3 * (2 * a - 1) + 0.02 * rng.standard_normal(1), -2, 2)
            for name, value in zip(rows, (x, a, after[0], False, t == 7, after), strict=True):
                rows[name].append(value)
            x = after
    spec = FactorSpec(pack(("x", 1, "continuous")), pack(("push", 2, "categorical")), codes=((1.0, 0.0), (0.0, 1.0)))
    data = {name: np.asarray(values) for name, values in rows.items()}
    out = tmp_path / "fitted"
    fit(data, spec, out, seeds=[0], overrides=TINY | {"behaviour_steps": 200, "value_steps": 200})
    right = tmp_path / "right.npz"
    np.savez(right, actions=np.ones(240, int))
    result = json.loads(because("worth", out, "--policy", right, "--resamples", 20, "--json").stdout)
    names = [policy["policy"] for policy in result["policies"]]
    assert names == [FITTED, "right.npz"]
    assert result["policies"][1]["verdict"] == "better than the behaviour"
    assert result["policies"][0]["imitated"]["states"] == 240
    assert set(result["policies"][0]["world_model"]) == {"plain", "pessimistic", "error"}
    written = json.loads((out / "worth.json").read_text())
    assert written["behaviour"] == result["behaviour"]
    assert "Worth of the policy" in (out / "report/index.html").read_text()
    text = because("worth", out, "--resamples", 20).stdout
    assert "The fitted policy:" in text
    left = br.worth(out, lambda states: np.zeros(len(states), int), resamples=20)["policies"][1]
    assert left["verdict"] == "worse than the behaviour"
    for options, message in (({"discount": 0.0}, "discount"), ({"resamples": 3}, "at least 20")):
        with pytest.raises(BecauseError, match=message):
            worth(out, **options)


def test_a_folder_without_a_fit_is_refused(tmp_path):
    with pytest.raises(BecauseError, match="no fit"):
        worth(tmp_path)
