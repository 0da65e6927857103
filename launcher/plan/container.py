"""A command inside a container. Standard library only.

The environment goes in by name: a value on a command line would be seen by everyone on the node, and Slurm and the
runtimes cut values at commas. Nothing else of the host's environment goes in, nor the home's packages.
"""

from __future__ import annotations

import csv
import fnmatch
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence

from launcher.plan.plan import Container, Mount, Plan

_OF_THE_JOB = (
    "SLURM_*", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL",
)  # fmt: skip
"""What a rank has to know of its job whatever it runs in."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The search path where the image brings none of its own: Charliecloud reads an image's only when it is asked to."""
IN_A_CONTAINER = {"PYTHONNOUSERSITE": "1"}
"""The home, where it is mounted, holds packages for the host's Python."""


def handed_on(container: Container, environ: Iterable[str], ours: Iterable[str]) -> list[str]:
    """The names of the variables that go in: the job's, those asked for, and the launcher's own."""
    patterns = (*_OF_THE_JOB, *container.env)
    asked = {name for name in environ if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    return sorted({*asked, *ours, *IN_A_CONTAINER})


def wrap(plan: Plan, command: Sequence[str], names: Sequence[str]) -> list[str]:
    """The command as the node starts it: in the image, unless the whole task is in one already."""
    container = plan.container
    if container is None or container.runtime == "pyxis":
        return list(command)
    if container.runtime == "apptainer":
        return [*_apptainer(container, plan.workdir, plan.resources.gpus_per_node), *command]
    return [*_charliecloud(container, plan.workdir, names), *command]


def carried(container: Container, values: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """The environment of the runtime itself, such that these names reach the command inside."""
    if container.runtime != "apptainer":
        return dict(values)
    return {**values, **{f"APPTAINERENV_{name}": values[name] for name in names if name in values}}


def srun_args(plan: Plan) -> list[str]:
    """What tells srun to start the whole task in the image; nothing unless pyxis does that.

    With --export=NAMES srun hands on these and Slurm's own; pyxis would hand on all. --container-env has them win
    over the image's values of the same names.
    """
    container = plan.container
    if container is None or container.runtime != "pyxis":
        return []
    names = ",".join(dict.fromkeys(["PYTHONPATH", *container.env]))
    return [
        f"--export={names}",
        f"--container-image={container.image}",
        f"--container-mounts={','.join(map(_colons, container.mounts))}",
        f"--container-workdir={plan.workdir}",
        f"--container-env={names}",
        "--container-mount-home" if container.mount_home else "--no-container-mount-home",
        *container.args,
    ]


def _apptainer(container: Container, workdir: str, gpus: int) -> Iterator[str]:
    """Without --no-eval Apptainer has a shell evaluate the values of variables."""
    yield from ("apptainer", "exec", "--cleanenv", "--no-eval")
    if gpus:
        yield "--nv"
    if not container.mount_home:
        yield "--no-home"
    for mount in container.mounts:
        yield f"--mount={_comma_separated(mount)}"
    yield from (f"--pwd={workdir}", *container.args, container.image)


def _comma_separated(mount: Mount) -> str:
    """Fields as in a CSV file, so that a path may hold a comma or a quote."""
    fields = ["type=bind", f"source={mount.source}", f"destination={mount.target}"]
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([*fields, *(["ro"] if mount.read_only else [])])
    return text.getvalue()


def _charliecloud(container: Container, workdir: str, names: Sequence[str]) -> Iterator[str]:
    kept = [*names, *(["HOME"] if container.mount_home else [])]
    yield from ("ch-run", f"--unset-env=!({'|'.join(kept)})")
    if "PATH" not in names:
        yield f"--set-env=PATH={_PATH}"
    if container.mount_home:
        yield "--home"
    for mount in container.mounts:
        yield f"--bind={mount.source}:{mount.target}"
    yield from (f"--cd={workdir}", *container.args, container.image, "--")


def _colons(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"
