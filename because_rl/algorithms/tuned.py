"""What the tuning round chose (``because tune``, results/tuning): `make_method` puts it on top of a method's preset.

The rule was set before the round was run. A baseline takes the trial with the highest success on development scenes,
whether or not its lead could be that of seeds; a tie goes to the preset. BECAUSE, whose preset had seen development
scenes before, takes another only where the lead is beyond noise; its ablations and the paper's preset follow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHOSEN: Mapping[str, Mapping[str, Mapping[str, Any]]] = {}
"""method -> world -> settings"""
