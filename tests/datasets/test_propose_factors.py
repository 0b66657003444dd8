"""Factors proposed for a user's own log."""

import h5py
import numpy as np
import yaml

from because_rl.datasets.propose_factors import propose_factors
from because_rl.datasets.user_log import read_log
from because_rl.factors import FactorSpec
from tests.support import arrays, write


def test_types_follow_from_values(tmp_path):
    rng = np.random.default_rng(0)
    rows = arrays()
    gear = rng.integers(3, size=144)
    x = rows["observations"][:, :1]
    rows["observations"] = np.hstack([x, np.eye(3)[gear], gear[:, None], x, 2 - 3 * x, np.full((144, 1), 7.0)])
    del rows["next_observations"]
    path = write(tmp_path / "a.hdf5", rows | {"actions": rng.integers(4, size=144)})
    with h5py.File(path, "a") as file:
        file["observations"].attrs["names"] = ["x", "gear_1", "gear_2", "gear_3", "code", "copy", "off", "true"]
    text = propose_factors(read_log(path))
    spec = FactorSpec.from_dict(yaml.safe_load(text))
    assert [(f.name, f.start, f.stop, f.type) for f in spec.state] == [
        ("x", 0, 1, "continuous"),
        ("gear", 1, 4, "categorical"),
        ("code", 4, 5, "continuous"),
        ("copy", 5, 6, "continuous"),
        ("off", 6, 7, "continuous"),
        ("true", 7, 8, "continuous"),
    ]
    assert [(f.name, f.width, f.type) for f in spec.action] == [("action", 4, "categorical")]
    lines = {line.split("name: ")[1].split(",")[0].strip('"'): line for line in text.splitlines() if " - {name" in line}
    assert "codes of a category" in lines["code"]
    assert "the same as x" in lines["copy"]
    assert "follows from x exactly" in lines["off"]
    assert "always 7" in lines["true"]
    assert "#" not in lines["x"] + lines["gear"]


def test_goal_is_proposed_from_how_episodes_end(tmp_path):
    rows = arrays()
    far = rows["next_observations"][5::6, 0]
    rows["goals"] = np.repeat(far - 0.01, 6)[:, None]
    spec = FactorSpec.from_dict(yaml.safe_load(propose_factors(read_log(write(tmp_path / "a.hdf5", rows)))))
    goal = spec.to_dict()["goal"][0]
    assert (goal["of"], goal["relation"]) == (spec.state[0].name, "at_least")
