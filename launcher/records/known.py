"""What a failed rank's last words mean: a table of known texts, each with what to do about it.

An entry looks at one of three places, so that a script's own words are not taken for somebody else's:

- ``error``: the exceptions that the log ends with, from their type on;
- ``line``: a whole line of the log's end, where no exception ended the rank: what C++, Python's own start and
  argparse print;
- ``signal``: what killed the rank, where nothing else is known.

The first entry that fits is the one that counts. The texts are those of PyTorch 2.13, gloo, NumPy and CPython 3.11 as
they came here when the fault was made on purpose; those of NCCL and CUDA are from the issues that are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from launcher.records.traceback_text import LONGEST, exceptions

OOM = "oom"
"""The cause of a run that had too little host memory, for certain."""
HANG = "hang"
"""And of one that torch's own limit ended, which may be shorter than what it takes to suspect it."""


@dataclass(frozen=True)
class Known:
    """A reason that is recognised."""

    id: str
    """Stable: part of the public contract."""
    hint: str
    """What to do, on one line."""
    error: str = ""
    line: str = ""
    signal: str = ""
    victim: bool = False
    """It tells of others only: of a peer that is gone, or that did not come."""
    cause: str = ""
    """A better cause than ``crash``, for certain."""
    nccl: str = ""
    """The entry of NCCL's catalogue that is known to help."""
    source: str = ""


_RUNTIME = r"(?:RuntimeError|torch\.(?:AcceleratorError|cuda\.DeferredCudaCallError)): "
_CUDA = rf"{_RUNTIME}CUDA (?:driver )?error: "
_NCCL = r"(?:torch\.distributed\.DistBackendError: |RuntimeError: NCCL error in: \S+\.[ch]pp)(?s:.{0,1500}?)"
_WHAT = r" *what\(\): .*"
_GLOO = r"RuntimeError: \[\S*gloo/\S+\] .*"
_STORE = r"torch\.distributed\.Dist(?:Network|Store)?Error: (?s:.{0,400}?)"
_ANY = r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Warning)?: "
_OS = r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|error|Exception): (?s:.{0,300}?)"
_BLOCKING = "cluster.env.CUDA_LAUNCH_BLOCKING=1 makes the traceback name the line"
_BAD_GPU = "leave the node out with cluster.exclude and tell the administrators"
_MORE_MEMORY = (
    "ask for more memory (cluster.mem_per_gpu), or use less: fewer environments per rank (num_envs), fewer data-loader"
    " workers, a smaller buffer"
)

TABLE: tuple[Known, ...] = (
    # GPU memory, and what a GPU says of a kernel
    Known(
        "cuda-oom",
        "the GPU's memory is full: fewer environments per rank (num_envs=N), a smaller batch or model; where much is"
        " reserved but unallocated, cluster.env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        error=r"(?:torch\.(?:cuda\.)?OutOfMemoryError: |RuntimeError: CUDA out of memory"
        rf"|{_CUDA}out of memory|{_CUDA}CUBLAS_STATUS_ALLOC_FAILED"
        r"|(?:jaxlib\.\S+|jax\.errors\.\S+|XlaRuntimeError): RESOURCE_EXHAUSTED)",
        source="pytorch/pytorch issue 16417",
    ),
    Known(
        "cuda-assert",
        f"an index is out of range, mostly a class, an embedding or a gather; {_BLOCKING}, and so does a run on the"
        f" CPU",
        error=rf"{_CUDA}device-side assert triggered", line=rf"{_WHAT}CUDA error: device-side assert triggered",
        source="PyTorch, c10/cuda/CUDAException.cpp; CUDA's error 710",
    ),
    Known(
        "cuda-illegal-access",
        f"a kernel read or wrote outside of its memory; {_BLOCKING}. The same on one node only: a sick GPU",
        error=rf"{_CUDA}an illegal memory access was encountered|{_NCCL}an illegal memory access",
        line=rf"{_WHAT}CUDA error: an illegal memory access|.*NCCL watchdog thread terminated with exception: CUDA"
        r" error: an illegal memory access", source="vllm-project/vllm issue 4108",
    ),
    Known("gpu-ecc", f"the GPU's memory is broken: {_BAD_GPU}",
          error=rf"{_CUDA}uncorrectable (?:ECC|NVLink) error", line=rf"{_WHAT}uncorrectable (?:ECC|NVLink) error",
          source="CUDA's errors 214 and 220"),
    Known("cuda-no-kernel", "this torch has no code for this model of GPU: install one that is built for it",
          error=rf"{_CUDA}no kernel image is available", source="CUDA's error 209"),
    Known(
        "cuda-driver-old",
        "the node's NVIDIA driver is too old for this torch: install one that is built for an older CUDA, or choose"
        " other nodes (cluster.constraint, cluster.exclude)",
        error=rf"{_RUNTIME}(?:.{{0,80}}NVIDIA driver on your system is too old|.*CUDA driver version is insufficient)",
        source="PyTorch, torch/cuda/__init__.py; CUDA's error 35",
    ),
    Known("cuda-ordinal", "a rank asks for a GPU that is not there: no more ranks than GPUs (cluster.nproc_per_node,"
          " cluster.gpus_per_node), and LOCAL_RANK as the device's number",
          error=rf"{_CUDA}invalid device ordinal", source="CUDA's error 101"),
    Known("cuda-busy", f"another process holds the GPU for itself: {_BAD_GPU}",
          error=rf"{_CUDA}CUDA-capable device\(s\) is/are busy or unavailable", source="CUDA's error 46"),
    Known(
        "cuda-none",
        "there is no GPU for this process: ask for some (cluster.gpus_per_node), have a torch with CUDA, or train on"
        " CPUs with cluster.device=cpu",
        error=r"(?:RuntimeError|AssertionError): (?:No CUDA GPUs are available|Found no NVIDIA driver|Torch not"
        r" compiled with CUDA|Attempting to deserialize object on a CUDA device|Cannot access accelerator device when"
        r" none)"
        rf"|{_CUDA}no CUDA-capable device is detected",
    ),
    Known("cuda-error", f"the GPU or the driver failed: {_BLOCKING}; if it is always the same node, {_BAD_GPU}",
          error=r"(?:RuntimeError|torch\.AcceleratorError): (?:CUDA error: |cuDNN error: |CUBLAS_|CUDA driver error: )",
          line=rf"{_WHAT}CUDA error: ", source="PyTorch, c10/cuda/CUDAException.cpp"),
    # NCCL: what one finds out at itself, and then what it only suffers
    Known("nccl-duplicate-gpu", "two ranks took the same GPU: torch.cuda.set_device(LOCAL_RANK) before anything else",
          error=rf"{_NCCL}Duplicate GPU detected", source="NVIDIA/nccl, src/init.cc"),
    Known("nccl-shm", "NCCL lacks room in /dev/shm: give the container more (--shm-size, --ipc=host)", nccl="shm_off",
          error=rf"{_NCCL}(?:Error while creating shared memory segment|/dev/shm/nccl)",
          source="NVIDIA/nccl issues 290, 525"),
    Known("nccl-network", "NCCL takes an interface that does not reach the other nodes: name the one that does with"
          " cluster.network_interface", nccl="socket_interface",
          error=rf"{_NCCL}(?:no socket interface found|[Nn]o route to host|Connect to \S+ failed|connect to \S+"
          r" (?:failed|returned))", source="NVIDIA/nccl issues 286, 1837; hkproj/pytorch-transformer-distributed 1"),
    Known("nccl-ib", "the InfiniBand between these nodes fails: look at the adapters with `ibstat`, or leave the node"
          " out with cluster.exclude", nccl="ib_off",
          error=rf"{_NCCL}(?:NET/IB|ibv_)", line=rf"{_WHAT}NET/IB", source="NVIDIA/nccl issue 426"),
    Known(
        "nccl-timeout",
        "some rank did not come to a collective, or NCCL is stuck: the rank whose traceback differs is the one to look"
        " at; if all are in the same call, `python -m launcher nccl explain` has workarounds", victim=True,
        nccl="p2p_off", cause=HANG,
        error=r"torch\.distributed\.DistBackendError: (?s:.{0,300}?)Watchdog caught collective operation timeout",
        line=r".*Watchdog caught collective operation timeout: WorkNCCL\(.*",
        source="NVIDIA/Megatron-LM issue 935, hiyouga/LlamaFactory issue 7396",
    ),
    Known("nccl-peer-lost", "the connection to another rank broke: see what that rank, or its node, died of",
          victim=True, error=rf"{_NCCL}(?:ncclRemoteError|remote process exited|communicator was aborted|Connection"
          r" (?:reset|closed) by (?:remote )?peer|Broken pipe|socketProgress)",
          line=rf"{_WHAT}(?:NCCL error: remote process exited|NCCL communicator was aborted)",
          source="NVIDIA/nccl issues 795, 934, 2076"),
    Known("nccl-invalid-usage", "the ranks use NCCL in ways that do not fit: the same collective, shape and type on"
          " all, one GPU each", error=rf"{_NCCL}ncclInvalid(?:Usage|Argument)", source="NVIDIA/nccl, src/nccl.h.in"),
    Known("nccl-cuda-error", "a CUDA call in NCCL failed: NCCL says which with 'nccl=[+debug_info]'; often the GPU's"
          " memory is full, or the driver too old", nccl="debug_info",
          error=rf"{_NCCL}(?:ncclUnhandledCudaError|unhandled cuda error)", source="pytorch/pytorch issue 111187"),
    Known("nccl-system-error", "a system call in NCCL failed, mostly of the network or of /dev/shm: NCCL says which"
          " with 'nccl=[+debug_info]'", nccl="debug_info",
          error=rf"{_NCCL}(?:ncclSystemError|unhandled system error)",
          line=rf"{_WHAT}NCCL error: unhandled system error", source="pytorch/pytorch issue 149984"),
    Known("nccl-error", "NCCL says more with 'nccl=[+debug_info]'", nccl="debug_info",
          error=rf"{_NCCL}(?:nccl(?:Internal)?Error|internal error|NCCL version)", line=rf"{_WHAT}NCCL error: "),
    # gloo, torch's store: own faults first
    Known("interface", "the interface of cluster.network_interface or GLOO_SOCKET_IFNAME is not on this node",
          error=r"RuntimeError: \[enforce fail at \S*gloo/\S*device\.cc\S*\] .*Unable to find address for",
          nccl="socket_interface"),
    Known("collective-mismatch", "the ranks are in different collectives, or with different shapes: all have to make"
          " the same calls in the same order", error=rf"{_ANY}\[enforce fail at \S*gloo/\S+\] op\.(?:preamble|nbytes)",
          line=rf"{_WHAT}\[enforce fail at \S*gloo/\S+\] op\."),
    Known("gloo-connect", "gloo's ranks do not reach each other: name the interface that connects the nodes with"
          " cluster.network_interface", error=r"RuntimeError: Gloo connectFullMesh failed", nccl="socket_interface",
          source="conf/nccl/socket_interface.yaml"),
    Known("peer-lost", "another rank ended first: look at its log and at the node's; a rank that is done too early,"
          " with code 0, does that too", victim=True,
          error=rf"{_GLOO}(?:Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed)"
          rf"|{_STORE}(?:Connection reset by peer|Broken pipe|failed to recv, got 0 bytes|Connection was likely"
          rf" closed)",
          line=rf"{_WHAT}\[\S*gloo/\S+\] .*(?:closed|reset) by peer"),
    Known("collective-timeout", "some rank did not come to a collective or to a barrier: see what it does, or whether"
          " it is gone", victim=True, cause=HANG,
          error=rf"{_GLOO}(?:Timed out waiting|Application timeout)|RuntimeError: Operation timed out!"
          r"|RuntimeError: \[Rank \d+\]: Rank \d+ failed to pass monitoredBarrier"
          rf"|{_STORE}(?:wait timeout after|Timed out after \d+ seconds waiting for clients|Socket Timeout)"),
    Known("address-in-use", "another process has the port: take a free one (port 0), or one that is your job's own",
          error=rf"{_STORE}EADDRINUSE|{_OS}\[Errno 98\]"),
    Known("name-resolution", "a host's name is not known on this node: have the administrators correct /etc/hosts or"
          " the name service, or use an address; compute nodes often have no internet",
          error=rf"socket\.gaierror: |{_STORE}gai error|{_OS}(?:\[Errno -[235]\] (?:Name or service not known"
          r"|Temporary failure in name resolution)|Failed to resolve '|NameResolutionError)"),
    Known("master-unreachable", "rank 0's node did not answer on its port: is its rank 0 up, and may the nodes reach"
          " each other on all ports?", victim=True, error=rf"{_STORE}The client socket has (?:timed out|failed)"),
    Known("no-internet", "the node cannot download: fetch the files before, on a machine with internet, and set"
          " cluster.env.HF_HUB_OFFLINE=1",
          error=r"OSError: We couldn't connect to 'https?://|\S*LocalEntryNotFoundError: "
          r"|requests\.\S+ConnectionError: "),
    # disks
    Known("disk-full", "make room, or choose another place with runs_dir=DIR or cluster.scratch",
          error=rf"{_OS}(?:\[Errno 28\]|No space left on device)|RuntimeError: (?:basic_ios::clear: iostream error"
          r"|\[enforce fail at inline_container\.cc:\d+\] \. (?:unexpected pos|PytorchStreamWriter failed))"),
    Known("quota", "your quota there is used up: remove files, or choose another place with runs_dir=DIR",
          error=rf"{_OS}(?:\[Errno 122\]|Disk quota exceeded)"),
    Known("read-only", "the file system cannot be written: choose another place, or tell the administrators if it"
          " should",
          error=rf"{_OS}\[Errno 30\]"),
    Known("disk-error", "the file system failed under the run: tell the administrators, or choose another place",
          error=rf"{_OS}\[Errno (?:5|107|116|121)\]"),
    Known("open-files", "raise the limit with a line in cluster.setup: ulimit -n 65536", error=rf"{_OS}\[Errno 24\]"),
    Known("permission", "the user of the job may not do that there", error=r"PermissionError: \[Errno (?:1|13)\]"),
    # host memory, processes of a rank
    Known("shm", "/dev/shm is full: give the container more (--shm-size, --ipc=host), or use fewer data-loader workers",
          error=r"RuntimeError: (?:DataLoader worker \(pid \d+\) is killed by signal: Bus error|unable to (?:write to"
          r" file </torch_|allocate shared memory|mmap \d+ bytes from file </torch_))"),
    Known("worker-killed", "something killed a data-loader worker, mostly for want of host memory: fewer workers, or"
          " more memory (cluster.mem_per_gpu)",
          error=r"RuntimeError: DataLoader worker \(pid \d+\) is killed by signal"),
    Known("host-memory", _MORE_MEMORY, cause=OOM,
          error=r"MemoryError(?:: |$)|numpy\.\S*MemoryError: |RuntimeError: \[enforce fail at alloc_cpu\.cpp\S*\]"
          rf"|{_OS}\[Errno 12\]|std::bad_alloc|RuntimeError: std::bad_alloc", line=rf"{_WHAT}std::bad_alloc"),
    Known("processes", "no more threads or processes are allowed: fewer workers (num_workers, OMP_NUM_THREADS), or a"
          " higher ulimit -u", error=r"RuntimeError: can't start new thread|BlockingIOError: \[Errno 11\]",
          line=r"OpenBLAS blas_thread_init: pthread_create failed.*"),
    Known("worker-lost", "a process that this rank talks to is gone, as an environment's worker that was killed: its"
          " last words stand further up in the log", victim=True,
          error=r"(?:ConnectionResetError|BrokenPipeError|ConnectionAbortedError)(?:: |$)|EOFError$|RuntimeError:"
          r" DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly"),
    # the software
    Known("missing-module", "the interpreter of the ranks lacks it: install it there, or name another one with"
          " cluster.venv, cluster.conda or cluster.python",
          error=r"ModuleNotFoundError: No module named ", line=r".*python\S*: (?:No module named |Error while finding"
          r" module specification).*"),
    Known("missing-library", "a shared library is not to be found on this node: load its module (cluster.modules), or"
          " use an environment that brings it",
          error=r"(?:ImportError|OSError): .*(?:cannot open shared object file|version `\S+' not found|undefined"
          r" symbol)",
          line=r".*error while loading shared libraries: .*"),
    Known("import-name", "the installed version of that package has no such name: install the one that the code was"
          " written for", error=r"ImportError: cannot import name "),
    Known("no-script", "the script of task.path is not on this node: let it lie where all nodes see it, or take"
          " snapshot=git", line=r".*python\S*: can't open file .*"),
    Known("arguments", "the script does not take these words: see task.args",
          line=r"\S+: error: (?:unrecognized arguments|the following arguments are required|argument |ambiguous"
          r" option).*"),
    Known("syntax", "the script cannot be compiled by the Python of the ranks", error=r"(?:Syntax|Indentation"
          r"|Tab)Error: "),
    Known("file-not-found", "the path has to be there on every node; ranks run in the directory of the submission",
          error=r"FileNotFoundError: \[Errno 2\]"),
    Known("unknown-environment", "no environment of that name: the package that registers it has to be imported before",
          error=r"gymnasium\.error\.(?:NameNotFound|NamespaceNotFound|VersionNotFound): "),
    Known("checkpoint-shape", "the checkpoint is of another model: the same sizes, or a start without resume",
          error=r"RuntimeError: Error\(s\) in loading state_dict for "),
    Known("shape", "tensors do not fit each other: print their shapes before the line that the traceback names",
          error=r"RuntimeError: (?:mat1 and mat2 shapes cannot be multiplied|The size of tensor a|shape '\[.*\]' is"
          r" invalid|Sizes of tensors must match|stack expects each tensor|Given groups=|The expanded size of the"
          r" tensor|Expected size for first two dimensions)|ValueError: (?:operands could not be broadcast|cannot"
          r" reshape array|could not broadcast input array|matmul: Input operand|all the input array dimensions"
          r"|setting an array element with a sequence)|TypeError: (?:mul|add|sub|dot_general) got incompatible"
          r" shapes"),
    Known("index", "an index is larger than what it looks into", error=r"IndexError: (?:index (?:\d+ is )?out of"
          r" (?:bounds|range)|list index out of range)"),
    Known("device-mismatch", "a tensor is on the CPU, or on another rank's GPU: move it with .to(rank.device)",
          error=r"RuntimeError: (?:Expected all tensors to be on the same device|Tensor on device \S+ is not on the"
          r" expected)"),
    Known("nan", "the network gives NaN: a lower learning rate, clipped gradients, normalised or checked observations",
          error=r"ValueError: Expected parameter \w+ \((?s:.{0,400})but found invalid values|RuntimeError: probability"
          r" tensor contains either"),
    Known("ddp-unused", "parts of the model get no gradient: find_unused_parameters=True, or take them out",
          error=r"RuntimeError: Expected to have finished reduction in the prior iteration"),
    Known("no-process-group", "the script did not call init_process_group before its first collective",
          error=r"ValueError: Default process group has not been initialized"),
    Known("rendering", "no display on this node: cluster.env.MUJOCO_GL=egl (or osmesa),"
          " cluster.env.PYOPENGL_PLATFORM=egl",
          error=r"mujoco\.FatalError: (?:gladLoadGL|an OpenGL platform)|pyglet\.\S+: |ImportError: Cannot initialize"
          r" a"),
    # killed
    Known("oom-killer", _MORE_MEMORY, cause=OOM, source="memory.events and memory.oom_control of the kernel's control"
          " groups"),
    Known("sigsegv", "a crash in compiled code: cluster.env.PYTHONFAULTHANDLER=1 prints where; a wrong mix of binary"
          " packages is frequent, a full /dev/shm and a small ulimit -s are possible", signal="SIGSEGV",
          line="Fatal Python error: Segmentation fault"),
    Known("sigbus", "memory that is mapped from a file has gone, mostly since /dev/shm is full: give the container"
          " more (--shm-size, --ipc=host); a file that was cut off while it was read does that too", signal="SIGBUS"),
    Known("sigill", "the program is built for another processor than this node's: install it there, or choose the"
          " nodes with cluster.constraint", signal="SIGILL"),
    Known("sigkill", "somebody outside of the run killed it: kill -9, an administrator, or the memory limit of a place"
          " that this process cannot see; `why` shows the memory before it", signal="SIGKILL"),
    Known("sigabrt", "a check in compiled code failed: its words are the end of the log", signal="SIGABRT"),
    Known("sigterm", "somebody outside of the run asked this rank alone to end", signal="SIGTERM"),
)  # fmt: skip
BY_ID = {entry.id: entry for entry in TABLE}
_LINES = 40
"""Of a log's end, that may tell why there is no exception."""
_WORDS_BEFORE_A_KILL = 4096
"""An exception further up than this is not what a rank that was killed died of."""


def advice(known: str, hint: str) -> str:
    """What to do about a failure, for a person: what is known of its reason, else the hint of its verdict."""
    return f"{BY_ID[known].hint} [{known}]" if known in BY_ID else hint


def may_be_starved(reason: Known | None) -> bool:
    """Whether a rank ended as one does when the kernel's OOM killer takes it, or a process that it works with."""
    return reason is not None and (reason.victim or reason.id in ("sigkill", "worker-killed"))


def recognise(log: str, signal: str | None) -> tuple[str, Known | None]:
    """The last error of a log in one line, and what is known of it.

    Args:
        log: the end of a failed rank's log.
        signal: what killed the rank; None where it exited.
    """
    log = log[-_WORDS_BEFORE_A_KILL:] if signal else log
    errors = exceptions(log)
    if errors:
        return errors[-1].splitlines()[0][:LONGEST], _of_errors(reversed(errors))
    for line in reversed(log.splitlines()[-_LINES:]):
        for entry in TABLE:
            if entry.line and re.match(entry.line, line):
                return line.strip()[:LONGEST], entry
    return "", next((entry for entry in TABLE if signal and entry.signal == signal), None)


def _of_errors(errors: Iterable[str]) -> Known | None:
    """What is known of the last one, or, where it is a consequence, of one before it."""
    found = [entry for error in errors if (entry := _of_error(error)) is not None]
    return next((entry for entry in found if not entry.victim), found[0] if found else None)


def _of_error(error: str) -> Known | None:
    return next((one for one in TABLE if one.error and re.match(one.error, error, re.MULTILINE)), None)
