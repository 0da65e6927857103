"""The GPUs, as NVML tells of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.node import nvml
from launcher.node.preflight.topic import Topic
from launcher.node.preflight.wanted import Wanted
from launcher.records.preflight import ERROR, WARNING, Check, Facts, Finding

_DEADLINE_S = 8.0
"""Without persistence mode the driver takes a second or two to wake up for each GPU."""
_OUT = "leave the node out with cluster.exclude and tell the administrators"

DRIVER = Check(
    "gpu-driver", "no NVIDIA driver, a broken one, or one that does not answer",
    f"{_OUT}, or train on CPUs with cluster.device=cpu", (ERROR, WARNING),
)  # fmt: skip
UNKNOWN = Check(
    "gpu-unknown", "GPUs that cannot be looked at, for want of a Python package",
    "pip install nvidia-ml-py", (WARNING,),
)  # fmt: skip
COUNT = Check(
    "gpu-count", "fewer GPUs than asked for",
    f"ask for fewer (cluster.gpus_per_node), look at CUDA_VISIBLE_DEVICES, or {_OUT}",
)  # fmt: skip
LOST = Check("gpu-lost", "a GPU that has fallen off the bus or needs a reset", _OUT)
RECOVERY = Check("gpu-recovery", "a GPU for which the driver demands a reset or a reboot", _OUT)
ECC = Check("gpu-ecc", "memory errors that could not be corrected, since the driver was loaded", _OUT)
REMAP = Check(
    "gpu-remap", "rows of memory that wait to be replaced, or could not be (error)",
    f"the GPU needs a reset: {_OUT}", (WARNING, ERROR),
)  # fmt: skip
THROTTLE = Check(
    "gpu-throttle", "clocks that are lowered because of heat or power", f"it will be the slowest rank: {_OUT}",
    (WARNING,),
)  # fmt: skip
PROCESSES = Check(
    "gpu-processes", "processes of somebody else on a GPU of the run",
    "end them, or choose other GPUs (CUDA_VISIBLE_DEVICES; under Slurm tell the administrators)", (WARNING,),
)  # fmt: skip
MEMORY = Check(
    "gpu-memory", "a GPU whose memory is in use, by more than 10 % or by more than 90 % (error)",
    "end what uses it, or choose another GPU", (WARNING, ERROR),
)  # fmt: skip
CUDA = Check(
    "gpu-cuda", "a driver that is too old for the CUDA that torch was built with",
    "install a torch built for the driver's CUDA, or have the driver updated",
)  # fmt: skip


def _look(wanted: Wanted, deadline_s: float) -> dict[str, Any]:
    if not _matters(wanted):
        return {"state": "not asked"}
    command, environment = nvml.command()
    done = subprocess.run(
        command, env=environment, timeout=deadline_s, capture_output=True, text=True, errors="replace",
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    try:
        return json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"state": nvml.BROKEN, "message": last}


_SIGNS = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")  # the last one in Windows' Linux


def _matters(wanted: Wanted) -> bool:
    """Not on CPUs; and where nobody asked for a GPU, only if there seems to be one."""
    if wanted.device == "cpu" or wanted.gpus == 0:
        return False
    return bool(wanted.gpus) or wanted.device == "cuda" or any(Path(sign).exists() for sign in _SIGNS)


def _judge(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    seen = facts["gpus"]
    if seen["state"] == nvml.OK:
        yield from _judge_gpus(wanted, seen)
        yield from _judge_cuda(wanted, facts)
    elif seen["state"] == nvml.NO_PACKAGE and (wanted.gpus or wanted.device == "cuda"):
        yield UNKNOWN.finding(wanted.host, "the GPUs cannot be checked, nvidia-ml-py is missing here")
    elif seen["state"] == nvml.BROKEN:
        yield DRIVER.finding(wanted.host, f"the NVIDIA driver fails, {seen['message']}", _weight(wanted))
    elif seen["state"] == nvml.NO_DRIVER and (wanted.gpus or wanted.device == "cuda"):
        asked = f", and {wanted.gpus} GPUs are asked for" if wanted.gpus else ""
        yield DRIVER.finding(wanted.host, f"there is no NVIDIA driver here{asked}", _weight(wanted))


def _weight(wanted: Wanted) -> str:
    """Ranks on CUDA would fail; others would train on the CPU, unless that was not meant."""
    return ERROR if wanted.device == "cuda" else WARNING


def _late(wanted: Wanted, _: str, seconds: float) -> Finding:
    return DRIVER.finding(wanted.host, f"the NVIDIA driver hangs, NVML did not answer within {seconds:g} s")


def _judge_gpus(wanted: Wanted, seen: Mapping[str, Any]) -> Iterator[Finding]:
    text = wanted.environment.get("CUDA_VISIBLE_DEVICES")
    mine = chosen(seen["gpus"], text)
    least = wanted.gpus or (1 if wanted.device == "cuda" else 0)
    if len(mine) < least:
        limited = "" if text is None else f" (CUDA_VISIBLE_DEVICES={text})"
        has = f"{len(seen['gpus'])} GPUs here, {len(mine)} of them for this run{limited}"
        yield COUNT.finding(wanted.host, f"{has}, and {least} are asked for")
    for gpu in seen["gpus"]:
        if "error" in gpu and (gpu in mine or len(mine) < least):  # a lost one has no uuid to be chosen by
            yield LOST.finding(wanted.host, f"GPU {gpu['index']}: {gpu['error']}")
        elif gpu in mine:
            yield from _judge_gpu(wanted.host, gpu)


def chosen(gpus: Sequence[Mapping[str, Any]], visible: str | None) -> list[Mapping[str, Any]]:
    """The GPUs that CUDA shows the ranks: NVML knows nothing of CUDA_VISIBLE_DEVICES. A slice counts as its GPU."""
    if visible is None:
        return list(gpus)
    found: list[Mapping[str, Any]] = []
    for entry in visible.split(","):
        matches = [gpu for gpu in gpus if _is_meant(gpu, entry.strip())]
        if len(matches) != 1:
            break  # CUDA reads no further either
        found += matches
    return found


def _is_meant(gpu: Mapping[str, Any], entry: str) -> bool:
    if entry.isdigit():
        return gpu["index"] == int(entry)
    return len(entry) > 4 and any(uuid.startswith(entry) for uuid in (gpu.get("uuid", ""), *gpu.get("mig", ())))


_RECOVERIES = {1: "a reset", 2: "a reboot of the node"}


def _judge_gpu(host: str, gpu: Mapping[str, Any]) -> Iterator[Finding]:
    where = f"GPU {gpu['index']} ({gpu['name']})"
    if gpu["recovery"]:
        what = _RECOVERIES.get(gpu["recovery"], "to be drained")
        yield RECOVERY.finding(host, f"{where}: the driver demands {what}")
    if gpu["ecc_uncorrected"]:
        yield ECC.finding(host, f"{where}: {gpu['ecc_uncorrected']} uncorrected memory errors")
    if gpu["remap_failed"]:
        yield REMAP.finding(host, f"{where}: a bad row of memory could not be replaced", ERROR)
    elif gpu["remap_pending"]:
        yield REMAP.finding(host, f"{where}: a bad row of memory waits to be replaced")
    if gpu["throttle"]:
        yield THROTTLE.finding(host, f"{where}: its clocks are low, {' and '.join(gpu['throttle'])}")
    yield from _judge_use(host, where, gpu)


def _judge_use(host: str, where: str, gpu: Mapping[str, Any]) -> Iterator[Finding]:
    """No rank runs yet: whatever is on the GPU is somebody else's."""
    if gpu["processes"]:
        who = ", ".join(f"{one['pid']} {one['name']}".strip() for one in gpu["processes"])
        yield PROCESSES.finding(host, f"{where}: in use by process {who}")
    share = gpu["memory_used"] / max(1, gpu["memory_total"])
    if share > 0.1:
        gib = f"{gpu['memory_used'] / 2**30:.1f} of {gpu['memory_total'] / 2**30:.1f} GiB"
        yield MEMORY.finding(host, f"{where}: {gib} are in use", ERROR if share > 0.9 else WARNING)


def _judge_cuda(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """Within a major version of CUDA an older driver runs newer builds."""
    built, driver = facts.get("software", {}).get("cuda"), facts["gpus"].get("cuda")
    if built and driver and int(built.split(".")[0]) > driver // 1000:
        has = f"{driver // 1000}.{driver % 1000 // 10}"
        yield CUDA.finding(wanted.host, f"torch was built for CUDA {built}, and the driver knows CUDA {has}")


TOPIC = Topic(
    "gpus", _look, _judge, _DEADLINE_S, _late,
    (DRIVER, UNKNOWN, COUNT, LOST, RECOVERY, ECC, REMAP, THROTTLE, PROCESSES, MEMORY, CUDA),
)  # fmt: skip
