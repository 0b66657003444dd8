"""Views on the models behind a grid: causal graphs, energy maps, learning curves, model errors, costs, provenance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from because_rl.discovery.mask import current_row
from because_rl.envs.tasks import SPLITS
from because_rl.evaluation.energy_map import EnergyMap
from because_rl.report.charts import curve, legend, line, mark, plot
from because_rl.report.energy_figure import draw_map, summary
from because_rl.report.graph_figure import render
from because_rl.report.graph_svg import explore
from because_rl.report.grid_data import Grid, Result
from because_rl.report.markup import Html, data_uri, fold, join, table, tag
from because_rl.report.task_page import dataset_name


def view(name: str, title: str, *inside: Any, under: str | None = None) -> Html:
    """A section that is shown alone; `under` names the view that the navigation marks for it, if not itself."""
    return tag("section", tag("h2", title, tabindex=-1), *inside, class_="view", id=name, data_under=under)


def missing_list(grid: Grid, word: str = "") -> Html:
    """The missing parts whose description contains `word`, each with the command that produces it."""
    return tag("ul", *(tag("li", what, ": ", tag("code", cmd)) for what, cmd in grid.missing if word in what))


def _missing(grid: Grid, word: str) -> Html:
    return tag("div", tag("p", "Missing:"), missing_list(grid, word), class_="missing")


# Graphs ------------------------------------------------------------------------------------------------


def graph_views(grid: Grid) -> Html:
    """The list of all discovered graphs, then one view for each."""
    names = [dataset_name(graph["dataset"]) for graph in grid.graphs]
    text = (
        "Which factors the next value of each factor depends on, as discovered in the logged data. The world model "
        "uses these edges and no others."
    )
    cards = (
        tag("li", tag("a", tag("b", name), tag("small", graph_score(graph)), href=f"#graph-{name}", class_="words"))
        for name, graph in zip(names, grid.graphs, strict=True)
    )
    missing = any("causal graph" in what for what, _ in grid.missing)
    index = view(
        "graphs",
        "Causal graphs",
        tag("p", text),
        tag("ul", *cards, class_="cards tasks") if names else None,
        _missing(grid, "causal graph") if missing else None,
    )
    return join([index, *(_graph(name, graph, names) for name, graph in zip(names, grid.graphs, strict=True))])


def graph_score(graph: Any) -> str:
    """The number of edges of a graph.json, and its F1 where the true graph is known."""
    kept = sum(current_row(edge)["kept"] for edge in graph["edges"])
    return f"{kept} edges" + (f", F1 {graph['score']['f1']:.3f}" if graph.get("score") else "")


def _graph(name: str, graph: Any, names: Sequence[str]) -> Html:
    options = (tag("option", other, value=f"#graph-{other}", selected=other == name) for other in names)
    menu = tag("div", tag("select", *options, data_menu=True, aria_label="data"), class_="menu")
    return view(f"graph-{name}", f"Causal graph of {name}", menu, explore(graph), under="graphs")


# Energy maps -------------------------------------------------------------------------------------------


def energy_view(grid: Grid) -> Html | None:
    """The energy maps of all datasets; None if there are none."""
    if not grid.maps:
        return None
    text = (
        f"Uncertainty of {grid.focus}'s energy model, which its planner subtracts as a penalty: pale where the model "
        "is certain, orange where it is not. Blue dots are logged steps; a larger dot stands for more steps. The model "
        "should be certain where steps were logged and only there. Unlock: one logged room, with the agent placed in "
        "every cell; steps logged in other rooms make the model certain here, too. Crash and Lift: two columns are "
        "varied, all others are those of the logged steps nearest to each point."
    )
    parts = [tag("p", text)]
    for group in grid.maps:
        name = dataset_name(group.dataset)
        source = f"{group.seeds} seeds, revision {group.revision[:12]}, {group.when[:10]}"
        figures = (tag("figure", _energy_map(name, m), class_="map") for m in group.maps)
        parts += [tag("h3", name), tag("p", source, class_="soft"), tag("div", *figures, class_="films")]
    return view("energy", "Energy maps", *parts)


def _energy_map(name: str, energy_map: EnergyMap) -> Html:
    picture = data_uri(render(draw_map(energy_map), Path("map.svg")), "image/svg+xml")
    return tag("img", src=picture, alt=f"{name}, {energy_map.title}: {summary(energy_map)}")


# Learning curves ---------------------------------------------------------------------------------------


def curves_view(grid: Grid) -> Html:
    """Loss curves of the runs that were kept, by dataset, method and stage."""
    if not grid.curves:
        return view("learning", "Learning curves", _missing(grid, "learning curves"))
    parts = [tag("p", "Loss by stage, one line per seed. Losses of different stages and methods have different units.")]
    for dataset in sorted({c.dataset for c in grid.curves}):
        for c in sorted((c for c in grid.curves if c.dataset == dataset), key=lambda c: c.method):
            figures = [curve(stage, steps, losses) for stage, (steps, losses) in c.stages.items() if steps]
            parts += [tag("h3", f"{c.method} on {dataset_name(dataset)}"), tag("div", *figures, class_="curves")]
    return view("learning", "Learning curves", *parts)


# World models ------------------------------------------------------------------------------------------


def errors_view(grid: Grid) -> Html:
    """One-step errors of all world models, in distribution and out of it."""
    parts: list[Html] = []
    for dataset in grid.datasets:
        by_method: dict[str, dict[str, Result]] = {}
        for r in grid.results:
            if r.dataset == dataset and r.split in SPLITS and r.one_step:
                by_method.setdefault(r.method, {})[r.split] = r
        if by_method:
            charts = _errors(grid, by_method), _by_factor(by_method)
            parts.append(tag("div", tag("h3", dataset_name(dataset)), *charts))
    if not parts:
        return view("errors", "World models", tag("p", "No method in this grid has a world model."))
    text = (
        "One-step prediction errors of the world models, on steps of the logging policy in new scenes. Continuous "
        "factors: root mean squared error divided by the root mean square of the change (1 is as good as predicting no "
        "change). Discrete factors: share of wrong predictions. The error of a model is the mean over factors. A model "
        "that took a confounded factor for a cause is much worse out of distribution. The number on the right is the "
        "error in O divided by the error in I."
    )
    entries = legend(("dot", "in distribution (I)", True), ("ring", "out of distribution (O)", False))
    return view("errors", "World models", tag("p", text), entries, tag("div", *parts, class_="pair"))


def _error(r: Result) -> float:
    return sum(group["error"] for group in r.one_step) / len(r.one_step)


def _errors(grid: Grid, by_method: dict[str, dict[str, Result]]) -> Html:
    errors = {m: {split: _error(r) for split, r in both.items()} for m, both in by_method.items()}
    top = max(e for both in errors.values() for e in both.values()) or 1.0
    lines = []
    for m in sorted(errors, key=lambda m: (m != grid.focus, errors[m].get("O", errors[m].get("I", 0)))):
        inside, outside = errors[m].get("I"), errors[m].get("O")
        ends = [e for e in (inside, outside) if e is not None]
        marks = [mark("span", min(ends) / top, (max(ends) - min(ends)) / top)]
        marks += [mark("dot", inside / top, title=f"I {inside:.4f}")] if inside is not None else []
        marks += [mark("ring", outside / top, title=f"O {outside:.4f}")] if outside is not None else []
        ratio = f"{outside / inside:.2f} ×" if inside and outside else "–"
        label = f"{m}: " + ", ".join(f"{split} {e:.4f}" for split, e in errors[m].items())
        lines.append(line(m, marks, ratio, m == grid.focus, label))
    return plot(lines, ("0", f"{top / 2:.3g}", f"{top:.3g}"))


def _by_factor(by_method: dict[str, dict[str, Result]]) -> Html:
    """One row per factor: the errors of every method in I and O."""
    any_result = next(iter(next(iter(by_method.values())).values()))
    factors = list(any_result.one_step[0]["factors"])
    rows: list[list[Any]] = []
    for factor in factors:
        cells = [
            " → ".join(f"{_factor_error(both[split], factor):.3f}" if split in both else "–" for split in SPLITS)
            for both in by_method.values()
        ]
        rows.append([factor, *cells])
    return fold("By factor, I → O", table("Errors by factor, I → O", ("factor", *by_method), rows))


def _factor_error(r: Result, factor: str) -> float:
    values = [e for group in r.one_step for e in group["factors"].get(factor, ())]
    return sum(values) / len(values) if values else float("nan")


# Costs -------------------------------------------------------------------------------------------------


def costs_view(grid: Grid) -> Html:
    """Seconds of training and evaluation by world and method.

    One training serves all the splits it is evaluated on, so it is counted once.
    """
    training: dict[tuple[str, str, str], float] = {}
    evaluation: dict[tuple[str, str], list[float]] = {}
    devices: dict[str, None] = {}
    for r in grid.results:
        for cell in r.cells:
            name = r.method, r.world, f"{r.dataset} {cell['seeds']}"
            training[name] = max(training.get(name, 0.0), cell["seconds"]["training"])
            evaluation.setdefault((r.method, r.world), []).append(cell["seconds"]["evaluation"])
            devices[cell["provenance"]["config"].get("device", "unknown")] = None
    parts = []
    for world in grid.worlds:
        seconds = {}
        for m in grid.methods:
            trained = [s for (method, w, _), s in training.items() if (method, w) == (m, world)]
            if trained:
                tested = evaluation[m, world]
                seconds[m] = sum(trained) / len(trained), sum(tested) / len(tested)
        top = max(a + b for a, b in seconds.values()) or 1.0
        lines = [
            line(
                m,
                [
                    mark("bar", 0.0, a / top, f"training {a:.0f} s"),
                    mark("bar", a / top, b / top, f"one split {b:.0f} s"),
                ],
                f"{a + b:,.0f} s",
                m == grid.focus,
                f"{m}: training {a:.0f} s, evaluating one split {b:.0f} s",
            )
            for m, (a, b) in sorted(seconds.items(), key=lambda pair: sum(pair[1]))
        ]
        parts += [tag("h3", world.capitalize()), plot(lines, ("0", f"{top / 2:,.0f} s", f"{top:,.0f} s"))]
    hours = (sum(training.values()) + sum(sum(s) for s in evaluation.values())) / 3600
    text = (
        f"Mean seconds to train all seeds of a method on one dataset (left part of a bar) and to evaluate them on one "
        f"split (right part), measured on {', '.join(devices)}; several jobs may have shared a machine. "
        f"Total: {hours:.1f} h."
    )
    return view("costs", "Costs", tag("p", text), *parts)


# Provenance --------------------------------------------------------------------------------------------


def provenance_view(grid: Grid) -> Html:
    """All cells with their revision, device and seeds, and the settings behind them."""
    cells = [(r, cell) for r in grid.results for cell in r.cells]
    rows = [
        [
            cell["key"],
            str(cell["provenance"]["revision"])[:12],
            cell.get("code", "–")[:8],
            cell["provenance"]["config"].get("device", "unknown"),
            _seeds(cell["seeds"]),
            cell.get("episodes", "–"),
            cell["provenance"]["when"][:16].replace("T", " "),
            f"{cell['seconds']['training']:.0f} + {cell['seconds']['evaluation']:.0f}",
        ]
        for _, cell in cells
    ]
    head = ("cell", "revision", "source", "device", "seeds", "scenes", "when", "seconds")
    configs: dict[str, list[str]] = {}
    for r, cell in cells:
        settings = json.dumps(cell["config"], indent=1, sort_keys=True)
        configs.setdefault(settings, []).append(f"{r.method} on {dataset_name(r.dataset)}")
    note = (
        "A cell is one method on one dataset and split. Its name ends in a hash of everything its numbers depend on: "
        "settings, data, seeds, scenes and source code. The same cells always give the same page."
    )
    versions: dict[str, int] = {}
    for _, cell in cells:
        packages = ", ".join(f"{name} {v}" for name, v in cell["provenance"].get("versions", {}).items())
        versions[packages] = versions.get(packages, 0) + 1
    return view(
        "provenance",
        "Provenance",
        tag("p", note),
        *(tag("p", f"{n} cells: {packages}.", class_="soft") for packages, n in versions.items() if packages),
        table("All cells", head, rows, class_="loose"),
        tag("h3", "Settings"),
        *(fold(", ".join(dict.fromkeys(names)), tag("pre", text, tabindex=0)) for text, names in configs.items()),
    )


def _seeds(seeds: Sequence[int]) -> str:
    """A range of seeds in words.

    >>> _seeds([0, 1, 2]), _seeds([1, 5])
    ('0 to 2', '1, 5')
    """
    consecutive = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if consecutive else ", ".join(map(str, seeds))
