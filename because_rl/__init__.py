"""because-rl: causal, generalizable offline model-based reinforcement learning.

    import because_rl as br

    data = br.load("unlock-medium")
    graph = br.discover(data)
    agent = br.Because().fit(data, seeds=3, mask=graph)
    action = agent.act(data.state[0], data.goal[0])

Names are imported when they are first used: `import because_rl` alone loads neither JAX nor a simulator.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers, what `__getattr__` does
    from because_rl.algorithms.because import Because as Because
    from because_rl.algorithms.because import BecauseConfig as BecauseConfig
    from because_rl.algorithms.ccil import CCIL as CCIL
    from because_rl.algorithms.ccil import CCILConfig as CCILConfig
    from because_rl.algorithms.cdl import CDL as CDL
    from because_rl.algorithms.cdl import CDLConfig as CDLConfig
    from because_rl.algorithms.delphic import Delphic as Delphic
    from because_rl.algorithms.delphic import DelphicConfig as DelphicConfig
    from because_rl.algorithms.denoised_mdp import DenoisedMDP as DenoisedMDP
    from because_rl.algorithms.denoised_mdp import DenoisedMDPConfig as DenoisedMDPConfig
    from because_rl.algorithms.gnn import GNN as GNN
    from because_rl.algorithms.gnn import GNNConfig as GNNConfig
    from because_rl.algorithms.icil import ICIL as ICIL
    from because_rl.algorithms.icil import ICILConfig as ICILConfig
    from because_rl.algorithms.ifactor import IFactor as IFactor
    from because_rl.algorithms.ifactor import IFactorConfig as IFactorConfig
    from because_rl.algorithms.mnm import MnM as MnM
    from because_rl.algorithms.mnm import MnMConfig as MnMConfig
    from because_rl.algorithms.mopo import MOPO as MOPO
    from because_rl.algorithms.mopo import MOPOConfig as MOPOConfig
    from because_rl.algorithms.registry import load_agent as load_agent
    from because_rl.algorithms.registry import make_method as make_method
    from because_rl.algorithms.td3bc import TD3BC as TD3BC
    from because_rl.algorithms.td3bc import TD3BCConfig as TD3BCConfig
    from because_rl.datasets.load import load as load
    from because_rl.discovery.discover import discover as discover
    from because_rl.discovery.mask import CausalMask as CausalMask
    from because_rl.envs.world import World as World
    from because_rl.envs.world import get_world as get_world
    from because_rl.errors import BecauseError as BecauseError
    from because_rl.evaluation.task import Evaluation as Evaluation
    from because_rl.evaluation.task import evaluate as evaluate
    from because_rl.factors import Factor as Factor
    from because_rl.factors import FactorSpec as FactorSpec
    from because_rl.factors import GoalFactor as GoalFactor
    from because_rl.graph import Graph as Graph
    from because_rl.runs.explain import explain as explain
    from because_rl.runs.fit import fit as fit
    from because_rl.runs.worth import worth as worth
    from because_rl.training.method import Agent as Agent
    from because_rl.training.method import Method as Method
    from because_rl.training.method import Prediction as Prediction
    from because_rl.training.run import Run as Run
    from because_rl.transitions import Transitions as Transitions

__version__ = "0.1.0"

_MODULES = {
    "algorithms.because": ("Because", "BecauseConfig"),
    "algorithms.ccil": ("CCIL", "CCILConfig"),
    "algorithms.cdl": ("CDL", "CDLConfig"),
    "algorithms.delphic": ("Delphic", "DelphicConfig"),
    "algorithms.denoised_mdp": ("DenoisedMDP", "DenoisedMDPConfig"),
    "algorithms.gnn": ("GNN", "GNNConfig"),
    "algorithms.icil": ("ICIL", "ICILConfig"),
    "algorithms.ifactor": ("IFactor", "IFactorConfig"),
    "algorithms.mnm": ("MnM", "MnMConfig"),
    "algorithms.mopo": ("MOPO", "MOPOConfig"),
    "algorithms.registry": ("load_agent", "make_method"),
    "algorithms.td3bc": ("TD3BC", "TD3BCConfig"),
    "datasets.load": ("load",),
    "discovery.discover": ("discover",),
    "discovery.mask": ("CausalMask",),
    "envs.world": ("World", "get_world"),
    "errors": ("BecauseError",),
    "evaluation.task": ("Evaluation", "evaluate"),
    "factors": ("Factor", "FactorSpec", "GoalFactor"),
    "graph": ("Graph",),
    "runs.explain": ("explain",),
    "runs.fit": ("fit",),
    "runs.worth": ("worth",),
    "training.method": ("Agent", "Method", "Prediction"),
    "training.run": ("Run",),
    "transitions": ("Transitions",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'because_rl' has no attribute {name!r}")
    value = getattr(import_module(f"because_rl.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOME]


def _register_worlds() -> None:
    from because_rl.envs.tasks import register

    register()


_register_worlds()
