"""What a long sweep holds: a leak planted on purpose shows, and cells that leave nothing behind add nothing."""

import pytest

from because_rl.errors import BecauseError
from benchmarks.speed import soak as soaking
from benchmarks.speed.soak import draw_soak, soak

HANDLES = []


def leaking(job, missing):
    for key in missing:
        HANDLES.append(open(__file__))  # noqa: SIM115
        yield key, {"success": 1.0}


def clean(job, missing):
    for key in missing:
        yield key, {"success": 1.0}


@pytest.mark.parametrize(("compute", "descriptors"), [(leaking, 100), (clean, 0)])
def test_descriptors_that_stay_open_show(tmp_path, monkeypatch, compute, descriptors):
    monkeypatch.setattr(soaking, "TrainAndEvaluate", lambda *arguments, **options: compute)
    monkeypatch.setattr(soaking.gc, "collect", lambda: 0)
    try:
        result = soak(tmp_path / "r", cells=60)
    finally:
        for handle in HANDLES:
            handle.close()
        HANDLES.clear()
    assert [row["cell"] for row in result["rows"]] == list(range(1, 61))
    assert result["growth_per_100"]["descriptors"] == pytest.approx(descriptors, abs=1e-6)
    draw_soak(result, tmp_path / "soak.svg")
    assert "open descriptors" in (tmp_path / "soak.svg").read_text()
    with pytest.raises(BecauseError, match="new folder"):
        soak(tmp_path / "r", cells=60)
