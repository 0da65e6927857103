"""``python -m launcher.node.nvml PARENT [PERIOD_S]``: the GPUs of this node, as one JSON object a line.

A program of its own: a call of NVML hangs when the driver does, and whoever asks can then kill this process; and the
agents stay without NVML's bindings in their memory. Without a period one line tells everything that is known before a
start; with one, a line each period tells how busy the GPUs are. It ends with its parent process.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.node.processes import end_with_parent

Gpu = dict[str, Any]
OK, NO_DRIVER, NO_PACKAGE, BROKEN = "ok", "no driver", "no package", "broken"
"""The states in an answer: the driver answers; there is none; nvidia-ml-py is not installed; the driver fails."""
_LIBRARY = "libnvidia-ml.so.1"
_MIB = 2**20


def command(period_s: float | None = None) -> tuple[list[str], dict[str, str]]:
    """The command line by which this process asks NVML, and its environment."""
    package = str(Path(__file__).resolve().parents[2])
    path = ":".join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    arguments = [str(os.getpid()), *([] if period_s is None else [str(period_s)])]
    return [sys.executable, "-m", "launcher.node.nvml", *arguments], {**os.environ, "PYTHONPATH": path}


def main(arguments: list[str]) -> int:
    """Print one answer, or one each period."""
    parent, *period = arguments
    end_with_parent(int(parent))
    answer = _open()
    nvml = answer.pop("nvml", None)
    if not period:
        print(json.dumps(answer if nvml is None else _snapshot(nvml)))
        return 0
    if nvml is None:
        print(json.dumps(answer), flush=True)
        return 1
    while True:
        print(json.dumps({"state": OK, "gpus": _gpus(nvml, _activity)}), flush=True)
        time.sleep(float(period[0]))


def _open() -> dict[str, Any]:
    """NVML, initialised, or the state that says why not."""
    try:
        import pynvml
    except ImportError:
        return {"state": NO_PACKAGE if _has_library() else NO_DRIVER, "message": "nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = {pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
        return {"state": NO_DRIVER if _code(error) in absent else BROKEN, "message": str(error)}
    return {"nvml": pynvml}


def _has_library() -> bool:
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def _snapshot(nvml: Any) -> dict[str, Any]:
    """Everything about the GPUs that a start depends on."""
    found = {
        "state": OK,
        "driver": _try(nvml, nvml.nvmlSystemGetDriverVersion),
        "cuda": _try(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2),
    }
    try:
        gpus = _gpus(nvml, _health)
        peers = ["".join(row) for row in _pairs(nvml, gpus, _peer)]
        return {**found, "gpus": gpus, "peers": peers, "paths": _pairs(nvml, gpus, _path)}
    except nvml.NVMLError as error:
        return {**found, "state": BROKEN, "message": str(error)}


def _gpus(nvml: Any, read: Callable[[Any, Any], Gpu]) -> list[Gpu]:
    """What is read of each GPU; of one that does not answer, why."""
    return [_gpu(nvml, index, read) for index in range(nvml.nvmlDeviceGetCount())]


def _gpu(nvml: Any, index: int, read: Callable[[Any, Any], Gpu]) -> Gpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return {"index": index, "uuid": nvml.nvmlDeviceGetUUID(handle), **read(nvml, handle)}
    except nvml.NVMLError as error:
        return {"index": index, "error": str(error)}


def _health(nvml: Any, handle: Any) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    remapped = _try(nvml, nvml.nvmlDeviceGetRemappedRows, handle) or (None, None, None, None)
    return {
        "name": nvml.nvmlDeviceGetName(handle),
        "memory_total": memory.total,
        "memory_used": memory.used,
        "processes": _processes(nvml, handle),
        "ecc_uncorrected": _uncorrected(nvml, handle),
        "remap_pending": bool(remapped[2] or _try(nvml, nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)),
        "remap_failed": bool(remapped[3]),
        "recovery": _recovery(nvml, handle),
        "throttle": _throttle(nvml, handle),
        "nvlinks": _links(nvml, handle),
        "mig": _slices(nvml, handle),
    }


def _activity(nvml: Any, handle: Any) -> Gpu:
    """How busy it is; what a slice or an old model does not tell is None."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    power = _try(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    busy = _try(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    return {
        "utilisation": None if busy is None else busy.gpu / 100,
        "memory_used_mb": memory.used // _MIB,
        "memory_total_mb": memory.total // _MIB,
        "power_w": None if power is None else power / 1000,
        "temperature": _try(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        "throttle": _throttle(nvml, handle),
        "ecc_uncorrected": _uncorrected(nvml, handle),
        "pids": [process.pid for process in _running(nvml, handle)],
        "mig": _slices(nvml, handle),
    }


def _processes(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    return [
        {"pid": one.pid, "memory": one.usedGpuMemory, "name": _process_name(one.pid)} for one in _running(nvml, handle)
    ]


def _running(nvml: Any, handle: Any) -> list[Any]:
    return _try(nvml, nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle) or []


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # in another container, or gone


def _uncorrected(nvml: Any, handle: Any) -> int | None:
    """Since the driver was loaded."""
    kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    return _try(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, *kinds)


_RECOVERY = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which older bindings do not name


def _recovery(nvml: Any, handle: Any) -> int:
    """What the driver wants done with it: 0 nothing, 1 a reset, 2 a reboot of the node, 3 and more a drain."""
    fields = _try(nvml, nvml.nvmlDeviceGetFieldValues, handle, [_RECOVERY])
    return int(fields[0].value.uiVal) if fields and fields[0].nvmlReturn == nvml.NVML_SUCCESS else 0


_SLOW = {0x8: "hardware slowdown", 0x20: "too hot", 0x40: "too hot (hardware)", 0x80: "power brake"}
"""Reasons for low clocks that are no choice of anybody's; a power cap and idleness are none of them."""


def _throttle(nvml: Any, handle: Any) -> list[str]:
    reasons = _try(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0  # the name that all drivers know
    return [text for bit, text in _SLOW.items() if reasons & bit]


def _links(nvml: Any, handle: Any) -> int:
    """How many NVLinks are up."""
    up = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        state = _try(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break  # it has no more
        up += int(state == nvml.NVML_FEATURE_ENABLED)
    return up


def _slices(nvml: Any, handle: Any) -> list[str]:
    """The uuids of its MIG instances."""
    modes = _try(nvml, nvml.nvmlDeviceGetMigMode, handle)
    count = _try(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) if modes and modes[0] else 0
    slices = [_try(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index) for index in range(count or 0)]
    return [nvml.nvmlDeviceGetUUID(one) for one in slices if one is not None]


def _pairs(nvml: Any, gpus: list[Gpu], read: Callable[[Any, Any, Any], str]) -> list[list[str]]:
    """A row per GPU with what is read of it and each GPU; - for itself and the lost."""
    handles = [None if "error" in gpu else nvml.nvmlDeviceGetHandleByIndex(gpu["index"]) for gpu in gpus]
    return [[_pair(nvml, one, other, read) for other in handles] for one in handles]


def _pair(nvml: Any, one: Any, other: Any, read: Callable[[Any, Any, Any], str]) -> str:
    return "-" if one is None or other is None or one is other else read(nvml, one, other)


def _peer(nvml: Any, one: Any, other: Any) -> str:
    """1 where the one reads the other one's memory, 0 where not."""
    status = _try(nvml, nvml.nvmlDeviceGetP2PStatus, one, other, 0)  # 0: reading
    return str(int(status == nvml.NVML_P2P_STATUS_OK))


_LEVELS = {0: "SAME", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t, in the words of ``nvidia-smi topo -m``; SAME: two GPUs of one board."""
_P2P_BY_NVLINK = 2  # NVML_P2P_CAPS_INDEX_NVLINK


def _path(nvml: Any, one: Any, other: Any) -> str:
    """How the one reaches the other, as in ``nvidia-smi topo -m``: NV and the number of NVLinks, or PIX and so on."""
    direct = _links_to(nvml, one, other)
    if direct:
        return f"NV{direct}"
    by_nvlink = _try(nvml, nvml.nvmlDeviceGetP2PStatus, one, other, _P2P_BY_NVLINK) == nvml.NVML_P2P_STATUS_OK
    if by_nvlink and (links := min(_links(nvml, one), _links(nvml, other))):  # through a switch, which takes all
        return f"NV{links}"
    return _LEVELS.get(_try(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, one, other), "?")


def _links_to(nvml: Any, one: Any, other: Any) -> int:
    """The NVLinks that end at the other one, without a switch between."""
    target = _try(nvml, nvml.nvmlDeviceGetPciInfo, other)
    if target is None:
        return 0
    ends = (_try(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, one, link) for link in range(_links(nvml, one)))
    return sum(_same_place(end, target) for end in ends if end is not None)


def _same_place(one: Any, other: Any) -> bool:
    return (one.domain, one.bus, one.device) == (other.domain, other.bus, other.device)


def _try(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call returns, or None where this GPU or driver has no such thing; a lost GPU stays an error."""
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        if _code(error) in {nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED}:
            raise
        return None


def _code(error: Any) -> int:
    return error.value


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:  # whoever asked is gone
        os._exit(0)
