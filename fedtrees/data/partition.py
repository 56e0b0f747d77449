"""Partition the rows of a table over clients (horizontal partition)."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, UsageError, check_positive, did_you_mean
from fedtrees.core.schema import Schema, Table
from fedtrees.data.column_partition import BY_FILE, COLUMN_PARTITIONS

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

#: Partitions that exist only for columns.
OF_COLUMNS = ({*COLUMN_PARTITIONS} - {*PARTITIONS}) | {BY_FILE}


@dataclass(frozen=True)
class Partition:
    """A partition by name with its parameters, validated at construction.

    Raises `UsageError` if the name or a parameter is unknown.
    """

    name: str = "iid"  # key of `PARTITIONS`, or a partition of `fedtrees.data.column_partition`
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
