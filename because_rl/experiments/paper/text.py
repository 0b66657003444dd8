"""Numbers and tables as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from because_rl.statistics import Estimate

NAMES = {
    "icil": "ICIL",
    "ccil": "CCIL",
    "td3bc": "TD3+BC",
    "mopo": "MOPO",
    "gnn": "GNN",
    "cdl": "CDL",
    "denoised-mdp": "Denoised",
    "ifactor": "IFactor",
    "mnm": "MnM",
    "delphic": "Delphic",
    "because": "BECAUSE",
    "because-paper": "BECAUSE-paper",
    "optimism": "Optimism",
    "linear": "Linear",
    "full": "Full",
}
"""Of methods, as the paper writes them, in the order of its tables."""


def called(method: str) -> str:
    return NAMES.get(method, method)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """
    >>> print(table([{"task": "unlock-O-medium", "success": 1}]))
    | task | success |
    |:---|---:|
    | unlock-O-medium | 1 |
    """
    if not rows:
        return "Nothing yet."
    lines = ["| " + " | ".join(_cell(name) for name in rows[0]) + " |"]
    lines.append("|" + "|".join([":---"] + ["---:"] * (len(rows[0]) - 1)) + "|")
    lines += ["| " + " | ".join(_cell(row.get(name, "-")) for name in rows[0]) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|")


def percent(success: Estimate | None, bold: bool = False) -> str:
    """
    >>> percent(Estimate(0.5, 0.45, 0.55)), percent(None)
    ('50.0 ± 5.0', '-')
    """
    if success is None:
        return "-"
    text = f"{100 * success.value:.1f} ± {50 * (success.high - success.low):.1f}"
    return f"**{text}**" if bold else text


def chance(p: float | None) -> str:
    """A p-value.

    >>> chance(0.034), chance(0.00012), chance(1e-30), chance(None)
    ('.034', '.00012', '<1e-9', '-')
    """
    if p is None:
        return "-"
    if p < 1e-9:
        return "<1e-9"
    return f"{p:.1e}" if p < 1e-4 else f"{p:.2g}".replace("0.", ".", 1)
