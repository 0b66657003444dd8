"""because-rl: causal, generalizable offline model-based reinforcement learning."""

from because_rl.envs.tasks import register

__version__ = "0.1.0"

register()
