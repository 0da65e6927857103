"""Which reason is recognised in what a failed rank said last, and which failure is the first one.

The texts that PyTorch, gloo, NumPy and CPython print are those of the versions in constraints.txt, made on purpose on a
machine without GPUs; those of CUDA and NCCL are from the issues that the table in launcher/records/known.py names.
"""
# ruff: noqa: E501 - texts stand as they were printed

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.compose import catalogue
from launcher.records.known import BY_ID, TABLE, recognise
from tests.conftest import ROOT

NCCL = "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, "
WATCHDOG = """\
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: {}
Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent call \
first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f5a9616c1b6 in libc10.so)
"""
TIMEOUT = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST, NumelIn=112,"
    " NumelOut=112, Timeout(ms)=1800000) ran for 1800011 milliseconds before timing out."
)
CUDA = (
    "torch.AcceleratorError: CUDA error: {}\nCUDA kernel errors might be asynchronously reported at some other API call"
)
GLOO = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/{}"
STORE = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "

ERRORS: list[tuple[str, str]] = [
    ("cuda-oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of"),
    ("cuda-oom", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacty"),
    ("cuda-oom", "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57"),
    ("cuda-oom", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 16"),
    ("cuda-assert", CUDA.format("device-side assert triggered")),
    ("cuda-illegal-access", CUDA.format("an illegal memory access was encountered")),
    ("cuda-illegal-access", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ("gpu-ecc", CUDA.format("uncorrectable ECC error encountered")),
    ("cuda-no-kernel", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    ("cuda-driver-old", "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update"),
    ("cuda-ordinal", CUDA.format("invalid device ordinal")),
    ("cuda-busy", CUDA.format("CUDA-capable device(s) is/are busy or unavailable")),
    ("cuda-none", "AssertionError: Torch not compiled with CUDA enabled"),
    ("cuda-none", "RuntimeError: No CUDA GPUs are available"),
    ("cuda-none", "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"),
    ("cuda-none", "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False"),
    ("cuda-error", CUDA.format("unspecified launch failure")),
    (
        "nccl-duplicate-gpu",
        NCCL + "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.19.3\nncclInvalidUsage: This usually"
        " reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA"
        " device 1000",
    ),
    (
        "nccl-network",
        NCCL + "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.6\nncclSystemError: System"
        " call (e.g. socket, malloc) or external library call failed or device error. \nLast error:\nsocketStartConnect:"
        " Connect to 192.168.19.14<52822> failed : No route to host",
    ),
    (
        "nccl-shm",
        NCCL + "unhandled system error, NCCL version 2.18.1\nncclSystemError: System call failed\nLast error:\nError while"
        " creating shared memory segment /dev/shm/nccl-vPvdd7 (size 9637888)",
    ),
    (
        "nccl-ib",
        NCCL + "remote process exited or there was a network error, NCCL version 2.20.5\nncclRemoteError: A call failed"
        " possibly due to a network error or a remote process exiting prematurely.\nLast error:\nNET/IB : Got completion"
        " from peer 172.21.17.89<38536> with error 5, opcode 48, len 32710, vendor err 249",
    ),
    (
        "nccl-peer-lost",
        NCCL + "remote process exited or there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed"
        " possibly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgressOpt: Call to"
        " recv from 172.16.0.9<33759> failed : Connection reset by peer",
    ),
    ("nccl-cuda-error", NCCL + "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.1\n"),
    ("nccl-system-error", NCCL + "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.1"),
    ("nccl-error", NCCL + "internal error - please report this issue to the NCCL developers, NCCL version 2.18.5"),
    (
        "interface",
        "RuntimeError: [enforce fail at /__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa !="
        " nullptr. Unable to find address for: nix0",
    ),
    ("gloo-connect", "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144]"),
    ("peer-lost", GLOO.format("pair.cc:553] Connection closed by peer [127.0.0.1]:1452. This is typically caused by a")),
    ("peer-lost", GLOO.format("pair.cc:537] Read error [127.0.0.1]:1412: Connection reset by peer. This is typically")),
    ("peer-lost", "torch.distributed.DistNetworkError: failed to recv, got 0 bytes"),
    ("collective-timeout", GLOO.format("unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete")),
    ("collective-timeout", "RuntimeError: Operation timed out!"),
    ("collective-timeout", "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms"),
    ("collective-timeout", "torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /default_pg/0//nokey"),
    ("collective-timeout", "torch.distributed.DistStoreError: Timed out after 3 seconds waiting for clients. 1/2 clients"),
    ("address-in-use", STORE + "port: 29777, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"),
    ("address-in-use", "OSError: [Errno 98] Address already in use (while attempting to bind on address ('', 29778))"),
    ("name-resolution", "socket.gaierror: [Errno -2] Name or service not known"),
    ("name-resolution", "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='h', port=443): Max retries exceeded"
     " with url: / (Caused by NameResolutionError(\"Failed to resolve 'h' ([Errno -3] Temporary failure\"))"),
    ("master-unreachable", "torch.distributed.DistNetworkError: The client socket has timed out after 1000ms while trying"
     " to connect to (nope.invalid, 29777)."),
    ("no-internet", "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them"),
    ("disk-full", "OSError: [Errno 28] No space left on device: '/scratch/x'"),
    ("disk-full", "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
    ("quota", "OSError: [Errno 122] Disk quota exceeded"),
    ("read-only", "OSError: [Errno 30] Read-only file system: '/data/x'"),
    ("disk-error", "OSError: [Errno 116] Stale file handle"),
    ("open-files", "OSError: [Errno 24] Too many open files: '/dev/null'"),
    ("permission", "PermissionError: [Errno 13] Permission denied: '/root/x'"),
    ("shm", "RuntimeError: DataLoader worker (pid 7973) is killed by signal: Bus error. It is possible that dataloader's"),
    ("worker-killed", "RuntimeError: DataLoader worker (pid 8033) is killed by signal: Killed. "),
    ("worker-lost", "RuntimeError: DataLoader worker (pid(s) 7973) exited unexpectedly"),
    ("worker-lost", "EOFError"),
    ("worker-lost", "ConnectionResetError: [Errno 104] Connection reset by peer"),
    ("host-memory", "MemoryError"),
    ("host-memory", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 PiB for an array with shape (1,)"),
    ("host-memory", "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ("host-memory", "OSError: [Errno 12] Cannot allocate memory"),
    ("processes", "RuntimeError: can't start new thread"),
    ("processes", "BlockingIOError: [Errno 11] Resource temporarily unavailable"),
    ("missing-module", "ModuleNotFoundError: No module named 'nothing_of_the_kind'"),
    ("missing-library", "OSError: libnope.so.3: cannot open shared object file: No such file or directory"),
    ("import-name", "ImportError: cannot import name 'nope' from 'torch' (/venv/torch/__init__.py)"),
    ("syntax", "SyntaxError: invalid syntax"),
    ("file-not-found", "FileNotFoundError: [Errno 2] No such file or directory: '/nope/x'"),
    ("unknown-environment", "gymnasium.error.NameNotFound: Environment `Nope` doesn't exist. Did you mean: `Hopper`?"),
    ("checkpoint-shape", "RuntimeError: Error(s) in loading state_dict for Linear:\n\tsize mismatch for weight: copying a"),
    ("shape", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 5x6)"),
    ("shape", "RuntimeError: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0"),
    ("shape", "RuntimeError: shape '[2, 3]' is invalid for input of size 5"),
    ("shape", "RuntimeError: Given groups=1, weight of size [4, 3, 3, 3], expected input[1, 2, 8, 8] to have 3 channels"),
    ("shape", "ValueError: operands could not be broadcast together with shapes (3,) (4,) "),
    ("shape", "ValueError: cannot reshape array of size 6 into shape (4,5)"),
    ("index", "IndexError: index 5 is out of bounds for dimension 0 with size 3"),
    ("index", "IndexError: index out of range in self"),
    ("device-mismatch", "RuntimeError: Expected all tensors to be on the same device, but found at least two devices"),
    ("nan", "ValueError: Expected parameter loc (Tensor of shape ()) of distribution Normal(loc: nan, scale: 1.0) to"
     " satisfy the constraint Real(), but found invalid values:\nnan"),
    ("nan", "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"),
    ("ddp-unused", "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."),
    ("no-process-group", "ValueError: Default process group has not been initialized, please make sure to call init"),
    ("rendering", "mujoco.FatalError: gladLoadGL error"),
]  # fmt: skip

LINES: list[tuple[str, str, str | None]] = [
    ("nccl-timeout", WATCHDOG.format(TIMEOUT), "SIGABRT"),
    ("nccl-peer-lost", WATCHDOG.format("NCCL error: remote process exited or there was a network error"), "SIGABRT"),
    ("cuda-illegal-access", WATCHDOG.format("CUDA error: an illegal memory access was encountered"), "SIGABRT"),
    (
        "collective-mismatch",
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at /__w/pytorch/"
        "third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 1000000 vs 4. Received data",
        "SIGABRT",
    ),
    (
        "host-memory",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        "SIGABRT",
    ),
    ("no-script", "/venv/bin/python3: can't open file '/home/me/it.py': [Errno 2] No such file or directory", None),
    ("missing-module", "/venv/bin/python: No module named my_package.train", None),
    ("arguments", "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --epoch", None),
    (
        "sigsegv",
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):",
        "SIGSEGV",
    ),
    ("sigsegv", "iteration 3\n", "SIGSEGV"),
    ("sigbus", "", "SIGBUS"),
    ("sigkill", "iteration 3\n", "SIGKILL"),
    ("sigill", "", "SIGILL"),
    ("sigabrt", "", "SIGABRT"),
]


def traceback(error: str, prefix: str = "") -> str:
    text = f'Traceback (most recent call last):\n  File "/home/me/train it.py", line 3, in <module>\n    f()\n{error}\n'
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def known(log: str, signal: str | None = None) -> str | None:
    reason = recognise(log, signal)[1]
    return reason and reason.id


@pytest.mark.parametrize(("reason", "error"), ERRORS, ids=lambda text: text[:40])
def test_a_real_error_is_recognised_with_and_without_the_rank_before_it(reason: str, error: str) -> None:
    assert known(traceback(error)) == reason
    assert known(traceback(error, "[rank3]: ")) == reason
    assert recognise(traceback(error), None)[0] == error.splitlines()[0][:300].rstrip()


@pytest.mark.parametrize(("reason", "log", "signal"), LINES, ids=lambda text: str(text)[:40])
def test_what_is_no_exception_is_recognised_by_its_line_or_its_signal(
    reason: str, log: str, signal: str | None
) -> None:
    assert known(log, signal) == reason


A_LINE = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=60).map(lambda text: f"it {text}")
OUTPUT = st.lists(A_LINE, max_size=6).map("\n".join)


@given(st.sampled_from(ERRORS), OUTPUT, OUTPUT)
def test_what_else_is_printed_around_it_does_not_matter(case: tuple[str, str], before: str, after: str) -> None:
    assert known(f"{before}\n{traceback(case[1])}{after}") == case[0]


@given(st.sampled_from(LINES), OUTPUT, OUTPUT)
def test_what_is_printed_around_such_a_line_does_not_matter(
    case: tuple[str, str, str | None], before: str, after: str
) -> None:
    reason, log, signal = case
    assert known(f"{before}\n{log}\n{after}", signal) == reason


WORDS = ["NCCL", "CUDA", "out of memory", "NCCL error", "Connection closed by peer", "timeout", "shape", "Killed"]


@given(
    st.sampled_from(WORDS), st.sampled_from(["ValueError", "RuntimeError", "my.own.Error", "AssertionError"]), A_LINE
)
def test_a_scripts_own_words_are_not_taken_for_somebody_elses(word: str, kind: str, more: str) -> None:
    assert known(traceback(f"{kind}: my {word} check: {more}")) is None
    assert known(f"{more}\nwith {word}: {word}\n{more}") is None
    assert known(f"the {word} of the last epoch\n", "SIGSEGV") == "sigsegv"


def test_the_first_cause_of_an_exception_counts_where_the_last_is_a_consequence() -> None:
    first = traceback("RuntimeError: DataLoader worker (pid 7973) is killed by signal: Bus error. It is possible that")
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    last = traceback("RuntimeError: DataLoader worker (pid(s) 7973) exited unexpectedly")
    assert known(first + link + last) == "shm"
    assert known(traceback("FileNotFoundError: [Errno 2] No such file: 'cache'") + link + traceback("MemoryError")) == (
        "host-memory"
    )


def test_an_exception_that_python_ignored_at_its_end_is_no_cause() -> None:
    ignored = "Exception ignored in: <function AsyncVectorEnv.__del__ at 0x7f2af4e8be20>\n" + traceback("EOFError: ")
    message, reason = recognise(traceback("ValueError: mine") + ignored, None)
    assert (message, reason) == ("ValueError: mine", None)


def test_an_old_exception_is_not_what_a_rank_was_killed_by() -> None:
    log = traceback("ValueError: caught, and tried again") + "all well\n" * 1000
    assert recognise(log, "SIGKILL") == ("", BY_ID["sigkill"])
    assert recognise(log, None)[0] == "ValueError: caught, and tried again"


def test_the_documentation_lists_what_is_recognised() -> None:
    text = (ROOT / "docs" / "diagnosis.md").read_text().partition("| of | ids |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`([a-z0-9-]+)`", text)) == sorted(BY_ID)


def test_the_table_is_consistent() -> None:
    assert len(BY_ID) == len(TABLE)
    entries = catalogue().names()
    for entry in TABLE:
        assert re.fullmatch(r"[a-z0-9-]+", entry.id)
        assert entry.hint and "\n" not in entry.hint
        assert not entry.nccl or entry.nccl in entries
        for pattern in (entry.error, entry.line):
            re.compile(pattern)
    tested = {case[0] for case in (*ERRORS, *LINES)}
    assert set(BY_ID) - tested == {"nccl-invalid-usage", "sigterm", "oom-killer"}
