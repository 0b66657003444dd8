"""Methods by name, and their settings: defaults, then those of the world, then overrides."""

from dataclasses import dataclass, field

import pytest

from because_rl.algorithms.registry import METHODS, configure, make_method
from because_rl.errors import BecauseError
from because_rl.planning.shooting import ShootingConfig


def test_settings_come_from_defaults_then_world_then_overrides():
    assert make_method("td3bc").config.hidden == 256
    assert make_method("td3bc", world="unlock").config.hidden == 64
    config = make_method("td3bc", {"hidden": "32", "tau": "1e-2", "alpha": 3}, "unlock").config
    assert (config.hidden, config.tau, config.alpha, config.critic_rate) == (32, 0.01, 3.0, 3e-3)
    assert isinstance(config.alpha, float)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": "1"}, "no setting 'beta'.*alpha.*delay"),
        ({"hidden": "1.5"}, "hidden='1.5'.*int"),
        ({"alpha": "much"}, "alpha='much'.*float"),
        ({"hidden": "true"}, "hidden='true'.*int"),
        ({"alpha.b": "1"}, "no parts"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(BecauseError, match=message):
        make_method("td3bc", settings)


def test_settings_of_a_nested_config():
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
