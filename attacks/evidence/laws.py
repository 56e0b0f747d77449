"""What happened to the sums that a view shows, on their way from the rows."""

from __future__ import annotations

import numpy as np

from fedtrees.attacks.evidence.replay import serves
from fedtrees.core.channel import Change, Channel, chained
from fedtrees.core.view import View
from fedtrees.messages.boosting import GlobalHistogram, Histogram, LeafValues
from fedtrees.messages.shared_trees import ClientTrees, SharedTrees


def clients_of(view: View) -> int:
    """Return how many clients there are."""
    return sum(role == "client" for role in view.roles.values())


def law_of_sums(
    view: View, parties: int = 1, field: str = "sums", hiding: bool = True
) -> Channel | None:
    """Return the channel of histograms of so many clients together; None: they are exact.

    What the server leaves out of the sums that it sends back, it has still received.

    Parameters
    ----------
    view : View
    parties : int
    field : {"sums", "totals"}
    hiding : bool
        False: without what sends some bins as if they were empty.
    """
    sent = view.changes(Histogram, field, "client")
    back = [] if serves(view) else view.changes(GlobalHistogram, field, "server")
    if not hiding:
        sent, back = ([c for c in part if not _hides(c)] for part in (sent, back))
    return chained(c for c in (chained(sent, parties), chained(back)) if c is not None)


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


def row_variance(view: View) -> float:
    """Return the variance of the noise on a row's gradient, the same draw in all sums of a tree."""
    law = view.channel("gradients", "g")
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


def _hides(change: Change) -> bool:
    return isinstance(change, Channel) and bool(change.hides)
