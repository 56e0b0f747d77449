"""Suites: grids of what to run, written in TOML or on the command line."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from fedtrees.core.attack import contenders
from fedtrees.core.errors import UsageError, did_you_mean, short
from fedtrees.core.files import unique_labels
from fedtrees.core.formats import no_local_file
from fedtrees.core.registry import register
from fedtrees.core.rows import FORMULA, MOST_WHOLE
from fedtrees.core.specs import (
    Composed,
    Spec,
    parse_composed,
    parse_list,
    parse_value,
    split_outside,
)
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import PUBLIC

DEFAULT_SUITE = "quick"
CHANGED = "custom"  # a suite of which options replaced a part
MOST_SEEDS = 1000
MOST_CLIENTS = 1_000_000
_SOUND = re.compile("[^\0\ud800-\udfff]*")  # what a path and a file in UTF-8 can hold
MOST_SECONDS = 1e8  # three years; timers of the system end soon after
MOST_TRAININGS = 1_000_000
_LISTS = ("categorical", "keep", "drop", "missing")  # keys of a table that are lists of texts
ALL = "all"  # among attacks: every attack that is not named beside it


@dataclass(frozen=True)
class DataRef:
    """Where a dataset comes from: a catalogue name, or a CSV file.

    `target` and what follows: of a CSV file, as in `fedtrees.data.own_table.load_csv`.
    """

    name: str  # catalogue name, or the label of the CSV file in results
    csv: str = ""  # path of a table, or of one per party with commas; else a catalogue name
    id: str = ""  # column that joins the files of several parties
    client_column: str = ""  # column that says which client has a row
    target: str = ""
    task: str = ""
    positive: str = ""
    sep: str = ""
    decimal: str = ""
    missing: tuple[str, ...] = ()  # one empty text: empty cells only; (): the default marks
    sheet: str = ""
    categorical: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of its files; none of a dataset of the catalogue."""
        several = self.id or (self.clients_are_told and not self.client_column)
        return tuple(self.csv.split(",")) if several else (self.csv,) * bool(self.csv)

    @property
    def clients_are_told(self) -> bool:
        """Whether the table says whose rows are whose: by a column, or by a file per client."""
        several = "," in self.csv and not self.id and not os.path.exists(self.csv)
        return bool(self.client_column) or several

    @classmethod
    def parse(cls, value: str | Mapping[str, Any]) -> DataRef:
        """Read a name or a table ``{csv=..., target=...}``."""
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping):
            raise UsageError(
                f"data={value!r}: give a name, or a table such as {{csv = 'file.csv'}}"
            )
        known = {f.name for f in fields(cls)}
        for key, text in value.items():
            if key not in known:
                raise UsageError(f"data has no key {short(key)!r}{did_you_mean(key, known)}")
            texts = text if key in _LISTS and isinstance(text, (list, tuple)) else [text]
            for each in texts:
                if not isinstance(each, str) or not _SOUND.fullmatch(each):
                    raise UsageError(f"data has {key}={text!r}; give text")
        if not value.get("csv"):
            raise UsageError("data is a table without csv; write {csv = 'file.csv', target = ...}")
        for path in value["csv"].split(","):
            if reason := no_local_file(path):
                raise UsageError(f"csv = {path!r}: {reason}")
        if value.get("id") and value.get("client_column"):
            raise UsageError(
                "data has id and client_column: id joins columns of the same rows, the other tells "
                "whose rows are whose; give one of them"
            )
        lists = {key: value.get(key, ()) for key in _LISTS}
        whole = {k: (v,) if isinstance(v, str) else tuple(v) for k, v in lists.items()}
        return cls(**{**value, **whole, "name": value.get("name") or _stem(value)})

    def __post_init__(self) -> None:
        if self.name.startswith(FORMULA) or not self.name.isprintable():
            raise UsageError(
                f"data is called {self.name[:80]!r} in results, where a spreadsheet would take it "
                "for a formula, or for several lines: give it a name, or rename the file"
            )


#: Axes of a grid: every combination of their values is run.
AXES = ("data", "partitions", "clients", "protocols", "defenses", "threats", "attacks")


@dataclass(frozen=True)
class Grid:
    """Axes of which every combination is run, each with the blind adversary.

    Attributes
    ----------
    data, partitions, clients, protocols, defenses, threats, attacks : tuple
        The axes (`AXES`). Among attacks, `all` means every attack of `contenders` that is not named
        explicitly.
    undefended : bool
        Whether to add the run without a defense. A grid omits it if another grid contains the run
        that its results are compared with, for example one of another protocol.
    """

    data: tuple[DataRef, ...] = (DataRef("breast-cancer"),)
    partitions: tuple[Spec, ...] = (Spec("iid"),)
    clients: tuple[int, ...] = (3,)
    protocols: tuple[Spec, ...] = (Spec("fedtree-hist"),)
    defenses: tuple[Composed, ...] = (Composed(),)
    threats: tuple[str, ...] = ("client",)
    attacks: tuple[Spec, ...] = (Spec(ALL),)
    undefended: bool = True

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> Grid:
        """Read one ``[[grid]]`` table, or the options of a command line."""
        if not isinstance(table, Mapping):
            raise UsageError(f"a grid is {table!r}; write its keys below [[grid]]")
        keys = {f.name for f in fields(cls)}
        for key in table:
            if key not in keys:
                raise UsageError(f"a grid has no key {short(key)!r}{did_you_mean(key, keys)}")
        undefended = table.get("undefended", True)
        if not isinstance(undefended, bool):
            raise UsageError(f"a grid has undefended={undefended!r}; give true or false")
        read: dict[str, Any] = {"undefended": undefended}
        for key in (key for key in AXES if key in table):
            value = table[key]
            items = list(value) if isinstance(value, (list, tuple)) else [value]
            for item in () if key in ("data", "clients") else items:
                if not isinstance(item, str):
                    raise UsageError(f"a grid has {key}={item!r}; give text, or a list of texts")
            read[key] = _READERS[key](items)
            if not read[key]:
                raise UsageError(f"a grid's {key!r} is empty; leave it out for the default")
        grid = cls(**read)
        return grid if "threats" in table else grid.with_known_threats()

    def with_known_threats(self) -> Grid:
        """Return the grid with threats that its protocols know, where nobody named any.

        A protocol with none of the roles in them is attacked by those who are
        `Protocol.adversaries`.
        """
        found = {t: None for t in self.threats for p in self.protocols if fits(t, p)}
        for spec in self.protocols:
            if not any(fits(t, spec) for t in self.threats):
                made = register.make("protocol", spec)
                adversaries: tuple[str, ...] = getattr(made, "curious", made.adversaries)
                found |= dict.fromkeys(adversaries)
        return replace(self, threats=tuple(found))

    @property
    def every_attack(self) -> tuple[Spec, ...]:
        """The attacks, with `all` spelled out."""
        named = [a for a in self.attacks if a != Spec(ALL)]
        if len(named) == len(self.attacks):
            return self.attacks
        others = set(contenders()) - {a.name for a in named}
        return (*named, *map(Spec, sorted(others)))

    @property
    def size(self) -> int:
        """Number of combinations, each of them a training with an attack, per seed."""
        return math.prod(len(getattr(self, axis)) for axis in AXES)

    def with_undefended(self) -> Grid:
        """Return the grid with each defense once, and `none` first unless it is omitted."""
        added = (Composed(),) if self.undefended else ()
        defenses = tuple({str(d): d for d in (*added, *self.defenses)}.values())
        return replace(self, defenses=defenses)


def _stem(value: Mapping[str, Any]) -> str:
    """Return what a table is called in results: its file, or its files, without folders."""
    whole = os.path.exists(value["csv"]) or value.get("client_column")
    paths = [value["csv"]] if whole and not value.get("id") else value["csv"].split(",")
    return "+".join(unique_labels(paths))


def roles_of(protocol: Any, parties: int) -> dict[str, str]:
    """Return name and role of every party of a protocol, and of whoever gets its model."""
    roles = dict(protocol.roles(parties))
    return {**roles, PUBLIC: PUBLIC} if protocol.released else roles


def fits(threat: str, protocol: Spec) -> bool:
    """Tell whether a protocol has all the roles that a threat names."""
    known = set(roles_of(register.make("protocol", protocol), 2).values())
    return known.issuperset(Threat.parse(threat).roles)


def _clients(items: Sequence[Any]) -> tuple[int, ...]:
    for n in items:
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_CLIENTS:
            raise UsageError(f"clients={n!r}: give whole numbers, 1 to {MOST_CLIENTS}")
    return tuple(items)


def _threats(items: Iterable[str]) -> tuple[str, ...]:
    texts = [piece for item in items for piece in split_outside(item, ",")]
    return tuple(str(Threat.parse(t)) for t in texts)


def _data(items: Iterable[str | Mapping[str, Any]]) -> tuple[DataRef, ...]:
    refs = []
    for item in items:
        pieces = split_outside(item, ",") if isinstance(item, str) else [item]
        for p in pieces:  # name[rows=...] is a grid like any other
            grid = isinstance(p, str) and "[" in p
            refs += map(DataRef, map(str, parse_list([p]))) if grid else [DataRef.parse(p)]
    return tuple(refs)


def _specs(items: Iterable[str]) -> tuple[Spec, ...]:
    return tuple(parse_list(items))


def _defenses(items: list[Any]) -> tuple[Composed, ...]:
    """Read compositions; a part without the budget that it needs is run with those it `tries`."""
    grids = (itertools.product(*map(with_budgets, c.parts)) for c in parse_composed(items))
    return tuple(Composed(parts) for grid in grids for parts in grid)


def with_budgets(part: Spec) -> list[Spec]:
    """Return a part with each of the budgets that it `tries`, where it is named without."""
    if part.name not in register.names("defense"):
        return [part]  # of a plugin that is not loaded yet
    tries: Mapping[str, Sequence[float]] = getattr(register.get("defense", part.name), "tries", {})
    missing = {key: values for key, values in tries.items() if key not in part.params}
    combinations = itertools.product(*missing.values())
    return [
        Spec(part.name, {**part.params, **dict(zip(missing, values, strict=True))})
        for values in combinations
    ]


_READERS = {
    "data": _data,
    "partitions": _specs,
    "clients": _clients,
    "protocols": _specs,
    "defenses": _defenses,
    "threats": _threats,
    "attacks": _specs,
}


@dataclass(frozen=True)
class Suite:
    """A named set of grids with its seeds."""

    name: str
    description: str = ""
    seeds: tuple[int, ...] = (0, 1, 2)
    grids: tuple[Grid, ...] = field(default=(Grid(),))
    time_limit: float = 0.0  # seconds one training or one attack may take; 0 is no limit

    @classmethod
    def parse(cls, text: str, source: str) -> Suite:
        """Read a suite from TOML.

        Raises `UsageError` if it is not TOML, or has unknown keys or values; `source` names it.
        """
        try:
            table = tomllib.loads(text)
        except RecursionError:
            raise UsageError(f"{source} is nested too deep; a suite needs three levels") from None
        except ValueError as err:
            raise UsageError(f"{source} is not readable TOML: {err}") from err
        try:
            return cls._of(table, Path(source).stem)
        except UsageError as err:
            raise UsageError(f"{source}: {err}") from err

    @classmethod
    def _of(cls, table: Mapping[str, Any], name: str) -> Suite:
        known = {"name", "description", "seeds", "grid", "time_limit"}
        for key in table:
            if key not in known:
                raise UsageError(f"unknown key {short(key)!r}{did_you_mean(key, known)}")
        seeds = parse_seeds(table.get("seeds", 3))
        grids = table.get("grid")
        if not isinstance(grids, list) or not grids:
            raise UsageError(f"grid={grids!r}: write one [[grid]] or more")
        return cls(
            name=_name(table.get("name", name)),
            description=_text("description", table.get("description", "")),
            seeds=seeds,
            grids=tuple(Grid.parse(g).with_undefended() for g in grids),
            time_limit=table.get("time_limit", 0.0),
        )

    def __post_init__(self) -> None:
        object.__setattr__(self, "grids", _with_unique_names(self.grids))
        number = isinstance(self.time_limit, (int, float)) and not isinstance(self.time_limit, bool)
        if not (number and 0 <= self.time_limit <= MOST_SECONDS):
            raise UsageError(
                f"time_limit={self.time_limit!r}: give seconds, 0 for no limit, at most "
                f"{MOST_SECONDS:g}"
            )
        size = len(self.seeds) * sum(grid.size for grid in self.grids)
        if size > MOST_TRAININGS:
            raise UsageError(
                f"{size} combinations of trainings and attacks; at most {MOST_TRAININGS}: split it"
            )

    @classmethod
    def load(cls, name: str) -> Suite:
        """Load a bundled suite by name, or a TOML file by path.

        Raises `UsageError`.
        """
        path = Path(name)
        if path.suffix == ".toml" or path.is_file():
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as err:
                raise UsageError(f"cannot read suite {name!r}: {err}") from err
            return cls.parse(text, name)
        bundled = bundled_suites()
        if name not in bundled:
            raise UsageError(
                f"unknown suite {name!r}{did_you_mean(name, bundled)} (or give a .toml file)"
            )
        return cls.parse(bundled[name].read_text(encoding="utf-8"), name)

    def override(self, options: Mapping[str, Any], seeds: str | None = None) -> Suite:
        """Return the suite with the given grid keys replaced in every grid.

        What is replaced is no longer the suite of that name and description: both then tell what
        is run. What goes with what is named is for `fedtrees.bench.choice` to say.
        """
        grids = self.grids
        if options:
            changed = Grid.parse(options)
            given = {key: getattr(changed, key) for key in options}
            if {"protocols", "defenses"} & {*options}:  # there may be no other run to compare with
                given["undefended"] = True
            grids = tuple(replace(g, **given).with_undefended() for g in self.grids)
        return self.of(grids, self.seeds if seeds is None else parse_seeds(seeds))

    def of(self, grids: Sequence[Grid], seeds: Sequence[int] = ()) -> Suite:
        """Return a suite of such grids, each once, called what it is where it is another."""
        unique = {json.dumps(_grid_table(g), sort_keys=True): g for g in grids}
        suite = replace(self, grids=tuple(unique.values()), seeds=tuple(seeds or self.seeds))
        return suite if suite == self else suite._named_by_what_it_runs()

    def _named_by_what_it_runs(self) -> Suite:
        table: dict[str, dict[str, None]] = {}
        for grid in self.grids:
            for axis in AXES:
                for value in getattr(grid, axis):
                    text = value if isinstance(value, (str, int)) else value.name
                    table.setdefault(axis, {})[str(text)] = None
        what = "; ".join(f"{key} {', '.join(values)}" for key, values in table.items())
        seeds = ", ".join(map(str, self.seeds[:5])) + (", ..." if len(self.seeds) > 5 else "")
        description = f"Options of the command line: {what}; seeds {seeds}."
        return replace(self, name=CHANGED, description=description)

    def to_toml(self) -> str:
        """Write the suite so that `parse` reads it back."""
        lines = [
            f"name = {_toml(self.name)}",
            f"description = {_toml(self.description)}",
            f"seeds = {list(self.seeds)}",
            f"time_limit = {self.time_limit}",
        ]
        for grid in self.grids:
            lines += ["", "[[grid]]"]
            lines += [f"{key} = {_toml(value)}" for key, value in _grid_table(grid).items()]
        return "\n".join(lines) + "\n"


def _with_unique_names(grids: Sequence[Grid]) -> tuple[Grid, ...]:
    """Return grids in which tables with one name have different names in results.

    Files of one name get the names of their folders. Tables that are read from one file in several
    ways get a number.
    """
    refs = dict.fromkeys(ref for grid in grids for ref in grid.data if ref.csv)
    by_name: dict[str, list[DataRef]] = {}
    for ref in refs:
        by_name.setdefault(ref.name, []).append(ref)
    renamed = {}
    for name, same in by_name.items():
        labels = unique_labels([ref.csv for ref in same])
        if len({*labels}) < len(labels):
            labels = [f"{name}-{k + 1}" for k in range(len(same))]
        if len(same) > 1:
            pairs = zip(same, labels, strict=True)
            renamed |= {ref: replace(ref, name=label) for ref, label in pairs}
    if not renamed:
        return tuple(grids)
    return tuple(replace(g, data=tuple(renamed.get(ref, ref) for ref in g.data)) for g in grids)


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
    """Read seeds: a number means 0 .. n - 1; a list or ``4,7,9`` means just these."""
    given = value if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(each, bool) or not isinstance(each, (int, str)) for each in given):
        raise UsageError(f"seeds={value!r}: give a count such as 3, or a list such as [0, 1, 2]")
    text = ",".join(map(str, given))
    listed = isinstance(value, (list, tuple)) or "," in text
    try:
        numbers = [_whole(part) for part in text.split(",") if part.strip()]
    except ValueError:
        rule = "give a count such as 3, or a list such as 0,1,2"
        raise UsageError(f"seeds={text[:120]!r}: {rule}") from None
    if (len(numbers) if listed else max(numbers, default=0)) > MOST_SEEDS:
        raise UsageError(f"seeds={short(text)!r}: give at most {MOST_SEEDS} seeds")
    seeds = tuple(numbers) if listed else tuple(range(max(numbers, default=0)))
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise UsageError(f"seeds={text!r}: give at least one, each once, none negative")
    if max(seeds) > MOST_WHOLE:
        raise UsageError(f"seeds={text!r}: at most {MOST_WHOLE}, or a table cannot hold it")
    return seeds


def _whole(text: str) -> int:
    """Return a whole number, as `parse_value` reads it."""
    value = parse_value(text)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError
    return value


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{key}={value!r}: give text")
    return value


def _name(value: Any) -> str:
    """Check a suite's name, which also names its folder."""
    name = _text("name", value)
    if not (name.strip() and name.isprintable()) or not re.fullmatch(r"[^./\\][^/\\]{0,99}", name):
        rule = "give 1 to 100 characters that can name a folder, no slash"
        raise UsageError(f"name={name[:120]!r}: {rule}")
    return name


def _grid_table(grid: Grid) -> dict[str, Any]:
    axes = {axis: list(map(_plain, getattr(grid, axis))) for axis in AXES}
    return axes if grid.undefended else {**axes, "undefended": False}


def _plain(value: Any) -> Any:
    if not isinstance(value, DataRef):
        return value if isinstance(value, int) else str(value)
    if not value.csv:
        return value.name
    return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(value).items() if v}


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # The one character that JSON writes as it is and TOML does not allow.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
