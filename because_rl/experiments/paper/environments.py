"""The worlds: discovered and true causal graphs (`fig-graphs`), pictures (`fig-envs`), and success of the planner with
the simulator as its model (`table-oracle`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from because_rl.algorithms.registry import make_method
from because_rl.datasets.paths import short_name
from because_rl.datasets.recipe import FORMAT, Recipe
from because_rl.discovery.mask import CausalMask
from because_rl.envs.tasks import SPLITS, WORLDS, world_class
from because_rl.evaluation.rollout import layouts
from because_rl.experiments.formatting import markdown_table
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.experiment import Experiment, Product, untrained_job
from because_rl.experiments.paper.scale import Scale
from because_rl.graph import score
from because_rl.report.paper_figures import draw_graphs, draw_pictures

POLICY = "expert"
"""The behaviour policy whose data the paper's graphs are discovered from."""


# Graphs ------------------------------------------------------------------------------------------------


def _graph_jobs(scale: Scale) -> list[Job]:
    jobs = []
    for world, share in scale.graph_shares.items():
        recipe = Recipe.parse(f"{world}-{POLICY}", max(1, round(share * WORLDS[world].episodes)))
        config: Any = make_method("because", scale.settings.get("because"), world).config
        name = f"graph-{short_name(recipe.id)}"
        modules = ["because_rl.discovery.discover", *_world_code(world)]
        settings = {"recipe": recipe.to_dict() | {"format": FORMAT}, "dataset": recipe.id, "batches": config.batches}
        jobs.append(untrained_job(name, "graph", modules, **settings))
    return jobs


def _world_code(world: str) -> list[str]:
    """The modules that decide a world's data."""
    return [f"because_rl.envs.{world}.batch", f"because_rl.envs.{world}.behaviour", "because_rl.datasets.collect"]


def _graphs(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    drawn, rows, shown = [], [], []
    for cell in cells.values():
        mask, world = CausalMask.from_dict(cell["mask"]), cell["recipe"]["world"]
        truth = world_class(world).make_true_graph(cell["recipe"]["spurious"])
        scores = score(mask.graph, truth)
        common = score(mask.graph, truth, count_rare=False)
        drawn.append((world.capitalize(), mask, truth))
        for edge in mask.rows():
            pair = edge["from"], edge["to"]
            columns = ("from", "to", "status", "kept", "p", "effect", "detectable", "weight")
            row = {"world": world} | {name: edge[name] for name in columns} | {"kept": int(edge["kept"])}
            rows.append(row | {"true": int(pair in truth.edges), "rare": int(pair in truth.rare)})
        shown.append(
            {"data": f"{world}-{POLICY}", "transitions": cell["rows"], "true edges": len(truth.edges)}
            | {"found": len(mask.graph.edges), "missed": len(scores.missed), "false": len(scores.false)}
            | {"F1": f"{scores.f1:.3f}", "F1 without rare edges": f"{common.f1:.3f}", "SHD": scores.shd}
        )
    text = "Edges that BECAUSE keeps on expert data, against the graph that the simulator obeys."
    return Product(rows, f"{text}\n\n{markdown_table(shown)}", draw_graphs(drawn) if drawn else None)


# Pictures ----------------------------------------------------------------------------------------------


def _pictures(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    """The first scene of every evaluation, as the simulator draws it."""
    drawn, rows = [], []
    for world in scale.pictured:
        for split in SPLITS:
            seed = layouts(world, split, 1)[0]
            env = world_class(world)(split, render_mode="rgb_array")
            try:
                env.reset(seed=seed)
                drawn.append((world, split, env.picture()))
            finally:
                env.close()
            factors = env.factors
            rows.append(
                {
                    "world": world,
                    "split": split,
                    "scene": seed,
                    "simulator": WORLDS[world].simulator,
                    "steps": env.horizon,
                }
                | {"state columns": factors.state_size, "state factors": len(factors.state)}
                | {"action columns": factors.action_size, "goal columns": factors.goal_size}
            )
    text = "The first scene of each evaluation. I: the law of the training data; O: that law broken."
    return Product(rows, f"{text}\n\n{markdown_table(rows)}", draw_pictures(drawn))


# The oracle --------------------------------------------------------------------------------------------


def _oracle_jobs(scale: Scale) -> list[Job]:
    return [
        untrained_job(
            f"oracle-{world}-{split}",
            "oracle",
            ["because_rl.evaluation.oracle_planner", f"because_rl.evaluation.oracle_{world}", *_world_code(world)],
            **{"world": world, "split": split, "episodes": episodes},
        )
        for world, episodes in scale.oracle_episodes.items()
        for split in SPLITS
    ]


def _oracle(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    rows = [cell["row"] for cell in cells.values()]
    shown = [
        {"world": row["world"], "split": row["split"], "episodes": row["episodes"]}
        | {"success (%)": f"{100 * row['success']:.1f} [{100 * row['low95']:.1f}, {100 * row['high95']:.1f}]"}
        | {"steps": "-" if row["steps"] is None else row["steps"]}
        for row in rows
    ]
    text = (
        "Success of the same planners with the simulator as their model, with a 95% interval (Wilson's), and the mean "
        "number of steps to success. No learned model can do much better; where this is low the planner is the problem."
    )
    return Product(rows, f"{text}\n\n{markdown_table(shown)}")


FIG_GRAPHS = Experiment("Causal graphs, discovered and true", _graph_jobs, _graphs)
FIG_ENVS = Experiment("The three worlds", lambda scale: [], _pictures)
TABLE_ORACLE = Experiment("The oracle planner", _oracle_jobs, _oracle)
