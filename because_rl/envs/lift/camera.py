"""Images of Lift, from robosuite's offscreen renderer.

On Linux robosuite renders with EGL, which needs no display (unless MUJOCO_GL is osmesa or glx).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from because_rl.errors import BecauseError

WIDTH, HEIGHT = 640, 480
BACKDROP, TABLE = (0.97, 0.97, 0.98, 1.0), (0.84, 0.77, 0.68, 1.0)
LOW = np.array([0.13, 0.38, 0.72])
HIGH = np.array([0.95, 0.52, 0.12])
"""The cube's colour at colour = 0 (blue) and colour = 1 (orange)."""


def cube_rgb(colour: float) -> np.ndarray:
    """RGB in [0, 1]: from blue over light grey to orange, which remain distinguishable in print."""
    middle = np.array([0.85, 0.84, 0.80])
    end = LOW if colour < 0.5 else HIGH
    return middle + (end - middle) * min(1.0, abs(2.0 * colour - 1.0))


class Camera:
    """A fixed free camera on one robosuite simulation."""

    def __init__(self, sim: Any):
        import mujoco

        self._model = model = sim.model._model
        model.vis.quality.offsamples = 8
        model.vis.quality.shadowsize = 4096
        model.vis.global_.offwidth, model.vis.global_.offheight = WIDTH, HEIGHT
        self._light(model)
        try:
            from robosuite.utils.binding_utils import MjRenderContextOffscreen

            class Context(MjRenderContextOffscreen):
                def __del__(self) -> None:
                    if hasattr(self, "con"):  # not if it could not be made
                        super().__del__()

            self._context = Context(sim, device_id=-1, max_width=WIDTH, max_height=HEIGHT)
        except Exception as error:  # OpenGL bindings raise many types of error when a library is missing
            raise BecauseError(
                f"Lift cannot render here ({type(error).__name__}: {error}).",
                need="OpenGL without a display: the EGL library.",
                fix="apt-get install libegl1 (Debian, Ubuntu), or make the environment without render_mode.",
            ) from error
        self._context.vopt.geomgroup[0] = 0  # collision shapes
        self._context.vopt.sitegroup[:] = 0
        camera = self._context.cam
        camera.type = mujoco.mjtCamera.mjCAMERA_FREE
        camera.lookat[:] = -0.17, 0.0, 1.07
        camera.distance, camera.azimuth, camera.elevation = 1.46, 142.0, -21.0
        self._cube = model.geom("cube_g0_vis").id

    @staticmethod
    def _light(model: Any) -> None:
        """Plain backdrop and floor, one main light with shadows, and a fill light at the camera."""
        import mujoco

        model.light_castshadow[0] = 1
        model.light_pos[0], model.light_dir[0] = (0.9, 0.9, 2.6), (-0.42, -0.36, -1.0)
        model.light_diffuse[0], model.light_specular[0] = 0.42, 0.2
        model.vis.headlight.ambient[:], model.vis.headlight.diffuse[:] = 0.40, 0.22
        model.vis.headlight.specular[:] = 0.1
        model.vis.map.shadowclip = 0.55
        for name, rgba in (("walls_mat", (1, 1, 1, 0)), ("floorplane", BACKDROP), ("table_ceramic", TABLE)):
            material = model.material(name)
            material.texid[:], material.rgba[:], material.reflectance[:] = -1, rgba, 0.0
        sky = int(np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX)[0])
        start = model.tex_adr[sky]
        size = model.tex_height[sky] * model.tex_width[sky] * model.tex_nchannel[sky]
        model.tex_data[start : start + size] = 240

    def frame(self, colour: float) -> np.ndarray:
        """The current scene, (HEIGHT, WIDTH, 3) uint8, with the cube in this `colour`."""
        self._model.geom_matid[self._cube] = -1  # the wood texture would hide the colour
        self._model.geom_rgba[self._cube, :3] = cube_rgb(colour)
        self._context.gl_ctx.make_current()
        self._context.render(WIDTH, HEIGHT)
        return self._context.read_pixels(WIDTH, HEIGHT)[::-1].copy()
