"""Whether a node may fork its ranks from one process that has imported torch: where nobody can tell the difference.

A library's adapter imports torch before anything of the user's, so it comes to the same. A script of the user's may
count on the opposite (isaacgym refuses to be imported after torch, and a thread count is read when torch is loaded), so
it is looked at: a script that imports torch before it does, or imports, anything that is not known to be harmless comes
to the same, too.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.config.schema import Config, StartMethod
from launcher.plan.plan import Start

_HARMLESS = {
    "PIL", "accelerate", "cv2", "datasets", "einops", "gym", "gymnasium", "hydra", "imageio", "matplotlib", "mlflow",
    "numpy", "omegaconf", "pandas", "rich", "scipy", "seaborn", "tensorboard", "tensordict", "torch", "torchvision",
    "tqdm", "transformers", "trl", "tyro", "wandb", "yaml",
}  # fmt: skip
"""Packages that do not care whether torch is loaded before them."""
_DYNAMO = "torch._dynamo"
"""Every optimizer of torch imports it when it is made, which takes longer than torch itself."""


def choose(config: Config, find: Callable[[str], Path]) -> Start:
    """How the ranks are started, and why; `find` says where a path of the configuration can be read."""
    library, wish = config.library, config.cluster.start
    if wish is StartMethod.spawn:
        return Start("spawn", "cluster.start=spawn")
    if reason := library.spawn or _unfit(config):
        return Start("spawn", reason)
    files = _files(config, find)
    preload = tuple(library.preload) or ((_DYNAMO,) if any(_look(file).optimizes for file in files) else ())
    if wish is StartMethod.fork:
        return Start("fork", "cluster.start=fork", preload)
    if library.module is not None or library.runner is not None:
        return Start("fork", f"{library.name} is imported once per node", preload)
    reason = _against(files)
    return Start("spawn", reason) if reason else Start("fork", "torch, which the script imports first", preload)


def _unfit(config: Config) -> str:
    """What rules a fork out whatever the script looks like."""
    if config.cluster.container.runtime is not None:
        return "the ranks are in a container"
    if config.library.module is None and config.task.module is None and not (config.task.path or "").endswith(".py"):
        return "the task is a command of its own"
    return ""


def _files(config: Config, find: Callable[[str], Path]) -> list[Path]:
    """What of the user's is run first, in this order: the script, or a module after the packages that it lies in."""
    task = config.task
    if config.library.module is not None:
        return []
    if task.module is None:
        return [find(task.path or "")]
    *packages, _ = names = task.module.split(".")
    inits = [find("/".join([*names[: number + 1], "__init__.py"])) for number in range(len(packages))]
    whole = find("/".join(names))
    return [*filter(Path.exists, inits), whole / "__main__.py" if whole.is_dir() else whole.with_suffix(".py")]


def _against(files: Sequence[Path]) -> str:
    """What speaks against a fork in what is run first."""
    for file in files:
        look = _look(file)
        if look.against or look.imports_torch:
            return look.against
    return f"{files[-1].name} does not import torch at its top"


@dataclass(frozen=True)
class _Look:
    against: str = ""
    imports_torch: bool = False
    optimizes: bool = False


def _look(file: Path) -> _Look:
    try:
        return _read(file, file.stat().st_mtime_ns)
    except (OSError, ValueError) as error:
        return _Look(f"{file.name} cannot be looked at ({type(error).__name__})")


@functools.lru_cache  # the runs of a sweep have it in common
def _read(file: Path, changed_ns: int) -> _Look:
    try:
        text = file.read_text()
        statements = ast.parse(text).body
    except (SyntaxError, RecursionError) as error:
        raise ValueError(str(error)) from error
    optimizes = re.search(r"\boptim\b", text) is not None
    for statement in statements:
        for name in _imported(statement):
            if name == "torch":
                return _Look("", True, optimizes)
            if name not in _HARMLESS and name not in sys.stdlib_module_names:
                return _Look(f"{file.name} imports {name or 'from its package'} before torch", optimizes=optimizes)
        if not _is_still(statement):
            return _Look(f"line {statement.lineno} of {file.name} comes before torch is imported", optimizes=optimizes)
    return _Look(optimizes=optimizes)


def _imported(statement: ast.stmt) -> Iterator[str]:
    """The first names of the modules that a statement imports, without a function's; empty for one of the package."""
    if isinstance(statement, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom):
        yield "" if statement.level else (statement.module or "").partition(".")[0]


_STILL_CALLS = ("warnings.", "logging.", "sys.path.", "os.path.", "Path(", "pathlib.Path(", "str(")


def _is_still(statement: ast.stmt) -> bool:
    """Whether it changes nothing that torch would notice: an import, a definition, a constant, a search path."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return True
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return not statement.decorator_list
    if not isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign)):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return all(isinstance(target, ast.Name) for target in targets) and all(map(_is_still_call, calls))


def _is_still_call(call: ast.Call) -> bool:
    return f"{ast.unparse(call.func)}(".startswith(_STILL_CALLS)
