"""A page: sections of blocks, and the HTML that they become. What a report is about is not known here."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from launcher.records.columns import finite

GOOD, BAD, WARN, BUSY, QUIET = "good", "bad", "warn", "busy", "quiet"
"""Tones: what colour a state, a mark or a cell has."""

Cell = str | int | float | None
"""Of a table; a number is sorted as one."""

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("echarts/echarts.min.js", "charts.js", "ranks.js", "page.js")


@dataclass(frozen=True)
class Facts:
    """Labels with their values; a value may have several lines."""

    rows: Sequence[tuple[str, str]]
    kind: str = "facts"


@dataclass(frozen=True)
class Tiles:
    """The few numbers that matter most: label, value, what to say below."""

    rows: Sequence[tuple[str, str, str]]
    kind: str = "tiles"


@dataclass(frozen=True)
class Grid:
    """A table that the reader can sort and, if it is long, filter."""

    name: str
    """Unlike those of the other tables of the page."""
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    tones: Mapping[str, str] = field(default_factory=dict)
    """By the text of a cell."""
    numbered: frozenset[int] = frozenset()
    """Columns that are shown as numbers."""
    kind: str = "grid"


@dataclass(frozen=True)
class Words:
    """A sentence; ``tone`` makes a box of it."""

    text: str
    tone: str = ""
    kind: str = "words"


@dataclass(frozen=True)
class Text:
    """Text as it is: a configuration, the end of a log. Folded away unless `open`."""

    title: str
    text: str
    open: bool = False
    kind: str = "text"


@dataclass(frozen=True)
class Chart:
    """A chart; `what` names the function of charts.js or ranks.js that draws `data`."""

    what: str
    title: str
    data: Mapping[str, Any]
    size: str = "half"
    """``full``, ``half`` or, for ``small``, a third of the page's width."""
    height: int = 260
    """Pixels."""
    kind: str = "chart"


@dataclass(frozen=True)
class Switch:
    """What the charts of a section can be drawn over."""

    choices: Sequence[tuple[str, str]]
    """What charts.js calls it, and the words for it; the first one is chosen."""
    kind: str = "switch"


def size_for(count: int) -> str:
    """The width of each of so many charts, so that none is left alone in a row where that can be."""
    return {1: "full", 2: "half", 4: "half"}.get(count, "small")


Block = Facts | Tiles | Grid | Words | Text | Chart | Switch


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading."""

    title: str
    blocks: Sequence[Block]
    folded: bool = False


@dataclass(frozen=True)
class Page:
    """All that is to be shown."""

    title: str
    state: str
    tone: str
    lead: str
    """One line below the title."""
    sections: Sequence[Section]
    made: str
    """When, and from what."""
    unit: tuple[float, str] = (1.0, "s")
    """Of times on the axes: seconds that it has, and its name."""
    began: float = 0.0
    """Where times on the axes are counted from, in seconds since the epoch."""
    seconds: float = 0.0
    """Where all axes of time end, so that one moment is at one place in all charts; 0: where the data ends."""

    def charts(self) -> list[Chart]:
        return [block for section in self.sections for block in section.blocks if isinstance(block, Chart)]


def html(page: Page) -> str:
    """The page. What comes from the records is escaped, and no script but the page's own can run in it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_ASSETS), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(number=number, identity=id)
    charts = page.charts()
    return environment.get_template("page.html").render(
        page=page,
        charts={id(chart): index for index, chart in enumerate(charts)},
        data=Markup(_embedded(_data(page, charts))),
        style=Markup(_asset("page.css")),
        scripts=[Markup(_asset(name)) for name in _SCRIPTS],
        policy=_policy([_asset(name) for name in _SCRIPTS]),
    )


def _data(page: Page, charts: Sequence[Chart]) -> Mapping[str, Any]:
    drawn = [{"what": one.what, "data": one.data} for one in charts]
    return {"unit": page.unit, "began": page.began, "seconds": page.seconds, "charts": drawn}


def _embedded(data: Any) -> str:
    """JSON that can stand in a script element: no text in it can end that element."""
    text = json.dumps(finite(data), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: Sequence[str]) -> str:
    """The Content-Security-Policy: nothing is loaded from anywhere, and only these scripts run."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def number(value: Cell) -> str:
    """A number as people read it: four digits that matter, thousands apart."""
    if not isinstance(value, (int, float)):
        return value or ""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e9:
        return f"{value:.3g}"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def few(names: Sequence[str], most: int = 4) -> str:
    """Names in a line; of many the first ones and how many more."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


_UNITS = ((86400.0, "days", 3 * 86400), (3600.0, "h", 3 * 3600), (60.0, "min", 180), (1.0, "s", 0))


def unit_of(seconds: float) -> tuple[float, str]:
    """The unit in which so long a time is best read: its seconds and its name."""
    return next((size, name) for size, name, least in _UNITS if seconds >= least)
