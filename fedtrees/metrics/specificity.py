"""Tests whether a guess is closer to the training rows than to fresh rows of the distribution.

A guess that describes the distribution well can have a high score without any information about the
training rows. The metric `specificity` (`fedtrees.metrics.victims_rows`) therefore compares it with
a reserve of rows that were not used for training (Gorgé et al. 2026, Appendix D).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.blind_baselines.matching import matched_accuracy, mismatch_counts
from fedtrees.blind_baselines.rows import Tolerance
from fedtrees.core.compilation import kernel
from fedtrees.core.errors import DataError
from fedtrees.core.schema import Schema, Table
from fedtrees.metrics.records import sorted_rows

#: Number of fresh samples that the guess is compared with (Gorgé et al. 2026, Appendix D).
FRESH = 100
#: Largest number of rows per sample. 100 matchings of 1,000 rows take seconds.
ROWS = 1000
#: Largest number of rows in each table of the nearest-row test, which compares all pairs of rows.
NEAR_ROWS = 8000
# Number of samples of the training rows, if they are more than the rows of a sample.
_TRAIN_SAMPLES = 10


@dataclass(frozen=True)
class Specificity:
    """Reconstruction accuracy (RA) on the victims' rows, compared with RA on fresh samples.

    Attributes
    ----------
    z : float or None
        (RA on the victims - mean RA on fresh samples) / standard deviation over fresh samples. The
        deviation is corrected for the finite reserve. None if all fresh scores are equal.
    tail : float or None
        Probability of this z or a larger one under a standard normal distribution.
    rank : float
        (1 + number of fresh samples with at least the RA of the victims) / (1 + number of samples).
    victims, fresh : float
        RA on the victims' rows, and mean RA on fresh samples.
    rows : int
        Number of rows per sample.
    """

    z: float | None
    tail: float | None
    rank: float
    victims: float
    fresh: float
    rows: int


def specificity(
    guess: Table,
    truth: Table,
    reserve: Table,
    schema: Schema,
    rng: np.random.Generator,
    *,
    samples: int = FRESH,
) -> Specificity:
    """Compare the reconstruction accuracy of a guess on the victims and on fresh rows.

    Parameters
    ----------
    guess : Table
        m guessed rows.
    truth : Table
        n rows of the victims.
    reserve : Table
        Rows of the same distribution that are in no local data.
    schema : Schema
        Columns of the tables.
    rng : numpy.random.Generator
        Draws the samples.
    samples : int
        Number of fresh samples.

    Returns
    -------
    test : Specificity
        Accuracies and test statistics.

    Raises
    ------
    DataError
        If there are less than 2 reserve rows, less than 2 samples, or no guessed row.

    Notes
    -----
    Gorgé et al. (2026) draw fresh samples of n rows. Here every sample, also of the victims, has
    ``k = min(n, len(reserve) // 2, ROWS)`` rows, drawn without replacement. It is matched with the
    complete guess, because a sample of the guess would lose the matching rows. If k < n, the score
    of the victims is the mean over 10 samples. Fresh samples share rows of the finite reserve,
    which reduces their variance by the factor 1 - k / len(reserve). The deviation is corrected for
    it. All tolerances are those of the victims. To limit the time, only the first 4 k rows of a
    guess are used.
    """
    from scipy.stats import norm

    if len(reserve) < 2 or samples < 2 or len(guess) == 0:
        raise DataError(
            f"specificity needs a guess, 2 reserve rows and 2 samples; got {len(guess)} guessed "
            f"rows, {len(reserve)} reserve rows, {samples} samples"
        )
    width = Tolerance.of(truth, schema).width
    # At most half of the reserve, so that fresh samples differ sufficiently.
    k = max(1, min(len(truth), len(reserve) // 2, ROWS))
    G = sorted_rows(guess.take(np.arange(min(len(guess), 4 * k))))
    T, R = sorted_rows(truth), sorted_rows(reserve)

    def scores(pool: NDArray[np.float64], times: int) -> NDArray[np.float64]:
        samples_of_rows = [rng.choice(len(pool), k, replace=False) for _ in range(times)]
        rows, position = np.unique(np.concatenate(samples_of_rows), return_inverse=True)
        cost = mismatch_counts(pool[rows], G, width)  # a row may be in several samples
        parts = np.split(position.ravel(), times)
        return np.array([matched_accuracy(cost[part], len(width)) for part in parts])

    if k == len(T):
        victims = matched_accuracy(mismatch_counts(T, G, width), len(width))
    else:
        victims = float(np.mean(scores(T, _TRAIN_SAMPLES)))
    fresh = scores(R, samples)
    # Correction for samples without replacement from a finite reserve, see Notes.
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


def nearest_row(
    guess: Table, truth: Table, reserve: Table, schema: Schema, rng: np.random.Generator
) -> float:
    """Return the share of guessed rows that are closer to a training row than to any reserve row.

    The distance is Gower's, with the ranges of the training rows. A tie counts one half. The larger
    table is sampled to the size of the smaller one, so that chance is 0.5.

    Parameters
    ----------
    guess : Table
        Guessed rows. At most the first `NEAR_ROWS` are used.
    truth : Table
        Training rows of the victims. At most `NEAR_ROWS` are used, drawn at random.
    reserve : Table
        Rows of the same distribution that are in no local data, sampled likewise.
    schema : Schema
        Columns of the tables.
    rng : numpy.random.Generator
        Draws the samples.

    Returns
    -------
    share : float
        Between 0 and 1, where 0.5 is chance.

    Raises
    ------
    DataError
        If one of the tables has no rows.
    """
    if min(len(guess), len(truth), len(reserve)) == 0:
        raise DataError("the nearest-row test needs guessed, true and reserve rows")
    span = Tolerance.of(truth, schema).range
    size = min(len(truth), len(reserve), NEAR_ROWS)
    G = sorted_rows(guess.take(np.arange(min(len(guess), NEAR_ROWS))))
    pools = [sorted_rows(t) for t in (truth, reserve)]
    cut = [p[rng.choice(len(p), size, replace=False)] if len(p) > size else p for p in pools]
    to_truth, to_reserve = (_nearest(G, pool, span) for pool in cut)
    # Sums of floats are rounded, so that equal distances can differ in their last bits.
    tie = np.isclose(to_truth, to_reserve, rtol=0, atol=1e-12)
    return float(np.where(tie, 0.5, to_truth < to_reserve).mean())


@kernel
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
