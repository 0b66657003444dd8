"""The page of a grid shows the numbers of its cells, and works in a browser: mouse, keyboard, phone and dark mode."""

import json
from pathlib import Path

import numpy as np
import pytest

from because_rl.discovery.mask import CausalMask
from because_rl.envs.tasks import world_class
from because_rl.errors import BecauseError
from because_rl.evaluation.energy_map import EnergyMap
from because_rl.evaluation.scenes import Scenes
from because_rl.experiments.grid.results import read_grid_results
from because_rl.experiments.grid_report import report_grid
from because_rl.experiments.paper.energy_maps import mean_maps
from because_rl.io import read_json, write_json, write_text
from because_rl.rng import stream
from tests.chromium import CHROMIUM, Browser
from tests.experiments.support import command

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).resolve().parents[2] / "results"
browser_needed = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")


def write_cell(folder, method, split, rate, seeds=(0, 1, 2), when="2026-01-01T00:00:00+00:00", **changes):
    """As `because sweep` writes it: `rate` of 20 scenes are solved, the same ones by no two seeds."""
    outcomes = [stream(seed, "cell", method, split).random(20) < rate for seed in seeds]
    cell = {
        "label": method,
        "method": method,
        "dataset": "because/unlock-medium-v0",  # a record of an earlier version; other files have today's
        "recipe": {"world": "unlock", "behaviour": "medium", "episodes": 200, "spurious": 1},
        "split": split,
        "spurious": 1,
        "episodes": 20,
        "seeds": list(seeds),
        "outcomes": ["".join("01"[int(o)] for o in seed) for seed in outcomes],
        "per_seed": [float(np.mean(seed)) for seed in outcomes],
        "steps": 12.5,
        "config": {"hidden": 64},
        "code": "0123456789abcdef",
        "seconds": {"training": 10.0, "evaluation": 2.0},
        "provenance": {"revision": "abc", "when": when, "config": {"device": "cpu"}, "versions": {"jax": "0.10"}},
    }
    if method != "td3bc":
        factors = {"agent": [0.01] * len(seeds), "key": [0.02] * len(seeds)}
        cell["one_step"] = {"error": 0.015, "rows": 100, "per_seed": [0.015] * len(seeds), "factors": factors}
    key = f"{method.strip('<>')}-unlock-medium-{split}-{when[:4]}{seeds[0]}"
    write_json(folder / "cells" / f"{key}.json", cell | changes)
    return key


def write_graph(folder):
    """A graph as `because discover` writes it: the true one of Unlock, with one edge missed and one false."""
    truth = world_class("unlock").make_true_graph(1)
    matrix = truth.matrix.copy()
    missed, false = np.argwhere(matrix)[1], np.argwhere(~matrix)[0]
    matrix[tuple(missed)], matrix[tuple(false)] = False, True
    p, status = np.where(matrix, 1e-9, 0.7), np.where(matrix, "established", "excluded")
    mask = CausalMask(
        *(truth.inputs, truth.targets, p, p, matrix * 0.5, p * 0.01, status, matrix, matrix * 0.9),
        settings={"test": "gtest"},
    )
    edges = [[truth.inputs[i], truth.targets[j]] for i, j in (missed, false)]
    score = {"f1": 0.9, "missed": edges[:1], "false": edges[1:]}
    write_json(folder / "graph.json", {"dataset": "because/unlock-medium-v1", "score": score} | mask.to_dict())


def write_maps(folder, when="2026-01-01T00:00:00+00:00", low=0.125):
    """A cell of `because paper fig-energy`: sure in one corner, where steps were logged."""
    steps, x = np.zeros((6, 6), int), np.arange(6.0)
    steps[:2, :2] = 3
    energy_map = EnergyMap("Opening", "", "", x, x, np.where(steps, low, 0.875), steps, {"door": [(1.0, 1.0)]})
    cell = {"measure": "energy-map", "label": "because", "dataset": "because/unlock-medium-v0", "seeds": [0, 1]}
    cell |= {"code": when, "source": "", "config": {}, "maps": [energy_map.to_dict()]}
    cell |= {"provenance": {"revision": "abc", "when": when}}
    write_json(folder / "cells" / f"because-unlock-medium-0-energy-map-{when[:4]}.json", cell)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two methods with world models and one without, on Unlock I, O and one sub-case of O, with all optional files."""
    folder = tmp_path_factory.mktemp("grid") / "results"
    for split in ("I", "O", "O-law"):
        for method, rate in (("because", 0.9), ("mopo", 0.3), ("td3bc", 0.2)):
            write_cell(folder, method, split, rate)
    write_graph(folder / "graphs" / "unlock-medium")
    row = {"world": "unlock", "success": 1.0, "low95": 0.96, "high95": 1.0}
    write_json(folder / "oracle.json", {"rows": [row | {"split": split} for split in "IO"]})
    logged = {"dataset": "because/unlock-medium-v0", "success_rate": 0.425, "success_ci95": [0.36, 0.49]}
    write_json(folder / "datasets.json", {"rows": [logged]})
    run = folder / "runs" / "because-unlock-medium"
    write_json(run / "run.json", {"method": "because", "dataset": "because/unlock-medium-v1"})
    lines = [{"stage": s, "step": n, "loss": [1 / n, 2 / n]} for s in ("world", "energy") for n in (1, 2, 3)]
    write_text(run / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    write_maps(folder)
    return folder


@pytest.fixture(scope="module")
def page(results, tmp_path_factory):
    progress: list[tuple[int, int]] = []
    output = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("because_rl.evaluation.scenes.FRAMES", 4)  # minigrid takes its time
        made = report_grid(results, output, seconds=600, report=lambda done, total: progress.append((done, total)))
    assert made["missing"] == []
    assert progress[0][0] == 0
    assert progress[-1][0] == progress[-1][1]
    assert [done for done, _ in progress] == sorted(done for done, _ in progress)
    return Path(made["page"])


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(autouse=True)
def no_old_problems(request):
    """Each test starts with empty lists of problems and requests."""
    if "browser" in request.fixturenames:
        browser = request.getfixturevalue("browser")
        browser.problems.clear()
        browser.asked.clear()


# In the browser ----------------------------------------------------------------------------------------

SHOWN = "[...document.querySelectorAll('.view')].filter(v => v.offsetParent).map(v => v.id)"
BROKEN = "[...document.images].filter(i => i.complete && !i.naturalWidth).length"


def check(browser):
    """Nothing failed, and nothing was requested but the file itself."""
    browser.js("Promise.all([...document.images].map(i => i.decode().catch(() => 0)))")
    assert browser.js(BROKEN) == 0
    assert browser.problems == []
    assert all(address.startswith(("file:", "data:")) for address in browser.asked)


@browser_needed
def test_the_browser_notices_what_fails(browser, page, tmp_path):
    """`check` fails for each kind of fault, put alone into the real page."""
    text = page.read_text()
    for fault in ("<script>missing()</script>", "<img src=missing.png>", "<script>console.error('x')</script>"):
        (tmp_path / "broken.html").write_text(text.replace("</main>", fault + "</main>"))
        browser.open(f"file://{tmp_path}/broken.html")
        with pytest.raises(AssertionError):
            check(browser)
        browser.problems.clear()


@browser_needed
def test_mouse(browser, page):
    browser.open(f"file://{page}")
    assert browser.js(SHOWN) == ["overview"]
    for name in ("tasks", "graphs", "energy", "learning", "errors", "costs", "provenance"):
        browser.click(f"nav.views a[href='#{name}']")
        browser.wait(f"{SHOWN}.join() === '{name}'")
        assert browser.js("document.querySelector('nav.views [aria-current]').hash") == f"#{name}"
    browser.click("nav.views a[href='#overview']")
    browser.wait(f"{SHOWN}.join() === 'overview'")
    small = "getComputedStyle(document.querySelector('#heat td .interval')).display"
    assert browser.js(small) != "none"
    browser.click("input[data-toggle=intervals]")
    assert browser.js(small) == "none"
    browser.click("#heat tbody a[href='#task-unlock-O-medium']")
    browser.wait(f"{SHOWN}.join() === 'task-unlock-O-medium'")
    film, task = "document.querySelector('#task-unlock-O-medium .film')", "#task-unlock-O-medium"
    assert browser.js(f"{film}.style.objectPosition") == ""
    browser.click(f"{task} .player button")
    browser.wait(f"{film}.style.objectPosition.endsWith(' 100%')")  # played to its end
    browser.js(f"document.querySelector('{task} select').value = '#task-unlock-I-medium'")
    browser.js(f"document.querySelector('{task} select').dispatchEvent(new Event('change'))")
    browser.wait(f"{SHOWN}.join() === 'task-unlock-I-medium'")
    check(browser)


@browser_needed
def test_graph_shows_the_evidence_for_an_edge(browser, page):
    browser.open(f"file://{page}#graph-unlock-medium")
    panel = "document.querySelector('.edge-details').innerText"
    browser.point(".graph path.false")  # the middle of a curve from side to side lies on it
    browser.wait(f"{panel}.includes('a false edge')")
    assert "1.0e-9" in browser.js(panel)
    browser.point("h1")
    browser.wait(f"{panel}.startsWith('Point at')")
    drawn = "[...document.querySelectorAll('.graph path')].filter(p => getComputedStyle(p).display !== 'none').length"
    before = browser.js(drawn)
    browser.js("const s = document.querySelector('.graph input'); s.value = 1; s.dispatchEvent(new Event('input'))")
    assert browser.js(drawn) == 0 < before  # none has the weight 1
    check(browser)


@browser_needed
def test_keyboard(browser, page):
    browser.open(f"file://{page}")
    where = "document.activeElement.textContent"
    focused = []
    for _ in range(4):
        browser.press("Tab")
        focused.append(browser.js(where))
        assert browser.js("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert focused == ["Skip to content", "Overview", "Tasks", "Causal graphs"]
    browser.press("Enter")
    browser.wait(f"{SHOWN}.join() === 'graphs'")
    browser.js("location.hash = 'graph-unlock-medium'")
    browser.wait(f"{SHOWN}.join() === 'graph-unlock-medium'")
    browser.js("document.querySelector('.graph .scroll').focus()")
    browser.press("Tab")
    details = browser.js("document.querySelector('.edge-details').innerText")
    assert details.startswith("Effects of agent")
    assert "p 1.0e-9, weight 0.90" in details
    unnamed = "[...document.querySelectorAll('input, select, [role=img], [role=region], [role=button]')]"
    unnamed += ".filter(e => !e.ariaLabel && !e.closest('label')).length"
    assert browser.js(unnamed) == 0
    assert browser.js("[...document.images].filter(i => !i.alt && !i.closest('a')).length") == 0
    check(browser)


@browser_needed
def test_phone_and_dark_mode(browser, page):
    browser.open(f"file://{page}", width=375, height=800, dark=True)
    for name in browser.js("[...document.querySelectorAll('.view')].map(v => v.id)"):
        browser.js(f"location.hash = '{name}'")
        browser.wait(f"{SHOWN}.join() === '{name}'")
        assert browser.js("document.documentElement.scrollWidth") <= 375, name
    light = "(c => c.match(/\\d+/g).slice(0, 3).reduce((a, b) => +a + +b))(getComputedStyle(document.body).{})"
    assert browser.js(light.format("backgroundColor")) < 150 < browser.js(light.format("color"))
    check(browser)


@browser_needed
def test_the_repositorys_own_results(browser, tmp_path):
    made = report_grid(RESULTS, tmp_path, seconds=0)  # seconds=0: draws no new pictures
    assert made["megabytes"] < 15
    browser.open(f"file://{made['page']}")
    for name in browser.js("[...document.querySelectorAll('.view')].map(v => v.id)"):
        browser.js(f"location.hash = '{name}'")
        browser.wait(f"{SHOWN}.join() === '{name}'")
    check(browser)


# The content -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_numbers_are_those_of_the_cells(results, page):
    text = page.read_text()
    result = next(r for r in read_grid_results(results)[0] if (r.method, r.task) == ("because", "unlock-O-medium"))
    assert f"{100 * result.rate.value:.1f}" in text
    assert text.count("significantly worse") >= 1
    assert "▲" in text  # .9 against .3 of three seeds
    assert "68.8" in text  # the paper's
    assert "rule logged" in text  # its dataset has an old id, as the cells do
    worst = int(np.argmin(result.solved))
    assert f"Scene {worst}: {round(3 * result.solved[worst])} of 3 seeds" in text
    assert 'src="http' not in text
    assert "url(http" not in text


def test_without_other_files_the_page_lists_what_is_missing(tmp_path):
    write_cell(tmp_path / "r", "because", "O", 0.5)
    write_cell(tmp_path / "r", "<b>", "O", 0.5)
    made = command("report", tmp_path / "r", "-o", tmp_path / "page", "--pictures", 0, "--json").json
    assert {m["command"].split()[1] for m in made["missing"]} == {
        "oracle",
        "datasets",
        "discover",
        "sweep",
        "report",
        "paper",
    }
    assert made["seconds"] > 0
    text = Path(made["page"]).read_text()
    assert 'href="#energy"' not in text
    assert "<b></span>" not in text  # a name is text
    assert "&lt;b&gt;" in text
    for m in made["missing"]:
        assert m["command"] in text


@pytest.mark.slow
def test_energy_maps_have_a_description(results, page):
    text = page.read_text()
    assert text.count('alt="unlock-medium, Opening: where logged 0.12, elsewhere 0.88"') == 1
    assert text.count('href="#energy"') == 3  # from the top and from both tasks
    assert "2 seeds, revision abc" in text


def test_the_newest_maps_count(tmp_path):
    for year, low in ((2026, 0.5), (2027, 0.25), (2025, 0.0)):
        write_maps(tmp_path, f"{year}-01-01T00:00:00+00:00", low)
    (maps,) = mean_maps(read_json(file) for file in (tmp_path / "cells").iterdir())
    assert (maps.maps[0].where_logged, maps.maps[0].elsewhere) == (0.25, 0.875)


def test_table_says_which_cells_count(tmp_path):
    old = write_cell(tmp_path, "because", "O", 0.5, when="2025-01-01T00:00:00+00:00")
    new = write_cell(tmp_path, "because", "O", 0.9)
    more = write_cell(tmp_path, "because", "O", 0.9, seeds=(3, 4))
    (result,), unused = read_grid_results(tmp_path)
    assert ({cell["key"] for cell in result.cells}, len(result.per_seed), unused) == ({new, more}, 5, 1)
    write_json(tmp_path / "table.json", {"rows": [{"method": "because", "task": "unlock-O-medium", "cells": [old]}]})
    (result,), unused = read_grid_results(tmp_path)
    assert ([cell["key"] for cell in result.cells], unused) == ([old], 2)


def test_no_cells(tmp_path):
    (tmp_path / "cells").mkdir()
    with pytest.raises(BecauseError, match="no finished cells"):
        report_grid(tmp_path, tmp_path / "page")


def test_a_world_that_cannot_be_drawn_is_reported(tmp_path, monkeypatch):
    def fail(name):
        raise BecauseError("Module 'minigrid' is not installed.", need="it.", fix="install it.")

    monkeypatch.setattr("because_rl.evaluation.scenes.world_class", fail)
    write_cell(tmp_path / "r", "because", "O", 0.5)
    missing = report_grid(tmp_path / "r", tmp_path / "page")["missing"]
    assert any("5 pictures (Module 'minigrid' is not installed" in m["what"] for m in missing)  # 2 films, 3 failures


def test_pictures_are_drawn_once_and_only_in_time(tmp_path, monkeypatch):
    late = Scenes(tmp_path, seconds=0)
    assert late.start("unlock", "O", 3) is None
    assert late.left_out == 1
    monkeypatch.setattr("because_rl.evaluation.scenes.FRAMES", 4)
    first = Scenes(tmp_path)
    film = first.film("unlock", "O", "expert", 3)
    start = first.start("unlock", "O", 3)
    first.close()
    again = Scenes(tmp_path, seconds=0)
    assert again.film("unlock", "O", "expert", 3) == film
    assert again.start("unlock", "O", 3) == start
    assert 2 < film.frames <= 5
    assert film.size == start.size
