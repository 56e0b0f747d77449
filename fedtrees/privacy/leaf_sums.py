"""Calibration of Gaussian noise on the sums of gradients and hessians in leaves.

Both sums share one budget. The protocol `dp-gbdt` uses it: its splits do not depend on the data, so
that only the sums in the leaves need noise.
"""

import math
from dataclasses import dataclass

from fedtrees.privacy.gaussian_dp import mu_of

_SHARE = 0.2  # share of the budget for hessians that are not bounded by gradients


@dataclass(frozen=True)
class RowBound:
    """Joint bound on the gradients and hessians of a row in one round.

    For all rows ``|g|^2 + |h / ratio|^2 <= norm^2``.

    Attributes
    ----------
    norm : float
        In the unit of the gradient. Infinite: there is no bound.
    ratio : float
        Ratio of the noise scale of hessians to that of gradients.
    """

    norm: float
    ratio: float


def row_bound(
    norms: tuple[float, float], *, largest: float, free: float, share: float | None
) -> RowBound:
    """Return the joint bound on the gradients and hessians of a row.

    A row with the largest possible gradient has a hessian close to 0:
    ``|h|^2 <= free^2 (largest^2 - |g|^2)``. Hessians with a noise scale of `free` times that of the
    gradients therefore do not increase the sensitivity.

    Parameters
    ----------
    norms : tuple of float
        Bounds on the Euclidean norm of a row's gradients, clipped or not, and of its hessians, over
        the trees of a round.
    largest : float
        Bound on the norm of gradients that are not clipped.
    free : float
        `Objective.free`. Infinite: hessians and gradients are bounded independently.
    share : float or None
        Share of the budget that is spent on hessians. None: no share if `free` is finite, else a
        fifth.
    """
    g, h = norms
    if share is None and math.isfinite(free):
        ratio = free
    else:
        share = _SHARE if share is None else share
        # Distributes the squared mu in the ratio share to (1 - share) at the largest g and h.
        ratio = h / g * math.sqrt((1 - share) / share)
    independent_norm = math.hypot(g, h / ratio)
    if math.isinf(free):
        return RowBound(independent_norm, ratio)
    excess = max(1 / ratio**2 - 1 / free**2, 0.0)
    return RowBound(min(math.hypot(largest, h * math.sqrt(excess)), independent_norm), ratio)


def clipped_row_bound(
    norms: tuple[float, float], *, free: float, noisy: bool, clip: float | None, share: float | None
) -> RowBound:
    """Return the bound to which each client scales a row's gradients and hessians of one round.

    Parameters
    ----------
    norms, free : float
        `Objective.norms` and `Objective.free` of the loss.
    noisy : bool
        Whether noise is added. Without noise only `clip` bounds a row.
    clip : float or None
        Declared bound on the Euclidean norm of a row's gradients. None: the bound of the loss.
    share : float or None
        As in `row_bound`.
    """
    g, h = norms if noisy else (math.inf, math.inf)
    g = g if clip is None else min(g, clip)
    if math.isinf(g):
        return RowBound(math.inf, 1.0)
    return row_bound((g, h), largest=norms[0], free=free, share=share)


def leaf_scales(
    bound: RowBound, *, epsilon: float, delta: float, rounds: int
) -> tuple[float, float]:
    """Return the noise scales of the sums of gradients and of hessians in the leaves.

    A row is in one leaf of each tree of a round, so that the number of leaves does not matter.
    Splits do not matter if they do not depend on the data. Gaussian noise composes exactly, and
    every round has the same share of the squared mu.

    Parameters
    ----------
    bound : RowBound
    epsilon, delta : float
        Budget of all releases together, epsilon in nats. Infinite: no noise.
    rounds : int
        Number of rounds.

    Returns
    -------
    scales : tuple of float
        In the unit of the gradient. Zeros if there is no noise.
    """
    if math.isinf(epsilon):
        return 0.0, 0.0
    scale = bound.norm * math.sqrt(rounds) / mu_of(epsilon, delta)
    return scale, bound.ratio * scale
