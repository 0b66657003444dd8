"""Views of a grid that look inside: causal graphs, learning curves, errors of world models, costs, provenance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from because_rl.envs.tasks import SPLITS
from because_rl.report.charts import curve, key, line, place, plot
from because_rl.report.graph_svg import explore
from because_rl.report.grid_data import Grid, Result
from because_rl.report.markup import Html, fold, join, table, tag
from because_rl.report.task_page import dataset_name


def view(name: str, title: str, *inside: Any, under: str | None = None) -> Html:
    return tag("section", tag("h2", title, tabindex=-1), *inside, class_="view", id=name, data_under=under)


def nothing(grid: Grid, word: str) -> Html:
    """What is missing of this view, and the commands that make it."""
    told = [tag("li", what, ": ", tag("code", command)) for what, command in grid.missing if word in what]
    return tag("div", tag("p", "Not here yet:"), tag("ul", *told), class_="missing")


# Graphs ------------------------------------------------------------------------------------------------


def graph_views(grid: Grid) -> Html:
    names = [dataset_name(graph["dataset"]) for graph in grid.graphs]
    told = "What drives what, as discovered in the logged data. The world model may use these edges and no others."
    cards = (
        tag("li", tag("a", tag("b", name), tag("small", _score(graph)), href=f"#graph-{name}", class_="words"))
        for name, graph in zip(names, grid.graphs, strict=True)
    )
    missing = any("causal graph" in what for what, _ in grid.missing)
    index = view(
        "graphs",
        "Causal graphs",
        tag("p", told),
        tag("ul", *cards, class_="cards tasks") if names else None,
        nothing(grid, "causal graph") if missing else None,
    )
    return join([index, *(_graph(name, graph, names) for name, graph in zip(names, grid.graphs, strict=True))])


def _score(graph: Any) -> str:
    kept = sum(edge["status"] in ("edge", "untestable", "forced") for edge in graph["edges"])
    return f"{kept} edges" + (f", F1 {graph['score']['f1']:.3f}" if "score" in graph else "")


def _graph(name: str, graph: Any, names: Sequence[str]) -> Html:
    options = (tag("option", other, value=f"#graph-{other}", selected=other == name) for other in names)
    menu = tag("div", tag("select", *options, data_menu=True, aria_label="data"), class_="menu")
    return view(f"graph-{name}", f"Causal graph of {name}", menu, explore(graph), under="graphs")


# Learning curves ---------------------------------------------------------------------------------------


def curves_view(grid: Grid) -> Html:
    if not grid.curves:
        return view("learning", "Learning curves", nothing(grid, "learning curves"))
    parts = [tag("p", "Loss by stage, a line per seed. Losses of different stages and methods have different units.")]
    for dataset in sorted({c.dataset for c in grid.curves}):
        for c in sorted((c for c in grid.curves if c.dataset == dataset), key=lambda c: c.method):
            figures = [curve(stage, *told) for stage, told in c.stages.items() if told[0]]
            parts += [tag("h3", f"{c.method} on {dataset_name(dataset)}"), tag("div", *figures, class_="curves")]
    return view("learning", "Learning curves", *parts)


# World models ------------------------------------------------------------------------------------------


def errors_view(grid: Grid) -> Html:
    """One step ahead, under the training law and with it broken."""
    parts: list[Html] = []
    for dataset in grid.datasets:
        found: dict[str, dict[str, Result]] = {}
        for r in grid.results:
            if r.dataset == dataset and r.split in SPLITS and r.one_step:
                found.setdefault(r.method, {})[r.split] = r
        if found:
            parts.append(tag("div", tag("h3", dataset_name(dataset)), _errors(grid, found), _by_factor(found)))
    if not parts:
        return view("errors", "World models", tag("p", "No method of this grid has a world model."))
    told = (
        "How wrong each world model is one step ahead, on what the logging policy does in new scenes. A continuous "
        "factor: root mean squared error over the usual size of its change (1 is no better than 'nothing moves'); a "
        "discrete one: share of wrong predictions; then the mean over factors. A model that took a confounder for a "
        "cause is much worse where the law is broken. The number on the right: O over I."
    )
    legend = key(("dot", "training law (I)", True), ("ring", "law broken (O)", False))
    return view("errors", "World models", tag("p", told), legend, tag("div", *parts, class_="pair"))


def _error(r: Result) -> float:
    return sum(one["error"] for one in r.one_step) / len(r.one_step)


def _errors(grid: Grid, found: dict[str, dict[str, Result]]) -> Html:
    errors = {m: {split: _error(r) for split, r in both.items()} for m, both in found.items()}
    top = max(e for both in errors.values() for e in both.values()) or 1.0
    lines = []
    for m in sorted(errors, key=lambda m: (m != grid.focus, errors[m].get("O", errors[m].get("I", 0)))):
        inside, outside = errors[m].get("I"), errors[m].get("O")
        ends = [e for e in (inside, outside) if e is not None]
        marks = [place("span", min(ends) / top, (max(ends) - min(ends)) / top)]
        marks += [place("dot", inside / top, title=f"I {inside:.4f}")] if inside is not None else []
        marks += [place("ring", outside / top, title=f"O {outside:.4f}")] if outside is not None else []
        ratio = f"{outside / inside:.2f} ×" if inside and outside else "–"
        said = f"{m}: " + ", ".join(f"{split} {e:.4f}" for split, e in errors[m].items())
        lines.append(line(m, marks, ratio, m == grid.focus, said))
    return plot(lines, ("0", f"{top / 2:.3g}", f"{top:.3g}"))


def _by_factor(found: dict[str, dict[str, Result]]) -> Html:
    """Factor by factor: I → O of every method."""
    factors = list(next(iter(next(iter(found.values())).values())).one_step[0]["factors"])
    rows: list[list[Any]] = []
    for factor in factors:
        cells = [
            " → ".join(f"{_of_factor(both[split], factor):.3f}" if split in both else "–" for split in SPLITS)
            for both in found.values()
        ]
        rows.append([factor, *cells])
    return fold("By factor, I → O", table("Errors by factor, I → O", ("factor", *found), rows))


def _of_factor(r: Result, factor: str) -> float:
    values = [e for one in r.one_step for e in one["factors"].get(factor, ())]
    return sum(values) / len(values) if values else float("nan")


# Costs -------------------------------------------------------------------------------------------------


def costs_view(grid: Grid) -> Html:
    """Training counts once for all the splits that it is evaluated on."""
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
        each = {}
        for m in grid.methods:
            trained = [s for (method, w, _), s in training.items() if (method, w) == (m, world)]
            if trained:
                tested = evaluation[m, world]
                each[m] = sum(trained) / len(trained), sum(tested) / len(tested)
        top = max(a + b for a, b in each.values()) or 1.0
        lines = [
            line(
                m,
                [
                    place("bar", 0.0, a / top, f"training {a:.0f} s"),
                    place("bar", a / top, b / top, f"a split {b:.0f} s"),
                ],
                f"{a + b:,.0f} s",
                m == grid.focus,
                f"{m}: training {a:.0f} s, evaluating a split {b:.0f} s",
            )
            for m, (a, b) in sorted(each.items(), key=lambda pair: sum(pair[1]))
        ]
        parts += [tag("h3", world.capitalize()), plot(lines, ("0", f"{top / 2:,.0f} s", f"{top:,.0f} s"))]
    whole = (sum(training.values()) + sum(sum(s) for s in evaluation.values())) / 3600
    told = (
        f"Seconds to train all seeds of a method on one dataset (left part), and to evaluate them on one split (right "
        f"part), as measured on {', '.join(devices)}; several may have shared the machine. All together {whole:.1f} h."
    )
    return view("costs", "Costs", tag("p", told), *parts)


# Provenance --------------------------------------------------------------------------------------------


def provenance_view(grid: Grid) -> Html:
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
        said = json.dumps(cell["config"], indent=1, sort_keys=True)
        configs.setdefault(said, []).append(f"{r.method} on {dataset_name(r.dataset)}")
    told = (
        "A cell is one method on one dataset and split. Its name ends in a hash of all that decides its numbers: "
        "settings, data, seeds, scenes and source. The same cells give the same page, whoever makes it."
    )
    versions: dict[str, int] = {}
    for _, cell in cells:
        text = ", ".join(f"{name} {v}" for name, v in cell["provenance"].get("versions", {}).items())
        versions[text] = versions.get(text, 0) + 1
    return view(
        "provenance",
        "Provenance",
        tag("p", told),
        *(tag("p", f"{n} cells: {text}.", class_="soft") for text, n in versions.items() if text),
        table("All cells", head, rows, class_="loose"),
        tag("h3", "Settings"),
        *(fold(", ".join(dict.fromkeys(names)), tag("pre", said, tabindex=0)) for said, names in configs.items()),
    )


def _seeds(seeds: Sequence[int]) -> str:
    """
    >>> _seeds([0, 1, 2]), _seeds([1, 5])
    ('0 to 2', '1, 5')
    """
    whole = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))
