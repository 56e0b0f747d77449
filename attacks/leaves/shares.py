"""Sample the number of draws in leaves that contain only class shares.

The number is an additional part of the state of a chain. Shares restrict it: for example, a share
of 1/3 needs a multiple of three draws, while a pure leaf can have any number. Given the rows of the
table in the leaf, the number has the probability of the resulting class counts. A bootstrap draws
from k rows a Poisson number with mean k times the draws per row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.leaves.chain import NONE, UNIT, State, choose
from fedtrees.attacks.leaves.forests import Boxes, Source
from fedtrees.core.compilation import kernel

#: Tolerance of an unrounded share, which is a float64 quotient of two integers.
_EXACT = 1e-12


@dataclass(frozen=True, eq=False)
class Numbers:
    """Possible numbers of draws in ``leaves`` with class shares.

    Attributes
    ----------
    off : float
        Largest rounding error of a share.
    rate : float
        Number of draws of a tree per row.
    most, least : int
        Bounds on the draws in a leaf.
    """

    leaves: NDArray[np.int64]
    off: float
    rate: float
    most: int
    least: int

    @staticmethod
    def of(boxes: Boxes, source: Source) -> Numbers:
        """Initialise the counts of a source with shares, with leaves of equal size if possible."""
        assert source.step is not None
        leaves = np.flatnonzero(boxes.nodes[:, 0] < 0).astype(np.int64)
        off, draws = source.step / 2 + _EXACT, max(1, round(source.rows * source.rate))
        numbers = Numbers(leaves, off, source.rate, draws, source.least)
        each = draws * len(boxes.start) / max(len(leaves), 1)
        near = np.zeros(draws + 1, dtype=np.int64)
        near[:] = -np.abs(np.arange(draws + 1) - each) / UNIT
        sharp = np.zeros(1, dtype=np.int64), np.zeros(draws + 1, dtype=np.int64), near
        numbers._put(boxes, np.zeros_like(boxes.counts), *sharp, np.zeros(1, dtype=np.uint64))
        return numbers

    def draw(self, boxes: Boxes, state: State, weight: float, bits: NDArray[np.uint64]) -> None:
        """Redraw the counts of all leaves, given the rows in them, in place.

        Parameters
        ----------
        boxes : Boxes
            Its counts change in place.
        state : State
            The table.
        weight : float
            Factor on the log-likelihood.
        bits : uint64 array, shape (1,)
            State of the random number generator.
        """
        log = [math.log(self.rate * x) for x in (NONE, *range(1, len(state.level) + 2))]
        terms = np.array(log), -_log_factorials(self.most), np.zeros(self.most + 1)
        fixed = (np.rint(t * weight / UNIT).astype(np.int64) for t in terms)
        self._put(boxes, state.held, *fixed, bits)

    def _put(
        self,
        boxes: Boxes,
        occupancy: NDArray[np.int64],
        *terms: NDArray[np.int64] | NDArray[np.uint64],
    ) -> None:
        limits = self.off, self.least, self.most
        _redraw(self.leaves, boxes.share, *limits, occupancy, boxes.counts, *terms)


def _log_factorials(largest: int) -> NDArray[np.float64]:
    """Return ``log n!`` for n from 0 to ``largest``, float64, shape (largest + 1,)."""
    return np.array([math.lgamma(n + 1) for n in range(largest + 1)])


@kernel
def _redraw(leaves, share, off, least, largest, occupancy, counts, log, each, by_size, bits):  # type: ignore[no-untyped-def]
    """Draw the counts of every leaf in place.

    A count c of k rows adds ``c log[k] + each[c]`` to the log-probability, and the total number n
    of draws adds ``by_size[n]``. A leaf for which no number of draws fits the shares is unchanged.
    """
    classes = share.shape[1]
    gain = np.empty(largest + 1, dtype=np.int64)
    number = np.empty(largest + 1, dtype=np.int64)
    weight = np.empty(largest + 1, dtype=np.int64)
    for v in leaves:
        m = 0
        for n in range(least, largest + 1):
            total, value = np.int64(0), by_size[n]
            for k in range(classes):
                c = np.int64(share[v, k] * n + 0.5)
                if abs(c - share[v, k] * n) > off * n:
                    total = -1
                    break
                total += c
                value += c * log[occupancy[v, k]] + each[c]
            if total == n:
                gain[m], number[m] = value, n
                m += 1
        if m == 0:
            continue
        n = number[choose(gain, weight, m, bits)]
        for k in range(classes):
            counts[v, k] = np.int64(share[v, k] * n + 0.5)
