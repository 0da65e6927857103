"""``nccl``: the catalogue of known NCCL settings, as a table, as an adviser, and tried out one after the other."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from launcher.cli.parser import Parser
from launcher.cli.table import table
from launcher.config.catalogue import Match, matches
from launcher.config.compose import catalogue
from launcher.config.nccl import BY_KEY
from launcher.config.schema import Workaround
from launcher.errors import UserError


def nccl(argv: Sequence[str]) -> int:
    """``nccl list [--json]``, ``nccl explain TEXT`` and ``nccl diagnose [KEY=VALUE ...]``."""
    if argv[:1] == ["diagnose"]:
        from launcher.cli.nccl_diagnose import nccl_diagnose

        return nccl_diagnose(argv[1:])
    options = _parser().parse_args(argv)
    entries = catalogue(options.config_dir).entries()
    if options.verb == "explain":
        print(_explain(_text(options.text), entries))
    elif options.json:
        print(json.dumps({name: asdict(entry) for name, entry in entries.items()}, indent=2))
    else:
        print(table(("NAME", "SETS", "SYMPTOM", "COST"), [_row(name, entry) for name, entry in entries.items()]))
    return 0


def _row(name: str, entry: Workaround) -> tuple[str, ...]:
    symptom, cost = (textwrap.fill(text, 40) for text in (entry.symptom, entry.cost))
    return name, _sets(entry, "\n"), symptom, cost


def _parser() -> Parser:
    usage = "python -m launcher nccl"
    parser = Parser(prog=usage, description="Known settings of NCCL, for sites and errors that need them.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    show = verbs.add_parser("list", help="all entries: what they set, for which symptom, at what cost")
    show.add_argument("--json", action="store_true", help="for programs: everything, by name")
    explain = verbs.add_parser("explain", help="the entries that fit an error text")
    explain.add_argument("text", nargs="+", metavar="TEXT", help="the text, or - to read it from standard input")
    verbs.add_parser("diagnose", help="all-reduce tests here or on a cluster; --help says more")  # in a file of its own
    for verb in (show, explain):
        verb.add_argument(
            "--config-dir", "-cd", action="append", default=[], metavar="DIR", help="with entries of your own"
        )
    return parser


def _text(words: Sequence[str]) -> str:
    text = sys.stdin.read() if list(words) == ["-"] else " ".join(words)
    if not text.strip():
        raise UserError("nccl explain needs the text of an error: nccl explain 'NCCL WARN …', or - for standard input")
    return text


def _explain(text: str, entries: dict[str, Workaround]) -> str:
    found = matches(text, entries)
    if not found:
        return (
            "no entry of the catalogue fits this text. With 'nccl=[+debug_info]' NCCL says more, in a file per rank;"
            " `python -m launcher nccl list` shows all entries"
        )
    return "\n\n".join(map(_advice, found))


def _advice(match: Match) -> str:
    lines = {
        "fits": " · ".join(f"“{text}”" for text in match.texts),
        "sets": _sets(match.entry),
        "cost": match.entry.cost,
        "source": match.entry.source,
        "type": how_to_apply(match.name),
    }
    return "\n".join([f"{match.name}: {match.entry.symptom}", *(f"  {key:<7} {text}" for key, text in lines.items())])


def how_to_apply(name: str) -> str:
    """What to type to put an entry into force."""
    return f"cluster.{BY_KEY[name]}=VALUE" if name in BY_KEY else f"'nccl=[+{name}]'"


def _sets(entry: Workaround, between: str = " ") -> str:
    """`NAME=VALUE` of all its variables, or the entries that a bundle stands for."""
    variables = (f"{name}={value}" for name, value in {**entry.env, **entry.log_files}.items())
    where = [f"on {entry.hosts} only"] if entry.hosts else []
    return between.join([*entry.bundle, *variables, *where])
