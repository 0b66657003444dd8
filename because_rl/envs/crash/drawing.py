"""Images of a Crash scene: highway-env's lanes and bodies, drawn without a display.

highway-env's own renderer opens a window (frames are black where there is no display) and draws pedestrians as
six-pixel boxes. This one takes the geometry from the same `Road` and draws it larger with Pillow, at
three times the final size and then scaled down, so that edges are smooth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from highway_env.road.lane import LineType
from highway_env.road.road import Road
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, BAR = 720, 320, 34
"""Size of the picture in pixels, and height of the text bar at its bottom."""
OVERSAMPLING = 3
"""Pixels drawn per final pixel, along each axis."""
PIXELS = 10.5
"""Pixels per metre."""
BEHIND = 6.0
"""Metres of road shown left of x = 0."""
PAVEMENT = 1.6
"""Width of the pavements in metres; they have no effect on the simulation."""

GRASS, PAVING, ROAD, LINE = (231, 238, 225), (214, 214, 210), (104, 109, 118), (250, 250, 248)
EGO, CAR, GLASS, INK = (31, 102, 190), (186, 190, 197), (44, 54, 70), (38, 43, 51)
WALKERS = ((226, 114, 32), (132, 74, 168))
FIRED, FAINT = (206, 38, 54), (140, 146, 155)


@dataclass(frozen=True)
class Picture:
    """What `draw` shows."""

    road: Road
    trail: tuple[np.ndarray, ...]
    """positions (4, 2) of the bodies at each policy step so far"""
    flags: np.ndarray
    """(2,) bool: near-misses that have happened"""
    goal: np.ndarray
    """(2,) bool: near-misses required"""
    near_miss: float
    """metres around the ego's rectangle that count as near"""
    step: int
    horizon: int


class _Camera:
    """World metres (x right, y down as in highway-env) to oversampled pixels; follows the ego when it drives far."""

    def __init__(self, ego_x: float):
        visible = WIDTH / PIXELS
        self.left = max(-BEHIND, ego_x - 0.75 * visible)
        self.top = 2.0 - (HEIGHT - BAR) / PIXELS / 2  # y = 2 m, between the lanes, lies in the middle

    def __call__(self, points: Any) -> list[tuple[float, float]]:
        scaled = (np.asarray(points, float).reshape(-1, 2) - [self.left, self.top]) * PIXELS * OVERSAMPLING
        return [(float(x), float(y)) for x, y in scaled]

    @staticmethod
    def size(metres: float) -> float:
        return metres * PIXELS * OVERSAMPLING


def draw(picture: Picture) -> np.ndarray:
    """The scene as (320, 720, 3) uint8."""
    ego, car, *walkers = picture.road.vehicles
    camera = _Camera(float(ego.position[0]))
    image = Image.new("RGB", (WIDTH * OVERSAMPLING, HEIGHT * OVERSAMPLING), GRASS)
    pen = ImageDraw.Draw(image, "RGBA")
    _draw_road(pen, camera, picture.road)
    for body, colour in enumerate((EGO, CAR, *WALKERS)):
        _draw_trail(pen, camera, [points[body] for points in picture.trail], colour)
    _draw_zone(pen, camera, ego, picture.near_miss, bool(picture.flags.any()))
    _draw_car(pen, camera, car, CAR)
    _draw_car(pen, camera, ego, EGO)
    for walker, colour, fired, name in zip(walkers, WALKERS, picture.flags, "12", strict=True):
        _draw_walker(pen, camera, walker, colour, bool(fired), name)
    _draw_scale(pen)
    _draw_bar(pen, picture)
    return np.asarray(image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS))


def _draw_road(pen: Any, camera: _Camera, road: Road) -> None:
    grid_x = np.arange(np.floor(camera.left / 6) * 6, camera.left + WIDTH / PIXELS + 6, 6.0)
    lanes = road.network.lanes_list()
    for lane in lanes:
        start = [lane.local_coordinates(np.array([x, 0.0]))[0] for x in grid_x]
        near = [lane.position(s, -lane.width / 2) for s in start]
        far = [lane.position(s, lane.width / 2) for s in start]
        pen.polygon(camera([*near, *far[::-1]]), fill=ROAD)
        for edge, outward in ((near, -1), (far, 1)):
            if lane.line_types[int(outward > 0)] == LineType.CONTINUOUS_LINE:
                kerb = [point + [0.0, outward * PAVEMENT] for point in edge]
                pen.polygon(camera([*edge, *kerb[::-1]]), fill=PAVING)
    for lane in lanes:
        for side, kind in enumerate(lane.line_types):
            offset = (side - 0.5) * lane.width
            for x in grid_x:
                s = lane.local_coordinates(np.array([x, 0.0]))[0]
                length = {LineType.CONTINUOUS_LINE: 6.5, LineType.STRIPED: 2.6}.get(kind, 0.0)
                if length:
                    ends = camera([lane.position(s, offset), lane.position(s + length, offset)])
                    pen.line(ends, fill=LINE, width=round(camera.size(0.16)))


def _draw_trail(pen: Any, camera: _Camera, points: list[np.ndarray], colour: tuple[int, int, int]) -> None:
    for x, y in camera(points[:-1]) if len(points) > 1 else []:
        r = camera.size(0.13)
        pen.ellipse((x - r, y - r, x + r, y + r), fill=(*colour, 190))


def _corners(vehicle: Any, x: tuple[float, float], y: tuple[float, float]) -> np.ndarray:
    """A box in the vehicle's frame, given in metres from its centre, as world points."""
    cos, sin = vehicle.direction
    box = np.array([(x[0], y[0]), (x[0], y[1]), (x[1], y[1]), (x[1], y[0])])
    return box @ np.array([[cos, sin], [-sin, cos]]) + vehicle.position


def _draw_zone(pen: Any, camera: _Camera, ego: Any, radius: float, fired: bool) -> None:
    """The rectangle grown by the near-miss radius, with round corners."""
    half, turn = np.array([ego.LENGTH, ego.WIDTH]) / 2, np.linspace(0, np.pi / 2, 12)
    arc = radius * np.stack([np.cos(turn), np.sin(turn)], 1) + half
    outline = np.concatenate([arc, arc[::-1] * [-1, 1], arc * [-1, -1], arc[::-1] * [1, -1]])
    cos, sin = ego.direction
    world = outline @ np.array([[cos, sin], [-sin, cos]]) + ego.position
    points = camera(world)
    pen.polygon(points, fill=(*(FIRED if fired else (120, 180, 255)), 70))
    pen.line(
        [*points, points[0]],
        fill=(*(FIRED if fired else (150, 200, 255)), 255),
        width=round(camera.size(0.09)),
        joint="curve",
    )


def _draw_car(pen: Any, camera: _Camera, vehicle: Any, colour: tuple[int, int, int]) -> None:
    dark = tuple(int(0.62 * c) for c in colour)
    for x in (-1.55, 1.55):  # wheels
        for y in (-1.0, 0.86):
            pen.polygon(camera(_corners(vehicle, (x - 0.42, x + 0.42), (y - 0.02, y + 0.16))), fill=INK)
    half = vehicle.LENGTH / 2, vehicle.WIDTH / 2
    body = camera(_corners(vehicle, (-half[0], half[0]), (-half[1] + 0.08, half[1] - 0.08)))
    pen.polygon(body, fill=colour)
    pen.line([*body, body[0]], fill=dark, width=round(camera.size(0.1)), joint="curve")
    pen.polygon(camera(_corners(vehicle, (-1.9, 1.15), (-0.74, 0.74))), fill=GLASS)
    pen.polygon(camera(_corners(vehicle, (-1.35, 0.45), (-0.68, 0.68))), fill=colour)
    for y in (-0.62, 0.62):  # head lights
        pen.polygon(
            camera(_corners(vehicle, (half[0] - 0.28, half[0] - 0.04), (y - 0.2, y + 0.2))), fill=(255, 240, 190)
        )


def _draw_walker(pen: Any, camera: _Camera, walker: Any, colour: tuple[int, int, int], fired: bool, name: str) -> None:
    ((x, y),) = camera(walker.position)
    if fired:
        r = camera.size(1.2)
        pen.ellipse((x - r, y - r, x + r, y + r), fill=(*FIRED, 70), outline=FIRED, width=round(camera.size(0.12)))
    # Shoulders, a nose that points along the heading, and a head. Drawn larger than the 0.6 m of the body.
    cos, sin = walker.direction
    frame = np.array([[cos, sin], [-sin, cos]])
    turn = np.linspace(0, 2 * np.pi, 24)
    shoulders = np.stack([0.4 * np.cos(turn), 0.8 * np.sin(turn)], 1) @ frame + walker.position
    nose = np.array([(1.15, 0.0), (0.35, 0.45), (0.35, -0.45)]) @ frame + walker.position
    pen.polygon(camera(nose), fill=INK)
    pen.polygon(camera(shoulders), fill=colour)
    r = camera.size(0.36)
    pen.ellipse((x - r, y - r, x + r, y + r), fill=INK)
    halo: Any = {"stroke_width": 2 * OVERSAMPLING, "stroke_fill": (255, 255, 255), "anchor": "lm"}
    pen.text((x + camera.size(1.45), y), f"ped{name}", fill=colour, font=_font(12), **halo)


def _draw_scale(pen: Any) -> None:
    right, y, tick = (WIDTH - 16) * OVERSAMPLING, (HEIGHT - BAR - 14) * OVERSAMPLING, 4 * OVERSAMPLING
    left = right - _Camera.size(10)
    for ends in ((left, y, right, y), (left, y - tick, left, y + tick), (right, y - tick, right, y + tick)):
        pen.line(ends, fill=INK, width=OVERSAMPLING)
    pen.text(((left + right) / 2, y - 4 * OVERSAMPLING), "10 m", fill=INK, font=_font(11), anchor="md")


def _draw_bar(pen: Any, picture: Picture) -> None:
    top, middle = (HEIGHT - BAR) * OVERSAMPLING, (HEIGHT - BAR / 2) * OVERSAMPLING
    pen.rectangle((0, top, WIDTH * OVERSAMPLING, HEIGHT * OVERSAMPLING), fill=(255, 255, 255))
    pen.line((0, top, WIDTH * OVERSAMPLING, top), fill=(200, 204, 198), width=OVERSAMPLING)
    pen.text(
        (14 * OVERSAMPLING, middle), f"step {picture.step} / {picture.horizon}", fill=INK, font=_font(14), anchor="lm"
    )
    for left, colour, name in ((112, EGO, "ego"), (168, CAR, "car")):
        x, half = left * OVERSAMPLING, 6 * OVERSAMPLING
        pen.rectangle((x, middle - half, x + 2 * half, middle + half), fill=colour)
        pen.text((x + 3 * half, middle), name, fill=INK, font=_font(13), anchor="lm")
    for i, centre in enumerate((340, 535)):
        fired, required = bool(picture.flags[i]), bool(picture.goal[i])
        r, x = 8 * OVERSAMPLING, centre * OVERSAMPLING
        pen.ellipse(
            (x - r, middle - r, x + r, middle + r),
            fill=FIRED if fired else (255, 255, 255),
            outline=FIRED if fired else WALKERS[i],
            width=2 * OVERSAMPLING,
        )
        text = f"near-miss ped{i + 1}" + (" (goal)" if required else "")
        pen.text((x + 14 * OVERSAMPLING, middle), text, fill=INK if required else FAINT, font=_font(13), anchor="lm")


def _font(size: int) -> Any:
    return ImageFont.load_default(size=size * OVERSAMPLING)
