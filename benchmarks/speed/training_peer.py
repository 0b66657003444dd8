"""TD3+BC of d3rlpy (PyTorch), where it is installed, to compare training speed in the same run.

d3rlpy 2.8 pins a gymnasium older than ours, which is not needed here, so install it without its dependencies:
``pip install torch tqdm gym structlog colorama dataclasses-json scikit-learn && pip install --no-deps d3rlpy``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from because_rl.algorithms.td3bc import Continuous, TD3BCConfig
from because_rl.models.layout import Layout
from because_rl.models.prepared_data import statistics
from because_rl.models.state_features import StateFeatures
from because_rl.rng import child_seed
from because_rl.transitions import Transitions

PEER = "td3bc (d3rlpy)"
MISSING = "not installed: benchmarks/speed/training_peer.py has instructions"


def installed() -> bool:
    """Whether d3rlpy and PyTorch can be imported."""
    return all(find_spec(module) for module in ("torch", "d3rlpy"))


def versions() -> dict[str, str]:
    """Versions of the installed packages among them."""
    return {package: version(package) for package in ("torch", "d3rlpy") if find_spec(package)}


def modes() -> list[dict[str, Any]]:
    """Devices and thread counts to measure: all threads and one, which may suit small networks; one mode on a GPU."""
    import torch  # type: ignore[import-not-found]

    if torch.cuda.is_available():
        return [{"device": f"cuda {torch.cuda.get_device_name()}", "threads": torch.get_num_threads()}]
    return [{"device": "cpu", "threads": threads} for threads in sorted({1, torch.get_num_threads()})]


def columns(data: Transitions) -> tuple[StateFeatures, Continuous]:
    """The features of TD3+BC, and the box of its actions: that of the action columns, even if they are discrete."""
    keep, size = ~data.held_out, data.factors.state_size
    stats = statistics(Layout(data.factors), data.state[keep], data.action[keep], data.next_state[keep])
    return StateFeatures(data.factors, stats), Continuous(stats.low[size:], stats.high[size:])


def prepare(data: Transitions, config: TD3BCConfig, chunk: int, threads: int) -> Iterator[tuple[int, float]]:
    """An endless iterator that trains `chunk` steps of d3rlpy's TD3+BC for each item.

    Yields its number of parameters and the seconds of one update alone, by its own clock. Rows, networks (silu, like
    ours), batch size and learning rates are those of our TD3+BC; its loop also draws batches and logs.
    """
    view, actions = columns(data)
    with quiet():
        import d3rlpy  # type: ignore[import-not-found]
        import torch
        from d3rlpy.models import VectorEncoderFactory  # type: ignore[import-not-found]

        keep, cuda = ~data.held_out, torch.cuda.is_available()
        d3rlpy.seed(child_seed(0, "training speed") % 2**31)
        rows = d3rlpy.dataset.MDPDataset(
            np.asarray(jax.vmap(view)(jnp.asarray(data.state[keep]), jnp.asarray(data.goal[keep])), np.float32),
            ((data.action[keep] - np.asarray(actions.middle)) / np.asarray(actions.half)).astype(np.float32),
            data.reward[keep].astype(np.float32),
            data.terminated[keep].astype(np.float32),
            data.truncated[keep].astype(np.float32),
            action_space=d3rlpy.ActionSpace.CONTINUOUS,
        )
        nets = VectorEncoderFactory(hidden_units=[config.hidden, config.hidden], activation="swish")
        peer = d3rlpy.algos.TD3PlusBCConfig(
            actor_learning_rate=config.actor_rate,
            critic_learning_rate=config.critic_rate,
            actor_encoder_factory=nets,
            critic_encoder_factory=nets,
            batch_size=config.batch,
            gamma=config.discount,
            tau=config.tau,
            target_smoothing_sigma=config.noise,
            target_smoothing_clip=config.clip,
            alpha=config.alpha,
            update_actor_interval=config.delay,
            compile_graph=cuda,  # its fastest mode; it exists only there
        ).create(device="cuda:0" if cuda else "cpu:0")
        epochs = peer.fitter(
            rows,
            n_steps=2**31,
            n_steps_per_epoch=chunk,
            logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
            show_progress=False,
        )

    def chunks() -> Iterator[tuple[int, float]]:
        threads_before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            while True:
                with quiet():
                    _, metrics = next(epochs)
                modules = peer.impl.modules.get_torch_modules().values()
                yield sum(p.numel() for net in modules for p in net.parameters()), metrics["time_algorithm_update"]
        finally:
            torch.set_num_threads(threads_before)

    return chunks()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard output: d3rlpy logs to stdout, which is for results, and its gym prints warnings."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
