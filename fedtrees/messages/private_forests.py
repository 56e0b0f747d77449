"""What the protocol of differentially private forests says."""

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
    """The tests of all trees, drawn without data: ask for class counts in the leaves."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    # feature, threshold: int32 and float32 array, shape (T, 2^depth - 1): as
    # `fedtrees.trees.forest.random_decision.RandomSplits`
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]

    def splits(self) -> RandomSplits:
        """Return the tests."""
        return RandomSplits(self.feature, self.threshold)


@dataclass(frozen=True, eq=False)
class LeafClassCounts(Message):
    """A client's class counts; every tree counts every row.

    `counts`: int64 array, shape (T, 2^depth, K). Rows of each class in every leaf, with a share of
    the noise where clients add it.
    `rows`: int64 array, shape (1,). How many rows there are; 0 where that is not told.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED})
    discloses: ClassVar[frozenset[Reveal]] = frozenset(
        {Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES}
    )
    counts: NDArray[np.int64] = summable()
    rows: NDArray[np.int64] = summable()


@dataclass(frozen=True, eq=False)
class PrivateForest(Message):
    """A forest of random tests with noisy counts, as it is released."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS, Reveal.COUNTS, Reveal.MODEL})
    # feature, threshold: int32 and float32 array, shape (T, 2^depth - 1): in heap order; right iff
    # ``x >= threshold``
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    # shape (T, 2^depth, K): from the leftmost leaf on. Where labels alone are released, 1 for the
    # leaf's label.
    counts: NDArray[np.int64]
    rows: int = 0  # training rows N; 0 where they are not told

    @staticmethod
    def of(forest: RandomDecisionForest) -> PrivateForest:
        """Return the message that tells a forest."""
        splits = forest.splits
        return PrivateForest(splits.feature, splits.threshold, forest.counts, forest.rows)

    def model(self) -> RandomDecisionForest:
        """Return the forest.

        Raises `DataError` if the arrays do not fit one another.
        """
        return RandomDecisionForest(
            RandomSplits(self.feature, self.threshold), self.counts, self.rows
        )


as_message.register(RandomDecisionForest, PrivateForest.of)
