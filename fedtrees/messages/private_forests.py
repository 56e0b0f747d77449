"""Messages of the protocol of differentially private forests (`dp-forest`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, Trait, summable
from fedtrees.messages.models import as_message
from fedtrees.trees.forest.random_decision import RandomDecisionForest, RandomSplits


@dataclass(frozen=True, eq=False)
class RandomTests(Message):
    """The tests of all trees, drawn without data. They ask a client for class counts in the leaves.

    Attributes
    ----------
    feature, threshold : int32 and float32 array, shape (T, 2^depth - 1)
        In the heap order of `fedtrees.trees.forest.random_decision.RandomSplits`.
    """

    # Tests are drawn without data, so that they reveal nothing.
    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]

    def splits(self) -> RandomSplits:
        """Return the tests of all trees."""
        return RandomSplits(self.feature, self.threshold)


@dataclass(frozen=True, eq=False)
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

    # Each client's counts enter one sum over all clients.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED})
    discloses: ClassVar[frozenset[Reveal]] = frozenset(
        {Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES}
    )
    counts: NDArray[np.int64] = summable()
    rows: NDArray[np.int64] = summable()


@dataclass(frozen=True, eq=False)
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

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS, Reveal.COUNTS, Reveal.MODEL})
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    counts: NDArray[np.int64]
    rows: int = 0

    @staticmethod
    def of(forest: RandomDecisionForest) -> PrivateForest:
        """Return the message form of a forest."""
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
