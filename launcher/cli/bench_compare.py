"""``bench compare``: two bundles side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from launcher.cli.bench_runs import bundle_in
from launcher.cli.parser import parse, parser_of
from launcher.cli.table import table
from launcher.errors import UserError
from launcher.records import rundir
from launcher.records.comparison import compared
from launcher.records.files import Record, read_json


def compare(argv: Sequence[str]) -> int:
    """``bench compare A B [--json]``: what differs between two benchmarks of the same kind."""
    parser = parser_of("bench compare", "Two benchmarks side by side; differences beyond the noise are marked.")
    parser.add_argument("bundles", metavar="A|B", nargs=2, help="a bundle's file, or a benchmark's run")
    parser.add_argument("--json", action="store_true", help="the differences as JSON")
    options, runs_dir = parse(parser, argv)
    first, second = (_bundle(text, runs_dir) for text in options.bundles)
    kinds = [bundle["extra"]["benchmark"] for bundle in (first, second)]
    if kinds[0] != kinds[1]:
        raise UserError(f"a benchmark of {kinds[0]} and one of {kinds[1]} have nothing in common to compare")
    found = {"first": first["run"]["run_id"], "second": second["run"]["run_id"], **compared(first, second)}
    print(json.dumps(found, indent=2) if options.json else describe_comparison(found))
    return 0


def _bundle(text: str, runs_dir: Path) -> Record:
    if not Path(text).is_file():
        return bundle_in(rundir.find(runs_dir, text))
    bundle = read_json(Path(text))
    if bundle is None or not isinstance(bundle.get("extra"), dict) or "benchmark" not in bundle["extra"]:
        raise UserError(f"'{text}' is no bundle: `bench` writes one as benchmark.json into its run's directory")
    return bundle


def describe_comparison(found: Record) -> str:
    """What was not the same in the two, and a row for each number."""
    lines = [f"A  {found['first']}", f"B  {found['second']}"]
    if found["differs"]:
        lines += ["", table(("NOT THE SAME", "A", "B"), [_texts(one) for one in found["differs"]])]
    rows = [_row(one) for one in found["measures"]]
    heads = ("MEASURE", "UNIT", "A", "B", "CHANGE", "NOISE", "")
    return "\n".join([*lines, "", table(heads, rows) if rows else "nothing was measured in both"])


def _texts(one: Record) -> tuple[str, str, str]:
    a, b = ("-" if one[side] is None else str(one[side]) for side in ("first", "second"))
    return one["name"], a, b


def _row(one: Record) -> list[str]:
    change = "" if one["change"] is None else f"{one['change']:+.1%}"
    noise = "" if one["noise"] is None else f"± {one['noise']:.1%}"
    return [one["name"], one["unit"], f"{one['first']:,.5g}", f"{one['second']:,.5g}", change, noise, one["verdict"]]
