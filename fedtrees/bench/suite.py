"""Suites: grids of what to run, written in TOML or on the command line."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.specs import Composed, Spec, parse_composed, parse_list, split_outside
from fedtrees.core.threat import Threat

DEFAULT_SUITE = "quick"
MOST_SEEDS = 1000


@dataclass(frozen=True)
class DataRef:
    """Where a dataset comes from: a catalogue name, or a CSV file.

    Attributes
    ----------
    name : str
        Catalogue name, or the label of the CSV file in results.
    csv : str
        Path of a CSV file, empty for a catalogue name.
    target, positive : str
        Target column and positive class of a CSV file.
    categorical : tuple of str
        Its categorical columns.
    """

    name: str
    csv: str = ""
    target: str = ""
    positive: str = ""
    categorical: tuple[str, ...] = ()

    @classmethod
    def parse(cls, value: str | Mapping[str, Any]) -> DataRef:
        """Read a name or a table ``{csv=..., target=...}``."""
        if isinstance(value, str):
            return cls(value)
        known = {f.name for f in fields(cls)}
        for key in value:
            if key not in known:
                raise UsageError(f"data has no key {key!r}{did_you_mean(key, known)}")
        ref = cls(**{"name": Path(str(value.get("csv", "?"))).stem, **value})
        return replace(ref, categorical=tuple(ref.categorical))


@dataclass(frozen=True)
class Grid:
    """Every combination of these is run; `none` and the blind adversary are always added."""

    data: tuple[DataRef, ...] = (DataRef("breast-cancer"),)
    partitions: tuple[Spec, ...] = (Spec("iid"),)
    clients: tuple[int, ...] = (3,)
    protocols: tuple[Spec, ...] = (Spec("fedtree-hist"),)
    defenses: tuple[Composed, ...] = (Composed(),)
    threats: tuple[str, ...] = ("client",)
    attacks: tuple[Spec, ...] = (Spec("timberstrike"),)

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> Grid:
        """Read one ``[[grid]]`` table, or the options of a command line."""
        known = {f.name for f in fields(cls)}
        for key in table:
            if key not in known:
                raise UsageError(f"a grid has no key {key!r}{did_you_mean(key, known)}")
        read: dict[str, Any] = {}
        for key, value in table.items():
            items = [value] if isinstance(value, (str, int, Mapping)) else list(value)
            read[key] = _READERS[key](items)
            if not read[key]:
                raise UsageError(f"a grid's {key!r} is empty; leave it out for the default")
        return cls(**read)

    def with_undefended(self) -> Grid:
        """Return the grid with `none` first among its defenses, everything once."""
        defenses = tuple({str(d): d for d in (Composed(), *self.defenses)}.values())
        return replace(self, defenses=defenses)


def _clients(items: Sequence[Any]) -> tuple[int, ...]:
    for n in items:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise UsageError(f"clients={n!r}: give whole numbers, 1 or more")
    return tuple(items)


def _threats(items: Iterable[str]) -> tuple[str, ...]:
    texts = [piece for item in items for piece in split_outside(item, ",")]
    return tuple(str(Threat.parse(t)) for t in texts)


def _data(items: Iterable[str | Mapping[str, Any]]) -> tuple[DataRef, ...]:
    refs = []
    for item in items:
        pieces = split_outside(item, ",") if isinstance(item, str) else [item]
        for p in pieces:  # name[rows=...] is a grid like any other
            refs += map(DataRef, map(str, parse_list([p]))) if "[" in p else [DataRef.parse(p)]
    return tuple(refs)


_READERS = {
    "data": _data,
    "partitions": lambda items: tuple(parse_list(items)),
    "clients": _clients,
    "protocols": lambda items: tuple(parse_list(items)),
    "defenses": lambda items: tuple(parse_composed(items)),
    "threats": _threats,
    "attacks": lambda items: tuple(parse_list(items)),
}


@dataclass(frozen=True)
class Suite:
    """A named set of grids with its seeds.

    Attributes
    ----------
    name, description : str
    seeds : tuple of int
    grids : tuple of Grid
    time_limit : float
        Seconds one training or one attack may take; 0 is no limit.
    """

    name: str
    description: str = ""
    seeds: tuple[int, ...] = (0, 1, 2)
    grids: tuple[Grid, ...] = field(default=(Grid(),))
    time_limit: float = 0.0

    @classmethod
    def parse(cls, text: str, source: str) -> Suite:
        """Read a suite from TOML.

        Raises
        ------
        UsageError
            If it is not TOML, or has unknown keys or values; `source` names it.
        """
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as err:
            raise UsageError(f"{source} is not readable TOML: {err}") from err
        known = {"name", "description", "seeds", "grid", "time_limit"}
        for key in table:
            if key not in known:
                raise UsageError(f"{source}: unknown key {key!r}{did_you_mean(key, known)}")
        try:
            grids = tuple(Grid.parse(g).with_undefended() for g in table.get("grid", [{}]))
        except UsageError as err:
            raise UsageError(f"{source}: {err}") from err
        return cls(
            name=str(table.get("name", Path(source).stem)),
            description=str(table.get("description", "")),
            seeds=parse_seeds(table.get("seeds", 3)),
            grids=grids,
            time_limit=float(table.get("time_limit", 0.0)),
        )

    @classmethod
    def load(cls, name: str) -> Suite:
        """Load a bundled suite by name, or a TOML file by path.

        Raises
        ------
        UsageError
        """
        path = Path(name)
        if path.suffix == ".toml" or path.is_file():
            try:
                return cls.parse(path.read_text(), name)
            except (OSError, UnicodeDecodeError) as err:
                raise UsageError(f"cannot read suite {name!r}: {err}") from err
        bundled = bundled_suites()
        if name not in bundled:
            raise UsageError(
                f"unknown suite {name!r}{did_you_mean(name, bundled)} (or give a .toml file)"
            )
        return cls.parse(bundled[name].read_text(), name)

    def override(self, options: Mapping[str, Any], seeds: str | None = None) -> Suite:
        """Return the suite with the given grid keys replaced in every grid.

        A protocol that is named alone meets all attacks of the suite in every grid: those
        that a grid has were chosen for the protocol that it had.
        """
        suite = self
        if options:
            changed = Grid.parse(options)
            given = {key: getattr(changed, key) for key in options}
            if "protocols" in given and "attacks" not in given:
                every = [attack for grid in self.grids for attack in grid.attacks]
                given["attacks"] = tuple({str(attack): attack for attack in every}.values())
            merged = (replace(g, **given).with_undefended() for g in self.grids)
            unique = {json.dumps(_grid_table(g), sort_keys=True): g for g in merged}
            suite = replace(suite, grids=tuple(unique.values()))
        return suite if seeds is None else replace(suite, seeds=parse_seeds(seeds))

    def to_toml(self) -> str:
        """Write the suite so that `parse` reads it back."""
        lines = [
            f"name = {json.dumps(self.name)}",
            f"description = {json.dumps(self.description)}",
            f"seeds = {list(self.seeds)}",
            f"time_limit = {self.time_limit}",
        ]
        for grid in self.grids:
            lines += ["", "[[grid]]"]
            lines += [f"{key} = {_toml(value)}" for key, value in _grid_table(grid).items()]
        return "\n".join(lines) + "\n"


def bundled_suites() -> dict[str, Any]:
    """Return the bundled suite and paper files by name."""
    folder = resources.files("fedtrees.benchmarks")
    return {
        f.name.removesuffix(".toml"): f
        for part in ("suites", "papers")
        for f in (folder / part).iterdir()
        if f.name.endswith(".toml")
    }


def parse_seeds(value: Any) -> tuple[int, ...]:
    """Read seeds: a number means 0 .. n - 1; a list or ``4,7,9`` means just these.

    Raises
    ------
    UsageError
    """
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    listed = isinstance(value, (list, tuple)) or "," in text
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UsageError(
            f"seeds={text!r}: give a count such as 3, or a list such as 0,1,2"
        ) from None
    if not listed and numbers and numbers[0] > MOST_SEEDS:
        raise UsageError(f"seeds={text!r}: at most {MOST_SEEDS}")
    seeds = tuple(numbers) if listed else tuple(range(*numbers[:1]))
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise UsageError(f"seeds={text!r}: give at least one, each once, none negative")
    return seeds


def _grid_table(grid: Grid) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for item in fields(grid):
        values = getattr(grid, item.name)
        table[item.name] = [_plain(v) for v in values]
    return table


def _plain(value: Any) -> Any:
    if isinstance(value, DataRef):
        given = {f.name: getattr(value, f.name) for f in fields(value)}
        return (
            {k: list(v) if isinstance(v, tuple) else v for k, v in given.items() if v}
            if value.csv
            else value.name
        )
    return value if isinstance(value, int) else str(value)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
