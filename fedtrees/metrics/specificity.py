"""Is a guess closer to the training rows than to other rows of the same distribution?"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.machine_code import compiled
from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.matching import assign, mismatch_counts
from fedtrees.guessing.tolerance import Tolerance
from fedtrees.metrics.records import ra_only, sorted_rows

#: Fresh samples the guess is compared with (Gorgé et al., Appendix D).
FRESH = 100
#: Most rows per sample: 100 matchings of 1,000 rows take seconds. Larger sets are sampled.
ROWS = 1000
#: Most rows on each side of the nearest-row test: every guessed row is compared with all of them.
NEAR_ROWS = 8000
# Samples of the training rows averaged where they are more than a sample holds.
_TRAIN_SAMPLES = 10


@dataclass(frozen=True)
class Specificity:
    """Score of a guess against its own victims, placed among scores against fresh samples."""

    # (RA on the victims - mean RA on fresh samples) / standard deviation of the latter, that
    # deviation corrected for the finite reserve. None if all fresh scores are equal.
    z: float | None
    tail: float | None  # probability of a z at least as large under a standard normal
    rank: float  # (1 + number of fresh samples scoring at least as high) / (1 + number of samples)
    # victims, fresh: RA against victims' rows, and mean RA against fresh samples
    victims: float
    fresh: float
    rows: int  # True rows per sample


def specificity(
    guess: Table,
    truth: Table,
    reserve: Table,
    schema: Schema,
    rng: np.random.Generator,
    *,
    samples: int = FRESH,
) -> Specificity:
    """Compare the RA of a guess on its victims with its RA on fresh rows.

    Raises `DataError`: fewer than 2 reserve rows or samples, or no guess.

    `guess`: m guessed rows.
    `truth`: n victims' rows.
    `reserve`: Rows of the same distribution that nobody in the federation holds.
    `samples`: Fresh samples, 100 in the source.

    Notes
    -----
    Gorgé et al. draw fresh samples of n rows. Here every sample, fresh or not, has
    ``k = min(n, len(reserve) // 2, ROWS)`` rows drawn without replacement, matched into the *whole*
    guess (a sample of the guess too would break up the pairs); where k < n the victims' score is
    the mean over 10 such samples of the victims. Fresh samples share rows of one finite reserve,
    which shrinks their variance by about 1 - k / len(reserve); the deviation is divided by the
    root of that. Tolerances are those of the victims throughout. A guess of more than 4 k rows is
    cut to its first 4 k, to bound the time.
    """
    from scipy.stats import norm

    if len(reserve) < 2 or samples < 2 or len(guess) == 0:
        raise DataError(
            f"specificity needs a guess, 2 reserve rows and 2 samples; got {len(guess)} guessed "
            f"rows, {len(reserve)} reserve rows, {samples} samples"
        )
    width = Tolerance.of(truth, schema).width
    k = max(1, min(len(truth), len(reserve) // 2, ROWS))
    G = sorted_rows(guess.take(np.arange(min(len(guess), 4 * k))))
    T, R = sorted_rows(truth), sorted_rows(reserve)

    def scores(pool: NDArray[np.float64], times: int) -> NDArray[np.float64]:
        drawn = [rng.choice(len(pool), k, replace=False) for _ in range(times)]
        rows, at = np.unique(np.concatenate(drawn), return_inverse=True)
        cost = mismatch_counts(pool[rows], G, width)  # of rows in several samples once
        parts = np.split(at.ravel(), times)
        return np.array([_accuracy(cost[part], len(width)) for part in parts])

    victims = ra_only(G, T, width) if k == len(T) else float(np.mean(scores(T, _TRAIN_SAMPLES)))
    fresh = scores(R, samples)
    deviation = float(fresh.std(ddof=1) / np.sqrt(1 - k / len(reserve)))
    z = (victims - float(fresh.mean())) / deviation if deviation > 0 else None
    return Specificity(
        z=z,
        tail=None if z is None else float(norm.sf(z)),
        rank=float((1 + (fresh >= victims).sum()) / (1 + samples)),
        victims=victims,
        fresh=float(fresh.mean()),
        rows=k,
    )


def _accuracy(cost: NDArray[np.uint8], columns: int) -> float:
    """Return the RA of rows by how many columns each guess gets wrong, uint8 (n, m)."""
    pair = assign(cost)
    matched = np.flatnonzero(pair >= 0)
    wrong = int(cost[matched, pair[matched]].sum(dtype=np.int64))
    return (len(matched) * columns - wrong) / (len(cost) * columns)


def nearest_row(
    guess: Table, truth: Table, reserve: Table, schema: Schema, rng: np.random.Generator
) -> float:
    """Return the share of guessed rows closer to a training row than to every reserve row.

    Distance is Gower's, with ranges of the training rows; a tie counts one half. The larger of
    the two sets is cut at random to the size of the smaller, so that chance is 0.5; both to
    `NEAR_ROWS` where they have more, and of the guess so many first rows are asked.

    Raises `DataError`: no guessed, true or reserve rows.
    """
    if min(len(guess), len(truth), len(reserve)) == 0:
        raise DataError("the nearest-row test needs guessed, true and reserve rows")
    span = Tolerance.of(truth, schema).range
    size = min(len(truth), len(reserve), NEAR_ROWS)
    G = sorted_rows(guess.take(np.arange(min(len(guess), NEAR_ROWS))))
    pools = [sorted_rows(t) for t in (truth, reserve)]
    cut = [p[rng.choice(len(p), size, replace=False)] if len(p) > size else p for p in pools]
    to_truth, to_reserve = (_nearest(G, pool, span) for pool in cut)
    tie = np.isclose(to_truth, to_reserve, rtol=0, atol=1e-12)
    return float(np.where(tie, 0.5, to_truth < to_reserve).mean())


@compiled
def _nearest(G: NDArray[Any], P: NDArray[Any], span: NDArray[Any]) -> NDArray[Any]:
    """Return the smallest Gower distance (times c) of every row of G to the rows of P."""
    out = np.empty(G.shape[0])
    for i in range(G.shape[0]):
        best = np.inf
        for j in range(P.shape[0]):
            total = 0.0
            for k in range(G.shape[1]):
                a, b = G[i, k], P[j, k]
                if np.isnan(a) or np.isnan(b):
                    total += 0.0 if np.isnan(a) and np.isnan(b) else 1.0
                elif span[k] > 0:
                    total += min(abs(a - b) / span[k], 1.0)
                else:
                    total += 0.0 if a == b else 1.0
                if total >= best:
                    break
            best = min(best, total)
        out[i] = best
    return out
