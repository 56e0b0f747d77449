"""What happened to the sums that a view shows, on their way from the rows."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.replay import hides, sent_back
from fedtrees.core.channel import Channel, chained
from fedtrees.core.view import View
from fedtrees.messages.boosting import Histogram, LeafValues
from fedtrees.messages.shared_trees import ClientTrees, SharedTrees
from fedtrees.trees.boosted.fixed_point import Bits

# Standard deviations of noise that a sum may be off: one in 300,000 is off by more.
DEVIATIONS = 4.5


def law_of_sums(view: View, parties: int = 1, hiding: bool = True) -> Channel | None:
    """Return the channel of histograms of so many clients together; None: they are exact.

    What the server leaves out of the sums that it sends back, it has still received.

    `hiding`: False: without what sends some bins as if they were empty.
    """
    sent, back = view.changes(Histogram, "sums", "client"), sent_back(view, "sums")
    if not hiding:
        sent, back = ([c for c in part if not hides([c])] for part in (sent, back))
    return chained(c for c in (chained(sent, parties), chained(back)) if c is not None)


def reach_of(law: Channel | None, made: NDArray[np.int64], bits: Bits) -> NDArray[np.float64]:
    """Return how far from what was sent sums can be that are made of so many of it, shape (k,).

    Of noise that has no bound, as far as one sum in 300,000 is.
    """
    if law is None:
        return np.zeros(len(made))
    units = np.ldexp(1.0, bits)
    most = float(np.max(np.abs(law.within(units).spread(2)) / units))
    if np.isfinite(most):
        return most * made
    return DEVIATIONS * float(np.sqrt(max(cell_variance(law)))) * np.sqrt(made)


def cell_variance(law: Channel | None) -> tuple[float, float]:
    """Return the variance of gradient and hessian sums that are not 0, in squared units of them."""
    if law is None:
        return 0.0, 0.0
    g, h = np.broadcast_to(law.error(np.ones((1, 2)))[1][0], 2)
    return float(g), float(h)


def told_variance(view: View) -> tuple[float, float]:
    """Return what was done to the sums that are told beside leaf values, as `cell_variance`."""
    laws = (view.channel(LeafValues, field, "server") for field in "gh")
    g, h = (0.0 if law is None else float(law.error(np.zeros(1))[1][0]) for law in laws)
    return g, h


def law_of_rows(view: View) -> Channel | None:
    """Return what is done to a row's gradient after its clip, once for all sums of a tree."""
    return view.channel("gradients", "g")


def row_variance(view: View) -> float:
    """Return the variance of the noise on a row's gradient."""
    law = law_of_rows(view)
    return 0.0 if law is None else float(law.error(np.ones(1))[1][0])


def law_of_values(view: View) -> Channel | None:
    """Return what was done to the values of leaves that the server found; None: nothing."""
    return view.channel(LeafValues, "value", "server")


def law_of_shared(view: View, kind: type[SharedTrees]) -> Channel | None:
    """Return what was done to the leaf values of trees that clients grew; None: nothing.

    What the server passes on it had from the clients.
    """
    sent = view.changes(ClientTrees, "value", "client")
    passed = [] if kind is ClientTrees else view.changes(kind, "value", "server")
    return chained([*sent, *passed])
