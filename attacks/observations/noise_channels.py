"""Mechanisms that defenses applied to sums and leaf values before the adversary saw them.

Every function reads the channels that defenses publish in the view.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.replay import hides, sent_back
from fedtrees.core.channel import Channel, chained
from fedtrees.core.view import View
from fedtrees.messages.horizontal import ClientTrees, Histogram, LeafValues, SharedTrees
from fedtrees.trees.boosted.histogram import Bits

# Standard deviations of noise that a sum may be off. One sum in 300,000 exceeds them.
DEVIATIONS = 4.5


def law_of_sums(view: View, parties: int = 1, hiding: bool = True) -> Channel | None:
    """Return the channel of the sum of histograms of the given number of clients. None means exact.

    Changes by the clients and changes to the sums that the server sends back are chained.

    Parameters
    ----------
    view : View
        The adversary's view.
    parties : int, default 1
        Number of clients whose histograms are added.
    hiding : bool, default True
        If False, mechanisms that replace bins by empty ones are left out.
    """
    sent, back = view.changes(Histogram, "sums", "client"), sent_back(view, "sums")
    if not hiding:
        sent, back = ([c for c in part if not hides([c])] for part in (sent, back))
    return chained(c for c in (chained(sent, parties), chained(back)) if c is not None)


def reach_of(law: Channel | None, n_summands: NDArray[np.int64], bits: Bits) -> NDArray[np.float64]:
    """Return the largest error of sums of several sent statistics, shape (k,).

    For unbounded noise, it is the error that one sum in 300,000 exceeds.

    Parameters
    ----------
    law : Channel or None
        Mechanism applied to one sent statistic. None gives zeros.
    n_summands : int64 array, shape (k,)
        Number of statistics in each sum.
    bits : Bits
        Fixed-point exponents of the gradient and hessian sums.
    """
    if law is None:
        return np.zeros(len(n_summands))
    # channels are stated in gradients, and sums are fixed-point integers
    units = np.ldexp(1.0, bits)
    largest_error = float(np.max(np.abs(law.in_units_of(units).error_range(2)) / units))
    if np.isfinite(largest_error):
        return largest_error * n_summands
    return DEVIATIONS * float(np.sqrt(max(cell_variance(law)))) * np.sqrt(n_summands)


def cell_variance(law: Channel | None) -> tuple[float, float]:
    """Return the noise variance of nonzero gradient and hessian sums, in their squared units."""
    if law is None:
        return 0.0, 0.0
    g, h = np.broadcast_to(law.posterior_moments(np.ones((1, 2)))[1][0], 2)
    return float(g), float(h)


def leaf_sum_variance(view: View) -> tuple[float, float]:
    """Return the noise variance of sums released with leaf values, as `cell_variance`."""
    laws = (view.channel(LeafValues, field, "server") for field in "gh")
    g, h = (0.0 if law is None else float(law.posterior_moments(np.zeros(1))[1][0]) for law in laws)
    return g, h


def law_of_rows(view: View) -> Channel | None:
    """Return the mechanism applied to each row's clipped gradient, once for all sums of a tree."""
    return view.channel("gradients", "g")


def row_variance(view: View) -> float:
    """Return the variance of the noise on a row's gradient."""
    law = law_of_rows(view)
    return 0.0 if law is None else float(law.posterior_moments(np.ones(1))[1][0])


def law_of_values(view: View) -> Channel | None:
    """Return the mechanism applied to the server's leaf values. None means exact."""
    return view.channel(LeafValues, "value", "server")


def law_of_shared(view: View, kind: type[SharedTrees]) -> Channel | None:
    """Return the mechanism applied to the leaf values of trees that clients grew. None means exact.

    The server passes on the trees of the clients, so that both changes are chained.
    """
    sent = view.changes(ClientTrees, "value", "client")
    passed = [] if kind is ClientTrees else view.changes(kind, "value", "server")
    return chained([*sent, *passed])
