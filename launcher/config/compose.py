"""From the command line's overrides to a typed, checked :class:`Config`, through Hydra."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf._utils import OmegaConfDumper

from launcher.config import complaints, literals, nccl
from launcher.config.catalogue import Catalogue
from launcher.config.directories import builtin_config_dir, config_roots, user_config_dirs
from launcher.config.hosts import expand_hosts
from launcher.config.schema import Config
from launcher.errors import UserError

_RECORDED = "recorded"
"""The name by which Hydra finds a configuration that was read from a run's records."""

_HYDRAS_OWN = [
    f"hydra/{group}"
    for group in ("output", "launcher", "sweeper", "help", "hydra_help", "hydra_logging", "job_logging")
]
"""Groups of Hydra's own settings, which nothing reads when a run is composed."""
_FREE_KEY = re.compile(r"(cluster\.(env|extra_directives)|task\.env_args|library\.env)[.=]|task\.args\.")
"""Mappings whose keys are the user's: `cluster.env.X=1` adds X, without Hydra's `+`."""
_NODE_LIST = re.compile(r"(cluster\.(?:hosts|nodelist|exclude)=)([\w.,-]+\[.*|[\w.-]+,.*)", re.ASCII)
"""Slurm's short form, `cluster.hosts=gpu[1-4],login`: Hydra would take it for a list that is broken, or for a sweep."""


@dataclasses.dataclass(frozen=True)
class Composed:
    """A configuration in its two forms: typed objects, and the YAML that composes to the same again."""

    config: Config
    yaml: str


def compose(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> Composed:
    """The configuration that the overrides ask for.

    Raises:
        UserError: a group, key or value that does not exist or does not fit, with the nearest names.
    """
    with composing():
        return finish(compose_tree(overrides, config_dirs))


def compose_file(name: str, overrides: Sequence[str], config_dirs: Sequence[str]) -> Composed:
    """The configuration of ``NAME.yaml`` in the first of the user's directories that has it: see :func:`recompose`.

    Raises:
        UserError: no directory has it; and as :func:`recompose`.
    """
    directories = user_config_dirs(config_dirs)
    for directory in directories:
        if (file := directory / f"{name}.yaml").is_file():
            return recompose(file, overrides)
    listing = ", ".join(f"'{directory}'" for directory in directories) or "no --config-dir that is given"
    raise UserError(f"--config-name {name}: there is no {name}.yaml in {listing}")


def recompose(file: Path, overrides: Sequence[str]) -> Composed:
    """The configuration of a file that holds all of it, as the config.yaml of a run, with single keys overridden.

    Raises:
        UserError: the file cannot be read or is no such configuration, or a key or value does not fit.
    """
    with composing():
        try:
            with complaining():
                recorded = OmegaConf.load(file)
        except OSError as error:
            raise UserError(f"cannot read '{file}': {error.strerror}") from error
        assert isinstance(recorded, DictConfig)
        for key in (key for key in ("task", "library", "cluster") if key not in recorded):
            raise UserError(f"'{file}' is no whole configuration, as the config.yaml of a run is: it has no {key}")
        ConfigStore.instance().store(_RECORDED, {"defaults": ["schema", "_self_"], **recorded})
        return finish(compose_tree(overrides, name=_RECORDED))


def compose_tree(overrides: Sequence[str], config_dirs: Sequence[str] = (), name: str = "config") -> DictConfig:
    """The tree that Hydra makes of them. Inside :func:`composing`, as :func:`finish`."""
    with complaining():
        others, choice = nccl.take_choice(overrides)
        words = [search_path(config_dirs), *without_hydras_own(others), *map(as_hydra_reads, others)]
        tree = hydra_compose(name, words)
    nccl.settle(tree, choice, catalogue(config_dirs))
    for key in _added_keys(tree, Config, ""):
        raise UserError(complaints.unknown_key(key))
    return tree


def finish(tree: DictConfig) -> Composed:
    """The tree in its two forms, with its types checked."""
    with complaining():
        _count_hosts(tree)
        config = OmegaConf.to_object(tree)
    assert isinstance(config, Config)
    return Composed(config, _to_yaml(config))


def catalogue(config_dirs: Sequence[str] = ()) -> Catalogue:
    """The NCCL catalogue of these configuration directories."""
    return Catalogue(tuple(config_roots(config_dirs)))


def store_schema() -> None:
    """Tell Hydra of our schema, unless it knows it: that takes as long as a sixth of a composition."""
    known = ConfigStore.instance().repo.get("schema.yaml")
    if known is None or OmegaConf.get_type(known.node) is not Config:
        ConfigStore.instance().store("schema", Config)


@contextlib.contextmanager
def composing() -> Generator[None]:
    """Hydra, set up for our configuration."""
    store_schema()
    GlobalHydra.instance().clear()
    with _clock_times_stay_text(), initialize_config_dir(str(builtin_config_dir()), version_base="1.3"):
        yield


@contextlib.contextmanager
def complaining() -> Generator[None]:
    """Hydra's and OmegaConf's errors as one-line errors of the user; any other error is ours and stays as it is."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        complaint = complaints.explain(error)
        if complaint is None:
            raise
        raise UserError(complaint) from error


def _to_yaml(config: Config) -> str:
    """As OmegaConf.to_yaml, but with libyaml, which is five times as fast, and each part of it once for many runs.

    Every interpolation is filled in: what it was filled in with may be another thing tomorrow.
    """
    return "".join(_part(name, _Value(literals.plain(value))) for name, value in vars(config).items())


@dataclasses.dataclass(frozen=True)
class _Value:
    """Plain data, the same as another where it reads the same: 1, 1.0 and True are equal, but not in YAML."""

    data: Any = dataclasses.field(compare=False)
    read: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "read", repr(self.data))


@functools.lru_cache(maxsize=256)
def _part(name: str, value: _Value) -> str:
    return yaml.dump({name: value.data}, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes what OmegaConf, unlike YAML 1.1, would read as a number."""


def _represent_text(dumper: Any, text: str) -> Any:
    """YAML takes four signs for line breaks, or for nothing, unless they are escaped in double quotes."""
    if any(sign in text for sign in "\x85\u2028\u2029\ufeff"):
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
    return OmegaConfDumper.str_representer(dumper, text)


_Dumper.add_representer(str, _represent_text)


def _added_keys(tree: DictConfig, schema: Any, prefix: str) -> Iterator[str]:
    """Keys that ``+`` or ``++`` put where the schema has none."""
    known = {field.name for field in dataclasses.fields(schema)}
    for name in map(str, tree):
        child = tree._get_node(name)
        if name not in known:
            yield prefix + name
        elif isinstance(child, DictConfig) and dataclasses.is_dataclass(kind := OmegaConf.get_type(child)):
            yield from _added_keys(child, kind, f"{prefix}{name}.")


def _count_hosts(tree: DictConfig) -> None:
    """The hosts that are named say how many nodes there are."""
    named = tree.cluster.hosts
    hosts = expand_hosts(list(named) if isinstance(named, ListConfig) else named)
    if hosts and tree.cluster.nodes not in (1, len(hosts)):
        raise UserError(f"cluster.nodes={tree.cluster.nodes}, but cluster.hosts names {len(hosts)}: leave one of them")
    tree.cluster.nodes = len(hosts) or tree.cluster.nodes


def without_hydras_own(overrides: Sequence[str]) -> list[str]:
    """Overrides that leave out Hydra's own settings, but those that are overridden: they are a fifth of the time."""
    named = [word.replace(".", "/") for word in overrides]
    return [f"~{group}" for group in _HYDRAS_OWN if not any(group in word for word in named)]


def as_hydra_reads(override: str) -> str:
    """The override as Hydra has to be told it: nothing in single quotes is read as something else."""
    try:
        override.encode()
    except UnicodeEncodeError:
        raise UserError(f"{override.partition('=')[0]}: the value is not valid UTF-8") from None
    return literals.keep_single_quoted(spelled_out(override))


def spelled_out(override: str) -> str:
    """The override in Hydra's grammar, where a person's is shorter; it may add its key where keys are the user's."""
    if match := _NODE_LIST.fullmatch(override):
        return f"{match[1]}{literals.quote(match[2])}"
    return f"++{override}" if _FREE_KEY.match(override) else override


def search_path(config_dirs: Sequence[str]) -> str:
    """The override that has Hydra look into the user's own directories too."""
    places = (literals.quote(f"file://{path}") for path in user_config_dirs(config_dirs))
    return f"hydra.searchpath=[{','.join(places)}]"


@contextlib.contextmanager
def _clock_times_stay_text() -> Generator[None]:
    """YAML 1.1 reads an unquoted ``time: 1:30:00`` as the number 5400; keep it as written, as YAML 1.2 does."""
    loader = yaml.SafeLoader
    before = loader.yaml_implicit_resolvers
    decimal = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$")
    loader.yaml_implicit_resolvers = {
        first: [(tag, decimal if tag == "tag:yaml.org,2002:int" else pattern) for tag, pattern in resolvers]
        for first, resolvers in before.items()
    }
    try:
        yield
    finally:
        loader.yaml_implicit_resolvers = before
