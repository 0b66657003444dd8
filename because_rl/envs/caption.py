"""A line of text under a rendered frame."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont


def caption(frame: np.ndarray, text: str, height: int = 26) -> np.ndarray:
    """`frame` (h, w, 3) uint8 with a caption bar of `height` pixels below it."""
    bar = Image.new("RGB", (frame.shape[1], height), "white")
    font = ImageFont.load_default(size=int(height * 0.55))
    ImageDraw.Draw(bar).text((8, height // 2), text, fill="black", font=font, anchor="lm")
    return np.concatenate([frame, np.asarray(bar)])
