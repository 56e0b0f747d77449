"""Layouts: how a table is laid out over the parties that hold some of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.holding import Holding
from fedtrees.core.schema import Schema, Table
from fedtrees.data.columns import spread_columns
from fedtrees.data.partition import Partition, split

Layout = Callable[..., dict[str, Holding]]


def by_rows(
    table: Table, schema: Schema, names: Sequence[str], how: Partition, rng: np.random.Generator
) -> dict[str, Holding]:
    """Give every party whole rows with their labels, spread as the partition says."""
    parts = split(how, table, schema, len(names), rng)
    return {n: Holding.of(table.take(rows), rows) for n, rows in zip(names, parts, strict=True)}


def by_columns(
    table: Table,
    schema: Schema,
    names: Sequence[str],
    how: Partition,
    rng: np.random.Generator,
    files: Sequence[Sequence[int]] = (),
) -> dict[str, Holding]:
    """Give every party some columns of all rows, and the labels to the first party."""
    spread = spread_columns(how.name, how.params, schema, names, rng, files)
    return {name: columns_of(table, columns, name == names[0]) for name, columns in spread.items()}


def columns_of(table: Table, columns: NDArray[np.intp], labelled: bool) -> Holding:
    """Return some columns of all rows, with the labels or without."""
    y, weight = (table.y, table.weight) if labelled else (None, None)
    return Holding(np.arange(len(table)), columns, table.X[:, columns], y, weight)


def whole(
    table: Table, schema: Schema, names: Sequence[str], how: Partition, rng: np.random.Generator
) -> dict[str, Holding]:
    """Give the one party everything."""
    if len(names) != 1:
        raise UsageError(f"one party holds the whole table; got {len(names)}: use --clients 1")
    return {names[0]: Holding.of(table)}


LAYOUTS: dict[str, Layout] = {"rows": by_rows, "columns": by_columns, "whole": whole}


def lay_out(
    layout: str,
    table: Table,
    schema: Schema,
    names: Sequence[str],
    how: Partition,
    rng: np.random.Generator,
    files: Sequence[Sequence[int]] = (),
) -> dict[str, Holding]:
    """Spread a table over parties.

    `layout` is one of `LAYOUTS`; `names` are those of the parties that hold data, in order; `files`
    is `Dataset.files`. Raises `UsageError` or `DataError` as `fedtrees.data.partition.split` and
    `fedtrees.data.columns.spread_columns`, or where the layout is unknown.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"unknown layout {layout!r}{did_you_mean(layout, LAYOUTS)}")
    more = (files,) if layout == "columns" else ()
    return LAYOUTS[layout](table, schema, names, how, rng, *more)
