"""The picture of docs/visual.md: frames of a logged episode, and where each factor is that was read from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from because_rl.datasets.pictures import load_pictures
from because_rl.report.graph_figure import save
from because_rl.runs.pictures import trained_encoder
from because_rl.vision.views import mark_factor


def draw_factors(dataset: str, root: Path | None, path: Path, count: int = 6) -> None:
    """Write the picture: `count` frames of the first episode that reached its goal, and a row for each factor."""
    pictures = load_pictures(dataset, root)
    encoder = trained_encoder(pictures, root)
    episode = pictures.episode[pictures.terminated][0]
    steps = pictures.before[pictures.episode == episode]
    shown = pictures.frames[np.unique(np.linspace(steps[0], steps[-1] + 1, count).round().astype(int))]
    titles = ["picture", *(part.name for part in encoder.parts)]
    strips = [shown, *(mark_factor(encoder, shown, part.name) for part in encoder.parts)]
    figure = Figure(figsize=(1.15 * len(shown) + 1, 1.15 * len(strips)))
    for axes, title, strip in zip(figure.subplots(len(strips), 1), titles, strips, strict=True):
        gap = np.full((*strip.shape[1:2], 4, 3), 255, np.uint8)
        axes.imshow(np.concatenate([part for frame in strip for part in (frame, gap)][:-1], axis=1))
        axes.set_ylabel(title, rotation=0, ha="right", va="center")
        axes.set(xticks=[], yticks=[], frame_on=False)
    figure.subplots_adjust(left=0.1, right=0.995, top=0.995, bottom=0.005, hspace=0.04)
    save(figure, path)
