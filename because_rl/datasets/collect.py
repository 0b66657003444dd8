"""Collect a Minari dataset with a behaviour policy.

Episodes are collected in chunks, each written atomically to a hidden folder beside the dataset; when all chunks exist,
the dataset is assembled in a temporary folder and moved into place. After a kill at any moment the same command
continues, and the result is the same bytes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from because_rl.datasets.minari_files import read_metadata, write_dataset_files
from because_rl.datasets.paths import dataset_path
from because_rl.datasets.recipe import Recipe
from because_rl.datasets.validate import CHECKSUMS, compute_checksums
from because_rl.envs.batch import BatchEnv
from because_rl.envs.tasks import VISUAL_ID, make_batch, world_class
from because_rl.envs.world import World
from because_rl.errors import BecauseError
from because_rl.io import (
    exclusive,
    new_folder,
    read_arrays,
    remove_folder,
    remove_leftovers,
    write_arrays,
    write_json,
)
from because_rl.statistics import wilson

CHUNK = {"unlock": 50, "crash": 125, "lift": 25}
"""Episodes per chunk: a few seconds of work, which is all that a kill can lose."""
SERIAL = {"unlock"}
"""Worlds so fast that worker processes take longer to start than they save."""

Progress = Callable[[int, int], None]
"""Called with (episodes done, episodes in all)."""

Episode = dict[str, np.ndarray]
"""seed (), state and goal (T + 1, columns), action (T, ...), reward, terminated, truncated (T,), hidden/NAME (...)"""


def rollout(recipe: Recipe, episodes: range, batch: BatchEnv | None = None) -> list[Episode]:
    """The episodes of these numbers, stepped together in `batch` (by default the fast engine of the recipe's world).

    An episode depends on the recipe and its number alone, not on the engine or on the other episodes of the batch.
    """
    seeds = [recipe.episode_seed(e) for e in episodes]
    batch = batch or make_batch(recipe.world, "I", recipe.spurious)
    behaviour = recipe.make_behaviour()
    observation = batch.reset(seeds)
    behaviour.reset(batch, seeds)
    hidden = {f"hidden/{name}": np.asarray(value) for name, value in batch.hidden().items()}
    goals, states, actions, rewards = observation.goal, [observation.state], [], []
    ended = np.zeros(len(seeds), int)
    while not batch.done:
        action = behaviour.act(observation)
        step = batch.step(action)
        observation = step.observation
        states.append(observation.state)
        actions.append(action)
        rewards.append(step.reward)
        ended = np.where((ended == 0) & (step.terminated | step.truncated), batch.steps, ended)
    state, action, reward = np.stack(states, 1), np.stack(actions, 1), np.stack(rewards, 1)
    dtype = batch.action_space.dtype
    terminated = batch.terminated
    return [
        {
            "seed": np.array(seeds[n]),
            "state": state[n, : length + 1],
            "goal": np.repeat(goals[n : n + 1], length + 1, axis=0),
            "action": action[n, :length].astype(dtype),
            "reward": reward[n, :length],
            "terminated": np.arange(length) == (length - 1 if terminated[n] else length),
            "truncated": np.arange(length) == (length if terminated[n] else length - 1),
            **{name: value[n] for name, value in hidden.items()},
        }
        for n, length in enumerate(ended)
    ]


def _write_chunk(recipe: Recipe, episodes: range, path: Path, simulator: bool) -> int:
    """Collect the episodes of these numbers into one file; returns how many they are."""
    batch = make_batch(recipe.world, "I", recipe.spurious, simulator=simulator)
    chunk = rollout(recipe, episodes, batch)
    batch.close()
    write_arrays(path, {f"{n}:{name}": value for n, episode in enumerate(chunk) for name, value in episode.items()})
    return len(chunk)


def _read_chunk(path: Path) -> list[Episode]:
    episodes: dict[int, Episode] = {}
    for key, value in read_arrays(path).items():
        number, _, name = key.partition(":")
        episodes.setdefault(int(number), {})[name] = value
    return [episodes[n] for n in sorted(episodes)]


def collect(
    recipe: Recipe,
    root: str | Path | None = None,
    *,
    workers: int | None = None,
    simulator: bool = False,
    force: bool = False,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Collect the dataset of `recipe`, or continue a collection that was stopped; returns `summary` and the seconds.

    `root`: see `home_folder`. `workers`: processes, by default one per core. `simulator`: step the unmodified simulator
    instead of its validated fast counterpart. `force`: collect again even if the dataset exists.
    """
    begin = time.monotonic()
    target = dataset_path(recipe.id, root)
    partial = target.parent / f".{target.name}.partial"
    if not force and (target / "data" / "metadata.json").exists():
        progress(recipe.episodes, recipe.episodes)
        lock = partial.with_suffix(".lock")
        if partial.exists() or lock.exists():  # a process was killed after it had moved the dataset into place
            with contextlib.suppress(BecauseError), exclusive(lock, f"collecting {recipe.id}"):
                remove_folder(partial)
                remove_leftovers(target.parent)
        return summary(recipe.id, root) | {"seconds": 0.0, "already_there": True}
    with exclusive(partial.with_suffix(".lock"), f"collecting {recipe.id}"):
        remove_leftovers(partial)
        chunks = _collect_chunks(recipe, partial, workers, simulator, progress)
        episodes = [episode for chunk in chunks for episode in _read_chunk(chunk)]
        remove_leftovers(target.parent)
        with new_folder(target) as folder:
            _assemble(recipe, episodes, folder, "simulator" if simulator else "fast")
        remove_folder(partial)
    return summary(recipe.id, root) | {"seconds": round(time.monotonic() - begin, 2), "already_there": False}


def _collect_chunks(
    recipe: Recipe, partial: Path, workers: int | None, simulator: bool, progress: Progress
) -> list[Path]:
    """The paths of all chunks, in order; those that are missing or damaged are collected."""
    size = CHUNK[recipe.world]
    engine = "simulator" if simulator else "fast"
    chunks = {
        partial / f"{recipe.key}-{engine}-{start:06d}.npz": range(start, min(start + size, recipe.episodes))
        for start in range(0, recipe.episodes, size)
    }
    missing = {path: episodes for path, episodes in chunks.items() if not _intact(path)}
    done = sum(len(episodes) for path, episodes in chunks.items() if path not in missing)
    progress(done, recipe.episodes)
    workers = min(workers or os.cpu_count() or 1, len(missing))
    if workers <= 1 or recipe.world in SERIAL:
        for path, episodes in missing.items():
            done += _write_chunk(recipe, episodes, path, simulator)
            progress(done, recipe.episodes)
        return list(chunks)
    # Spawned, not forked: forking a process that has started JAX's threads can hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_die_with_parent, initargs=(os.getpid(),))
    others = set(multiprocessing.active_children())
    try:
        jobs = [pool.submit(_write_chunk, recipe, episodes, path, simulator) for path, episodes in missing.items()]
        for job in as_completed(jobs):
            done += job.result()
            progress(done, recipe.episodes)
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.kill()  # an interrupted collection does not wait for chunks
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return list(chunks)


def _intact(path: Path) -> bool:
    """Whether the chunk exists and matches its checksum."""
    try:
        return path.exists() and bool(read_arrays(path))
    except BecauseError:
        return False


def _die_with_parent(parent: int) -> None:
    """In a worker process: exit when the parent is killed, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _assemble(recipe: Recipe, episodes: list[Episode], folder: Path, engine: str) -> None:
    """Write the episodes as a Minari dataset, with checksums that `load` verifies."""
    world = world_class(recipe.world)(spurious=recipe.spurious)
    show = _pictures if recipe.visual else _vectors
    env_id, observation_space, observe, described = show(world)
    spec = gymnasium.spec(env_id)
    spec.kwargs = {"split": "I"} | ({} if recipe.visual else {"spurious": recipe.spurious})
    minari_episodes: list[dict[str, Any]] = [
        {
            "observations": observe(episode),
            "actions": episode["action"],
            "rewards": episode["reward"],
            "terminations": episode["terminated"],
            "truncations": episode["truncated"],
        }
        for episode in episodes
    ]
    hidden = ({name: value for name, value in episode.items() if name.startswith("hidden/")} for episode in episodes)
    attributes = [{"seed": int(episode["seed"]), **own} for episode, own in zip(episodes, hidden, strict=True)]
    success = np.array([episode["terminated"][-1] for episode in episodes])
    write_dataset_files(
        folder,
        observation_space,
        world.action_space,
        minari_episodes,
        {
            "dataset_id": recipe.id,
            "env_spec": spec.to_json(),
            "algorithm_name": f"{recipe.behaviour} behaviour",
            "description": f"{recipe.behaviour} behaviour in the {recipe.world} world of because-rl, training split",
            "author": ["because-rl"],
            "because": {
                "recipe": recipe.to_dict(),
                "engine": engine,
                "behaviour": recipe.make_behaviour().settings(),
                "confounders": {"split": "I", "spurious": recipe.spurious},
                "success_rate": float(success.mean()),
                **described,
            },
        },
        attributes,
    )
    write_json(folder / CHECKSUMS, compute_checksums(folder, minari_episodes))


class _Shown(NamedTuple):
    """What a dataset shows of a world."""

    env_id: str
    space: spaces.Space
    observe: Callable[[Episode], Any]
    described: dict[str, Any]
    """in the metadata: the factors of what is shown"""


def _vectors(world: World) -> _Shown:
    def observe(episode: Episode) -> dict[str, np.ndarray]:
        achieved = world.factors.achieved_goal(episode["state"])
        return {"achieved_goal": achieved, "desired_goal": episode["goal"], "observation": episode["state"]}

    described = {"factors": world.factors.to_dict(), "true_graph": world.true_graph().to_dict()}
    return _Shown(f"because/{world.name.capitalize()}-v1", world.observation_space, observe, described)


def _pictures(world: World) -> _Shown:
    """Pictures alone: of the state nothing is written, of the factors only those of the action."""
    from because_rl.envs.unlock.pictures import draw
    from because_rl.envs.unlock.visual import SPACE

    factors = world.factors.to_dict()
    described = {"action_factors": {"action": factors["action"], "codes": factors["codes"]}}
    return _Shown(VISUAL_ID, SPACE, lambda episode: draw(episode["state"]), described)


def summary(dataset_id: str, root: str | Path | None = None) -> dict[str, Any]:
    """What ``because collect`` and ``because datasets`` report of a dataset, read from its metadata.

    `success_rate`, `recipe` and `behaviour` only where this package collected it.
    """
    path = dataset_path(dataset_id, root)
    metadata = read_metadata(path, dataset_id)
    because = metadata.get("because", {})
    episodes, rate = metadata["total_episodes"], because.get("success_rate")
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    out = {
        "dataset": dataset_id,
        "episodes": episodes,
        "transitions": metadata["total_steps"],
        "success_rate": rate,
        "success_ci95": None if rate is None else [float(x) for x in wilson(rate, episodes)],
        "megabytes": round(size / 1e6, 2),
        "path": str(path),
    }
    return out | ({name: because[name] for name in ("recipe", "behaviour")} if "recipe" in because else {})
