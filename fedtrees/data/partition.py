"""Distribute a table over parties: by rows (horizontal), by columns (vertical), or completely.

`Partition` names a function of `PARTITIONS`, which gives each client some rows, or one of
`COLUMN_PARTITIONS`, which gives each party some columns of all rows. `lay_out` applies it in the
layout that a protocol needs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, UsageError, check_positive, did_you_mean, many
from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Schema, Table

Rows = NDArray[np.intp]

# Number of draws of client sizes. After that, rows are moved to clients that are too small.
_SIZE_DRAWS = 1000


def iid(table: Table, schema: Schema, clients: int, rng: np.random.Generator) -> list[Rows]:
    """Give every client an equal share of the rows in random order.

    The sizes differ by at most one.
    """
    return list(np.array_split(rng.permutation(len(table)), clients))


def label_skew(
    table: Table, schema: Schema, clients: int, rng: np.random.Generator, *, alpha: float = 0.5
) -> list[Rows]:
    """Distribute the rows of each class over the clients in Dirichlet(alpha) proportions.

    With a small `alpha` (> 0), each client has rows of nearly one class. The method is that of Hsu,
    Qi and Brown 2019 in the per-class form of Li et al. 2022 (NIID-BenchSession).

    Raises `UsageError` if the target is a number.
    """
    check_positive("alpha", alpha)
    if not schema.classes:
        raise UsageError(
            f"label-skew spreads classes, the target {schema.target!r} is a number; use iid, "
            "quantity-skew or feature-bands"
        )
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    for label in np.unique(table.y):
        rows = rng.permutation(np.flatnonzero(table.y == label))
        cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(rows)
        for part, chunk in zip(parts, np.split(rows, cuts.astype(int)), strict=True):
            part.append(chunk)
    return [np.concatenate(part) for part in parts]


def quantity_skew(
    table: Table,
    schema: Schema,
    clients: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.3,
    min_size: int | None = None,
) -> list[Rows]:
    """Draw client *sizes* from Dirichlet(alpha) until every client has `min_size` rows.

    Labels and features remain i.i.d. This is the partition of the published TimberStrike runs (Di
    Gennaro et al., ``niid_type: sample``, alpha 0.3, at least 50 rows): the cumulative sums of a
    Dirichlet vector divide a random order.

    Parameters
    ----------
    table, schema : Table, Schema
        The rows, and their columns.
    clients : int
        Number of clients.
    rng : numpy.random.Generator
        Randomness of sizes and order.
    alpha : float
        Concentration. Small values give very different sizes.
    min_size : int, optional
        Smallest size. The default is 50, or half an equal share if that is less. If `_SIZE_DRAWS`
        draws fail (many clients, small alpha), rows of the largest client of the last draw are
        moved to clients below the minimum.

    Returns
    -------
    parts : list of int array
        Row numbers of each client.
    """
    check_positive("alpha", alpha)
    n = len(table)
    least = max(1, min(50, n // (2 * clients))) if min_size is None else int(min_size)
    if least < 1 or least * clients > n:
        raise DataError(
            f"quantity-skew: min_size={least} for {clients} clients needs {least * clients} rows, "
            f"the table has {n}; lower min_size or the number of clients"
        )
    order = rng.permutation(n)
    for _ in range(_SIZE_DRAWS):
        shares = rng.dirichlet(np.full(clients, alpha))
        cuts = (np.cumsum(shares)[:-1] * n).astype(int)
        sizes = np.diff(np.concatenate([[0], cuts, [n]]))
        if sizes.min() >= least:
            break
    while sizes.min() < least:
        moved = min(least - sizes.min(), sizes.max() - least)
        smallest, largest = sizes.argmin(), sizes.argmax()
        sizes[smallest] += moved
        sizes[largest] -= moved
    return list(np.split(order, np.cumsum(sizes)[:-1]))


def feature_bands(
    table: Table,
    schema: Schema,
    clients: int,
    rng: np.random.Generator,
    *,
    feature: str | None = None,
) -> list[Rows]:
    """Give every client one quantile band of a feature (default: the first continuous one).

    The published scalability runs use bands of age. All bands have equally many rows. Rows with
    equal values are in random order, so that a border within equal values divides them. Borders
    that are computed from the values would leave some clients empty. Missing values come last.
    """
    if feature is None:
        names = [f.name for f in schema.features if f.kind == "continuous"] or list(schema.names)
        feature = names[0]
    if feature not in schema.names:
        raise UsageError(
            f"feature-bands: unknown feature {feature!r}{did_you_mean(feature, schema.names)}"
        )
    shuffled = rng.permutation(len(table))
    values = table.X[shuffled, schema.names.index(feature)]
    return list(np.array_split(shuffled[np.argsort(values, kind="stable")], clients))


#: Name in a suite -> function ``(table, schema, clients, rng, **parameters) -> rows per client``.
PARTITIONS: dict[str, Callable[..., list[Rows]]] = {
    "iid": iid,
    "label-skew": label_skew,
    "quantity-skew": quantity_skew,
    "feature-bands": feature_bands,
}


#: Partition by the owners that the table contains (`Dataset.owners`).
BY_CLIENT = "by-client"

Columns = dict[str, NDArray[np.intp]]


def iid_columns(
    schema: Schema, names: Sequence[str], rng: np.random.Generator, parameters: Mapping[str, Any]
) -> Columns:
    """Distribute the columns in random order, in shares of equal size.

    The sizes differ by at most one.
    """
    d = len(schema.features)
    if len(names) > d:
        raise UsageError(f"{len(names)} parties cannot share {d} columns; give fewer parties")
    return dict(zip(names, np.array_split(rng.permutation(d), len(names)), strict=True))


def shares(
    schema: Schema, names: Sequence[str], rng: np.random.Generator, parameters: Mapping[str, Any]
) -> Columns:
    """Give named parties a share of the columns in random order, ``shares[active=0.5]``.

    A share of d columns consists of ``int(share * d)`` columns, as in the code of Takahashi et al.
    (2023). The parties that are not named divide the remaining columns equally.
    """
    order, out = rng.permutation(len(schema.features)), Columns()
    for name, share in parameters.items():
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if not number or not 0 <= share <= 1:
            raise UsageError(f"shares: {name}={share!r}; give a share of the columns, from 0 to 1")
    counts = [int(share * len(order)) for share in parameters.values()]
    if sum(counts) > len(order):
        raise UsageError(
            f"shares: {sum(parameters.values()):g} of the columns; at most all of them"
        )
    for name, count in zip(parameters, counts, strict=True):
        out[name], order = order[:count], order[count:]
    return _rest(out, names, order, schema)


def named(
    schema: Schema, names: Sequence[str], rng: np.random.Generator, parameters: Mapping[str, Any]
) -> Columns:
    """Give parties the columns that are named, ``named[passive-1=Age|Height]``.

    The parties that are not named divide the remaining columns, in the order of the schema.
    """
    left, out = dict.fromkeys(schema.names), Columns()
    for name, text in parameters.items():
        requested = [part.strip() for part in str(text).split("|") if part.strip()]
        for column in requested:
            if column not in left:
                taken = "; it is named twice" if column in schema.names else ""
                hint = taken or did_you_mean(column, left)
                raise UsageError(f"named: no column {column!r} is left{hint}")
            del left[column]
        out[name] = np.array([schema.names.index(c) for c in requested], dtype=np.intp)
    rest = np.array([schema.names.index(c) for c in left], dtype=np.intp)
    return _rest(out, names, rest, schema)


def _rest(out: Columns, names: Sequence[str], columns: NDArray[np.intp], schema: Schema) -> Columns:
    """Divide the remaining columns equally over the parties that have none yet.

    Raises `UsageError` if columns remain and every party already has its columns.
    """
    remaining = [name for name in names if name not in out]
    if len(columns) and not remaining:
        some = ", ".join(schema.names[c] for c in columns[:5].tolist())
        raise UsageError(
            f"{len(columns)} columns are not assigned ({some}); assign them to a party, "
            "or leave one party out of the list, which then receives the rest"
        )
    parts = np.array_split(columns, len(remaining)) if remaining else []
    return {**out, **dict(zip(remaining, parts, strict=True))}


#: Name in a suite -> function of the schema, the parties, the randomness, and the parameter of each
#: party.
COLUMN_PARTITIONS: dict[str, Callable[..., Columns]] = {
    "iid": iid_columns,
    "shares": shares,
    "named": named,
}
#: Partition in which the columns of every party are those of its file.
BY_FILE = "by-file"


def spread_columns(
    name: str,
    parameters: Mapping[str, Any],
    schema: Schema,
    names: Sequence[str],
    rng: np.random.Generator,
    files: Sequence[Sequence[int]] = (),
) -> Columns:
    """Return the columns of each party.

    Parameters
    ----------
    name : str
        Key of `COLUMN_PARTITIONS`, or ``by-file``. A table that was read from one file per party is
        partitioned by file if the name is ``iid``, the default.
    parameters : mapping of str to object
        Parameter of each named party, for example its share.
    schema : Schema
        The columns.
    names : sequence of str
        The parties, the one with the labels first.
    rng : numpy.random.Generator
        Randomness of the partition.
    files : sequence of sequence of int, optional
        Columns of each file if the table was read from several files.

    Returns
    -------
    columns : dict of str to int array
        Ascending positions in the schema.

    Raises
    ------
    UsageError
        If the partition, a party or a column is unknown, shares add up to more than 1, or there are
        more parties than columns or files.
    """
    unknown = [party for party in parameters if party not in names]
    if unknown:
        raise UsageError(
            f"partition {name!r}: no party {unknown[0]!r}{did_you_mean(unknown[0], names)}; there "
            f"are {', '.join(names)}"
        )
    if name == BY_FILE or (name == "iid" and files):
        if len(files) != len(names):
            raise UsageError(
                f"partition 'by-file': one party per file, but there are {len(names)} parties and "
                f"{many(len(files), 'file')} joined by an id; "
                + (
                    f"use --clients {len(files)}"
                    if len(files) > 1
                    else "give one file per party, --csv a.csv,b.csv, and --id"
                )
            )
        assigned = dict(zip(names, (np.array(f, dtype=np.intp) for f in files), strict=True))
    elif name in COLUMN_PARTITIONS:
        assigned = COLUMN_PARTITIONS[name](schema, names, rng, parameters)
    else:
        available = ", ".join([*COLUMN_PARTITIONS, BY_FILE])
        raise UsageError(f"partition {name!r} spreads rows; columns are spread by {available}")
    return {party: np.sort(assigned[party]).astype(np.intp) for party in names}


#: Partitions that exist only for columns.
OF_COLUMNS = ({*COLUMN_PARTITIONS} - {*PARTITIONS}) | {BY_FILE}


@dataclass(frozen=True)
class Partition:
    """A partition by name with its parameters, validated at construction.

    Raises `UsageError` if the name or a parameter is unknown.
    """

    name: str = "iid"  # key of `PARTITIONS` or `COLUMN_PARTITIONS`, or a partition below
    params: Mapping[str, Any] = field(default_factory=dict)  # keyword parameters of that function

    def __post_init__(self) -> None:
        if self.name == BY_CLIENT and not self.params:
            return
        if self.name in OF_COLUMNS:
            # The parameters are names of parties. They are checked once the parties are known.
            return
        if self.name not in PARTITIONS:
            every = [*PARTITIONS, *OF_COLUMNS, BY_CLIENT]
            raise UsageError(f"unknown partition {self.name!r}{did_you_mean(self.name, every)}")
        allowed = parameters(self.name)
        for key in self.params:
            if key not in allowed:
                raise UsageError(
                    f"partition {self.name!r} has no parameter {key!r}{did_you_mean(key, allowed)}"
                    if allowed
                    else f"partition {self.name!r} takes no parameters; got {key!r}"
                )

    def __str__(self) -> str:
        inside = ",".join(f"{k}={v}" for k, v in self.params.items())
        return f"{self.name}[{inside}]" if inside else self.name


def parameters(name: str) -> dict[str, Any]:
    """Return the keyword parameters of a partition with their defaults."""
    signature = inspect.signature(PARTITIONS[name])
    return {p.name: p.default for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}


def split(
    partition: Partition | str, table: Table, schema: Schema, clients: int, rng: np.random.Generator
) -> list[Rows]:
    """Return the row numbers of each client.

    Parameters
    ----------
    partition : Partition or str
        A name stands for this partition with its default parameters.
    table : Table
        The rows.
    schema : Schema
        Their columns and classes.
    clients : int
        Number of clients, from 1 to the number of rows.
    rng : numpy.random.Generator
        Randomness of the partition.

    Returns
    -------
    parts : list of int array
        Sorted and disjoint row numbers that together cover the table. No client is empty: a client
        without rows receives one row of the largest client. Clients with one row or one class are
        possible.

    Raises
    ------
    DataError
        If there are more clients than rows, or fewer than one client.
    UsageError
        If the partition, a parameter or a feature is unknown, or a parameter is out of its range.
    """
    if isinstance(partition, str):
        partition = Partition(partition)
    if clients < 1:
        raise DataError(f"clients={clients}: a federation needs at least one client")
    if clients > len(table):
        raise DataError(f"{clients} clients but only {len(table)} rows; use fewer clients")
    if partition.name not in PARTITIONS:
        raise UsageError(
            f"partition {partition.name!r} distributes columns, but the parties of this "
            f"protocol have rows; use one of {', '.join(PARTITIONS)}"
        )
    parts = PARTITIONS[partition.name](table, schema, clients, rng, **partition.params)
    while min(map(len, parts)) == 0:
        largest = max(range(clients), key=lambda c: len(parts[c]))
        empty = next(c for c in range(clients) if len(parts[c]) == 0)
        parts[empty], parts[largest] = parts[largest][-1:], parts[largest][:-1]
    return [np.sort(part).astype(np.intp) for part in parts]


Layout = Callable[..., dict[str, LocalData]]


def by_rows(
    table: Table,
    schema: Schema,
    names: Sequence[str],
    partition: Partition,
    rng: np.random.Generator,
) -> dict[str, LocalData]:
    """Give every party complete rows with their labels, as the partition determines."""
    parts = split(partition, table, schema, len(names), rng)
    return {n: LocalData.of(table.take(rows), rows) for n, rows in zip(names, parts, strict=True)}


def by_owner(
    table: Table, names: Sequence[str], owners: NDArray[np.intp] | None
) -> dict[str, LocalData]:
    """Give every client the rows that belong to it according to the table.

    Raises `UsageError` if the table contains no owners or another number of clients, and
    `DataError` if a client has no training rows.
    """
    if owners is None:
        raise UsageError(
            f"partition {BY_CLIENT!r}: the table does not name the client of each row; "
            "give one file per client, or --client-column"
        )
    count = int(owners.max()) + 1
    if len(names) != count:
        raise UsageError(f"the table has rows of {count} clients, not of {len(names)}; leave out "
                         "--clients, or give another --partition")  # fmt: skip
    parts = [np.flatnonzero(owners == k) for k in range(count)]
    # The table contains only training rows. All rows of a small client can be test rows.
    empty = next((k for k, rows in enumerate(parts) if not len(rows)), None)
    if empty is not None:
        raise DataError(f"all rows of client {empty} are test rows; this client needs more rows")
    return {n: LocalData.of(table.take(rows), rows) for n, rows in zip(names, parts, strict=True)}


def by_columns(
    table: Table,
    schema: Schema,
    names: Sequence[str],
    partition: Partition,
    rng: np.random.Generator,
    files: Sequence[Sequence[int]] = (),
) -> dict[str, LocalData]:
    """Give every party some columns of all rows, and give the labels to the first party."""
    spread = spread_columns(partition.name, partition.params, schema, names, rng, files)
    return {name: columns_of(table, columns, name == names[0]) for name, columns in spread.items()}


def columns_of(table: Table, columns: NDArray[np.intp], labelled: bool) -> LocalData:
    """Return some columns of all rows, with or without the labels."""
    y, weight = (table.y, table.weight) if labelled else (None, None)
    return LocalData(np.arange(len(table)), columns, table.X[:, columns], y, weight)


def single_party(
    table: Table,
    schema: Schema,
    names: Sequence[str],
    partition: Partition,
    rng: np.random.Generator,
) -> dict[str, LocalData]:
    """Give the only party the complete table."""
    if len(names) != 1:
        raise UsageError(
            f"this layout gives the complete table to one party, but there are {len(names)}: "
            "use --clients 1"
        )
    return {names[0]: LocalData.of(table)}


LAYOUTS: dict[str, Layout] = {
    "horizontal": by_rows, "vertical": by_columns, "centralised": single_party,
}  # fmt: skip
#: Former names of the layouts, accepted until the next release.
ONCE = {"rows": "horizontal", "columns": "vertical", "whole": "centralised"}


def splits_columns(layout: str) -> bool:
    """Return whether parties have different columns of the same rows under a layout."""
    return LAYOUTS[layout] is by_columns


def lay_out(
    layout: str,
    table: Table,
    schema: Schema,
    names: Sequence[str],
    partition: Partition,
    rng: np.random.Generator,
    files: Sequence[Sequence[int]] = (),
    owners: NDArray[np.intp] | None = None,
) -> dict[str, LocalData]:
    """Distribute a table over parties.

    Parameters
    ----------
    layout : str
        Key of `LAYOUTS`.
    table : Table
        The rows.
    schema : Schema
        Columns and classes.
    names : sequence of str
        The parties that have data, in order.
    partition : Partition
        The partition of rows or columns.
    rng : numpy.random.Generator
        Randomness of the partition.
    files : sequence of sequence of int, optional
        `Dataset.files`.
    owners : int array, shape (n,), optional
        Client of every row of the table.

    Returns
    -------
    data : dict of str to LocalData
        Local data of every party.

    Raises
    ------
    UsageError, DataError
        If the layout is unknown, and as `split` and
        `spread_columns`.
    """
    layout = ONCE.get(layout, layout)
    if layout not in LAYOUTS:
        raise UsageError(f"unknown layout {layout!r}{did_you_mean(layout, LAYOUTS)}")
    if partition.name == BY_CLIENT and layout == "horizontal":
        return by_owner(table, names, owners)
    more = (files,) if layout == "vertical" else ()
    return LAYOUTS[layout](table, schema, names, partition, rng, *more)
