"""How much Gaussian noise sums of gradients and hessians get that share one budget."""

import math
from dataclasses import dataclass

from fedtrees.privacy.gaussian_dp import mu_of

_SHARE = 0.2  # of the budget, for hessians that are not bounded by gradients


@dataclass(frozen=True)
class RowBound:
    """What a row may bring to the sums of one round: ``|g|^2 + |h / ratio|^2 <= norm^2``."""

    norm: float  # in units of the gradient; infinite: no bound
    ratio: float  # scale of the noise on hessians over that on gradients


def row_bound(
    norms: tuple[float, float], *, largest: float, free: float, share: float | None
) -> RowBound:
    """Return what rows may bring together to sums of gradients and of hessians.

    A row whose gradient is largest has hardly a hessian: ``|h|^2 <= free^2 (largest^2 - |g|^2)``.
    So noise on hessians that is `free` times that on gradients costs nothing beside it.

    `norms`: Bounds on the Euclidean norm of a row's gradients, clipped or not, and of its hessians,
    over the trees of a round.
    `largest`: Bound on the norm of gradients that are not clipped.
    `free`: `Objective.free`; infinite: hessians and gradients are not bound together.
    `share`: Of the budget, spent on hessians. None: as much as they get for nothing, or a fifth.
    """
    g, h = norms
    if share is None and math.isfinite(free):
        ratio = free
    else:
        share = _SHARE if share is None else share
        ratio = h / g * math.sqrt((1 - share) / share)
    apart = math.hypot(g, h / ratio)
    if math.isinf(free):
        return RowBound(apart, ratio)
    more = max(1 / ratio**2 - 1 / free**2, 0.0)
    return RowBound(min(math.hypot(largest, h * math.sqrt(more)), apart), ratio)


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
        Declared bound on the Euclidean norm of a row's gradients; None: what the loss allows.
    share : float or None
        As of `row_bound`.
    """
    g, h = norms if noisy else (math.inf, math.inf)
    g = g if clip is None else min(g, clip)
    if math.isinf(g):
        return RowBound(math.inf, 1.0)
    return row_bound((g, h), largest=norms[0], free=free, share=share)


def leaf_scales(
    bound: RowBound, *, epsilon: float, delta: float, rounds: int
) -> tuple[float, float]:
    """Return the scales of noise on sums of gradients and of hessians in the leaves, or zeros.

    A row is in one leaf of each tree of a round, so that neither the leaves nor the splits count,
    if these ignore data. Gaussian noise composes exactly: rounds have equal parts of mu squared.

    `epsilon, delta`: Of all releases together; epsilon in nats, infinite for no noise.
    """
    if math.isinf(epsilon):
        return 0.0, 0.0
    scale = bound.norm * math.sqrt(rounds) / mu_of(epsilon, delta)
    return scale, bound.ratio * scale
