"""Which entries of the NCCL catalogue are in force: the profile's, as the command line changes them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, open_dict

from launcher.config.catalogue import Catalogue
from launcher.config.schema import Workaround
from launcher.errors import UserError
from launcher.slurm.hostlist import HostListError, expand

BY_KEY = {"socket_interface": "network_interface", "ib_hca": "ib_hca"}
"""Entries whose value only the site knows, and the key of the profile that gives it and so brings them along."""


def take_choice(overrides: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """The overrides without ``nccl=…``, and the names that the last of these gives; None where there is none.

    Raises:
        UserError: it is no list of names.
        HydraException: it cannot be read at all.
    """
    others = [override for override in overrides if not override.startswith("nccl=")]
    choices = [override for override in overrides if override.startswith("nccl=")]
    return others, _names(choices[-1]) if choices else None


def _names(override: str) -> list[str]:
    (parsed,) = OverridesParser.create().parse_overrides([override])
    value = None if parsed.is_sweep_override() else parsed.value()
    names = [value] if isinstance(value, str) and value else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"'{override}' is no list of names: write nccl=[a,b], or nccl=[+a,-b] to change the profile's")
    return [str(name) for name in names]


def settle(tree: DictConfig, choice: list[str] | None, catalogue: Catalogue) -> None:
    """Put the entries in force into ``tree.nccl``; those that stand there already, in a run's record, count.

    Raises:
        UserError: an unknown name, a change that changes nothing, a value that is missing.
    """
    recorded = {str(name): tree.nccl[name] for name in tree.nccl}
    catalogue = dataclasses.replace(catalogue, recorded=recorded)
    by_key = [name for name, key in BY_KEY.items() if tree.cluster[key] is not None]
    names = _choose(catalogue.expand(tree.cluster.nccl), [*by_key, *recorded], choice, catalogue)
    for name in names:
        if name in BY_KEY and name not in by_key:
            raise UserError(f"nccl entry '{name}' needs a value: set cluster.{BY_KEY[name]}")
    with open_dict(tree):
        tree.nccl = {name: catalogue.node(name) for name in names}


def _choose(profile: list[str], besides: list[str], choice: list[str] | None, catalogue: Catalogue) -> list[str]:
    """The names in force. Bare names stand in place of the profile's, signed ones change them."""
    signed = [name for name in choice or () if name[:1] in ("+", "-")]
    if choice is None or not signed:
        wanted = profile if choice is None else catalogue.expand(choice)
        return list(dict.fromkeys([*wanted, *besides]))
    if len(signed) < len(choice):
        raise UserError(
            f"nccl=[{','.join(choice)}] mixes names with and without a sign: bare names replace the profile's list,"
            " + and - change it"
        )
    names = list(dict.fromkeys([*profile, *besides]))
    for change in signed:
        names = _changed(names, change, catalogue.expand([change[1:]]))
    return names


def _changed(names: list[str], change: str, members: list[str]) -> list[str]:
    if change[0] == "+":
        return list(dict.fromkeys([*names, *members]))
    if not set(members) & set(names):
        listing = f"in it are {', '.join(names)}" if names else "it is empty"
        raise UserError(f"nccl=[{change}]: '{change[1:]}' is not in the profile's list; {listing}")
    return [name for name in names if name not in members]


def problems(chosen: Mapping[str, Workaround]) -> Iterator[str]:
    """Broken host lists and contradictions, one line each."""
    for name, entry in chosen.items():
        try:
            _hosts(entry)
        except HostListError as error:
            yield f"nccl entry '{name}': hosts: {error}"
            return
    for (one, first), (other, second) in itertools.combinations(chosen.items(), 2):
        if _meet(first, second):
            yield from _contradictions(one, first, other, second)


def _contradictions(one: str, first: Workaround, other: str, second: Workaround) -> Iterator[str]:
    advice = "choose one (nccl=[-NAME] drops an entry)"
    if other in first.conflicts or one in second.conflicts:
        yield f"nccl entries '{one}' and '{other}' contradict each other: {advice}"
    ours, theirs = {**first.env, **first.log_files}, {**second.env, **second.log_files}
    for variable in ours.keys() & theirs.keys():
        if ours[variable] != theirs[variable]:
            values = f"{ours[variable]} and {theirs[variable]}"
            yield f"nccl entries '{one}' and '{other}' contradict each other: {variable} is {values}; {advice}"


def _meet(first: Workaround, second: Workaround) -> bool:
    """Whether some node gets both."""
    here, there = _hosts(first), _hosts(second)
    return here is None or there is None or bool(here & there)


def _hosts(entry: Workaround) -> set[str] | None:
    """The hosts that get an entry; None for all."""
    return None if entry.hosts is None else set(expand(entry.hosts))
