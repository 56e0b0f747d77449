"""Which rows are in which node, kept by whoever owns the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import kernel
from fedtrees.core.errors import DataError
from fedtrees.trees.binning import Bins

ROOT = np.zeros(1, dtype=np.int32)  # the nodes of a tree that has not split yet


@dataclass(frozen=True, eq=False)
class Decisions:
    """The nodes of a level that split, and how: all a row owner needs to move its rows."""

    nodes: NDArray[np.int32]  # shape (k,): nodes that split
    # feature, bin, shape (k,): rows whose bin of ``feature`` is at most ``bin`` go left
    feature: NDArray[np.int32]
    bin: NDArray[np.int32]
    # shape (k,): the same rule on raw values: ``x < threshold`` goes left
    threshold: NDArray[np.float32]
    default_left: NDArray[np.bool_]  # shape (k,): where missing values go
    left: NDArray[np.int32]  # shape (k,): left children; the right child of a node is one more
    # shape (k, width): where the threshold is NaN, rows go right whose bin, a category's code, is
    # marked here
    categories: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return int(self.nodes.shape[0])

    @staticmethod
    def join(parts: Sequence[Decisions]) -> Decisions:
        """Return decisions on different nodes as one."""
        if not parts:
            none = np.zeros(0, dtype=np.int32)
            return Decisions(none, none, none, none.astype(np.float32), none.astype(np.bool_), none)
        if len(parts) == 1:
            return parts[0]
        columns: list[Any] = list(zip(*(vars(p).values() for p in parts), strict=True))
        joined: list[Any] = [None if c[0] is None else np.concatenate(c) for c in columns]
        return Decisions(*joined)


@kernel
def _goes_left(
    columns: NDArray[Any],
    missing: int,
    rows: NDArray[np.int32],
    ranges: NDArray[np.int64],
    feature: NDArray[np.int32],
    bin: NDArray[np.int32],
    default_left: NDArray[np.bool_],
    out: NDArray[np.bool_],
) -> None:
    # Unsigned indices and loops from 0 spare the check for negative indices in every step here and
    # below, which costs half of the time.
    k = 0
    for node in range(ranges.shape[0]):
        column = columns[feature[node]]
        members = rows[ranges[node, 0] : ranges[node, 1]]
        goes = out[k : k + members.shape[0]]
        for i in range(members.shape[0]):
            code = np.int64(column[np.uint32(members[i])])
            goes[i] = default_left[node] if code == missing else code <= bin[node]
        k += members.shape[0]


@kernel
def _move(
    rows: NDArray[np.int32],
    ranges: NDArray[np.int64],
    goes_left: NDArray[np.bool_],
    middle: NDArray[np.int64],
) -> None:
    aside = np.empty(rows.shape[0], dtype=rows.dtype)
    k = 0
    for node in range(ranges.shape[0]):
        members = rows[ranges[node, 0] : ranges[node, 1]]
        goes = goes_left[k : k + members.shape[0]]
        left = np.uint64(0)
        right = np.uint64(0)
        for i in range(members.shape[0]):
            row = members[i]
            members[left] = row  # the slot is free: left never passes i
            aside[right] = row
            left += np.uint64(goes[i])
            right += np.uint64(not goes[i])
        for i in range(np.int64(right)):
            members[left + np.uint64(i)] = aside[i]
        middle[node] = ranges[node, 0] + np.int64(left)
        k += members.shape[0]


@kernel
def _add(
    rows: NDArray[np.int32],
    ranges: NDArray[np.int64],
    values: NDArray[np.float32],
    margin: NDArray[np.float32],
) -> None:
    for node in range(ranges.shape[0]):
        for i in range(ranges[node, 0], ranges[node, 1]):
            margin[np.uint32(rows[i])] += values[node]


class RowPartition:
    """The rows of one owner, grouped by node of the tree being grown.

    The order of rows within a node never changes: rows that were close in memory stay close.

    `rows`: int or int32 array, shape (m,). How many rows, or which ones (a sample), start in node
    0.

    `rows`: int32 array, shape (m,). Row numbers, every node's in one stretch.
    """

    def __init__(self, rows: int | NDArray[np.int32]) -> None:
        self.rows: NDArray[np.int32] = (
            np.arange(rows, dtype=np.int32)
            if isinstance(rows, int | np.integer)
            else np.array(rows, dtype=np.int32)
        )
        self._ranges: dict[int, tuple[int, int]] = {0: (0, len(self.rows))}

    def ranges(self, nodes: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return begin and end of each node's stretch of `rows`, int64, shape (k, 2).

        Raises `DataError` if a node does not exist here.
        """
        unknown = [int(n) for n in nodes if int(n) not in self._ranges]
        if unknown:
            raise DataError(f"nodes {unknown} have no rows here; split their parents first")
        found = [self._ranges[int(n)] for n in nodes]
        return np.array(found, dtype=np.int64).reshape(len(found), 2)

    def goes_left(self, bins: Bins, decisions: Decisions) -> NDArray[np.bool_]:
        """Return where the rows of the deciding nodes go, bool, in the order of nodes and rows."""
        ranges = self.ranges(decisions.nodes)
        out = np.empty(int((ranges[:, 1] - ranges[:, 0]).sum()), dtype=bool)
        _goes_left(
            bins.columns,
            bins.missing,
            self.rows,
            ranges,
            decisions.feature,
            decisions.bin,
            decisions.default_left,
            out,
        )
        if decisions.categories is not None:
            self._by_category(bins, decisions, ranges, out)
        return out

    def _by_category(
        self, bins: Bins, decisions: Decisions, ranges: NDArray[np.int64], out: NDArray[np.bool_]
    ) -> None:
        """Correct `out` where nodes split by categories: look up each row's code."""
        assert decisions.categories is not None
        ends = np.cumsum(ranges[:, 1] - ranges[:, 0])
        for k in np.flatnonzero(np.isnan(decisions.threshold)):
            begin, end = ranges[k]
            codes = bins.columns[decisions.feature[k], self.rows[begin:end]]
            goes = np.ones(bins.missing + 1, dtype=bool)
            goes[np.flatnonzero(decisions.categories[k])] = False
            goes[bins.missing] = decisions.default_left[k]
            out[ends[k] - (end - begin) : ends[k]] = goes[codes]

    def move(
        self, nodes: NDArray[np.int32], left: NDArray[np.int32], goes_left: NDArray[np.bool_]
    ) -> None:
        """Move rows to the children, given where each goes (as `goes_left` returns it).

        Raises `DataError` if the number of rows differs.
        """
        ranges = self.ranges(nodes)
        if len(goes_left) != (ranges[:, 1] - ranges[:, 0]).sum():
            raise DataError(f"{len(goes_left)} directions do not fit the rows of nodes {nodes}")
        middle = np.empty(len(nodes), dtype=np.int64)
        _move(self.rows, ranges, goes_left, middle)
        for (begin, end), child, cut in zip(ranges, left, middle, strict=True):
            self._ranges[int(child)] = (int(begin), int(cut))
            self._ranges[int(child) + 1] = (int(cut), int(end))

    def split(self, bins: Bins, decisions: Decisions) -> None:
        """Move the rows of every deciding node to its children."""
        self.move(decisions.nodes, decisions.left, self.goes_left(bins, decisions))

    def add_to(
        self, margin: NDArray[np.float32], nodes: NDArray[np.int32], values: NDArray[np.float32]
    ) -> None:
        """Add each leaf's value to the margin of its rows, in place."""
        _add(self.rows, self.ranges(nodes), values, margin)
