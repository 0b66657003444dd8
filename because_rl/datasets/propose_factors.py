"""Propose a factor spec for the columns of a log, as YAML with comments, for its owner to edit.

Types follow from values: columns of 0 and 1 are binary, adjacent columns of which exactly one is 1 in every row are one
categorical factor, everything else is continuous. Where values do not decide (columns that belong together, the factor
that a goal is about), a comment says so. Factors of a table name their columns, and what is none of the system's
variables (a clock, an id, a constant) is left out with a remark; other logs have to use all columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from because_rl.datasets.user_log import Log

MAX_CODES = 12
"""A column with at most this many different values, all whole, may be the codes of a category."""

HEAD = """\
# Proposed from {name}: {rows} steps in {episodes} episodes. Edit it: give factors the names you think in, and put
# columns that belong together (a position x, y; a joint's angles) into one factor: columns: [start, stop], the stop
# excluded{names}. Factors of one 'kind' share a network. All entries: docs/factors.md
"""
NO_GOAL = """\
# goal:   # optional: what a policy is to reach, in place of the rewards of the log, if any. For example:
#   - {{name: there, columns: {columns}, type: {type}, of: {factor}, relation: at_least}}   # and: fit ... --goal VALUE
"""


class Proposal(NamedTuple):
    """One proposed factor."""

    name: str
    start: int
    stop: int
    type: str
    remarks: tuple[str, ...] = ()
    goal_entries: str = ""
    """entries that only goal factors have, as YAML"""
    columns: tuple[str, ...] = ()
    """the names of its columns, in a table"""

    @property
    def line(self) -> str:
        """Its line in the factor file."""
        columns = str(self.start) if self.stop == self.start + 1 else f"[{self.start}, {self.stop}]"
        if self.columns:
            columns = ", ".join(quoted(name) for name in self.columns)
            columns = columns if len(self.columns) == 1 else f"[{columns}]"
        text = f"  - {{name: {quoted(self.name)}, columns: {columns}, type: {self.type}{self.goal_entries}}}"
        return text + ("   # " + "; ".join(self.remarks) if self.remarks else "")


def propose_factors(log: Log) -> str:
    """The text of a factor file with the factors of state, action and goal that the log's values suggest."""
    state_rows = log.joined("observations")
    names = _names(log, "observations", "state", state_rows.shape[1])
    out = _no_variables(log, names) if log.is_table else {}
    kept = [k for k, name in enumerate(names) if name not in out] or list(range(len(names)))
    out = {name: why for name, why in out.items() if len(kept) < len(names)}
    state = _propose_columns(state_rows[:, kept], [names[k] for k in kept])
    action = _propose_actions(log)
    taken = {p.name for p in state}
    action = [p._replace(name=f"act_{p.name}") if p.name in taken else p for p in action]
    goal = _propose_goals(log, [p._replace(start=kept[p.start], stop=kept[p.stop - 1] + 1) for p in state])
    if log.is_table:
        state = [p._replace(columns=tuple(names[k] for k in kept[p.start : p.stop])) for p in state]
        goals = _names(log, "goals", "goal", len(log.names.get("goals", ())))
        goal = [p._replace(columns=tuple(goals[p.start : p.stop])) for p in goal if "goals" in log.names]
    parts = [
        HEAD.format(
            name=quoted(log.name),
            rows=len(log.joined("actions")),
            episodes=len(log.episodes),
            names=" (in a table by name: [x, y])" * log.is_table,
        ),
        "".join(f"# note: {note}\n" for note in log.notes),
        _table_entry(log),
        "state:\n" + "\n".join(p.line for p in state) + "\n",
        "".join(f"  # {name} is left out: {why}\n" for name, why in out.items()),
        "action:\n" + "\n".join(p.line for p in action) + "\n",
    ]
    if goal:
        parts.append("goal:\n" + "\n".join(p.line for p in goal) + "\n")
    elif log.has_goals:
        parts.append("# The log has goals, but no state factor has as many columns: write 'goal' yourself.\n")
    else:
        columns = quoted(state[0].columns[0]) if log.is_table else 0
        parts.append(NO_GOAL.format(columns=columns, type=state[0].type, factor=quoted(state[0].name)))
    return "".join(parts)


def _table_entry(log: Log) -> str:
    """The roles of columns that are no factors, so that the factor file is all that the next command needs."""
    if log.columns is None:
        return ""
    roles = {name: getattr(log.columns, name) for name in ("episode", "time", "reward", "missing")}
    given = ", ".join(f"{name}: {quoted(value)}" for name, value in roles.items() if value)
    return f"table: {{{given}}}\n" if given else ""


def _propose_actions(log: Log) -> list[Proposal]:
    rows = log.joined("actions")
    given = log.names.get("actions", ())
    levels = max(log.action_count, int(rows.max()) + 1) if log.has_whole_number_actions else 0
    if log.is_table and log.action_count:  # the levels of one column of text
        name = given[0].partition("=")[0]
        if levels == 2:
            return [Proposal(name, 0, 1, "binary", (f"1: {given[1].partition('=')[2]}",), columns=given[1:])]
        return [Proposal(name, 0, levels, "categorical", columns=given)]
    if levels > 2:
        (name,) = _names(log, "actions", "action", 1)
        columns = tuple(f"{name}={k}" for k in range(levels)) if log.is_table else ()
        return [Proposal(name, 0, levels, "categorical", (f"the numbers 0 to {levels - 1}, one-hot",), columns=columns)]
    names = _names(log, "actions", "action", rows.shape[1])
    proposals = _propose_columns(rows, names)
    return [p._replace(columns=tuple(names[p.start : p.stop])) for p in proposals] if log.is_table else proposals


CLOCKS = {"time", "times", "timestamp", "date", "datetime", "t", "step", "timestep", "index", "row", "frame"}
"""Names, in small letters, of columns that count time."""


def _no_variables(log: Log, names: Sequence[str]) -> dict[str, str]:
    """Name of a column -> why it is none of the system's variables: a clock, an id, a constant."""
    out = {}
    first = np.concatenate([[0], np.cumsum([len(e["observations"]) for e in log.episodes])])
    rows = log.joined("observations").astype(float)
    inside = np.setdiff1d(np.arange(1, len(rows)), first)  # rows that follow another of their episode
    for name, values in zip(names, rows.T, strict=True):
        step = values[inside] - values[inside - 1]
        start = values[first[:-1]]
        size = np.abs(values).max()
        if np.ptp(values) == 0:
            out[name] = f"always {values[0]:g}"
        elif (step > 0).all() and len(step):
            even = np.ptp(step) <= 1e-6 * step.mean() + 1e-9 * size
            if even or name.lower() in CLOCKS or (np.diff(values) > 0).all():
                out[name] = "it grows at every step, as a clock or a counter does (--time sorts by such a column)"
        elif (step == 0).all() and len(np.unique(start)) == len(start) and (start == np.round(start)).all():
            out[name] = "a whole number that is another one in each episode, as an id is (--episode)"
    return out


def _propose_columns(rows: np.ndarray, names: Sequence[str]) -> list[Proposal]:
    """Factors of the columns of `rows` (n, columns), left to right."""
    binary: np.ndarray = np.asarray(np.isin(rows, (0, 1)).all(0))
    constant = np.nanmin(rows, 0) == np.nanmax(rows, 0)
    proposals: list[Proposal] = []
    at = 0
    while at < rows.shape[1]:
        stop = _named_levels(names, at)
        if not (stop and binary[at:stop].all() and (rows[:, at:stop].sum(1) == 1).all()):
            stop = _one_hot(rows, binary, constant, at)
        if stop:
            stem = names[at].partition("=")[0] if _named_levels(names, at) else _stem(names[at:stop])
            used = {p.name for p in proposals} | set(names)
            name = stem if stem and stem not in used else f"{names[at]}_to_{stop - 1}"
            proposals.append(Proposal(name, at, stop, "categorical"))
            at = stop
            continue
        remarks = _remarks(rows, names, at, bool(constant[at]), bool(binary[at]))
        proposals.append(Proposal(names[at], at, at + 1, "binary" if binary[at] else "continuous", remarks))
        at += 1
    return proposals


def _propose_goals(log: Log, state: Sequence[Proposal]) -> list[Proposal]:
    """A guess at the state factor of each goal column: the one nearest to it when episodes terminate.

    Goals with as many columns as a categorical factor are about that factor; otherwise each column is about a factor
    of one column.
    """
    if not log.has_goals:
        return []
    ended = [e for e in log.episodes if e["terminations"][-1]] or log.episodes
    want = np.stack([np.atleast_1d(e["goals"][-1]).reshape(-1) for e in ended]).astype(float)
    have = np.stack([np.atleast_1d(e["observations"][-1]).reshape(-1) for e in ended]).astype(float)
    names = _names(log, "goals", "goal", want.shape[1])
    spread = log.joined("observations").astype(float).std(0)
    spread[spread == 0] = 1.0
    width = want.shape[1]
    for factor in state:
        if width > 1 and factor.stop - factor.start == width:
            entries = f", of: {quoted(factor.name)}, relation: equal"
            return [Proposal("goal", 0, width, factor.type, ("a guess: is it about this?",), entries)]
    single = [f for f in state if f.stop == f.start + 1]
    proposals = []
    for column in range(width if single else 0):
        gap = [np.median(np.abs(have[:, f.start] - want[:, column])) / spread[f.start] for f in single]
        nearest = single[int(np.argmin(gap))]
        final = have[:, nearest.start]
        above, below = (final >= want[:, column]).mean(), (final <= want[:, column]).mean()
        relation = "equal" if above == below == 1 else "at_least" if above >= below else "at_most"
        remark = f"a guess: nearest where episodes end; {max(above, below):.0%} of {len(ended)} end {relation} it"
        entries = f", of: {quoted(nearest.name)}, relation: {relation}"
        proposals.append(Proposal(names[column], column, column + 1, nearest.type, (remark,), entries))
    return proposals


def quoted(name: str) -> str:
    """A name, quoted where YAML would not read it back as the same text."""
    plain = re.fullmatch(r"[A-Za-z_][\w-]*", name) and name.lower() not in {"true", "false", "yes", "no", "on", "off"}
    return name if plain and name.lower() not in {"null", "y", "n"} else json.dumps(name)


def _names(log: Log, array: str, word: str, count: int) -> list[str]:
    """The file's column names, else word_0, word_1, ...; empty and repeated ones get their number appended."""
    given = log.names.get(array, ())
    names = list(given) if len(given) == count else [f"{word}_{n}" for n in range(count)] if count > 1 else [word]
    return [name if names.index(name) == n and name else f"{name or word}_{n}" for n, name in enumerate(names)]


def _named_levels(names: Sequence[str], start: int) -> int:
    """The stop (excluded) of the columns gear=low, gear=high, ... of one category; 0 if there are none."""
    base, mark, _ = names[start].partition("=")
    stop = start + 1
    while stop < len(names) and names[stop].startswith(base + "="):
        stop += 1
    return stop if mark and stop > start + 1 else 0


def _one_hot(rows: np.ndarray, binary: np.ndarray, constant: np.ndarray, start: int) -> int:
    """The stop (excluded) of the one-hot columns that begin at `start`; 0 if none do."""
    total = np.zeros(len(rows))
    for stop in range(start + 1, rows.shape[1] + 1):
        if not binary[stop - 1] or constant[start]:
            return 0
        total += rows[:, stop - 1]
        if total.max() > 1:
            return 0
        if stop > start + 1 and (total == 1).all():
            return stop
    return 0


def _stem(names: Sequence[str]) -> str:
    """The common beginning of the names: gear_1, gear_2 -> gear."""
    first, last = min(names), max(names)
    common = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:common].rstrip("_=0123456789")


def _remarks(rows: np.ndarray, names: Sequence[str], at: int, constant: bool, binary: bool) -> tuple[str, ...]:
    """Comments on column `at`: values that are not finite, constants, possible codes, columns that repeat another."""
    values = rows[:, at].astype(float)
    if not np.isfinite(values).all():
        return (f"{int((~np.isfinite(values)).sum())} values are not finite: repair them before fitting",)
    if constant:
        return (f"always {values[0]:g}: it carries no information, leave it out of the file",)
    remarks = []
    levels = np.unique(values)
    if not binary and len(levels) <= MAX_CODES and (levels == np.round(levels)).all():
        remarks.append(
            f"whole numbers, {len(levels)} of them: if they are codes of a category, write one-hot columns"
            " (numpy.eye(levels)[column]; in a table columns: [{0}]) and say categorical".format(
                ", ".join(f"{names[at]}={level:g}" for level in levels)
            )
        )
    for earlier in range(at):
        other = rows[:, earlier].astype(float)
        if np.array_equal(values, other):
            remarks.append(f"the same as {quoted(names[earlier])}: leave one of them out")
        elif np.isfinite(other).all() and np.ptp(other) > 0 and abs(np.corrcoef(values, other)[0, 1]) > 1 - 1e-9:
            remarks.append(f"follows from {quoted(names[earlier])} exactly: leave one of them out")
    return tuple(remarks)
