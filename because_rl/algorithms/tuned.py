"""What the tuning round chose (``because tune``, results/tuning): `make_method` puts it on top of a method's preset.

The rule was set before anybody saw a result. A baseline takes the trial with the highest success on development
scenes, whether or not its lead could be that of seeds; a tie goes to the preset. BECAUSE, whose preset had seen
development scenes before, takes another only where the lead is beyond noise: nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHOSEN: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "td3bc": {"lift": {"steps": 40000}, "crash": {"tau": 0.001}},
    "ccil": {"crash": {"greedy": True}, "unlock": {"hidden": 256}},
    "icil": {"lift": {"energy": 0.1}, "crash": {"greedy": True}, "unlock": {"greedy": False}},
    "gnn": {"lift": {"layers": 1}, "crash": {"hidden": 256}, "unlock": {"layers": 2}},
    "cdl": {"lift": {"threshold": 0.005}, "crash": {"variant": "regularised"}, "unlock": {"variant": "regularised"}},
    "mnm": {"crash": {"joint": 0.01}, "unlock": {"price": 0.2}},
    "delphic": {"lift": {"pessimism": None}, "unlock": {"pessimism": None}},
    "denoised-mdp": {"unlock": {"kl": 0.01}},
    "ifactor": {"unlock": {"rewarded": 1.0, "moved": 1.0}},
}
"""method -> world -> settings"""
