"""The results of a fit as tables, on the terminal and on its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from because_rl.discovery.mask import sufficiency_text
from because_rl.evaluation.worth.estimate import UNKNOWN
from because_rl.planning.limits import RISK
from because_rl.records import read_record
from because_rl.report.grid_data import Curves, Grid
from because_rl.report.run_page import RunReport, run_settings, write_run_page
from because_rl.runs.folder import read_metrics, read_run
from because_rl.vision.views import read_factor_views

WORTH = "worth.json"
"""What `because worth` wrote into the folder of a fit."""
FACTORS = "factors.npz"
"""Of a log of pictures: what is shown of each factor that was read from them."""


def write_fit_page(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write ``report/index.html`` in the folder of a fit; returns its path."""
    run, graph, metrics = read_run(folder / "run"), folder / "graph" / "graph.json", read_metrics(folder / "run")
    grid = Grid(
        folder.resolve().name,
        [],
        graphs=[read_record(graph, "graph")] if graph.exists() else [],
        curves=[Curves.from_metrics(run["method"], result["data"], metrics)] if metrics else [],
    )
    page = RunReport(
        str(result["data"]),
        grid,
        warnings=warnings(result),
        facts=overview(result),
        seeds=run["seeds"],
        factors=read_factor_views(folder / FACTORS) if (folder / FACTORS).exists() else (),
        accuracy=result["accuracy"],
        uncertainty=result["uncertainty"],
        worth=read_record(folder / WORTH, "worth") if (folder / WORTH).exists() else {},
        events=result["events"],
        thin=thin_rows(result.get("thin", ())),
        settings=run_settings(run),
    )
    return write_run_page(folder / "report", page)


LOW_ACCURACY = 0.5
"""R^2, or share predicted right beyond that of no change, below which a factor counts as poorly predicted."""
FEW_EPISODES = 50
LEAST_CONTRAST = 1.2
"""of the uncertainty of mixed steps with that of held-out ones"""
MOST_UNLIKE = 0.2
"""of the imagined steps of a policy"""
FEW_FORESEEN = 0.5
"""of the switches of a binary factor"""


def warnings(result: Mapping[str, Any]) -> list[str]:
    """What to worry about before anything else is read, most important first."""
    out = []
    for row in result["accuracy"]:
        if row["value"] is None:
            continue
        possible = 1.0 if row["type"] in ("continuous", "angle") else 1.0 - row["unchanged"]
        gained = row["value"] if possible == 1.0 else (row["value"] - row["unchanged"]) / max(possible, 1e-9)
        if gained < LOW_ACCURACY and possible > 0:
            how = f"{row['measure']}: {row['value']:.2f}, {row['unchanged']:.2f} if nothing changed"
            out.append(f"{row['factor']} is predicted poorly ({how}): a cause is not in the log, or chance decides.")
    worse = [name for name, check in result["sufficiency"].items() if not check.get("suffices", True)]
    if worse:
        out.append(f"With all inputs {', '.join(worse)} would be predicted better: do not trust the causes shown.")
    for row in result["events"]:
        if row["recall"] < FEW_FORESEEN:
            out.append(f"Of {row['switches']} switches of {row['factor']} the model foresees {row['recall']:.0%}.")
    pairs = result["undetermined"]
    if pairs:
        kept = sum(bool(pair["kept"]) for pair in pairs)
        out.append(
            f"{len(pairs)} pairs are undetermined, {kept} of them kept in the model; each says what would decide it."
        )
    if thin := result.get("thin"):
        first = thin_rows(thin)[0]
        out.append(
            f"{first['action']} was hardly tried where {first['where']} ({first['tried']}): the model can only guess "
            "what it does there." + (f" {len(thin) - 1} more such pairs are listed." if len(thin) > 1 else "")
        )
    if result["episodes"] < FEW_EPISODES:
        out.append(f"{result['episodes']} episodes are few: effects that count may not be established.")
    held_out, mixed = result["uncertainty"]["held_out"], result["uncertainty"]["mixed"]
    if mixed < LEAST_CONTRAST * held_out:
        out.append(
            f"The uncertainty hardly tells steps unlike the data ({mixed:.2f}) from logged ones ({held_out:.2f}):"
            " plans may leave the data."
        )
    imagined = result.get("imagined_policy") or {}
    if imagined.get("unlike_data", 0.0) > MOST_UNLIKE:
        out.append(
            f"{imagined['unlike_data']:.0%} of the policy's imagined steps are unlike the data, which have"
            f" {1 - imagined['quantile']:.0%} of them: it plans where the model is a guess."
        )
    for name, logged in result.get("constraints", {}).items():
        if logged["steps"] == 1:
            out.append(f"No logged step keeps {name}: check its unit, or log steps that do.")
    for name, share in imagined.get("violations", {}).items():
        if share > RISK:
            out.append(f"The policy breaks {name} in {share:.1%} of its imagined steps: it has no plan that keeps it.")
    if result["goal_reached"] == 0:
        out.append("No logged episode reaches its goal: expect little of the policy.")
    return [*out, *(f"{note[:1].upper()}{note[1:]}." for note in result.get("notes", ()))]


def overview(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(quantity, its value in words) for the log, the uncertainty of the model and the policy."""
    reached, uncertainty = result["goal_reached"], result["uncertainty"]
    rows = [("log", f"{result['transitions']} transitions in {result['episodes']} episodes, every tenth held out")]
    if text := rows_used({"n": result["transitions"], "rows_used": result.get("graph_rows") or result["transitions"]}):
        rows.append(("graph", text.removeprefix(", ")))
    if result["sufficiency"]:
        rows.append(("mask in the world model", sufficiency_text(result["sufficiency"])))
    if reached is not None:
        rows.append(("episodes that end at their goal", f"{reached:.0%}"))
    if result.get("goal_held") is not None:
        rows.append(("logged steps at their goal, which is to be held", f"{result['goal_held']:.0%}"))
    if result.get("log_return") is not None:
        rows.append(("mean sum of rewards of an episode", f"{result['log_return']:.4g}"))
    rows.append(("uncertainty of held-out steps", f"{uncertainty['held_out']:.2f} (0 to 1)"))
    rows.append(("... of steps mixed from several", f"{uncertainty['mixed']:.2f}"))
    imagined = result.get("imagined_policy") or {}
    for name, logged in result.get("constraints", {}).items():
        text = f"broken in {logged['steps']:.1%} of logged steps, {logged['episodes']:.0%} of episodes"
        if imagined:
            text += f", {imagined['violations'][name]:.1%} of the policy's imagined steps"
        rows.append((f"constraint {name}", text))
    if imagined:
        text = f"{imagined['unlike_data']:.0%} of {imagined['steps']}; of logged steps {1 - imagined['quantile']:.0%}"
        rows.append(("imagined steps unlike the data", text))
    policy = f"none: {result['why_no_policy']}" if result["policy"] is None else result["policy"]
    return [*rows, ("policy", policy)]


def worth_rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """The rows of a table of `because worth`: the behaviour, then each policy by each estimator.

    `gain`: the interval of the difference from the behaviour.
    """

    def text(estimate: Mapping[str, float]) -> dict[str, str]:
        value, low, high = (f"{estimate[name]:.4g}" for name in ("value", "low", "high"))
        return {"worth": value, "95%": f"{low} to {high}"}

    rows = [{"policy": "behaviour", "by": "the log", **text(result["behaviour"]), "gain": ""}]
    for policy in result["policies"]:
        for name, estimate in policy["estimators"].items():
            gain = text(estimate["gain"])
            by = name + (" (the answer)" if name == policy["by"] else "")
            rows.append({"policy": policy["policy"], "by": by, **text(estimate["worth"]), "gain": gain["95%"]})
        for name, value in (policy["world_model"] or {}).items():
            if name != "error":
                by = {"plain": "world model", "pessimistic": "world model, pessimistic"}[name]
                rows.append({"policy": policy["policy"], "by": by, "worth": f"{value:.4g}", "95%": "", "gain": ""})
    return rows


def worth_notes(result: Mapping[str, Any]) -> list[str]:
    """The verdicts, and what else must be known beside the numbers."""
    out = [f"Worth: {result['quantity']}."]
    if result["q_model"] == "features":
        out.append("States do not repeat, so Q is learned by features, whose own error is in no interval: take care.")
    for policy in result["policies"]:
        name = policy["policy"]
        sure = "" if policy["verdict"] == UNKNOWN else " with 95% confidence"
        out.append(f"{name[:1].upper()}{name[1:]}: {policy['verdict']}{sure} ({policy['why']}).")
        if policy["why_no_dr"]:
            out.append(f"No doubly robust estimate: {policy['why_no_dr']}.")
        if imitated := policy["imitated"]:
            how = f"{imitated['measure']} {imitated['agreement']:.0%}"
            out.append(f"It planned in {imitated['states']} logged states; elsewhere a network imitates it ({how}).")
    return out


def rows_used(settings: Mapping[str, Any]) -> str:
    """How many rows a mask with these settings was discovered from, where that is not all of them; else empty.

    >>> rows_used({"n": 300000, "rows_used": 50000})
    ', from 50,000 of 300,000 rows in whole episodes'
    """
    used = settings.get("rows_used", settings.get("n"))
    return "" if used == settings.get("n") else f", from {used:,} of {settings['n']:,} rows in whole episodes"


def graph_rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """The causes of each factor; in brackets those that are undetermined, which are kept to be safe."""
    undetermined = {(edge["from"], edge["to"]) for edge in result["undetermined"]}
    return [
        {"next": target, "causes": ", ".join(f"[{c}]" if (c, target) in undetermined else c for c in causes)}
        for target, causes in (result["graph"] or {}).items()
    ]


def undetermined_rows(edges: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The undetermined pairs among the rows of a mask: whether they are kept, why, and what would decide."""
    return [
        {"from": edge["from"], "to": edge["to"], "kept": "yes" if edge["kept"] else "no"}
        | {"why": edge.get("why", ""), "needs": edge.get("needs", "")}
        for edge in edges
        if edge.get("status", "undetermined") == "undetermined"
    ]


def thin_rows(thin: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The rows of `thin_contexts` in words."""
    return [
        {
            "action": f"{row['action']} {row['level']}",
            "where": f"{row['factor']} is {row['context']}",
            "tried": f"{row['tried']} of {row['rows']} rows",
            "elsewhere": f"{row['elsewhere']:.1%}",
        }
        for row in thin
    ]


def accuracy_rows(accuracy: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The rows of `held_out_accuracy` in words, one per state factor."""
    return [
        {"factor": row["factor"], "type": row["type"], "measure": row["measure"]}
        | {"held out": "never changes" if row["value"] is None else _short(row["value"])}
        | {"worst seed": "" if row["value"] is None else _short(min(row["per_seed"]))}
        | {"if nothing changed": "" if row["unchanged"] is None else _short(row["unchanged"])}
        for row in accuracy
    ]


def _short(value: float) -> str:
    return f"{round(value, 3) + 0.0:.3f}"  # never -0.000
