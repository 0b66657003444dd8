"""Small logs of pictures whose factors are known."""

import numpy as np

from because_rl.datasets.collect import rollout
from because_rl.datasets.pictures import Pictures
from because_rl.datasets.recipe import Recipe
from because_rl.envs.unlock.env import Unlock
from because_rl.envs.unlock.pictures import draw
from because_rl.factors import FactorSpec, pack

TRUE = Unlock.make_factors(1)


def unlock_log(episodes=60, behaviour="medium"):
    """A log of pictures of Unlock, and the true states of its frames."""
    raw = rollout(Recipe("unlock", behaviour, episodes, seed=500), range(episodes))
    spec = FactorSpec(pack(("picture", 64 * 64 * 3, "continuous")), TRUE.action, (), TRUE.codes)
    rows = [
        {
            "frames": draw(e["state"]),
            "action": TRUE.encode_action(e["action"]).astype(np.float32),
            "reward": e["reward"],
            "terminated": e["terminated"],
        }
        for e in raw
    ]
    return Pictures.join(rows, spec, "unlock pictures", {}), np.concatenate([e["state"] for e in raw])
