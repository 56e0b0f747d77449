"""Partition the columns of a table over parties with the same rows (vertical partition)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError, did_you_mean, many
from fedtrees.core.schema import Schema

Columns = dict[str, NDArray[np.intp]]


def iid(
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
    "iid": iid,
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
