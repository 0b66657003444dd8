"""Energy maps of models whose uncertainty is known for every row: values, logged steps and drawing."""

from dataclasses import fields
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.envs.tasks import make_batch, world_class
from because_rl.evaluation.energy_map import MARGIN, PLANES, EnergyMap, energy_maps
from because_rl.evaluation.rollout import layouts
from because_rl.report.energy_figure import draw_maps
from because_rl.rng import stream
from because_rl.transitions import Transitions


def make_data(world, state, action):
    columns = {field.name: np.zeros(len(state)) for field in fields(Transitions)}
    columns |= {"factors": world_class(world).make_factors(1), "horizon": 15}
    return Transitions(**columns | {"state": state, "action": action})


def make_agent(uncertainty, seeds=(0.0, 0.2)):
    """An agent whose model has this uncertainty at each row, plus the number of the seed."""
    learned = SimpleNamespace(imagine=lambda p, state, action: (state, uncertainty(state, action) + p))
    return SimpleNamespace(seeds=seeds, parameters=jnp.array(seeds, jnp.float32), learned=learned)


def test_unlock_is_one_logged_room_with_the_agent_in_every_cell():
    batch = make_batch("unlock", "I")
    one, other = batch.reset(layouts("unlock", "I", 2)).state
    carrying = one.copy()
    carrying[36:72], carrying[108:110] = 0, (0, 1)
    codes = np.array(world_class("unlock").make_factors(1).codes)
    state = np.stack([one, one, carrying, carrying, other])
    data = make_data("unlock", state, codes[[0, 1, 2, 5, 5]])
    maps = energy_maps(make_agent(lambda s, a: (s[:36] * s[72:108]).sum() * a[7] * s[109]), data, "unlock")
    assert [m.title for m in maps] == [
        "Moving without the key",
        "Opening without the key",
        "Moving with the key",
        "Opening with the key",
    ]
    (column, row), *_ = maps[3].marks["door"]
    door = np.zeros((6, 6))
    door[int(row), int(column)] = 1
    assert door.ravel().argmax() == one[72:108].argmax()
    for m in maps:
        expected = 0.1 + door * (m.title == "Opening with the key")  # 0.1: the mean of the seeds' numbers
        np.testing.assert_allclose(m.uncertainty, expected, atol=1e-6)
    agent = int(one[:36].argmax())
    assert [m.steps.sum() for m in maps] == [2, 0, 1, 1]  # the other room is not counted
    assert maps[0].steps.ravel()[agent] == 2
    assert (bool(maps[0].marks["key"]), bool(maps[2].marks["key"])) == (True, False)


@pytest.mark.parametrize("world", sorted(PLANES))
def test_planes_vary_only_their_two_columns(world):
    factors = world_class(world).make_factors(1)
    rng, size = stream(0, "planes"), factors.state_size
    rows = rng.normal(size=(200, size + factors.action_size)).astype("f4")
    data = make_data(world, rows[:, :size], rows[:, size:])
    start = {f.name: f.start for f in factors.state} | {f.name: size + f.start for f in factors.action}
    for n, (_, *axes) in enumerate(PLANES[world]):
        i, j = (start[axis.factor] + axis.column for axis in axes)
        others = np.array([k for k in range(rows.shape[1]) if k not in (i, j)])

        def weighted(state, action, i=i, j=j):
            row = jnp.concatenate([state, action])
            return row[i] + 10 * row[j]

        m = energy_maps(make_agent(weighted, (0.0,)), data, world)[n]
        np.testing.assert_allclose(m.uncertainty, m.x[None] + 10 * m.y[:, None], rtol=1e-3, atol=1e-4)
        spacing = m.x[1] - m.x[0]
        low, high = rows[:, i].min(), rows[:, i].max()
        np.testing.assert_allclose(m.x[0] - spacing / 2, low - MARGIN * (high - low), rtol=1e-4)
        np.testing.assert_allclose(m.x[-1] + spacing / 2, high + MARGIN * (high - low), rtol=1e-4)
        counts, _, _ = np.histogram2d(rows[:, j], rows[:, i], (_edges(m.y), _edges(m.x)))
        np.testing.assert_array_equal(m.steps, counts)

        def rest(state, action, others=others):
            return jnp.concatenate([state, action])[others].sum()

        # The other columns are those of the nearest logged steps: their mean lies within the logged range.
        logged = rows[:, others].sum(1)
        mean = energy_maps(make_agent(rest, (0.0,)), data, world)[n].uncertainty
        assert logged.min() - 1e-3 <= mean.min() < mean.max() <= logged.max() + 1e-3


def _edges(centres):
    spacing = centres[1] - centres[0]
    return np.append(centres - spacing / 2, centres[-1] + spacing / 2)


def test_a_map_reads_back_and_is_drawn():
    x, steps = np.arange(3.0), np.eye(3, dtype=int)
    energy_map = EnergyMap("Title", "", "", x, x, 1 - 0.75 * steps, steps, {"key": [(0.0, 1.0)]})
    again = EnergyMap.from_dict(energy_map.to_dict())
    np.testing.assert_array_equal(again.uncertainty, energy_map.uncertainty)
    assert (again.where_logged, again.elsewhere) == (0.25, 1.0)
    assert energy_map._replace(steps=0 * steps).where_logged is None
    figure = draw_maps({"a": [energy_map], "b": [energy_map, energy_map]})
    panels = [axes for axes in figure.axes if axes.get_title() == "Title"]
    assert len(panels) == 3
    assert [text.get_text() for text in panels[0].texts] == ["key", "where logged 0.25, elsewhere 1.00"]
