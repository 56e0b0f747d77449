"""Messages of the random-forest protocols.

They contain class counts of roots and of bins of requested nodes, leaf predictions, local forests,
and released forests, among them those of differentially private forests (`dp-forest`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Request, Reveal, Trait, message, summable
from fedtrees.messages.models import as_message
from fedtrees.trees.forest.random_decision import RandomDecisionForest, RandomSplits
from fedtrees.trees.forest.random_forest import RandomForest

_COUNTING = frozenset({Reveal.LABELS, Reveal.COUNTS})


@message()
class ClassTotalsRequest(Request["ClassTotals"]):
    """Start a tree: ask each client to draw its rows and to count their classes.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    """

    tree: int


# Each row is counted once per draw, which defenses of counts rely on.
@message(discloses=_COUNTING, traits={Trait.SUMMED, Trait.COUNTED})
class ClassTotals(Message):
    """Number of a client's drawn rows of each class.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    counts : int64 array, shape (K,)
        A row that the bootstrap draws twice counts twice.
    """

    tree: int
    counts: NDArray[np.int64] = summable()

    @property
    def series(self) -> str:
        """The tree, because all counts of a tree are over the same drawn rows."""
        return f"tree {self.tree}"


@message()
class ClassCountsRequest(Request["ClassCounts"]):
    """Ask for class counts per bin, for some features at each of some nodes.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    nodes : int32 array, shape (k,)
        Nodes to count.
    features : int32 array, shape (p,)
        Features of all nodes, concatenated, in the order in which the server tries them.
    offsets : int64 array, shape (k + 1,)
        The features of node j are ``features[offsets[j]:offsets[j + 1]]``.
    """

    tree: int
    nodes: NDArray[np.int32]
    features: NDArray[np.int32]
    offsets: NDArray[np.int64]


# Counts per bin also reveal the distribution of the column.
@message(discloses=_COUNTING | {Reveal.FEATURES}, traits={Trait.SUMMED, Trait.COUNTED})
class ClassCounts(Message):
    """One client's reply to a `ClassCountsRequest`.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    nodes : int32 array, shape (k,)
        As in the request.
    counts : int64 array, shape (bins of all requested features, K)
        Number of rows of each class per bin. Missing values are in no bin.
    """

    tree: int
    nodes: NDArray[np.int32]
    counts: NDArray[np.int64] = summable()

    @property
    def series(self) -> str:
        """The tree, because all counts of a tree are over the same drawn rows."""
        return f"tree {self.tree}"


# The probabilities belong to the model, and only the counts can be removed.
@message(
    discloses=_COUNTING | {Reveal.MODEL},
    traits={Trait.STATISTICS, Trait.LEAVES},
    row_statistics=("counts",),
    leaf_value="probability",
)
class LeafClasses(Message):
    """Predictions of some leaves.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    nodes : int32 array, shape (k,)
        Numbers of the leaves.
    probability : float64 array, shape (k, K)
        Predicted class probabilities.
    counts : int64 array, shape (k, K), or None
        Training rows of each class. None if the protocol or a defense withholds them.
    """

    tree: int
    nodes: NDArray[np.int32]
    probability: NDArray[np.float64]
    counts: NDArray[np.int64] | None = None

    @property
    def reveals(self) -> frozenset[Reveal]:
        """Labels and counts are revealed only if the message contains counts."""
        return frozenset({Reveal.MODEL}) if self.counts is None else self.discloses


@message()
class LocalForestRequest(Request["LocalForest"]):
    """Ask a client for a forest that it trains on its local rows."""


# Thresholds of locally grown trees are values of rows.
@message(
    discloses=_COUNTING | {Reveal.MODEL, Reveal.THRESHOLDS},
    verbatim={"threshold"},
    leaf_value="probability",
)
class ForestArrays(Message):
    """A random forest as the arrays of `RandomForest.to_arrays`.

    Attributes
    ----------
    sizes : int64 array, shape (T,)
        Number of nodes of each tree. The node arrays of all trees are concatenated.
    feature : int32 array, shape (n_nodes,)
        Split column, -1 at a leaf.
    threshold : float32 array, shape (n_nodes,)
        Rows with ``x < threshold`` go left.
    left : int32 array, shape (n_nodes,)
        Left child within the tree, -1 at a leaf. The right child is one larger.
    default_left : bool array, shape (n_nodes,)
        Whether rows with a missing value go left.
    probability : float64 array, shape (n_nodes, K)
        Class probabilities, NaN at an inner node.
    counts : int64 array, shape (n_nodes, K), or None
        Training rows of each class. None if the protocol or a defense withholds them.
    """

    sizes: NDArray[np.int64]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    probability: NDArray[np.float64]
    counts: NDArray[np.int64] | None = None

    @property
    def reveals(self) -> frozenset[Reveal]:
        """Labels and counts are revealed only if the message contains counts."""
        return self.discloses - _COUNTING if self.counts is None else self.discloses


# The order of arrival links the trees of a client to the client.
# Local cut points are quantiles of the client's columns.
@message(discloses=ForestArrays.discloses | {Reveal.FEATURES}, traits={Trait.LEAVES, Trait.POOLED})
class LocalForest(ForestArrays):
    """A forest that a client trained on its local rows. Its thresholds are values of these rows."""


# The pooled forest belongs to all clients, so that it is not the forest of a single client.
@message(traits={Trait.LEAVES})
class PooledForest(LocalForest):
    """The trees of all clients, in client order."""


@message()
class ForestModel(ForestArrays):
    """A random forest."""

    def model(self) -> RandomForest:
        """Return the forest."""
        return RandomForest.from_arrays(vars(self))


@as_message.register
def _forest(model: RandomForest) -> Message:
    return ForestModel(**model.to_arrays())


@message()
class RandomTests(Request["LeafClassCounts"]):
    """The tests of all trees, drawn without data. They ask a client for class counts in the leaves.

    Attributes
    ----------
    feature, threshold : int32 and float32 array, shape (T, 2^depth - 1)
        In the heap order of `fedtrees.trees.forest.random_decision.RandomSplits`.
    """

    # Tests are drawn without data, so that they reveal nothing.
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]

    def splits(self) -> RandomSplits:
        """Return the tests of all trees."""
        return RandomSplits(self.feature, self.threshold)


# Each client's counts enter one sum over all clients.
@message(discloses={Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES}, traits={Trait.SUMMED})
class LeafClassCounts(Message):
    """A client's class counts. Every tree counts every row.

    Attributes
    ----------
    counts : int64 array, shape (T, 2^depth, K)
        Rows of each class in every leaf. They include a share of the noise if clients add the
        noise.
    rows : int64 array, shape (1,)
        Number of rows, 0 if the protocol does not publish it.
    """

    counts: NDArray[np.int64] = summable()
    rows: NDArray[np.int64] = summable()


@message(discloses={Reveal.LABELS, Reveal.COUNTS, Reveal.MODEL})
class PrivateForest(Message):
    """A released forest of random tests with noisy counts.

    Attributes
    ----------
    feature, threshold : int32 and float32 array, shape (T, 2^depth - 1)
        Tests in heap order. A row goes right if ``x >= threshold``.
    counts : int64 array, shape (T, 2^depth, K)
        Noisy counts, from the leftmost leaf on. If only labels are released, 1 for the label of the
        leaf and 0 otherwise.
    rows : int
        Number of training rows N, 0 if it is not published.
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    counts: NDArray[np.int64]
    rows: int = 0

    @staticmethod
    def of(forest: RandomDecisionForest) -> PrivateForest:
        """Return the message form of a forest.

        Parameters
        ----------
        forest : RandomDecisionForest
            Forest whose counts contain the noise already.

        Returns
        -------
        PrivateForest
            Message with the same arrays.
        """
        splits = forest.splits
        return PrivateForest(splits.feature, splits.threshold, forest.counts, forest.rows)

    def model(self) -> RandomDecisionForest:
        """Return the forest.

        Raises
        ------
        DataError
            If the shapes of the arrays do not match.
        """
        # The constructor checks the shapes.
        return RandomDecisionForest(
            RandomSplits(self.feature, self.threshold), self.counts, self.rows
        )


as_message.register(RandomDecisionForest, PrivateForest.of)
