"""How much Gaussian noise sums of gradients and hessians get that share one budget."""

from __future__ import annotations

import math

from fedtrees.privacy.renyi import noise_multiplier


def leaf_scales(
    norms: tuple[float, float],
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    hessian_share: float,
) -> tuple[float, float]:
    """Return the scales of noise on sums of gradients and of hessians in the leaves, or zeros.

    A row is in one leaf of each tree of a round, so that neither the leaves nor the splits count,
    if these ignore data. Rényi divergences add up: the hessians of all rounds have their share.

    Parameters
    ----------
    norms : pair of float
        Bounds on the Euclidean norm of a row's gradients, and of its hessians, over the trees of a
        round: the L2 sensitivities.
    epsilon, delta : float
        Of all releases together; epsilon in nats, infinite for no noise.
    rounds : int
    hessian_share : float
        Between 0 and 1.
    """
    if math.isinf(epsilon):
        return 0.0, 0.0
    multiplier = noise_multiplier(epsilon, delta, rounds)
    g, h = norms
    return g * multiplier / math.sqrt(1 - hessian_share), h * multiplier / math.sqrt(hessian_share)
