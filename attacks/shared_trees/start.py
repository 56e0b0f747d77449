"""Where a client's first trees start: its own base score, from integers.

The base score in a shared model is that of the client whose trees arrived first; every other
client's first trees were grown from its own (Di Gennaro et al. 2025 take the model's for all).
With N rows of probability p, H = N p (1-p) at the root and every leaf holds whole numbers of rows
and of positives: few N fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.forest import Tree
from fedtrees.trees.intercept import estimated_score
from fedtrees.trees.losses import Logistic, Objective

Floats = NDArray[np.float64]

# Largest distance from whole numbers that float32 sums of so many rows explain.
LARGEST_OFF = 0.05


@dataclass(frozen=True, eq=False)
class Start:
    """A client's start.

    Attributes
    ----------
    score : float32 array, shape (K,)
        Base score in XGBoost's units.
    rows : int
        Number of the client's rows.
    off : float
        Largest distance of a count from a whole number (rows).
    """

    score: NDArray[np.float32]
    rows: int
    off: float


def own_start(
    trees: Sequence[Tree], objective: Objective, most_rows: int, intercept: str = "mean"
) -> Start | None:
    """Return the start of a client's first trees, None where no number of rows fits.

    Parameters
    ----------
    trees : sequence of Tree
        Of the first round, one per output, with sums.
    objective : Logistic or Softmax
    most_rows : int
        Rows the client may have.
    intercept : {"mean", "newton"}
        How it estimates its base score.
    """
    twice = 1.0 if isinstance(objective, Logistic) else 2.0  # XGBoost's softmax doubles h
    n = np.arange(1, most_rows + 1, dtype=np.float64)
    off = np.zeros((len(n),))
    shares = np.zeros((len(trees), len(n)))
    for k, tree in enumerate(trees):
        if tree.g is None or tree.h is None:
            return None
        g, h = tree.g[tree.leaves], tree.h[tree.leaves]
        shares[k], worst = _fit(n, g, h / twice)
        off = np.maximum(off, worst)
    if len(trees) > 1:
        off = np.where(np.abs(shares.sum(axis=0) - 1) < 1e-4, off, np.inf)
    best = int(np.argmin(off))
    if not off[best] <= LARGEST_OFF:
        return None
    rows = int(n[best])
    sums = [t.g[t.leaves].sum() for t in trees if t.g is not None]
    positives = np.rint(rows * shares[:, best] - np.array(sums))
    classes = [rows - positives[0], positives[0]] if len(trees) == 1 else positives
    score = estimated_score(objective, np.array([rows, *classes]), intercept)
    return Start(score, rows, float(off[best]))


def _fit(n: Floats, g: Floats, h: Floats) -> tuple[Floats, Floats]:
    """Return, for each N, the probability that fits better and how far counts are off."""
    total = h.sum()
    root = np.sqrt(np.maximum(1.0 - 4.0 * total / n, 0.0))
    per_leaf = n[:, None] * (h / total)
    best_p, best_off = np.zeros(len(n)), np.full(len(n), np.inf)
    for p in ((1.0 - root) / 2.0, (1.0 + root) / 2.0):
        counts = np.concatenate([per_leaf, per_leaf * p[:, None] - g], axis=1)
        counts = np.concatenate([counts, (n * p - g.sum())[:, None]], axis=1)
        off = np.abs(counts - np.rint(counts)).max(axis=1)
        off = np.where((n >= 4.0 * total - 1e-6) & (counts.min(axis=1) > -0.5), off, np.inf)
        better = off < best_off
        best_p, best_off = np.where(better, p, best_p), np.where(better, off, best_off)
    return best_p, best_off
