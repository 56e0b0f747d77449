"""Define the options of a benchmark: for the command line, for Python, and next to a suite file.

The fields of `BenchOptions` are the options with their flags, and its docstring describes them.
`fedtrees.cli.options` derives the parameters of the command from both.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtrees.core.errors import UsageError, check_margin
from fedtrees.experiments.table_spec import TableSpec, parse_table_options

if TYPE_CHECKING:
    from fedtrees.experiments.session import BenchSession
    from fedtrees.experiments.suite import DataRef, Suite
    from fedtrees.protocols.base import Protocol

#: Options that replace a key of a grid, with the name of the key.
GRID = {
    "protocol": "protocols",
    "defense": "defenses",
    "attack": "attacks",
    "partition": "partitions",
    "clients": "clients",
    "threat": "threats",
    "data": "data",
}


#: Panels of the help of commands, in their order. Each option declares its panel.
PANELS = DATA, FEDERATION, DEFENSE, RUN, OUTPUT = (
    "Data",
    "Federation",
    "Defense and attack",
    "Run control",
    "Output",
)


#: Smallest memory limit in GiB. A worker process with numpy, scipy and the compiled kernels has a
#: data segment of 0.25 to 0.3 GiB before it computes a task. With less, imports fail at random.
_LEAST_MEMORY = 0.5

#: Options whose values can be classes and instances in Python.
_CLASSES = ("protocol", "defense", "attack")


def _option(panel: str, metavar: str, *flags: str, default: Any = (), names: str = "") -> Any:
    """Declare an option.

    Parameters
    ----------
    panel : str
        Panel of the help in which the command line lists the option, one of `PANELS`.
    metavar : str
        Placeholder of the value in the help, "" for a switch.
    *flags : str
        Flags, if they differ from the name of the field.
    default : object
        Value without the option.
    names : str
        Kind of the names that a shell completes, "" for none.
    """
    metadata = {"flags": flags, "names": names, "panel": panel, "metavar": metavar}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of a benchmark, checked as far as possible without reading a file.

    Several values can be given as a list, a single value as a text. The command line shows the
    descriptions of the attributes as the help of its options.

    Attributes
    ----------
    protocol : tuple of str
        Protocols, with grids: fedtree-hist[max_depth=3,6].
    defense : tuple of str
        Defenses, with grids: split-only, laplace-hist[epsilon=1,4].
    attack : tuple of str
        Attacks, with parameters.
    data : tuple of str
        Datasets (see `fedtrees list datasets`).
    csv : tuple of str
        Your table: CSV, .xlsx, .parquet or .feather. Repeat the option to give one file per client
        or, with --id, one file per vertical party.
    target : str
        Target column of --csv.
    task : str
        Kind of the target of --csv: binary, classes or number (default: inferred).
    positive : str
        Positive class of --csv.
    id : str
        Column by which the files of vertical parties are joined. The file with labels is first.
    client_column : str
        Column of --csv with the name of the client that has the row.
    categorical : tuple of str
        Further columns of --csv to treat as categories (repeat, or separate by commas).
    keep : tuple of str
        Columns of --csv to use although they look like ids, dates or free text.
    drop : tuple of str
        Columns of --csv to leave out.
    sep : str
        Separator of the CSV file, one character or 'tab' (default: inferred).
    decimal : str
        Decimal mark of --csv, . or , for columns whose values do not show it.
    missing : tuple of str
        Marks of missing cells of --csv, in addition to empty cells (repeat, or separate by commas;
        '': none). Default marks include NA, N/A, nan, null, none, ? and -.
    sheet : str
        Sheet of an .xlsx file, by name or number.
    partition : tuple of str
        iid, label-skew[alpha=], quantity-skew, ...
    clients : tuple of int
        Number of parties with data.
    threat : tuple of str
        Adversaries instead of the default ones: client, client[count=2], server, public,
        server+client (together); passive, active.
    seeds : str or None
        A number of seeds, or a list such as 0,1,2 (default: as in the suite).
    suite : str
        smoke, quick (default), full, or a .toml file.
    jobs : int or None
        Processes (default: all cores).
    output : str
        Run folder (default: runs/SUITE, or runs/custom if options change the suite; runs/advice for
        recommend).
    resume : bool
        Continue the run in --output. Finished cells are not computed again.
    time_limit : float or None
        Time limit of one training or attack in seconds (0: no limit).
    memory : float
        Memory limit of one training or attack in GiB (0: no limit).
    margin : float or None
        Largest advantage over a blind guess that counts as no leak (default: 0.05).
    data_dir : str or None
        Folder with data files (default: $FEDTREES_DATA, or a folder of the user).
    plugin : tuple of str
        Python file with @register decorators (repeatable).
    unprotected : bool
        Run attacks of plug-ins even if the system cannot restrict them (no Landlock).

    Raises
    ------
    UsageError
        If a value has the wrong type or is out of range, or if options contradict each other.
    """

    protocol: tuple[str, ...] = _option(
        FEDERATION, "PROTOCOL", "-p", "--protocol", names="protocol"
    )
    defense: tuple[str, ...] = _option(DEFENSE, "DEFENSE", "-d", "--defense", names="defense")
    attack: tuple[str, ...] = _option(DEFENSE, "ATTACK", "-a", "--attack", names="attack")
    data: tuple[str, ...] = _option(DATA, "NAME", "--data", names="dataset")
    csv: tuple[str, ...] = _option(DATA, "FILE")
    target: str = _option(DATA, "COLUMN", default="")
    task: str = _option(DATA, "KIND", default="")
    positive: str = _option(DATA, "CLASS", default="")
    id: str = _option(DATA, "COLUMN", default="")
    client_column: str = _option(DATA, "COLUMN", default="")
    categorical: tuple[str, ...] = _option(DATA, "COLUMN")
    keep: tuple[str, ...] = _option(DATA, "COLUMN")
    drop: tuple[str, ...] = _option(DATA, "COLUMN")
    sep: str = _option(DATA, "CHARACTER", default="")
    decimal: str = _option(DATA, "CHARACTER", default="")
    missing: tuple[str, ...] = _option(DATA, "TEXT")
    sheet: str = _option(DATA, "NAME", default="")
    partition: tuple[str, ...] = _option(FEDERATION, "PARTITION")
    clients: tuple[int, ...] = _option(FEDERATION, "N")
    threat: tuple[str, ...] = _option(DEFENSE, "THREAT")
    seeds: str | None = _option(RUN, "N", default=None)
    suite: str = _option(RUN, "NAME", default="")
    jobs: int | None = _option(RUN, "N", "-j", "--jobs", default=None)
    output: str = _option(OUTPUT, "FOLDER", "-o", "--output", default="")
    resume: bool = _option(RUN, "", "--resume", default=False)
    time_limit: float | None = _option(RUN, "SECONDS", default=None)
    memory: float = _option(RUN, "GIB", default=0.0)
    margin: float | None = _option(OUTPUT, "NUMBER", default=None)
    data_dir: str | None = _option(DATA, "FOLDER", default=None)
    plugin: tuple[str, ...] = _option(DEFENSE, "FILE")
    unprotected: bool = _option(RUN, "", "--unprotected", default=False)

    def __post_init__(self) -> None:
        for item in fields(self):
            read = _read(item.name, getattr(self, item.name), item.default)
            object.__setattr__(self, item.name, read)
        if self.margin is not None:
            check_margin(self.margin)
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"--jobs {self.jobs}: give 1 or more")
        if self.time_limit is not None and not 0 <= self.time_limit < float("inf"):
            raise UsageError(f"--time-limit {self.time_limit}: give seconds, 0 for no limit")
        if self.memory and not _LEAST_MEMORY <= self.memory < float("inf"):
            raise UsageError(
                f"--memory {self.memory}: give at least {_LEAST_MEMORY} GiB, because Python and "
                "its libraries need 0.3 GiB, or 0 for no limit"
            )
        if self.resume and not self.output:
            raise UsageError("--resume needs --output RUN: which run to finish")
        # Computed at construction, so that contradictions are reported early.
        assert self.table is None or self.table.csv

    @cached_property
    def table(self) -> TableSpec | None:
        """Description of the user's table, None if there is none."""
        return parse_table_options(vars(self), self.data)

    @cached_property
    def grid(self) -> dict[str, Any]:
        """Keys of a grid that replace those of the suite.

        A table that states which client has each row also determines the number of clients.
        """
        keys = {key: list(getattr(self, name)) for name, key in GRID.items()}
        ref = reference_of(self.table)
        keys |= {"data": [ref]} if ref else {}
        return clients_of_table(ref, {k: v for k, v in keys.items() if v}, self.data_dir)

    def _suite_and_folder(self) -> tuple[Suite, Path, str]:
        """Return the suite to run, its folder, and a note on the values that were chosen to fit.

        Raises `UsageError` if a name is unknown, or if ``--resume`` refers to a run with other
        options.
        """
        from fedtrees.experiments.defaults import complete_suite, describe_defaults
        from fedtrees.experiments.session import fresh_folder
        from fedtrees.experiments.session import read_suite_of_run as reopen
        from fedtrees.experiments.suite import DEFAULT_SUITE, Suite

        begun, note = reopen(Path(self.output)) if self.resume else None, ""
        suite = begun.override(self.grid, self.seeds) if begun is not None else None
        if suite is None or self.suite or suite != begun:
            base = Suite.load(self.suite or DEFAULT_SUITE)
            if self.time_limit is not None:
                base = replace(base, time_limit=self.time_limit)
            suite = complete_suite(base, self.grid, self.seeds, self.data_dir)
            note = describe_defaults(base, self.grid, suite) if begun is None else ""
        # Resuming with other options would mix results of different suites in one folder.
        if begun is not None and replace(suite, time_limit=begun.time_limit) != begun:
            raise UsageError(
                f"--resume finishes {self.output} with the options of its first start; for other "
                "options choose another --output"
            )
        if self.time_limit is not None:
            suite = replace(suite, time_limit=self.time_limit)
        folder = Path(self.output) if self.output else fresh_folder(Path("runs"), suite.name)
        return suite, folder, note

    def session(self) -> BenchSession:
        """Return the benchmark after all checks, before anything is written."""
        from fedtrees.experiments.session import BenchSession, default_workers

        plugins = load_plugins(self.plugin, self.unprotected, self.time_limit)
        suite, folder, note = self._suite_and_folder()
        workers = default_workers() if self.jobs is None else self.jobs
        bench = BenchSession(suite, folder, workers, self.data_dir, plugins, self.memory)
        print_notes([note for note in (note, describe_missing_restrictions()) if note])
        return bench


def _read(name: str, value: Any, default: Any) -> Any:
    """Return the value of an option in the type of its field: several values as a tuple."""
    if value is None:
        return default
    if name == "seeds" and not isinstance(value, str):
        return str(value) if isinstance(value, int) else ",".join(map(str, value)) + ","
    if not isinstance(default, tuple):
        # Paths are accepted wherever a text is.
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        if isinstance(default, str) and not isinstance(text, str):
            raise UsageError(f"{name}={value!r}: give text")
        return text
    if name == "clients":
        return (value,) if isinstance(value, int) else tuple(value)
    if name in _CLASSES and not isinstance(value, str):
        several = value if isinstance(value, list | tuple) else [value]
        return tuple(text_of(name, one) for one in several)
    return parse_texts(value, name)


def text_of(kind: str, value: Any) -> str:
    """Return a protocol, a defense or an attack in the notation of the command line.

    Parameters
    ----------
    kind : {"protocol", "defense", "attack"}
        Kind of the value.
    value : str, class, instance or Composition
        A text, a registered class, an instance of one, or several defenses.

    Returns
    -------
    text : str
        Name and the parameters that differ from their defaults, for example
        ``"laplace-hist[epsilon=4]"``.

    Raises
    ------
    UsageError
        If the class is not registered, because every process of a benchmark creates it by its name.

    Examples
    --------
    >>> from fedtrees.defenses.laplace import LaplaceHist
    >>> text_of("defense", LaplaceHist(epsilon=4.0))
    'laplace-hist[epsilon=4]'
    """
    from fedtrees.core.composition import Composition
    from fedtrees.core.registry import register
    from fedtrees.core.specs import Spec

    if isinstance(value, str):
        return value
    if kind == "defense" and isinstance(value, Composition):
        return "+".join(text_of(kind, part) for part in value.parts) or "none"
    maker = value if isinstance(value, type) else type(value)
    name = getattr(maker, "name", "")
    if name not in register.names(kind) or register.get(kind, name) is not maker:
        raise UsageError(
            f"{kind}={value!r}: give a text such as those of `fedtrees list {kind}s`, or an "
            f"instance of a class with @register.{kind}"
        )
    if maker is value:
        return str(Spec(name))
    changed = {
        item.name: getattr(value, item.name)
        for item in fields(value)
        if item.init and getattr(value, item.name) != item.default
    }
    return str(Spec(name, changed))


def parse_texts(value: str | Path | Sequence[str | Path] | None, name: str = "") -> tuple[str, ...]:
    """Return the values of an option that accepts one text or several. A path is a text, too.

    Raises `UsageError` if the value is neither. `name` is the name of the option in the message.
    """
    values = [value] if isinstance(value, str | Path) else value
    if values is None:
        return ()
    if isinstance(values, Sequence) and all(isinstance(text, str | Path) for text in values):
        return tuple(map(str, values))
    table = ", a DataFrame or (X, y)" if name == "data" else ""
    raise UsageError(f"{name}={value!r}: give a text or a list of texts{table}")


def reference_of(table: TableSpec | None) -> DataRef | None:
    """Return a user's table with its name in results, None without a table."""
    from fedtrees.experiments.suite import DataRef

    return None if table is None else DataRef.parse({k: v for k, v in vars(table).items() if v})


def clients_of_table(
    ref: DataRef | None, grid: Mapping[str, Any], data_dir: str | None
) -> dict[str, Any]:
    """Return a grid with the partition and the number of parties that the table determines.

    A grid that names a partition is returned unchanged.

    Parameters
    ----------
    ref : DataRef or None
        The user's table, None without one.
    grid : mapping
        Keys of a grid.
    data_dir : str or None
        Folder of the downloaded tables.

    Raises
    ------
    DataError or UsageError
        As `fedtrees.data.client_tables.load_clients`.
    """
    from fedtrees.data.partition import BY_CLIENT, BY_FILE
    from fedtrees.experiments.federation import load_dataset

    if ref is None or grid.get("partitions"):
        return dict(grid)
    if ref.id and len(ref.files) > 1:
        clients = grid.get("clients") or [len(ref.files)]
        return {**grid, "partitions": [BY_FILE], "clients": clients}
    if not ref.states_clients:
        return dict(grid)
    count = len(load_dataset(ref, data_dir).owner_names)
    return {**grid, "partitions": [BY_CLIENT], "clients": grid.get("clients") or [count]}


def load_plugins(
    files: Sequence[str] | None, unprotected: bool = False, time_limit: float | None = None
) -> tuple[str, ...]:
    """Load plug-in files and return their names.

    Parameters
    ----------
    files : sequence of str or None
        Python files with ``@register`` decorators.
    unprotected : bool
        Whether attacks of these files may run on a system that cannot restrict them.
    time_limit : float, optional
        Seconds that the import of each file, and later of each installed plug-in, may take. 0 sets
        no limit. The default is `fedtrees.core.registry.IMPORT_SECONDS`.
    """
    from fedtrees.core.registry import IMPORT_SECONDS, load_plugin, register

    register.imports.unprotected = unprotected
    register.imports.seconds = IMPORT_SECONDS if time_limit is None else time_limit
    if files:
        import fedtrees.isolation.plugins  # registers attacks without running their code

        assert fedtrees.isolation.plugins
    for file in files or ():
        load_plugin(file)
    return tuple(files or ())


def describe_missing_restrictions() -> str:
    """Return a warning if this system cannot restrict attacks, "" if it can."""
    from fedtrees.isolation.sandbox import call_numbers as numbers
    from fedtrees.isolation.sandbox import landlock_version as version

    if version() and numbers():
        return ""
    return (
        "warning: this system cannot restrict the access of attacks to files and processes of this "
        "user, which needs Linux 5.13 or newer with Landlock. Built-in attacks run as usual; "
        "attacks of plug-ins run with --unprotected only"
    )


def print_notes(notes: Sequence[str]) -> None:
    """Print notes on stderr, each in a paragraph that fits the terminal."""
    width = max(40, shutil.get_terminal_size().columns)
    for note in notes:
        text = textwrap.fill(
            note, width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
        print(text, file=sys.stderr)


def print_warnings(warnings: Sequence[str]) -> None:
    """Print warnings as notes that begin with "warning:"."""
    print_notes([f"warning: {text}" for text in warnings])


def check_clients(clients: int) -> None:
    """Raise `UsageError` if there is no client."""
    if clients < 1:
        raise UsageError(f"--clients {clients}: a federation needs at least one client")


def check_parties(protocol: Protocol, clients: int) -> None:
    """Raise `UsageError` if a protocol would have one party only, without a party to talk to."""
    if len(protocol.roles(clients)) < 2:
        raise UsageError(
            f"--clients {clients}: {protocol.name!r} would be a single party without another "
            "one to train with; give 2 or more (the number of all parties with data)"
        )
