"""Cut flat arrays, one row per step, into episodes; and check the episodes of logs that come in episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from because_rl.datasets.columns import FIX, FLAGS
from because_rl.errors import BecauseError

ROUNDING = {"rtol": 1e-5, "atol": 1e-6}
"""Accepted difference of next_observations and the observations of the next row."""

Episode = dict[str, np.ndarray]
"""observations (T + 1, ...), actions (T, ...), rewards, terminations, truncations (T,); goals (T + 1, ...) if any"""


class Cut(NamedTuple):
    """Episodes with the names that messages give them, and what had to be left out."""

    episodes: list[Episode]
    labels: list[str]
    notes: tuple[str, ...] = ()


def split_episodes(where: str, arrays: Mapping[str, np.ndarray]) -> Cut:
    """Flat arrays -> episodes, by the array 'episodes' or else by terminations and truncations.

    What followed the last row of an episode is known from next_observations alone. Without them that row only serves
    as the next state of the row before, and an end that is logged in it is lost: the notes count these.
    """
    rows = len(arrays["observations"])
    for name, array in arrays.items():
        if len(array) != rows:
            raise BecauseError(
                f"{where}: {name!r} has {len(array)} rows and 'observations' {rows}.", need="as many.", fix=FIX
            )
    if rows == 0:
        raise BecauseError(f"{where} has no rows.", need="one row per step.", fix=FIX)
    arrays, notes = _sort(where, _split_dones(arrays))
    ids = arrays.get("episodes")
    ends = np.flatnonzero(_last_rows(where, arrays, rows)) + 1
    episodes, labels, short, lost = [], [], [], 0
    for number, (start, stop) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        part = {name: array[start:stop] for name, array in arrays.items() if name not in ("episodes", "times")}
        label = str(number) if ids is None else str(ids[start])
        after = part.pop("next_observations", None)
        if after is not None:
            _check_order(where, part["observations"], after, start)
        if after is None or np.isnan(after[-1]).all():
            if stop - start < 2:
                short.append(label)
                continue
            ended = [name for name in ("terminations", "truncations") if name in part and part[name][-1]]
            lost += "terminations" in ended and not part["terminations"][-2]
            part = {name: part[name] if name in ("observations", "goals") else part[name][:-1] for name in part}
        else:
            part["observations"] = np.concatenate([part["observations"], after[-1:]])
            if "goals" in part:
                part["goals"] = np.concatenate([part["goals"], part["goals"][-1:]])
        episodes.append(set_end(where, part, len(part["actions"])))
        labels.append(label)
    if short:
        one = len(short) == 1
        notes += (
            f"{len(short)} episode{'s' * (not one)} ({', '.join(short[:3])}{', ...' * (len(short) > 3)}) of one row"
            f" {'is' if one else 'are'} left out: without 'next_observations' a step takes two rows",
        )
    if lost:
        notes += (
            f"{lost} of {len(episodes)} episodes end (terminations) in a row whose next state is not logged:"
            " these steps are left out, and with them the ends (and successes) that they show;"
            " log 'next_observations', or one more row per episode, to keep them",
        )
    return Cut(episodes, labels, notes)


def _split_dones(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """'dones' are terminations where no truncation is logged in the same row."""
    out = dict(arrays)
    if (done := out.pop("dones", None)) is not None and "terminations" not in out:
        cut = out.get("truncations")
        out["terminations"] = np.asarray(done) if cut is None else np.asarray(done, bool) & ~np.asarray(cut, bool)
    return out


def _sort(where: str, arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """The rows in the order of their times within each episode, episodes in the order of their first rows."""
    ids, times = arrays.get("episodes"), arrays.get("times")
    if ids is None:
        return arrays, ()
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))[inverse.reshape(-1)]
    back = np.flatnonzero(number[1:] < np.maximum.accumulate(number)[:-1])
    if times is None:
        if len(back):
            row = int(back[0]) + 1
            raise BecauseError(
                f"{where}: the rows of episode {str(ids[row])!r} are not together: it goes on in row {row}.",
                need="the rows of an episode together, in the order they were logged.",
                fix="pass --time COLUMN to have them sorted; or, if ids are used again, give each episode its own.",
            )
        return arrays, ()
    order = np.lexsort((times, number))
    same = (number[order][1:] == number[order][:-1]) & (times[order][1:] == times[order][:-1])
    if same.any():
        at = int(np.argmax(same))
        raise BecauseError(
            f"{where}: rows {order[at]} and {order[at + 1]} of episode {str(ids[order[at]])!r} have the same time,"
            f" {times[order[at]]}.",
            need="one row per time in an episode.",
            fix="remove one of them, or name the episodes by another column (--episode).",
        )
    moved = int((order != np.arange(len(order))).sum())
    if not moved:
        return arrays, ()
    return {name: array[order] for name, array in arrays.items()}, (f"{moved} rows were moved to sort them by time",)


def _last_rows(where: str, arrays: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    """(rows,) bool: whether a row is the last of its episode."""
    last = np.zeros(rows, bool)
    if "episodes" in arrays:
        last[:-1] = arrays["episodes"][1:] != arrays["episodes"][:-1]
    elif "terminations" in arrays or "truncations" in arrays:
        for name in ("terminations", "truncations"):
            last |= np.asarray(arrays.get(name, last)).astype(bool)
    else:
        raise BecauseError(
            f"{where} does not say where episodes end.",
            need=f"'episodes' (an id per row), or {', '.join(map(repr, FLAGS))} (1 at the last row).",
            fix="add one of them, or pass --episode COLUMN; for one long log: episodes = numpy.arange(n) // 100.",
        )
    last[-1] = True
    if (times := arrays.get("times")) is not None:
        back = ~last[:-1] & ~(times[1:] > times[:-1])
        if back.any():
            row = int(np.argmax(back))
            raise BecauseError(
                f"{where}: the time of row {row + 1} is {times[row + 1]}, not after that of row {row}, {times[row]}.",
                need="times that grow within an episode.",
                fix="name the episodes with --episode to have their rows sorted.",
            )
    return last


def read_episode(where: str, arrays: dict[str, np.ndarray]) -> Episode | None:
    """One episode that comes by itself: one row more of observations (and goals) than of actions. None: no step."""
    length = len(arrays["actions"])
    if length == 0:
        return None
    arrays = _split_dones(arrays)
    goals = arrays.get("goals")
    if goals is not None and len(goals) == length:
        arrays["goals"] = np.concatenate([goals, goals[-1:]])  # the last goal also holds after the last action
    for name in ("observations", "goals"):
        if name in arrays and len(arrays[name]) != length + 1:
            raise BecauseError(
                f"{where}: {name!r} has {len(arrays[name])} rows for {length} actions.",
                need=f"{length + 1}: the last row is what followed the last action.",
                fix=FIX,
            )
    return set_end(where, arrays, length)


def _check_order(where: str, now: np.ndarray, after: np.ndarray, start: int) -> None:
    """Refuse an episode, rows from `start` on, where next_observations are not the observations of the next row."""
    if now.shape != after.shape:
        raise BecauseError(
            f"{where}: rows of 'next_observations' have shape {after.shape[1:]} and of 'observations' {now.shape[1:]}.",
            need="the same.",
            fix=FIX,
        )
    same = np.isclose(after[:-1], now[1:], equal_nan=True, **ROUNDING) | np.isnan(after[:-1])
    same = same.all(tuple(range(1, now.ndim)))
    if not same.all():
        row = start + int(np.flatnonzero(~same)[0])
        raise BecauseError(
            f"{where}: 'next_observations' of row {row} are not the 'observations' of row {row + 1}, same episode.",
            need="the rows of an episode in the order they were logged.",
            fix="sort them, or end an episode where rows are missing.",
        )


def set_end(where: str, part: Mapping[str, np.ndarray], length: int) -> Episode:
    """The episode with rewards (0 where there are none) and an end at its last step and nowhere else."""
    out = {name: np.asarray(part[name]) for name in ("observations", "actions", "goals") if name in part}
    for name in ("rewards", "terminations"):
        out[name] = np.asarray(part.get(name, np.zeros(length, np.float32))).reshape(-1)
        if len(out[name]) != length:
            raise BecauseError(
                f"{where}: {name!r} has {len(out[name])} rows for {length} actions.", need="as many.", fix=FIX
            )
    last = np.arange(length) == length - 1
    out["terminations"] = last & out["terminations"].astype(bool)
    out["truncations"] = last & ~out["terminations"]
    return out


def check_same_arrays(where: str, episodes: list[Episode]) -> None:
    """Refuse episodes whose arrays, or the shapes of their rows, are not those of the first episode."""
    for n, episode in enumerate(episodes):
        for name in sorted({*episodes[0], *episode}):
            first, shape = (e[name].shape[1:] if name in e else "nothing" for e in (episodes[0], episode))
            if first != shape:
                raise BecauseError(
                    f"{where}: {name!r} has shape {shape} in episode {n} and {first} in the first.",
                    need="the same in all episodes.",
                    fix=FIX,
                )
