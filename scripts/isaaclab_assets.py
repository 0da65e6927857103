"""A local asset root for Isaac Lab's cartpole, for machines that cannot reach Isaac Sim's asset server.

Run it with the interpreter that has Isaac Lab: ``python scripts/isaaclab_assets.py DIRECTORY``, then train with
``cluster.env.ISAACSIM_ASSET_ROOT=DIRECTORY``. The robot is Isaac Lab's own in the form that Newton ships with its
examples; the ground is a bare plane, for cartpoles do not touch it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROBOT = "Isaac/IsaacLab/Robots/Classic/Cartpole/cartpole.usd"
GROUND = "Isaac/IsaacLab/Environments/Grid/default_ground_plane_checker_v1/default_ground_plane.usda"
PLANE = """\
#usda 1.0
(
    defaultPrim = "World"
    metersPerUnit = 1
    upAxis = "Z"
)

def Xform "World"
{
    def Plane "CollisionPlane" (
        prepend apiSchemas = ["PhysicsCollisionAPI"]
    )
    {
        uniform token axis = "Z"
        uniform token purpose = "guide"
    }

    def Scope "Looks"
    {
        def Material "theGrid"
        {
            def Shader "Shader"
            {
                color3f inputs:diffuse_tint = (0, 0, 0)
            }
        }
    }
}
"""


def write(root: Path) -> None:
    """Write the assets below `root`.

    Raises:
        SystemExit: this interpreter has no Newton.
    """
    newton = importlib.util.find_spec("newton")
    if newton is None or newton.origin is None:
        raise SystemExit(f"{sys.executable} has no newton: run this with the interpreter of `make isaaclab-env`")
    robot = (Path(newton.origin).parent / "examples/assets/cartpole_single_pendulum.usda").read_text()
    for place, text in (
        (ROBOT, robot.replace('defaultPrim = "cartPole"', 'defaultPrim = "cartpole"')),
        (GROUND, PLANE),
    ):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
