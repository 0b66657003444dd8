"""A program for an environment of its own: d3rlpy learns from a log, then acts for whoever asks.

``python d3rlpy_peer.py LOG STEPS SEED [CONFIG]``: TD3+BC where actions are real, DiscreteCQL where they are numbers,
since TD3+BC has none. LOG is an NPZ file of flat arrays, or the folder of a Minari dataset, which Minari reads. Both
with d3rlpy's settings, TD3+BC also with those of CONFIG (our TD3BCConfig as JSON), observations standardised as the
paper of TD3+BC does, actions and rewards brought to unit range. The first line of output says what was trained; then
every line of input, observations as JSON, is answered by a line with the actions. It imports nothing of this
repository.

d3rlpy 2.8.1 pins an old Gymnasium, so it needs its own environment::

    python3 -m venv d3 && d3/bin/pip install torch==2.13.0 h5py scikit-learn tqdm click colorama structlog \\
        dataclasses-json gym==0.26.2 gymnasium==1.0.0 minari==0.5.4 pillow
    d3/bin/pip install --no-deps d3rlpy==2.8.1
"""

import json
import sys
import time
from pathlib import Path
from typing import Any


def read(log: str) -> dict[str, Any]:
    """The arrays of a log, one row per step."""
    import numpy as np

    if not Path(log).is_dir():
        with np.load(log, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    import minari

    episodes = list(minari.MinariDataset(Path(log) / "data").iterate_episodes())
    rows = {"observations": np.concatenate([np.asarray(episode.observations)[:-1] for episode in episodes])}
    for name in ("actions", "rewards", "terminations", "truncations"):
        rows[name] = np.concatenate([getattr(episode, name) for episode in episodes])
    return rows


def network_settings(ours: dict[str, Any]) -> dict[str, Any]:
    """What d3rlpy's TD3+BC takes over of our settings."""
    import d3rlpy  # type: ignore[import-not-found]

    nets = d3rlpy.models.VectorEncoderFactory(hidden_units=[ours["hidden"], ours["hidden"]], activation="swish")
    return {
        "actor_learning_rate": ours["actor_rate"],
        "critic_learning_rate": ours["critic_rate"],
        "actor_encoder_factory": nets,
        "critic_encoder_factory": nets,
        "batch_size": ours["batch"],
        "gamma": ours["discount"],
        "tau": ours["tau"],
        "target_smoothing_sigma": ours["noise"],
        "target_smoothing_clip": ours["clip"],
        "alpha": ours["alpha"],
        "update_actor_interval": ours["delay"],
    }


def main(log: str, steps: int, seed: int, ours: dict[str, Any] | None = None) -> None:
    """Train, then answer."""
    output, sys.stdout = sys.stdout, sys.stderr
    import d3rlpy
    import numpy as np
    import torch  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    d3rlpy.seed(seed)
    rows = read(log)
    discrete = rows["actions"].dtype.kind in "iu"
    data = d3rlpy.dataset.MDPDataset(
        observations=rows["observations"].astype(np.float32),
        actions=rows["actions"].reshape(len(rows["actions"]), -1).astype(np.int64 if discrete else np.float32),
        rewards=rows["rewards"].astype(np.float32),
        terminals=rows["terminations"].astype(np.float32),
        timeouts=rows["truncations"].astype(np.float32),
        action_space=d3rlpy.ActionSpace.DISCRETE if discrete else d3rlpy.ActionSpace.CONTINUOUS,
        **({"action_size": int(rows["actions"].max()) + 1} if discrete else {}),
    )
    pre = d3rlpy.preprocessing
    scalers: dict[str, Any] = {
        "observation_scaler": pre.StandardObservationScaler(),
        "reward_scaler": pre.StandardRewardScaler(),
    }
    if discrete:
        config = d3rlpy.algos.DiscreteCQLConfig(**scalers)
    else:
        settings = network_settings(ours) if ours else {}
        config = d3rlpy.algos.TD3PlusBCConfig(action_scaler=pre.MinMaxActionScaler(), **scalers, **settings)
    learner = config.create(device="cpu:0")
    begin = time.monotonic()
    learner.fit(
        data,
        n_steps=steps,
        n_steps_per_epoch=steps,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        show_progress=False,
    )
    versions = {"torch": torch.__version__, "d3rlpy": d3rlpy.__version__}
    trained = {"algorithm": type(learner).__name__, "seconds": time.monotonic() - begin, "versions": versions}
    print(json.dumps(trained), file=output, flush=True)
    for line in sys.stdin:
        actions = learner.predict(np.asarray(json.loads(line), np.float32))
        print(json.dumps(actions.tolist()), file=output, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]) if len(sys.argv) > 4 else None)
