"""Infer one unknown row given all other rows, by enumerating every possible row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.likelihoods import NAT, Labels, Noise
from fedtrees.attacks.forests.posterior import weights
from fedtrees.attacks.forests.structure import NoisyForest
from fedtrees.core.errors import DataError

#: Weight of the product of marginals in the prior, in rows.
PSEUDO = 20.0
#: Largest number of possible rows, without classes.
MOST_ROWS = 1 << 20


@dataclass(frozen=True, eq=False)
class Enumeration:
    """All U rows that the variables allow, and the leaf of each in each of T trees."""

    forest: NoisyForest
    value: NDArray[np.int16]  # shape (U, G)
    leaf: NDArray[np.int32]  # shape (U, T)

    @staticmethod
    def of(forest: NoisyForest) -> Enumeration:
        """Enumerate the rows of a forest's variables.

        Raises
        ------
        DataError
            If there are more than `MOST_ROWS`.
        """
        variables = forest.variables
        if variables.rows_possible > MOST_ROWS:
            raise DataError(
                f"{variables.rows_possible:,} different rows are too many to look at one by one "
                f"(at most {MOST_ROWS:,}); take mode=posterior"
            )
        value = np.indices(tuple(variables.sizes)).reshape(len(variables), -1).T.astype(np.int16)
        return Enumeration(forest, value, forest.route(value))

    def missing_row(
        self,
        noise: Noise,
        known_rows: NDArray[np.integer],
        counts: NDArray[np.int64] | None = None,
        known_values: Mapping[int, int] | None = None,
    ) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
        """Return the row that is missing among the known ones.

        Parameters
        ----------
        noise : Noise
            Noise on the counts.
        known_rows : int array, shape (k, G + 1)
            Levels and class of all other rows.
        counts : int64 array, shape (T, 2^d, K), optional
            Counts of these rows in the leaves, if they were already computed.
        known_values : mapping of int to int, optional
            Known levels of variables of the missing row.

        Returns
        -------
        row : int16 array, shape (G + 1,)
            The valid row with the smallest expected difference from the missing row. Therefore no
            one-hot group is empty because none of its levels is likely.
        probability : float64 array, shape (U, K)
            Posterior of every row and class.

        Notes
        -----
        The prior is the empirical distribution of the known rows, mixed with the product of their
        marginals given the class, which has the weight of `PSEUDO` rows.
        """
        forest = self.forest
        counts = forest.counts(known_rows[:, :-1], known_rows[:, -1]) if counts is None else counts
        gain = _gain(forest, noise, counts, len(known_rows) + 1)
        trees = np.arange(len(gain))
        score = gain[trees[None, :], self.leaf].sum(axis=1) + np.log(self._prior(known_rows))
        for g, level in (known_values or {}).items():
            score[self.value[:, g] != level] = -np.inf
        score -= score.max()
        probability = np.exp(score)
        probability /= probability.sum()
        return self._nearest(probability), probability

    def _prior(self, known_rows: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the prior weight of every row and class, float64, shape (U, K)."""
        sizes, K = self.forest.variables.sizes, self.forest.n_classes
        weight = np.empty((len(self.value), K))
        for c in range(K):
            rows = known_rows[known_rows[:, -1] == c, :-1]
            weight[:, c] = PSEUDO * (len(rows) + 1) / (len(known_rows) + K)
            for g, r in enumerate(sizes.tolist()):
                share = (np.bincount(rows[:, g], minlength=r) + 0.5) / (len(rows) + 0.5 * r)
                weight[:, c] *= share[self.value[:, g]]
        place = np.ravel_multi_index(tuple(known_rows[:, :-1].T), tuple(sizes))
        np.add.at(weight, (place, known_rows[:, -1]), 1.0)
        return weight

    def _nearest(self, probability: NDArray[np.float64]) -> NDArray[np.int16]:
        rows, weight = probability.sum(axis=1), weights(self.forest.variables)
        agreed = np.zeros(len(self.value))
        for g, r in enumerate(self.forest.variables.sizes.tolist()):
            share = np.bincount(self.value[:, g], weights=rows, minlength=r)
            agreed += int(weight[g]) * share[self.value[:, g]]
        row = self.value[agreed.argmax()]
        return np.append(row, probability.sum(axis=0).argmax()).astype(np.int16)


def _gain(
    forest: NoisyForest, noise: Noise, counts: NDArray[np.int64], m: int
) -> NDArray[np.float64]:
    """Return the log likelihood gain of one more row in a leaf (nats), (T, leaves, K)."""
    if noise.kind == "labels":
        labels = Labels.of(noise, forest.noisy, m)
        before = labels.costs(counts)
        one = np.eye(forest.n_classes, dtype=np.int64)
        return np.stack([before - labels.costs(counts + row) for row in one], axis=2) / NAT
    noisy, table = noise.table(forest.noisy, m)
    at = np.clip(noisy - counts + len(table) // 2, 1, len(table) - 1)
    return np.asarray((table[at] - table[at - 1]) / NAT)
