"""Write docs/configuration.md: every key, from the dataclasses that define a configuration, and what conf/ offers.

``python scripts/reference.py`` writes it; ``--check`` only says whether it is as it should be (exit code 1 if not).
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
import tokenize
import typing
from collections.abc import Iterator
from enum import Enum
from io import StringIO
from pathlib import Path
from typing import Any

import yaml

from launcher.config import schema

_ROOT = Path(__file__).resolve().parents[1]
_PAGE = _ROOT / "docs" / "configuration.md"
_HEAD = """\
# Every key

Any of them can be set on the command line (`cluster.time=30`), in a file of `conf/` or of yours, and in a sweep
(`seed=1,2,3`). A key or a value that does not exist is refused with the nearest that does. This page is generated from
`launcher/config/schema.py` and `conf/` by `python scripts/reference.py`.
"""
_GROUPS = {
    "task": "What can be learned",
    "library": "What it can be learned with",
    "cluster": "Profiles of clusters, for you to copy",
    "nccl": "Known workarounds of NCCL",
}


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    page = "\n".join([_HEAD, *_sections(), *_catalogues()])
    if parser.parse_args(arguments).check:
        return int(page != _PAGE.read_text())
    _PAGE.write_text(page)
    return 0


def all_keys(kind: Any = schema.Config, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Every key of a dataclass of the schema and of those in it: its dotted name, type, default and meaning."""
    types, said = typing.get_type_hints(kind), _comments(kind)
    for field in dataclasses.fields(kind):
        name, inner = f"{prefix}{field.name}", _dataclass_of(types[field.name])
        if inner is None or typing.get_origin(types[field.name]) is dict:
            yield name, _type(types[field.name]), _default(field), said.get(field.name, "")
        else:
            yield from all_keys(inner, f"{name}.")


def _comments(kind: type) -> dict[str, str]:
    """The words behind the fields of a class."""
    found: dict[str, str] = {}
    line = ""
    for token in tokenize.generate_tokens(StringIO(inspect.getsource(kind)).readline):
        if token.type == tokenize.NAME and re.match(r"    \w+: ", token.line):
            line = token.line.split(":")[0].strip()
        elif token.type == tokenize.COMMENT and line:
            found[line] = token.string.lstrip("# ")
        elif token.type == tokenize.NEWLINE:
            line = ""
    return found


def _dataclass_of(kind: Any) -> type | None:
    """The dataclass that a type is, or may be."""
    inner = [one for one in (kind, *typing.get_args(kind)) if dataclasses.is_dataclass(one)]
    return typing.cast(type, inner[0]) if inner else None


def _type(kind: Any) -> str:
    arguments = [one for one in typing.get_args(kind) if one is not type(None)]
    if kind is Any:
        return "any"
    if typing.get_origin(kind) is typing.Union:
        return " or ".join([*map(_type, arguments), "null"])
    if typing.get_origin(kind) is list:
        return f"list of {_type(arguments[0])}"
    if typing.get_origin(kind) is dict:
        return f"{{name: {_type(arguments[1])}}}"
    if issubclass(kind, Enum):
        return ", ".join(f"`{one.value}`" for one in kind)
    return kind.__name__


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
    if value is None:
        return "null"
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, list) and value and isinstance(value[0], Enum):
        value = f"[{', '.join(one.value for one in value)}]"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if value not in ("",) else ""


def _sections() -> Iterator[str]:
    """A table of the keys of each part of the configuration."""
    parts: dict[str, list[str]] = {}
    for name, kind, default, words in all_keys():
        cells = (f"`{name}`", kind, default, words)
        row = " | ".join(cell.replace("|", "\\|") for cell in cells)
        parts.setdefault(name.partition(".")[0] if "." in name else "", []).append(f"| {row} |")
    for part, rows in parts.items():
        yield f"## {part or 'The run'}\n"
        doc = inspect.getdoc(_dataclass_of(typing.get_type_hints(schema.Config)[part]) if part else schema.Config)
        yield f"{doc}\n\n| key | type | default | |\n|---|---|---|---|"
        yield "\n".join(rows) + "\n"


def _catalogues() -> Iterator[str]:
    for group, title in _GROUPS.items():
        yield f"## {title}\n\n| `{group}=` | |\n|---|---|"
        for file in sorted((_ROOT / "conf" / group).glob("*.yaml")):
            yield f"| `{file.stem}` | {_about(file).replace('|', chr(92) + '|')} |"
        yield ""


def _about(file: Path) -> str:
    """The comment at the head of a file of conf/, or what the catalogue says of a symptom."""
    text = file.read_text()
    symptom = (yaml.safe_load(text) or {}).get("symptom")
    head = [line[1:].strip() for line in text[: text.find("\n\n")].splitlines() if line.startswith("#")]
    head = [line for line in head if not line.startswith("@package")]
    return " ".join(str(symptom).split()) if symptom else " ".join(head)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
