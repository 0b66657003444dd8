"""Other people's learners on our worlds: d3rlpy on the datasets, Stable-Baselines3 with hindsight (HER) on Crash.

This shows that the clients run, not how well they learn. They need an environment of their own, since d3rlpy pins
other versions of Gymnasium and Minari than ours; it works with ours. In a checkout::

    python3 -m venv clients && . clients/bin/activate
    pip install torch  # a build for the CPU is enough
    pip install --no-deps -r requirements.lock && pip install --no-deps --no-build-isolation -e .
    pip install --no-deps d3rlpy==2.8.1 stable-baselines3==2.9.2 gym==0.26.2 gym-notices cloudpickle tqdm colorama \\
        structlog dataclasses-json marshmallow typing-inspect mypy-extensions scikit-learn joblib threadpoolctl narwhals
    python -m benchmarks clients

d3rlpy 2.8.1 reads Minari's episodes, which have one observation more than actions, as if they had as many: in its
buffer, the observations of episode k come k rows too late. The column `shifted` counts these episodes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np

from because_rl.datasets.collect import collect
from because_rl.datasets.load import load
from because_rl.datasets.paths import home_folder
from because_rl.datasets.recipe import Recipe
from because_rl.envs.tasks import WORLDS
from because_rl.envs.world import get_world
from because_rl.errors import BecauseError
from because_rl.provenance import provenance
from benchmarks.speed.training_peer import quiet

PACKAGES = ("torch", "d3rlpy", "stable_baselines3")
Row = dict[str, Any]


def clients(
    steps: int = 1000,
    episodes: int = 20,
    root: Path | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Train each client for `steps` steps, and let it act in the world.

    Args:
        episodes: of each dataset that d3rlpy learns from, collected where it is missing.
        root: where these datasets live; None: a temporary folder.
        report: called with (clients done, clients in all).

    Returns:
        JSON-ready: "rows" (client, world, algorithm, steps, seconds and what else is known) and "provenance". Whatever
        error a client raises is raised.
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise BecauseError(
            f"{', '.join(missing)} cannot be imported.",
            need="the clients, in an environment of their own.",
            fix="make one as the docstring of benchmarks/clients/run.py says.",
        )
    with tempfile.TemporaryDirectory(prefix="because-clients-") as folder:
        jobs: list[Callable[[], Row]] = [
            *(partial(_d3rlpy, world, steps, episodes, root or Path(folder)) for world in WORLDS),
            *(partial(_check, world) for world in WORLDS),
            partial(_hindsight, "crash", steps),
        ]
        rows = []
        for n, job in enumerate(jobs):
            report(n, len(jobs))
            begin = time.perf_counter()
            rows.append(job() | {"seconds": round(time.perf_counter() - begin, 1)})
        report(len(jobs), len(jobs))
    versions = {name: version(name) for name in PACKAGES}
    return {"rows": rows, "provenance": provenance(steps=steps, episodes=episodes, clients=versions)}


def _d3rlpy(world: str, steps: int, episodes: int, root: Path) -> Row:
    """`get_minari`, an algorithm for the actions of the world, and two episodes in the environment of the data."""
    recipe = Recipe.parse(f"{world}-medium", episodes)
    collect(recipe, root, workers=1)
    datasets = {"MINARI_DATASETS_PATH": str(home_folder(root) / "datasets")}
    with quiet(), mock.patch.dict(os.environ, datasets):
        import d3rlpy  # type: ignore[import-not-found]

        buffer, env = d3rlpy.datasets.get_minari(recipe.id)
        config = d3rlpy.algos.DiscreteCQLConfig() if world == "unlock" else d3rlpy.algos.TD3PlusBCConfig()
        learner = config.create(device="cpu:0")
        logger = d3rlpy.logging.NoopAdapterFactory()
        learner.fit(buffer, n_steps=steps, n_steps_per_epoch=steps, logger_adapter=logger, show_progress=False)
        returned = d3rlpy.metrics.EnvironmentEvaluator(env, n_trials=2)(learner, buffer)
        env.close()
    data = load(recipe.id, root)
    starts = np.concatenate([data.state, data.goal], axis=1)[data.step == 0]
    first = np.stack([episode.observations[0] for episode in buffer.episodes])
    return {
        "client": "d3rlpy",
        "world": world,
        "algorithm": type(learner).__name__,
        "steps": steps,
        "mean_return": float(returned),
        "shifted": int((first != starts).any(1).sum()),
    }


def _check(world: str) -> Row:
    """The checker of Stable-Baselines3, which calls `compute_reward` with single goals and with batches of them."""
    env = gymnasium.make(f"because/{world.capitalize()}-v1")
    with quiet():
        from stable_baselines3.common.env_checker import check_env  # type: ignore[import-not-found]

        check_env(get_world(env))
    env.close()
    return {"client": "stable-baselines3", "world": world, "algorithm": "check_env"}


def _hindsight(world: str, steps: int) -> Row:
    """SAC with a replay buffer that relabels goals by what was achieved, `compute_reward` giving the new rewards."""
    from stable_baselines3 import SAC, HerReplayBuffer  # type: ignore[import-not-found]

    env = gymnasium.make(f"because/{world.capitalize()}-v1")
    learner = SAC(
        "MultiInputPolicy",
        env,
        learning_starts=100,
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        device="cpu",
        seed=0,
    )
    learner.learn(steps)
    observation, info = env.reset(seed=0)
    done = False
    while not done:
        observation, _, terminated, truncated, info = env.step(learner.predict(observation, deterministic=True)[0])
        done = terminated or truncated
    env.close()
    relabelled = learner.replay_buffer.sample(1000).rewards.mean()
    return {
        "client": "stable-baselines3",
        "world": world,
        "algorithm": "SAC with HerReplayBuffer",
        "steps": learner.num_timesteps,
        "mean_return": float(info["is_success"]),
        "relabelled_reward": round(float(relabelled), 3),
    }
