"""Assignment of rows to the nodes of a tree, at the party that has the rows."""

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
    """Splits of the nodes of one level: all information that a party needs to move its rows."""

    nodes: NDArray[np.int32]  # shape (k,): nodes that are split
    # feature, bin, shape (k,): rows whose bin of ``feature`` is at most ``bin`` go left
    feature: NDArray[np.int32]
    bin: NDArray[np.int32]
    # shape (k,): the same rule for raw values: ``x < threshold`` goes left
    threshold: NDArray[np.float32]
    default_left: NDArray[np.bool_]  # shape (k,): direction of missing values
    # shape (k,): left children. The right child of a node has the next number.
    left: NDArray[np.int32]
    # Shape (k, width). If the threshold is NaN, rows go right whose bin (the code of a category) is
    # marked here.
    categories: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return int(self.nodes.shape[0])

    @staticmethod
    def join(parts: Sequence[Decisions]) -> Decisions:
        """Return decisions on different nodes as one object."""
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
    """Compute the direction of the rows of every node from their codes."""
    # Unsigned indices and loops from 0 avoid a check for negative indices in every step here and
    # below. The check would take half of the time.
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
    """Reorder the rows of every node: those that go left first, in their previous order."""
    aside = np.empty(rows.shape[0], dtype=rows.dtype)
    k = 0
    for node in range(ranges.shape[0]):
        members = rows[ranges[node, 0] : ranges[node, 1]]
        goes = goes_left[k : k + members.shape[0]]
        left = np.uint64(0)
        right = np.uint64(0)
        for i in range(members.shape[0]):
            row = members[i]
            members[left] = row  # this slot is free, because left never passes i
            aside[right] = row
            # Both stores happen for every row, and only one of the positions advances. This avoids
            # a branch.
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
    """Add the value of each node to the margins of its rows."""
    for node in range(ranges.shape[0]):
        for i in range(ranges[node, 0], ranges[node, 1]):
            margin[np.uint32(rows[i])] += values[node]


class RowPartition:
    """The rows of one party, grouped by node of the tree that is grown.

    The order of rows within a node never changes, so that rows that are close in memory stay close.

    Parameters
    ----------
    rows : int or int32 array, shape (m,)
        Number of rows, or row numbers of a sample. All of them start in node 0.

    Attributes
    ----------
    rows : int32 array, shape (m,)
        Row numbers. The rows of every node are contiguous.
    """

    def __init__(self, rows: int | NDArray[np.int32]) -> None:
        self.rows: NDArray[np.int32] = (
            np.arange(rows, dtype=np.int32)
            if isinstance(rows, int | np.integer)
            else np.array(rows, dtype=np.int32)
        )
        self._ranges: dict[int, tuple[int, int]] = {0: (0, len(self.rows))}

    def ranges(self, nodes: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return begin and end of each node's part of `rows`, int64, shape (k, 2).

        Raises
        ------
        DataError
            If a node does not exist in this partition.
        """
        unknown = [int(n) for n in nodes if int(n) not in self._ranges]
        if unknown:
            raise DataError(f"nodes {unknown} have no rows here; split their parents first")
        known_ranges = [self._ranges[int(n)] for n in nodes]
        return np.array(known_ranges, dtype=np.int64).reshape(len(known_ranges), 2)

    def rows_of(self, node: int) -> NDArray[np.int32]:
        """Return the rows of one node, int32, in the order of `rows`.

        Raises
        ------
        DataError
            If the node does not exist in this partition.
        """
        ((begin, end),) = self.ranges(np.array([node], dtype=np.int32))
        return self.rows[begin:end]

    def goes_left(self, bins: Bins, decisions: Decisions) -> NDArray[np.bool_]:
        """Return whether rows go left, bool, in the order of the nodes and their rows."""
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
        """Correct `out` for nodes that are split by categories, from the code of each row."""
        assert decisions.categories is not None
        ends = np.cumsum(ranges[:, 1] - ranges[:, 0])
        for k in np.flatnonzero(np.isnan(decisions.threshold)):
            begin, end = ranges[k]
            codes = bins.columns[decisions.feature[k], self.rows[begin:end]]
            # One lookup table per node: codes outside the set go left.
            goes = np.ones(bins.missing + 1, dtype=bool)
            goes[np.flatnonzero(decisions.categories[k])] = False
            goes[bins.missing] = decisions.default_left[k]
            out[ends[k] - (end - begin) : ends[k]] = goes[codes]

    def move(
        self, nodes: NDArray[np.int32], left: NDArray[np.int32], goes_left: NDArray[np.bool_]
    ) -> None:
        """Move rows to the children.

        Parameters
        ----------
        nodes, left : int32 arrays, shape (k,)
            Nodes that are split, and their left children.
        goes_left : bool array
            Direction of each row, as `RowPartition.goes_left` returns it.

        Raises
        ------
        DataError
            If the number of rows differs.
        """
        ranges = self.ranges(nodes)
        if len(goes_left) != (ranges[:, 1] - ranges[:, 0]).sum():
            raise DataError(f"{len(goes_left)} directions do not fit the rows of nodes {nodes}")
        middle = np.empty(len(nodes), dtype=np.int64)
        _move(self.rows, ranges, goes_left, middle)
        # The rows of both children are neighbours in the range of their parent.
        for (begin, end), child, cut in zip(ranges, left, middle, strict=True):
            self._ranges[int(child)] = (int(begin), int(cut))
            self._ranges[int(child) + 1] = (int(cut), int(end))

    def split(self, bins: Bins, decisions: Decisions) -> None:
        """Move the rows of every split node to its children."""
        self.move(decisions.nodes, decisions.left, self.goes_left(bins, decisions))

    def add_to(
        self, margin: NDArray[np.float32], nodes: NDArray[np.int32], values: NDArray[np.float32]
    ) -> None:
        """Add the value of each leaf to the margins of its rows, in place.

        Parameters
        ----------
        margin : float32 array, shape (n,)
            Margins of all rows of the party.
        nodes : int32 array, shape (k,)
            The leaves.
        values : float32 array, shape (k,)
            Their values.
        """
        _add(self.rows, self.ranges(nodes), values, margin)
