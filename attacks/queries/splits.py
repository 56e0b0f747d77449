"""Knowledge about the splits of a vertical model, and its update by one answer.

No party of a vertical federation knows all thresholds. `Splits` contains an interval for every
unknown threshold of `threshold-queries`. The search (`fedtrees.attacks.queries.attack`) narrows the
intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.view import View
from fedtrees.messages.vertical import HeldModel, replayed

LARGEST = np.finfo(np.float32).max
LEFT, RIGHT, UNKNOWN = 1, 0, -1
# Limits on right turns at splits of unknown columns. They are tried in this order until few enough
# paths remain.
_MOST_RIGHTS = (99, 6, 4, 3, 2)
# Limit on the paths of one record through all trees. A score cannot distinguish more paths.
_MOST_WAYS = 2048


@dataclass(eq=False)
class Unknown:
    """A threshold to find, or a split whose column is not yet known.

    Attributes
    ----------
    columns : list of int
        Candidates for the split column. A single entry means that the column is known.
    low, high : numpy.float32
        Interval of the threshold if the column is known. A row with a value up to ``low`` goes
        left, and a row with a value from ``high`` on goes right.
    victim : bool
        Whether the threshold belongs to another party and is to be found.
    nodes : list of tuple
        Pairs of tree and node that split at this threshold.
    bin : float
        Rank of the threshold among the thresholds of its column, NaN if it is unknown.
    """

    columns: list[int]
    low: np.float32
    high: np.float32
    victim: bool
    nodes: list[tuple[int, int]] = field(default_factory=list)
    bin: float = np.nan

    @property
    def column(self) -> int:
        """The split column, -1 if it is not known."""
        return self.columns[0] if len(self.columns) == 1 else -1

    @property
    def closed(self) -> bool:
        """Whether no float32 number lies between the two ends of the interval."""
        return self.column >= 0 and np.nextafter(self.low, self.high) >= self.high

    @property
    def state(self) -> tuple[int, np.float32, np.float32]:
        """Values that change with each narrowing of the threshold."""
        return len(self.columns), self.low, self.high


@dataclass(frozen=True, eq=False)
class Way:
    """One path that a record may take through all trees.

    Attributes
    ----------
    leaves : tuple of int
        Leaf in every tree.
    went : dict from int to int
        Side (`LEFT` or `RIGHT`) at each unknown threshold on the path.
    """

    leaves: tuple[int, ...]
    went: dict[int, int]


def _beyond(
    low: NDArray[np.float32], high: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return one value per column below all thresholds, and one above all thresholds.

    A threshold can lie outside the declared range, at most at twice the end of the range
    (`fedtrees.trees.binning`). All rows with a value go left at such a split.
    """
    far = [np.abs(end) + (high - low) + 1 for end in (low, high)]
    least = np.where(np.isnan(low), -LARGEST, low - far[0])
    return least, np.where(np.isnan(high), LARGEST, high + far[1])


class Splits:
    """Intervals of all thresholds of the trees.

    Parameters
    ----------
    view : View
        Messages and local data of the active party.
    use_split_columns : bool
        Whether to use the split columns that messages contain. Without them, a split of another
        party may be on any column of the other parties, and equal thresholds are not recognised.
        For example, with 20 such columns every split has 20 candidates.

    Attributes
    ----------
    model : HeldModel
        Trees as the active party knows them.
    own_columns : int array
        Columns of the principals.
    unknown : list of Unknown
        All thresholds. Those on the active party's columns are closed from the beginning.
    at : int array, shape (n_nodes,)
        Position of each node's threshold in `unknown`, -1 at leaves.
    way_to : dict
        By tree and node: the pairs of threshold and side on the path from the root.
    least, most : float32 array, shape (d,)
        One value per column that is below, or above, all thresholds of the column.
    """

    def __init__(self, view: View, use_split_columns: bool) -> None:
        self.model = next(m for _, m in view.messages(HeldModel))
        self.own_columns = np.concatenate([h.columns for h in view.local_data])
        self.least, self.most = _beyond(*view.schema.ranges)
        # With candidates per node, the bin numbers of two nodes refer to different thresholds.
        self.share_bins = (
            use_split_columns and view.parameters.get("candidates", "global") == "global"
        )
        self.passive_columns = np.setdiff1d(np.arange(len(self.least)), self.own_columns).tolist()
        self.active_columns = next(
            (h.columns for h in view.local_data if h.y is not None), self.own_columns[:0]
        )
        places: dict[tuple[int, ...], int] = {}
        self.unknown: list[Unknown] = []
        self.at = np.full(len(self.model.feature), -1)
        self.way_to: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for t, start in enumerate(self.model.starts.tolist()):
            self.way_to[t, 0] = []
            for node in range(int(self.model.sizes[t])):
                column = int(self.model.feature[start + node])
                if column < 0:
                    continue
                threshold = self.model.threshold[start + node]
                # Nodes with equal bins of a column share a threshold, unless candidates differ
                # between nodes.
                separate = column not in self.active_columns and not self.share_bins
                key = (t, node) if separate else (-1, column, int(threshold.view(np.int32)))
                if key not in places:
                    places[key] = len(self.unknown)
                    hidden = column in self.passive_columns and not use_split_columns
                    self.unknown.append(self._unknown(column, threshold, hidden, separate))
                u = places[key]
                self.unknown[u].nodes.append((t, node))
                self.at[start + node] = u
                # Record the path to both children.
                for child, side in ((self.model.left, LEFT), (self.model.right, RIGHT)):
                    turns = [*self.way_to[t, node], (u, side)]
                    self.way_to[t, int(child[start + node])] = turns
        self._read_colluders(view)
        self.order()

    def _unknown(self, column: int, threshold: np.float32, hidden: bool, separate: bool) -> Unknown:
        """Return a threshold with its first interval.

        ``hidden`` says that the column is not known, ``separate`` that its bin number cannot be
        compared with those of other nodes.
        """
        bin = np.nan if separate else float(threshold)
        if column in self.active_columns:
            low = np.float32(np.nextafter(threshold, -LARGEST))
            return Unknown([column], low, np.float32(threshold), False, [], bin)
        if threshold < 1:
            # Bins below 1 separate missing values from all present values. Such a split has no
            # threshold to find.
            return Unknown([column], np.float32(-np.inf), np.float32(-LARGEST), False, [], bin)
        columns = list(self.passive_columns) if hidden else [column]
        low, high = np.float32(self.least[column]), np.float32(self.most[column])
        return Unknown(columns, low, high, column in self.passive_columns, [], bin)

    def _read_colluders(self, view: View) -> None:
        """Narrow thresholds on columns of colluding parties by the routing of their rows."""
        values = {int(c): h.X[:, i] for h in view.local_data for i, c in enumerate(h.columns)}
        seen = replayed(view) if len(self.own_columns) > len(self.active_columns) else {}
        for u in self.unknown:
            if (
                u.victim
                or u.column in self.active_columns
                or u.column < 0
                or not np.isfinite(u.low)
            ):
                continue
            for t, node in u.nodes:
                left = int(self.model.left[self.model.starts[t] + node])
                sides = [values[u.column][seen[t].rows_of(child)] for child in (left, left + 1)]
                u.low = max(u.low, np.nanmax(sides[0]))
                u.high = min(u.high, np.nanmin(sides[1]))

    def order(self) -> None:
        """Propagate bounds between thresholds of a column, whose order follows from bins."""
        columns: dict[int, list[Unknown]] = {}
        for u in self.unknown:
            if not np.isnan(u.bin):
                columns.setdefault(u.column, []).append(u)
        for thresholds in columns.values():
            ordered = sorted(thresholds, key=lambda u: u.bin)
            # One pass in each direction propagates lower and upper bounds through all thresholds.
            for below, above in pairwise(ordered):
                above.low = max(above.low, below.high if below.closed else below.low)
            for below, above in zip(ordered[-2::-1], ordered[:0:-1], strict=True):
                below.high = min(below.high, above.low if above.closed else above.high)

    def sides(self, x: NDArray[np.float32]) -> list[int]:
        """Return the side of a record at every threshold, `UNKNOWN` if it is not certain."""
        sides = []
        for u in self.unknown:
            values = x[u.columns]
            ends = (
                (u.low, u.high) if u.column >= 0 else (self.least[u.columns], self.most[u.columns])
            )
            if (values <= ends[0]).all():
                sides.append(LEFT)
            else:
                sides.append(RIGHT if (values >= ends[1]).all() else UNKNOWN)
        return sides

    def ways(self, x: NDArray[np.float32]) -> list[Way] | None:
        """Return all paths that a record may take through all trees, None if there are too many.

        If there are too many, paths with many right turns at splits of unknown columns are
        discarded. Records are built such that all values but one are below every threshold, so that
        a record exceeds few of these thresholds.
        """
        sides = self.sides(x)
        hidden = any(u.column < 0 for u in self.unknown)
        tried = (self._ways(sides, rights) for rights in (_MOST_RIGHTS if hidden else (0,)))
        return next((paths for paths in tried if paths is not None), None)

    def _ways(self, sides: Sequence[int], rights: int) -> list[Way] | None:
        """Return the paths with at most `rights` right turns at splits of unknown columns."""
        paths = [Way((), {})]
        for t in range(len(self.model.sizes)):
            paths = [
                Way((*way.leaves, leaf), {**way.went, **went})
                for leaf, went in self._tree_ways(t, sides)
                for way in paths
                if all(way.went.get(u, side) == side for u, side in went.items())
                and self._rights(way.went) + self._rights(went) <= rights
            ]
            if len(paths) > _MOST_WAYS:
                return None
        return [way for way in paths if self._in_order(way.went)]

    def _tree_ways(self, t: int, sides: Sequence[int]) -> list[tuple[int, dict[int, int]]]:
        """Return the reachable leaves of a tree, with the sides at unknown thresholds."""
        start, leaves = int(self.model.starts[t]), []
        stack: list[tuple[int, dict[int, int]]] = [(0, {})]
        while stack:
            node, went = stack.pop()
            u = int(self.at[start + node])
            if u < 0:
                leaves.append((node, went))
                continue
            for side, child in ((LEFT, self.model.left), (RIGHT, self.model.right)):
                if sides[u] == side:
                    stack.append((int(child[start + node]), went))
                elif sides[u] == UNKNOWN and went.get(u, side) == side:
                    stack.append((int(child[start + node]), {**went, u: side}))
        return leaves

    def _rights(self, went: dict[int, int]) -> int:
        """Count the right turns at splits of unknown columns."""
        return sum(side == RIGHT and self.unknown[u].column < 0 for u, side in went.items())

    def _in_order(self, went: dict[int, int]) -> bool:
        """Return whether no record is above a threshold and below a lower one of its column."""
        turns = [(self.unknown[u], side) for u, side in went.items()]
        return not any(
            a.column == b.column and b.bin < a.bin and s == RIGHT and r == LEFT
            for a, s in turns
            for b, r in turns
        )

    def learn(self, u: int, x: NDArray[np.float32], side: int) -> None:
        """Narrow a threshold by the side that a record took.

        Parameters
        ----------
        u : int
            Position of the threshold in `unknown`.
        x : float32 array, shape (d,)
            The record.
        side : int
            `LEFT` or `RIGHT`.
        """
        threshold = self.unknown[u]
        if threshold.column < 0:
            extreme = self.most if side == LEFT else self.least
            wrong = x >= extreme if side == LEFT else x <= extreme
            self.keep(u, [c for c in threshold.columns if not wrong[c]])
        elif side == LEFT:
            threshold.low = max(threshold.low, x[threshold.column])
        else:
            threshold.high = min(threshold.high, x[threshold.column])

    def keep(self, u: int, columns: list[int]) -> None:
        """Restrict the candidate columns of a split. An empty list is ignored."""
        split = self.unknown[u]
        if columns:
            split.columns = columns
        if len(split.columns) == 1:
            column = split.columns[0]
            split.low, split.high = self.least[column], self.most[column]
