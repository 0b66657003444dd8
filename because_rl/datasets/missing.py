"""Missing values in a log: refused with their places, or handled as --missing says, with a note of what was done.

- ``drop-episode``: episodes with a missing value are left out.
- ``forward-fill``: the last value before it in the episode; an episode that begins with a missing value is left out.
- ``indicator``: the same, but a value missing at the beginning becomes the median of its column, and a binary column
  NAME_missing says where values were missing, for each column of which some are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from because_rl.datasets.columns import MISSING_SUFFIX, POLICIES
from because_rl.datasets.episodes import Cut, Episode
from because_rl.errors import BecauseError

WORDS = {"observations": "state", "actions": "action", "goals": "goal"}
FILLED = (*WORDS, "rewards")
"""The arrays in which values may be missing."""
Names = Mapping[str, Sequence[str]]


def handle_missing(where: str, cut: Cut, names: Names, policy: str, wanted: Names) -> tuple[Cut, Names]:
    """Episodes without missing values, and the names of their columns.

    Args:
        where: the file, for messages.
        cut: the episodes.
        names: array -> its column names, as far as they are known.
        policy: one of `POLICIES`, or empty to refuse missing values.
        wanted: array -> the columns that the log shall have with ``indicator``, which a factor file fixes.
    """
    gaps = _count(cut, names)
    indicators = {
        array: [name.removesuffix(MISSING_SUFFIX) for name in given if name.endswith(MISSING_SUFFIX)]
        for array, given in wanted.items()
    }
    if policy != "indicator":
        if named := [name for array, bases in indicators.items() for name in bases if name not in names.get(array, ())]:
            raise BecauseError(
                f"{where}: the column {named[0] + MISSING_SUFFIX!r} is made only with --missing indicator.",
                need="the way in which the factors were proposed.",
                fix="pass --missing indicator, or propose factors again.",
            )
        if not gaps:
            return cut, names
    if not policy:
        shown = [f"{count} of {name!r} (first: {place})" for name, (count, place) in list(gaps.items())[:5]]
        raise BecauseError(
            f"{where}: values are missing: {', '.join(shown)}{', ...' * (len(gaps) > 5)}.",
            need="a number in every row.",
            fix=f"fill them in the file, or choose what is done: --missing {', '.join(POLICIES)}.",
        )
    what = ", ".join(f"{count} of {name!r}" for name, (count, _) in gaps.items())
    if policy == "indicator":
        return _indicate(cut, names, gaps, indicators, wanted, what)
    episodes = cut.episodes if policy == "drop-episode" else [_forward_fill(episode) for episode in cut.episodes]
    keep = [not any(np.isnan(rows(e, array)).any() for array in FILLED if array in e) for e in episodes]
    note = f"values were missing: {what}; "
    dropped = keep.count(False)
    if policy == "forward-fill":
        note += "filled with the last value before"
        note += f"; {dropped} of {len(keep)} episodes that begin without a value left out" * (dropped > 0)
    else:
        note += f"{dropped} of {len(keep)} episodes left out"
    kept = [_whole_actions(e, array_had_gaps(cut, "actions")) for e, ok in zip(episodes, keep, strict=True) if ok]
    labels = [label for label, ok in zip(cut.labels, keep, strict=True) if ok]
    return Cut(kept, labels, (*cut.notes, note)), names


def rows(episode: Episode, array: str) -> np.ndarray:
    """(rows, columns) of one array of an episode."""
    return episode[array].reshape(len(episode[array]), -1)


def column_name(names: Names, array: str, column: int) -> str:
    """The name of a column, else what it is and its number."""
    given = names.get(array, ())
    if column < len(given) and given[column]:
        return given[column]
    return f"{WORDS[array]} column {column}" if array in WORDS else array


def array_had_gaps(cut: Cut, array: str) -> bool:
    return any(np.isnan(e[array]).any() for e in cut.episodes)


def _count(cut: Cut, names: Names) -> dict[str, tuple[int, str]]:
    """Column -> how many values are missing, and where the first is. Levels of one category count once."""
    out: dict[str, tuple[int, str]] = {}
    for array in FILLED:
        if not cut.episodes or array not in cut.episodes[0]:
            continue
        joined = np.concatenate([np.isnan(rows(e, array)) for e in cut.episodes])
        starts = np.concatenate([[0], np.cumsum([len(e[array]) for e in cut.episodes])])
        for column in np.flatnonzero(joined.any(0)):
            name = column_name(names, array, int(column)).partition("=")[0]
            row = int(np.argmax(joined[:, column]))
            episode = int(np.searchsorted(starts, row, "right")) - 1
            place = f"episode {cut.labels[episode]}, step {row - starts[episode]}"
            out.setdefault(name, (int(joined[:, column].sum()), place))
    return out


def _forward_fill(episode: Episode) -> Episode:
    out = dict(episode)
    for array in FILLED:
        if array in episode and np.isnan(episode[array]).any():
            values = rows(episode, array)
            at = np.where(np.isnan(values), 0, np.arange(len(values))[:, None])
            last = np.maximum.accumulate(at, 0)
            out[array] = np.take_along_axis(values, last, 0).reshape(episode[array].shape)
    return out


def _whole_actions(episode: Episode, had_gaps: bool) -> Episode:
    """Numbers of actions are whole again once none is missing."""
    actions = episode["actions"]
    if had_gaps and actions.ndim == 1 and (actions == np.round(actions)).all():
        return episode | {"actions": actions.astype(np.int64)}
    return episode


def _indicate(
    cut: Cut,
    names: Names,
    gaps: Mapping[str, tuple[int, str]],
    indicators: Mapping[str, Sequence[str]],
    wanted: Names,
    what: str,
) -> tuple[Cut, Names]:
    if len(names.get("actions", ())) > 1 and cut.episodes[0]["actions"].ndim == 1 and array_had_gaps(cut, "actions"):
        raise BecauseError(
            f"Values are missing: {what}. The action is a category, of which an indicator would make two actions.",
            need="an action in every row.",
            fix="fill it in the file, or pass --missing drop-episode.",
        )
    filled = [_forward_fill(episode) for episode in cut.episodes]
    out_names = {array: list(given) for array, given in names.items()}
    for array in FILLED:
        if not filled or array not in filled[0]:
            continue
        width = rows(filled[0], array).shape[1]
        given = [column_name(names, array, k) for k in range(width)]
        medians = np.nanmedian(np.concatenate([rows(e, array) for e in filled]).astype(float), 0) if gaps else None
        new: dict[str, int] = {}  # base name -> a column of which it says where values were missing
        for k, name in enumerate(given):
            base = name.partition("=")[0]
            if array in ("observations", "actions") and (base in gaps or base in indicators.get(array, ())):
                new.setdefault(base, k)
        for number, (episode, before) in enumerate(zip(filled, cut.episodes, strict=True)):
            values = rows(episode, array)
            if medians is not None and np.isnan(values).any():
                values = np.where(np.isnan(values), medians, values)
                episode = episode | {array: values.reshape(episode[array].shape)}
            if new:
                flags = np.isnan(rows(before, array)[:, list(new.values())]).astype(float)
                episode = episode | {array: np.hstack([rows(episode, array), flags])}
            filled[number] = episode
        if new:
            out_names[array] = given + [base + MISSING_SUFFIX for base in new]
        if (order := wanted.get(array)) and set(order) == set(out_names.get(array, ())):
            places = [out_names[array].index(name) for name in order]
            filled = [e | {array: rows(e, array)[:, places]} for e in filled]
            out_names[array] = list(order)
    note = (f"values were missing: {what}; filled with the last value before, and marked by columns NAME_missing",)
    return Cut(filled, cut.labels, cut.notes + note * bool(gaps)), out_names
