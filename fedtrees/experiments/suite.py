"""Define suites: grids of settings to run, written in TOML or on the command line."""

from __future__ import annotations

import itertools
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from fedtrees.core.attack import contenders
from fedtrees.core.errors import UsageError, did_you_mean, short
from fedtrees.core.files import no_local_file, unique_labels
from fedtrees.core.registry import register, with_present_names
from fedtrees.core.results import FORMULA, MOST_WHOLE
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
from fedtrees.data.partition import splits_columns
from fedtrees.experiments.table_spec import NAME_LISTS, TableSpec

DEFAULT_SUITE = "quick"
CHANGED = "custom"  # name of a suite after options replaced a part of it
MOST_SEEDS = 1000
MOST_CLIENTS = 1_000_000
_SOUND = re.compile("[^\0\ud800-\udfff]*")  # characters that a path and a file in UTF-8 can contain
MOST_SECONDS = 1e8  # three years, close to the limit of the timers of the system
MOST_TRAININGS = 1_000_000
ALL = "all"  # in a list of attacks: every attack that the list does not name


@dataclass(frozen=True)
class DataRef(TableSpec):
    """Source of a dataset: a name in the catalogue, or a user's table.

    Attributes
    ----------
    name : str
        Name in the catalogue, or name of the user's table in results.
    """

    name: str

    @classmethod
    def parse(cls, value: str | Mapping[str, Any]) -> DataRef:
        """Parse the data of a suite.

        Parameters
        ----------
        value : str or mapping
            A name, or a table such as ``{csv=..., target=...}``.

        Returns
        -------
        DataRef
            Reference whose table is not read yet.

        Raises
        ------
        UsageError
            If a key is unknown, a value is not text, or a path is an address or standard input.
        """
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping):
            raise UsageError(
                f"data={value!r}: give a name, or a table such as {{csv = 'file.csv'}}"
            )
        keys = {f.name for f in fields(cls)}
        for key, text in value.items():
            if key not in keys:
                raise UsageError(f"data has no key {short(key)!r}{did_you_mean(key, keys)}")
            several = key in NAME_LISTS and isinstance(text, (list, tuple))
            texts = text if several else [text]
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
                "data has id and client_column: id joins files with different columns of the same "
                "rows, and client_column names the client of each row; give one of them"
            )
        lists = {key: value.get(key, ()) for key in NAME_LISTS}
        tuples = {k: (v,) if isinstance(v, str) else tuple(v) for k, v in lists.items()}
        ref = cls(**{"name": "", **value, **tuples})
        return ref if ref.name else replace(ref, name=ref.label)

    def __post_init__(self) -> None:
        if self.name.startswith(FORMULA) or not self.name.isprintable():
            raise UsageError(
                f"data is called {self.name[:80]!r} in results, where a spreadsheet would take it "
                "for a formula, or for several lines: give it a name, or rename the file"
            )


#: Axes of a grid. Every combination of their values is run.
AXES = ("data", "partitions", "clients", "protocols", "defenses", "threats", "attacks")


@dataclass(frozen=True)
class Grid:
    """Axes of which every combination is run, each also with a blind adversary.

    Attributes
    ----------
    data, partitions, clients, protocols, defenses, threats, attacks : tuple
        The axes (`AXES`). In `attacks`, `all` means every attack of `contenders` that is not named
        explicitly.
    undefended : bool
        Whether to add the run without a defense. A grid omits it if another grid contains the run
        with which its results are compared, for example one of another protocol.
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
        """Parse a ``[[grid]]`` table, or the options of a command line.

        Parameters
        ----------
        table : mapping
            Values by key.

        Returns
        -------
        Grid
            Grid with defaults for the missing keys.

        Raises
        ------
        UsageError
            If a key is unknown, or a value cannot be read or is empty.
        """
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
        """Return the grid with threats that fit its protocols. Used if no threat was named.

        If a protocol has none of the roles in the threats of the grid, the threats in its attribute
        `ProtocolInfo.adversaries` are added.
        """
        threats = {t: None for t in self.threats for p in self.protocols if threat_fits(t, p)}
        for spec in self.protocols:
            if not any(threat_fits(t, spec) for t in self.threats):
                protocol = register.make("protocol", spec)
                adversaries: tuple[str, ...] = protocol.info.adversaries
                threats |= dict.fromkeys(adversaries)
        return replace(self, threats=tuple(threats))

    @property
    def every_attack(self) -> tuple[Spec, ...]:
        """The attacks, with `all` replaced by names."""
        named = [a for a in self.attacks if a != Spec(ALL)]
        if len(named) == len(self.attacks):
            return self.attacks
        unnamed = set(contenders()) - {a.name for a in named}
        return (*named, *map(Spec, sorted(unnamed)))

    @property
    def size(self) -> int:
        """Number of combinations of a training with an attack, per seed."""
        return math.prod(len(getattr(self, axis)) for axis in AXES)

    def with_undefended(self) -> Grid:
        """Return the grid with each defense once, and ``none`` first unless it is omitted."""
        added = (Composed(),) if self.undefended else ()
        defenses = tuple({str(d): d for d in (*added, *self.defenses)}.values())
        return replace(self, defenses=defenses)


def roles_of(protocol: Any, parties: int) -> dict[str, str]:
    """Return the role of every party of a protocol, including the recipient of the model.

    Parameters
    ----------
    protocol : Protocol
        The protocol.
    parties : int
        Number of parties with data.

    Returns
    -------
    dict of str to str
        Role by name.
    """
    roles = dict(protocol.roles(parties))
    return {**roles, PUBLIC: PUBLIC} if protocol.released else roles


@lru_cache(maxsize=256)
def threat_fits(threat: str, protocol: Spec) -> bool:
    """Return whether a protocol has all roles of a threat, and its parties all columns it needs.

    Parameters
    ----------
    threat : str
        The threat.
    protocol : Spec
        Protocol with its parameters.

    Returns
    -------
    bool
        Whether the threat can be tested on this protocol.
    """
    instance, parsed = register.make("protocol", protocol), Threat.parse(threat)
    if needs_complete_rows(parsed) and splits_columns(instance.layout):
        return False
    return set(roles_of(instance, 2).values()).issuperset(parsed.roles)


def needs_complete_rows(threat: Threat) -> bool:
    """Return whether a threat declares attributes of the victims' rows as known.

    It then fits only protocols whose parties have all columns of their rows.

    Parameters
    ----------
    threat : Threat
        The threat.

    Returns
    -------
    bool
        True if it names known or sensitive attributes.
    """
    return bool(threat.attributes or threat.sensitive is not None)


def _clients(items: Sequence[Any]) -> tuple[int, ...]:
    """Check numbers of clients."""
    for n in items:
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_CLIENTS:
            raise UsageError(f"clients={n!r}: give whole numbers, 1 to {MOST_CLIENTS}")
    return tuple(items)


def _threats(items: Iterable[str]) -> tuple[str, ...]:
    """Parse threats."""
    texts = [piece for item in items for piece in split_outside(item, ",")]
    return tuple(str(Threat.parse(t)) for t in texts)


def _data(items: Iterable[str | Mapping[str, Any] | DataRef]) -> tuple[DataRef, ...]:
    """Parse references to datasets."""
    refs: list[DataRef] = []
    for item in items:
        if isinstance(item, DataRef):
            refs.append(item)
            continue
        pieces = split_outside(item, ",") if isinstance(item, str) else [item]
        for piece in pieces:
            if isinstance(piece, str) and "[" in piece:  # parameters of a name can be a grid
                refs += map(DataRef, map(str, parse_list([piece])))
            else:
                refs.append(DataRef.parse(piece))
    return tuple(refs)


def _specs(items: Iterable[str]) -> tuple[Spec, ...]:
    """Parse specifications with parameters, which can be grids."""
    return tuple(parse_list(items))


def _defenses(items: list[Any]) -> tuple[Composed, ...]:
    """Parse compositions of defenses.

    If the budget of a part is missing, the part is run with each budget of its
    `DefenseInfo.bench_grid`.
    """
    grids = (itertools.product(*map(with_budgets, c.parts)) for c in parse_composed(items))
    return tuple(Composed(parts) for grid in grids for parts in grid)


def with_budgets(part: Spec) -> list[Spec]:
    """Return a part with each budget of its `bench_grid`, if it is given without a budget.

    Parameters
    ----------
    part : Spec
        A defense with parameters.

    Returns
    -------
    list of Spec
        One for each combination of the missing parameters of the grid. The part itself if none is
        missing, or if it is a plug-in that is not loaded yet.
    """
    if part.name not in register.names("defense"):
        return [part]  # the plug-in is not loaded yet
    bench_grid: Mapping[str, Sequence[float]] = register.get("defense", part.name).info.bench_grid  # type: ignore[attr-defined]
    missing = {key: values for key, values in bench_grid.items() if key not in part.params}
    combinations = itertools.product(*missing.values())
    return [
        Spec(part.name, {**part.params, **dict(zip(missing, values, strict=True))})
        for values in combinations
    ]


def _attacks(items: Iterable[str]) -> tuple[Spec, ...]:
    """Parse attacks, and replace former names."""
    return tuple(with_present_names("attack", spec) for spec in _specs(items))


_READERS = {
    "data": _data,
    "partitions": _specs,
    "clients": _clients,
    "protocols": _specs,
    "defenses": _defenses,
    "threats": _threats,
    "attacks": _attacks,
}


@dataclass(frozen=True)
class Suite:
    """A named set of grids with its seeds.

    Attributes
    ----------
    name, description : str
        Name and description in results.
    seeds : tuple of int
        Seeds of the repetitions.
    grids : tuple of Grid
        The grids.
    time_limit : float
        Seconds that one training or one attack may take, 0 for no limit.
    """

    name: str
    description: str = ""
    seeds: tuple[int, ...] = (0, 1, 2)
    grids: tuple[Grid, ...] = field(default=(Grid(),))
    time_limit: float = 0.0

    @classmethod
    def parse(cls, text: str, source: str) -> Suite:
        """Parse a suite in TOML.

        Parameters
        ----------
        text : str
            The suite.
        source : str
            Name of the file, for messages and as the default name of the suite.

        Returns
        -------
        Suite
            The suite.

        Raises
        ------
        UsageError
            If the text is not TOML or contains unknown keys or invalid values.
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
        """Build a suite from a parsed table."""
        # `table` and `compare` describe the tables and the published values of a study
        # (`fedtrees.benchmarks.papers.tables` and `comparisons`).
        keys = {"name", "description", "seeds", "grid", "time_limit", "table", "compare"}
        for key in table:
            if key not in keys:
                raise UsageError(f"unknown key {short(key)!r}{did_you_mean(key, keys)}")
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
        # A typing error in a grid can produce millions of combinations.
        if size > MOST_TRAININGS:
            raise UsageError(
                f"{size} combinations of trainings and attacks; at most {MOST_TRAININGS}: split it"
            )

    @classmethod
    def load(cls, name: str) -> Suite:
        """Load a bundled suite by name, or a TOML file by path.

        Parameters
        ----------
        name : str
            Name or path.

        Returns
        -------
        Suite
            The suite.

        Raises
        ------
        UsageError
            If there is no such suite or it cannot be parsed.
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

        The result has another name and description (`CHANGED`), which describe what is run.
        `fedtrees.experiments.defaults` selects values that fit the replaced ones.

        Parameters
        ----------
        options : mapping
            New values by grid key, as in `Grid.parse`.
        seeds : str, optional
            New seeds, as in `parse_seeds`.

        Returns
        -------
        Suite
            The changed suite.
        """
        grids = self.grids
        if options:
            changed = Grid.parse(options)
            values = {key: getattr(changed, key) for key in options}
            # There may be no other grid with a run to compare with.
            if {"protocols", "defenses"} & {*options}:
                values["undefended"] = True
            grids = tuple(replace(g, **values).with_undefended() for g in self.grids)
        return self.of(grids, self.seeds if seeds is None else parse_seeds(seeds))

    def of(self, grids: Sequence[Grid], seeds: Sequence[int] = ()) -> Suite:
        """Return a suite of the given grids, each once.

        If it differs from this suite, it gets the name `CHANGED` and a description of its contents.

        Parameters
        ----------
        grids : sequence of Grid
            The grids.
        seeds : sequence of int
            The seeds. Empty for those of this suite.

        Returns
        -------
        Suite
            The new suite, or an equal one.
        """
        # Grids are compared by their contents, because replaced keys can make two grids equal.
        unique = {json.dumps(_grid_table(g), sort_keys=True): g for g in grids}
        suite = replace(self, grids=tuple(unique.values()), seeds=tuple(seeds or self.seeds))
        return suite if suite == self else suite._named_by_what_it_runs()

    def _named_by_what_it_runs(self) -> Suite:
        """Return the suite with a name and a description that are derived from its grids."""
        table: dict[str, dict[str, None]] = {}
        for grid in self.grids:
            for axis in AXES:
                for value in getattr(grid, axis):
                    text = value if isinstance(value, (str, int)) else value.name
                    table.setdefault(axis, {})[str(text)] = None
        axes_text = "; ".join(f"{key} {', '.join(values)}" for key, values in table.items())
        seeds = ", ".join(map(str, self.seeds[:5])) + (", ..." if len(self.seeds) > 5 else "")
        description = f"Options of the command line: {axes_text}; seeds {seeds}."
        return replace(self, name=CHANGED, description=description)

    def to_toml(self) -> str:
        """Write the suite as TOML.

        Returns
        -------
        str
            Text that `parse` reads.
        """
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
    """Return grids in which different tables have different names in results.

    Files with the same name get the names of their folders. If one file is read in several ways,
    the tables get numbers.
    """
    refs = dict.fromkeys(ref for grid in grids for ref in grid.data if ref.csv)
    by_name: dict[str, list[DataRef]] = {}
    for ref in refs:
        by_name.setdefault(ref.name, []).append(ref)
    renamed: dict[DataRef, DataRef] = {}
    for name, of_name in by_name.items():
        labels = unique_labels([ref.csv for ref in of_name])
        if len({*labels}) < len(labels):
            labels = [f"{name}-{k + 1}" for k in range(len(of_name))]
        if len(of_name) > 1:
            pairs = zip(of_name, labels, strict=True)
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
    """Parse seeds.

    Parameters
    ----------
    value : int, str or list
        A number n means 0 to n - 1. A list such as ``4,7,9`` means exactly these seeds.

    Returns
    -------
    tuple of int
        The seeds.

    Raises
    ------
    UsageError
        If a seed is not valid or occurs twice, or if there are too many.

    Examples
    --------
    >>> parse_seeds(3), parse_seeds("4,7,9")
    ((0, 1, 2), (4, 7, 9))
    """
    items = value if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(each, bool) or not isinstance(each, (int, str)) for each in items):
        raise UsageError(f"seeds={value!r}: give a count such as 3, or a list such as [0, 1, 2]")
    text = ",".join(map(str, items))
    listed = isinstance(value, (list, tuple)) or "," in text
    try:
        numbers = [_parse_integer(part) for part in text.split(",") if part.strip()]
    except ValueError:
        rule = "give a count such as 3, or a list such as 0,1,2"
        raise UsageError(f"seeds={text[:120]!r}: {rule}") from None
    if (len(numbers) if listed else max(numbers, default=0)) > MOST_SEEDS:
        raise UsageError(f"seeds={short(text)!r}: give at most {MOST_SEEDS} seeds")
    seeds = tuple(numbers) if listed else tuple(range(max(numbers, default=0)))
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        single = (
            f"; one number without a comma is the number of seeds, and '{text},' is the seed {text}"
        )
        raise UsageError(
            f"seeds={text!r}: give at least one seed, no seed twice, and no negative seed"
            f"{'' if listed else single}"
        )
    if max(seeds) > MOST_WHOLE:
        raise UsageError(
            f"seeds={text!r}: the largest seed is {MOST_WHOLE}, because a table stores "
            "numbers as floats"
        )
    return seeds


def _parse_integer(text: str) -> int:
    """Return an integer, as `parse_value` parses it. Raise ValueError for any other text."""
    value = parse_value(text)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError
    return value


def _text(key: str, value: Any) -> str:
    """Return a text. Raise `UsageError` for any other type."""
    if not isinstance(value, str):
        raise UsageError(f"{key}={value!r}: give text")
    return value


def _name(value: Any) -> str:
    """Check the name of a suite, which is also the name of its folder."""
    name = _text("name", value)
    if not (name.strip() and name.isprintable()) or not re.fullmatch(r"[^./\\][^/\\]{0,99}", name):
        rule = "give 1 to 100 characters that can name a folder, no slash"
        raise UsageError(f"name={name[:120]!r}: {rule}")
    return name


def _grid_table(grid: Grid) -> dict[str, Any]:
    """Return a grid as a TOML table."""
    axes = {axis: list(map(_plain, getattr(grid, axis))) for axis in AXES}
    return axes if grid.undefended else {**axes, "undefended": False}


def _plain(value: Any) -> Any:
    """Return a value of an axis as a TOML value."""
    if not isinstance(value, DataRef):
        return value if isinstance(value, int) else str(value)
    if not value.csv:
        return value.name
    table = {"name": value.name, **vars(value)}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in table.items() if v}


def _toml(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # JSON writes this character unchanged, but TOML does not allow it.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
