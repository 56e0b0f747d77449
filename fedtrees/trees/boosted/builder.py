"""Assemble a tree from its splits and leaf values.

The party that decides on splits uses it, and so do the parties that receive the splits.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.boosted.forest import Tree


class TreeBuilder:
    """A tree that starts as a single leaf and grows by splits.

    Children are numbered in pairs, in the order in which their parents were split. This is the
    numbering of XGBoost if every level is split in ascending order of the nodes.
    """

    def __init__(self) -> None:
        self._feature = [-1]
        self._threshold = [np.float32(0)]
        self._left = [-1]
        self._default_left = [False]
        self._value = [np.float32(0)]
        self._gain = [np.float32(0)]
        self._sums: dict[int, tuple[float, float]] = {}
        self._has_gain = False
        self._categories: dict[int, NDArray[np.bool_]] = {}

    def __len__(self) -> int:
        return len(self._feature)

    def expand(
        self,
        nodes: ArrayLike,
        feature: ArrayLike,
        threshold: ArrayLike,
        default_left: ArrayLike,
        gain: ArrayLike | None = None,
        categories: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int32]:
        """Split nodes. Nodes with feature -1 stay leaves.

        Parameters
        ----------
        nodes, feature, threshold, default_left, gain : arrays, shape (k,)
            As in `Tree`.
        categories : bool array, shape (k, width), optional
            As in `Tree`. It is read for nodes whose threshold is NaN.

        Returns
        -------
        left : int32 array, shape (k,)
            Left children, -1 if the node stays a leaf. The right child has the next number.

        Raises
        ------
        DataError
            If a node does not exist or was split before.
        """
        ids = np.asarray(nodes, dtype=np.int64)
        columns = np.asarray(feature, dtype=np.int64)
        cuts = np.asarray(threshold, dtype=np.float32)
        missing_left = np.asarray(default_left, dtype=bool)
        gains = np.zeros(len(ids), np.float32) if gain is None else np.asarray(gain, np.float32)
        self._has_gain = self._has_gain or gain is not None
        left = np.full(len(ids), -1, dtype=np.int32)
        for k, node in enumerate(ids.tolist()):
            self._check_leaf(node)
            # The node stays a leaf.
            if columns[k] < 0:
                continue
            left[k] = len(self)
            self._feature[node] = int(columns[k])
            self._threshold[node] = cuts[k]
            self._default_left[node] = bool(missing_left[k])
            self._left[node] = len(self)
            self._gain[node] = gains[k]
            if categories is not None and np.isnan(cuts[k]):
                self._categories[node] = categories[k]
            self._value[node] = np.float32(0)
            self._append_leaves(2)
        return left

    def _append_leaves(self, count: int) -> None:
        """Append leaves with value 0."""
        self._feature += [-1] * count
        self._threshold += [np.float32(0)] * count
        self._left += [-1] * count
        self._default_left += [False] * count
        self._value += [np.float32(0)] * count
        self._gain += [np.float32(0)] * count

    def _check_leaf(self, node: int) -> None:
        """Raise `DataError` unless a node exists and is a leaf."""
        if not 0 <= node < len(self):
            raise DataError(f"node {node} does not exist yet; the tree has {len(self)} nodes")
        if self._feature[node] >= 0:
            raise DataError(f"node {node} was split before")

    def set_sums(self, nodes: ArrayLike, sums: ArrayLike) -> None:
        """Store gradient and hessian sums of nodes, float, shape (k, 2)."""
        pairs = np.asarray(sums, dtype=np.float64).reshape(-1, 2).tolist()
        for node, (g, h) in zip(np.asarray(nodes).tolist(), pairs, strict=True):
            self._sums[node] = (g, h)

    def statistics(
        self, nodes: ArrayLike
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float32]]:
        """Return gradient sum, hessian sum and gain of nodes, shape (k,) each."""
        ids = np.asarray(nodes).tolist()
        sums = np.array([self._sums[i] for i in ids], dtype=np.float64).reshape(-1, 2)
        gain = np.array([self._gain[i] for i in ids], dtype=np.float32)
        return sums[:, 0], sums[:, 1], gain

    def set_values(self, nodes: ArrayLike, values: ArrayLike) -> None:
        """Set the values of leaves, in log-odds including the learning rate, shape (k,).

        Raises
        ------
        DataError
            If a node is not a leaf.
        """
        outputs = np.asarray(values, dtype=np.float32)
        for node, value in zip(np.asarray(nodes).tolist(), outputs, strict=True):
            self._check_leaf(node)
            self._value[node] = value

    def build(self) -> Tree:
        """Return the tree.

        Sums that were not set are NaN. If no sums were set, ``g`` and ``h`` are None.
        """
        left = np.array(self._left, dtype=np.int32)
        unknown = (np.nan, np.nan)
        sums = np.array([self._sums.get(i, unknown) for i in range(len(self))], dtype=np.float64)
        return Tree(
            feature=np.array(self._feature, dtype=np.int32),
            threshold=np.array(self._threshold, dtype=np.float32),
            left=left,
            right=np.where(left < 0, -1, left + 1).astype(np.int32),
            default_left=np.array(self._default_left, dtype=bool),
            value=np.array(self._value, dtype=np.float32),
            g=sums[:, 0] if self._sums else None,
            h=sums[:, 1] if self._sums else None,
            gain=np.array(self._gain, dtype=np.float32) if self._has_gain else None,
            categories=self._sets(),
        )

    def _sets(self) -> NDArray[np.bool_] | None:
        """Return the categories of all nodes as one array, None if there are none."""
        if not self._categories:
            return None
        width = max(map(len, self._categories.values()))
        sets = np.zeros((len(self), width), dtype=bool)
        for node, row in self._categories.items():
            sets[node, : len(row)] = row
        return sets
