"""Names of methods, numbers and tables as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from because_rl.statistics import Estimate

METHOD_NAMES = {
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
"""Display names of the methods, as the paper writes them, in the order of its tables."""


def method_name(method: str) -> str:
    """The display name of a method; its own name where the paper has none."""
    return METHOD_NAMES.get(method, method)


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Rows as CSV; by default with every key that a row has as a column. The values of a list are separated by blanks.

    >>> csv_text([{"method": "mopo", "per_seed": [0.5, 1.0]}])
    'method,per_seed\\nmopo,0.5 1.0\\n'
    """
    columns = list(dict.fromkeys(name for row in rows for name in row)) if columns is None else columns
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    for row in rows:
        values = [row.get(name, "") for name in columns]
        lines.writerow(" ".join(map(str, value)) if isinstance(value, list) else value for value in values)
    return text.getvalue()


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table with the columns of the first row.

    >>> print(markdown_table([{"task": "unlock-O-medium", "success": 1}]))
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
    """A success rate in percent, with half the width of its 95% interval.

    >>> percent(Estimate(0.5, 0.45, 0.55)), percent(None)
    ('50.0 ± 5.0', '-')
    """
    if success is None:
        return "-"
    text = f"{100 * success.value:.1f} ± {50 * (success.high - success.low):.1f}"
    return f"**{text}**" if bold else text


def p_value(p: float | None) -> str:
    """
    >>> p_value(0.034), p_value(0.00012), p_value(1e-30), p_value(None)
    ('.034', '.00012', '<1e-9', '-')
    """
    if p is None:
        return "-"
    if p < 1e-9:
        return "<1e-9"
    return f"{p:.1e}" if p < 1e-4 else f"{p:.2g}".replace("0.", ".", 1)
