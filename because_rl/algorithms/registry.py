"""The methods by name, and how to make one from a few settings.

A method is one file beside this one and one line in `METHODS`.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from because_rl.algorithms.because import Because, BecauseConfig
from because_rl.algorithms.because_paper import BecausePaper, BecausePaperConfig
from because_rl.algorithms.ccil import CCIL, CCILConfig
from because_rl.algorithms.cdl import CDL, CDLConfig
from because_rl.algorithms.delphic import Delphic, DelphicConfig
from because_rl.algorithms.denoised_mdp import DenoisedMDP, DenoisedMDPConfig
from because_rl.algorithms.gnn import GNN, GNNConfig
from because_rl.algorithms.icil import ICIL, ICILConfig
from because_rl.algorithms.ifactor import IFactor, IFactorConfig
from because_rl.algorithms.mnm import MnM, MnMConfig
from because_rl.algorithms.mopo import MOPO, MOPOConfig
from because_rl.algorithms.presets import TUNED, VARIANT_OF, VARIANTS, WORLD_SETTINGS
from because_rl.algorithms.td3bc import TD3BC, TD3BCConfig
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.training.method import DIAGNOSTICS, Agent, Method
from because_rl.training.saved import read_agent
from because_rl.vision.agent import with_encoder


class Entry(NamedTuple):
    method: Callable[[Any], Method]
    """makes the method from its config"""
    config: type


METHODS: dict[str, Entry] = {
    **{name: Entry(Because, BecauseConfig) for name in ("because", "optimism", "linear", "full")},
    "because-paper": Entry(BecausePaper, BecausePaperConfig),
    "ccil": Entry(CCIL, CCILConfig),
    "cdl": Entry(CDL, CDLConfig),
    "delphic": Entry(Delphic, DelphicConfig),
    "denoised-mdp": Entry(DenoisedMDP, DenoisedMDPConfig),
    "gnn": Entry(GNN, GNNConfig),
    "icil": Entry(ICIL, ICILConfig),
    "ifactor": Entry(IFactor, IFactorConfig),
    "mnm": Entry(MnM, MnMConfig),
    **{name: Entry(MOPO, MOPOConfig) for name in ("mopo", "mopo-plain")},
    "td3bc": Entry(TD3BC, TD3BCConfig),
}


def make_method(
    name: str, overrides: Mapping[str, Any] | None = None, world: str | None = None, tuned: bool = True
) -> Method:
    """A method by its name, with the settings of `presets`.

    Later settings replace earlier ones: the defaults of its Config, those for the `world`, what tuning chose (unless
    `tuned` is False), those of the name, then `overrides`. An override may be text, as from a command line, and
    'planner.horizon' is a field of the field 'planner'.

    >>> make_method("td3bc", {"alpha": "1.5", "hidden": 32}, "crash").config.alpha
    1.5
    """
    if name not in METHODS:
        raise BecauseError(
            f"There is no method {name!r}.", need=f"one of {', '.join(METHODS)}.", fix="correct the name."
        )
    family = VARIANT_OF.get(name, name)
    by_world = WORLD_SETTINGS.get(family, {}).get(world or "", {})
    chosen = TUNED.get(family, {}).get(world or "", {}) if tuned else {}
    config = METHODS[name].config()
    for settings in (by_world, chosen, VARIANTS.get(name, {}), overrides or {}):
        config = configure(config, settings)
    return METHODS[name].method(config)


def load_agent(folder: str | Path, method: Callable[[Any], Method] | None = None, config: Any = None) -> Agent:
    """An agent that ``agent.save(folder)`` wrote, or that of a finished run or fit, without data and simulator.

    Args:
        folder: of the agent, or one that `because train` or `because fit` wrote.
        method: the class of a method that is not in `METHODS`.
        config: its default config.
    """
    path = Path(folder)
    places = (path / "run/agent", path / "agent", path)
    record, arrays = read_agent(next((place for place in places if place.is_dir()), path))
    if method is None and record["method"] not in METHODS:
        raise BecauseError(
            f"{folder} holds an agent of {record['method']!r}, which is not among the methods here.",
            need=f"one of {', '.join(METHODS)}.",
            fix="pass the class of the method: load_agent(folder, Method, Config()).",
        )
    entry = METHODS[record["method"]] if method is None else Entry(method, type(config))
    fitted = entry.method(configure(entry.config(), record["config"]))
    factors, seeds = FactorSpec.from_dict(record["factors"]), tuple(record["seeds"])
    agent = fitted.restore(factors, record["horizon"], seeds, arrays)
    agent.trained_on = record["trained_on"]
    agent.diagnostics = {
        name.removeprefix(DIAGNOSTICS): values for name, values in arrays.items() if name.startswith(DIAGNOSTICS)
    }
    return with_encoder(agent, record, arrays)


def configure(config: Any, settings: Mapping[str, Any], prefix: str = "") -> Any:
    """A copy of `config`, a dataclass, with the fields in `settings` replaced.

    Raises a BecauseError for an unknown field, or a value that does not have its type. `prefix` is put before the names
    of fields in error messages.
    """
    hints = get_type_hints(type(config))
    for key, value in settings.items():
        head, _, rest = key.partition(".")
        if head not in {f.name for f in fields(config)}:
            raise BecauseError(
                f"There is no setting {prefix + key!r} in {type(config).__name__}.",
                need=f"one of {', '.join(prefix + f.name for f in fields(config))}.",
                fix="correct the name.",
            )
        part = getattr(config, head)
        if is_dataclass(part):
            inner = {rest: value} if rest else value
            if not isinstance(inner, Mapping):
                need = f"the fields of {type(part).__name__}, such as {head}.{fields(part)[0].name}"
                raise _wrong_value(prefix + key, value, need)
            config = replace(config, **{head: configure(part, inner, f"{prefix}{head}.")})
        elif rest:
            raise _wrong_value(prefix + key, value, f"{prefix + head} alone, which has no parts")
        else:
            config = replace(config, **{head: _parse(prefix + key, value, hints[head])})
    return config


def _parse(key: str, value: Any, hint: Any) -> Any:
    """The value as type `hint`; text is read as JSON where that fits, so '1e-3' is a number."""
    candidates = [value]
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):  # no JSON, a number without end, or too deep
            candidates.insert(0, json.loads(value))
    for candidate in candidates:
        fits, converted = _convert(candidate, hint)
        if fits and _is_allowed(converted):
            return converted
    raise _wrong_value(key, value, str(hint.__name__ if isinstance(hint, type) else hint))


def _is_allowed(value: Any) -> bool:
    """Whether counts are not negative and numbers are finite: JSON, in which runs are kept, has no others."""
    if isinstance(value, Mapping | list | tuple):
        return all(map(_is_allowed, value.values() if isinstance(value, Mapping) else value))
    return value >= 0 if isinstance(value, int) else not isinstance(value, float) or math.isfinite(value)


def _convert(value: Any, hint: Any) -> tuple[bool, Any]:
    """Whether a value fits the type `hint`, and the value as that type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        matches = [converted for fits, converted in (_convert(value, a) for a in arguments) if fits]
        return bool(matches), matches[0] if matches else None
    if origin is Literal:
        return value in arguments, value
    if origin is tuple or hint is tuple:
        if not isinstance(value, list | tuple):
            return False, None
        inner = arguments[0] if arguments else Any
        parts = [_convert(v, inner) for v in value]
        return all(fits for fits, _ in parts), tuple(converted for _, converted in parts)
    if hint is Any:
        return True, value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return True, float(value)
    if hint is int and isinstance(value, bool):
        return False, None
    return isinstance(value, hint), value


def _wrong_value(key: str, value: Any, need: str) -> BecauseError:
    return BecauseError(f"Got {key}={value!r}.", need=f"{need}.", fix=f"give {key} a value that fits.")
