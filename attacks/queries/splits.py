"""What is known of all splits of a model that nobody holds whole, and what an answer adds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.view import View
from fedtrees.messages.vertical import HeldModel, replayed

LARGEST = np.finfo(np.float32).max
LEFT, RIGHT, UNKNOWN = 1, 0, -1
_MOST_RIGHTS = (99, 6, 4, 3, 2)
_MOST_WAYS = 2048  # of one record through all trees; more cannot be told apart by a score anyway


@dataclass(eq=False)
class Unknown:
    """A threshold, or a split whose column is not known yet."""

    columns: list[int]  # where it may be; one, once that is known
    # low, high: of a known column: a row goes left for sure up to ``low``, and right from ``high``
    # on
    low: np.float32
    high: np.float32
    victim: bool  # whether it is to be found
    nodes: list[tuple[int, int]] = field(default_factory=list)  # trees and nodes that split there
    # thresholds of a column are in the order of these; NaN: its place is not known
    bin: float = np.nan

    @property
    def column(self) -> int:
        """The column, -1 where it is not known."""
        return self.columns[0] if len(self.columns) == 1 else -1

    @property
    def closed(self) -> bool:
        """Whether it is known to the last bit."""
        return self.column >= 0 and np.nextafter(self.low, self.high) >= self.high


@dataclass(frozen=True, eq=False)
class Way:
    """One way that a record may take: its leaves, and where it went at what is not known."""

    leaves: tuple[int, ...]
    went: dict[int, int]


def _beyond(
    low: NDArray[np.float32], high: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return a value of each column that is left of all thresholds, and one that is right.

    A threshold may stand outside of the declared range: all rows but those without a value go left
    then. It is within twice the end (`fedtrees.trees.binning`).
    """
    far = [np.abs(end) + (high - low) + 1 for end in (low, high)]
    least = np.where(np.isnan(low), -LARGEST, low - far[0])
    return least, np.where(np.isnan(high), LARGEST, high + far[1])


class Splits:
    """All splits of the trees.

    `told`: Use which columns others were asked to split; otherwise each may be any column of
    others, and equal thresholds are not known to be equal.

    `model`: HeldModel.
    `own`: int array. Columns of the principals.
    `unknown`: Own thresholds among them, which are closed.
    `least, most`: float32 array, shape (d,). A value of each column that is left, or right, of all
    its thresholds.
    """

    def __init__(self, view: View, told: bool) -> None:
        self.model = next(m for _, m in view.messages(HeldModel))
        self.own = np.concatenate([h.columns for h in view.own])
        self.least, self.most = _beyond(*view.schema.ranges)
        # Bins of each node's own say nothing of other nodes' thresholds.
        self.alike = told and view.parameters.get("candidates", "global") == "global"
        others = np.setdiff1d(np.arange(len(self.least)), self.own).tolist()
        mine = next((h.columns for h in view.own if h.y is not None), self.own[:0])
        places: dict[tuple[int, ...], int] = {}
        self.unknown: list[Unknown] = []
        self.at = np.full(len(self.model.feature), -1)  # place in `unknown`, by node
        self.way_to: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for t, start in enumerate(self.model.starts.tolist()):
            self.way_to[t, 0] = []
            for node in range(int(self.model.sizes[t])):
                column = int(self.model.feature[start + node])
                if column < 0:
                    continue
                threshold = self.model.threshold[start + node]
                hidden = column in others and not told
                alone = column not in mine and not self.alike
                key = (t, node) if alone else (-1, column, int(threshold.view(np.int32)))
                if key not in places:
                    places[key] = len(self.unknown)
                    columns = others if hidden else [column]
                    known = column in mine
                    bare = column not in mine and threshold < 1  # before every value
                    ends = self.least[column], self.most[column]
                    if known:
                        ends = np.nextafter(threshold, -LARGEST), threshold
                    elif bare:
                        ends = np.float32(-np.inf), -LARGEST
                    victim = column in others and not bare
                    columns = [column] if bare else list(columns)
                    bin = np.nan if alone else float(threshold)
                    self.unknown.append(
                        Unknown(columns, np.float32(ends[0]), np.float32(ends[1]), victim, [], bin)
                    )
                u = places[key]
                self.unknown[u].nodes.append((t, node))
                self.at[start + node] = u
                for child, side in ((self.model.left, LEFT), (self.model.right, RIGHT)):
                    way = [*self.way_to[t, node], (u, side)]
                    self.way_to[t, int(child[start + node])] = way
        self._read_colluders(view, mine)
        self.order()

    def _read_colluders(self, view: View, mine: NDArray[np.intp]) -> None:
        """Take thresholds on columns of colluding parties from where their rows went."""
        values = {int(c): h.X[:, i] for h in view.own for i, c in enumerate(h.columns)}
        seen = replayed(view) if len(self.own) > len(mine) else {}
        for u in self.unknown:
            if u.victim or u.column in mine or u.column < 0 or not np.isfinite(u.low):
                continue
            for t, node in u.nodes:
                left = int(self.model.left[self.model.starts[t] + node])
                sides = [values[u.column][seen[t].rows_of(child)] for child in (left, left + 1)]
                u.low = max(u.low, np.nanmax(sides[0]))
                u.high = min(u.high, np.nanmin(sides[1]))

    def order(self) -> None:
        """Let neighbours of a column bound each other: its bins are in the order of thresholds."""
        columns: dict[int, list[Unknown]] = {}
        for u in self.unknown:
            if not np.isnan(u.bin):
                columns.setdefault(u.column, []).append(u)
        for found in columns.values():
            ordered = sorted(found, key=lambda u: u.bin)
            for below, above in pairwise(ordered):
                above.low = max(above.low, below.high if below.closed else below.low)
            for below, above in zip(ordered[-2::-1], ordered[:0:-1], strict=True):
                below.high = min(below.high, above.low if above.closed else above.high)

    def sides(self, x: NDArray[np.float32]) -> list[int]:
        """Return where a record goes at every threshold, if that is known."""
        found = []
        for u in self.unknown:
            values = x[u.columns]
            ends = (
                (u.low, u.high) if u.column >= 0 else (self.least[u.columns], self.most[u.columns])
            )
            if (values <= ends[0]).all():
                found.append(LEFT)
            else:
                found.append(RIGHT if (values >= ends[1]).all() else UNKNOWN)
        return found

    def ways(self, x: NDArray[np.float32]) -> list[Way] | None:
        """Return all ways that a record may take through all trees; None: too many.

        Where too many are, those are left out that turn right often at splits of unknown columns: a
        record is above few of these thresholds, since all its values but one are at the least.
        """
        sides = self.sides(x)
        hidden = any(u.column < 0 for u in self.unknown)
        tried = (self._ways(sides, rights) for rights in (_MOST_RIGHTS if hidden else (0,)))
        return next((found for found in tried if found is not None), None)

    def _ways(self, sides: Sequence[int], rights: int) -> list[Way] | None:
        found = [Way((), {})]
        for t in range(len(self.model.sizes)):
            found = [
                Way((*way.leaves, leaf), {**way.went, **went})
                for leaf, went in self._tree_ways(t, sides)
                for way in found
                if all(way.went.get(u, side) == side for u, side in went.items())
                and self._rights(way.went) + self._rights(went) <= rights
            ]
            if len(found) > _MOST_WAYS:
                return None
        return [way for way in found if self._in_order(way.went)]

    def _tree_ways(self, t: int, sides: Sequence[int]) -> list[tuple[int, dict[int, int]]]:
        start, out = int(self.model.starts[t]), []
        waiting: list[tuple[int, dict[int, int]]] = [(0, {})]
        while waiting:
            node, went = waiting.pop()
            u = int(self.at[start + node])
            if u < 0:
                out.append((node, went))
                continue
            for side, child in ((LEFT, self.model.left), (RIGHT, self.model.right)):
                if sides[u] == side:
                    waiting.append((int(child[start + node]), went))
                elif sides[u] == UNKNOWN and went.get(u, side) == side:
                    waiting.append((int(child[start + node]), {**went, u: side}))
        return out

    def _rights(self, went: dict[int, int]) -> int:
        return sum(side == RIGHT and self.unknown[u].column < 0 for u, side in went.items())

    def _in_order(self, went: dict[int, int]) -> bool:
        """Refuse a record that is right of one threshold and left of a lower one."""
        known = [(self.unknown[u], side) for u, side in went.items()]
        return not any(
            a.column == b.column and b.bin < a.bin and s == RIGHT and r == LEFT
            for a, s in known
            for b, r in known
        )

    def leaf_went(self, t: int, leaf: int) -> dict[int, int]:
        """Return where a record went that is in a leaf."""
        return dict(self.way_to[t, leaf])

    def learn(self, u: int, x: NDArray[np.float32], side: int) -> None:
        """Take in where a record went at a threshold."""
        what = self.unknown[u]
        if what.column < 0:
            other = self.most if side == LEFT else self.least
            wrong = x >= other if side == LEFT else x <= other
            self.keep(u, [c for c in what.columns if not wrong[c]])
        elif side == LEFT:
            what.low = max(what.low, x[what.column])
        else:
            what.high = min(what.high, x[what.column])

    def keep(self, u: int, columns: list[int]) -> None:
        """Leave a split fewer columns."""
        what = self.unknown[u]
        if columns:
            what.columns = columns
        if len(what.columns) == 1:
            column = what.columns[0]
            what.low, what.high = self.least[column], self.most[column]
