"""What takes the time, as bars made of parts."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.report.page import Chart
from launcher.report.thin import rounded

ITERATION = {"stepping": 0, "learning": 2, "synchronising": 1, "other": 7}
"""The parts of an iteration, from the bottom to the top, and which of the page's colours each has."""


def parts_chart(title: str, of: str, bars: Mapping[str, Mapping[str, float]], size: str, height: int = 260) -> Chart:
    """A bar for each of something.

    Args:
        title: of the chart.
        of: what there is a bar for, as ``rank``.
        bars: by the bar's label the seconds of its parts; those that are not of an iteration are coloured in turn.
        size: as of :class:`Chart`.
        height: in pixels.
    """
    names = dict.fromkeys(name for parts in bars.values() for name in parts)
    series = [
        {
            "name": name,
            "colour": ITERATION.get(name, index),
            "values": [rounded(one.get(name), 4) for one in bars.values()],
        }
        for index, name in enumerate(names)
    ]
    return Chart("parts", title, {"labels": list(bars), "x": of, "y": "s", "series": series}, size, height)
