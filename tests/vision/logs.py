"""Small logs of pictures whose factors are known."""

import numpy as np
from PIL import Image

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


def write_folder(pictures, folder):
    """A log of pictures as PNG files, named by their content, and a table of steps; actions are numbers."""
    (folder / "frames").mkdir(parents=True)
    _, number = np.unique(pictures.frames.reshape(len(pictures.frames), -1), axis=0, return_inverse=True)
    names = [f"frames/{n:04}.png" for n in number.reshape(-1)]
    for name, frame in zip(names, pictures.frames, strict=True):
        if not (folder / name).exists():
            Image.fromarray(frame).save(folder / name)
    codes = np.unique(pictures.action, axis=0) if pictures.factors.codes is None else np.array(pictures.factors.codes)
    action = (pictures.action[:, None] == codes).all(2).argmax(1)
    lines = ["picture,next_picture,episode,action,reward,terminated"]
    for n, at in enumerate(pictures.before):
        end = int(pictures.terminated[n])
        lines.append(f"{names[at]},{names[at + 1]},{pictures.episode[n]},{action[n]},{float(pictures.reward[n])},{end}")
    (folder / "pictures.csv").write_text("\n".join(lines))
