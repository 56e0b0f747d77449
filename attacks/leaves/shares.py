"""How many draws are in a leaf that tells class shares alone, as one more part of a chain's state.

A share of 1/3 is that of any multiple of three draws, a pure leaf's of any number. Given the rows
that are in the leaf each such number is as likely as the class counts that it makes: of k rows a
bootstrap draws a Poisson number, of mean k times the draws for each row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.leaves.chain import NONE, UNIT, State, choose
from fedtrees.attacks.leaves.forests import Boxes, Source
from fedtrees.core.compilation import kernel

#: Shares are float64 quotients of whole numbers below this many draws.
_EXACT = 1e-12


@dataclass(frozen=True, eq=False)
class Numbers:
    """What the shares of leaves leave open."""

    leaves: NDArray[np.int64]  # shape (J,): nodes
    off: float  # by how much a share may be off: half of the step that it was rounded to
    rate: float  # draws for each row
    # most, least: draws in a leaf
    most: int
    least: int

    @staticmethod
    def of(boxes: Boxes, source: Source) -> Numbers:
        """Look at a source whose leaves tell shares, and start with leaves of one size."""
        assert source.step is not None
        leaves = np.flatnonzero(boxes.nodes[:, 0] < 0).astype(np.int64)
        off, draws = source.step / 2 + _EXACT, max(1, round(source.rows * source.rate))
        found = Numbers(leaves, off, source.rate, draws, source.least)
        each = draws * len(boxes.start) / max(len(leaves), 1)
        near = np.zeros(draws + 1, dtype=np.int64)
        near[:] = -np.abs(np.arange(draws + 1) - each) / UNIT
        sharp = np.zeros(1, dtype=np.int64), np.zeros(draws + 1, dtype=np.int64), near
        found._put(boxes, np.zeros_like(boxes.counts), *sharp, np.zeros(1, dtype=np.uint64))
        return found

    def draw(self, boxes: Boxes, state: State, weight: float, bits: NDArray[np.uint64]) -> None:
        """Draw the counts of all leaves anew, given the rows in them; `weight` as in `advance`."""
        log = [math.log(self.rate * x) for x in (NONE, *range(1, len(state.level) + 2))]
        terms = np.array(log), -_log_factorials(self.most), np.zeros(self.most + 1)
        fixed = (np.rint(t * weight / UNIT).astype(np.int64) for t in terms)
        self._put(boxes, state.held, *fixed, bits)

    def _put(
        self, boxes: Boxes, held: NDArray[np.int64], *terms: NDArray[np.int64] | NDArray[np.uint64]
    ) -> None:
        limits = self.off, self.least, self.most
        _redraw(self.leaves, boxes.share, *limits, held, boxes.counts, *terms)


def _log_factorials(most: int) -> NDArray[np.float64]:
    """Return ``log n!`` of all n up to the most, float64, shape (most + 1,)."""
    return np.array([math.lgamma(n + 1) for n in range(most + 1)])


@kernel
def _redraw(leaves, share, off, least, most, held, counts, log, each, whole, bits):  # type: ignore[no-untyped-def]
    """Set counts: a count c of k rows gains ``c log[k] + each[c]``, n of them ``whole[n]``."""
    classes = share.shape[1]
    gain = np.empty(most + 1, dtype=np.int64)
    number = np.empty(most + 1, dtype=np.int64)
    weight = np.empty(most + 1, dtype=np.int64)
    for v in leaves:
        m = 0
        for n in range(least, most + 1):
            total, value = np.int64(0), whole[n]
            for k in range(classes):
                c = np.int64(share[v, k] * n + 0.5)
                if abs(c - share[v, k] * n) > off * n:
                    total = -1
                    break
                total += c
                value += c * log[held[v, k]] + each[c]
            if total == n:
                gain[m], number[m] = value, n
                m += 1
        if m == 0:
            continue
        n = number[choose(gain, weight, m, bits)]
        for k in range(classes):
            counts[v, k] = np.int64(share[v, k] * n + 0.5)
