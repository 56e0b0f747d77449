"""Class counts in the leaves of random decision trees as linear sums of membership indicators.

The tests of these trees are drawn without looking at data. A member adds 1 to one count of every
tree, so that the released counts are linear in membership, with the noise that the protocol states.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedtrees.attacks.membership.posterior import LinearSums
from fedtrees.core.channel import Mechanism, Share, chained
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.private_forests import LeafClassCounts, PrivateForest, RandomTests
from fedtrees.trees.forest.random_decision import RandomSplits

Floats = NDArray[np.float64]


def forest_sums(view: View, rows: Table) -> list[LinearSums]:
    """Return the leaf counts that a view shows, one entry per group of separate counts.

    A server that adds the noise itself has received exact counts, of each client or, under secure
    aggregation, of all clients. Other adversaries see the released counts. If clients add shares of
    the noise, then a client subtracts the message that it sent, which includes its share.

    Parameters
    ----------
    view : View
        Messages of the training of a forest of random decision trees.
    rows : Table
        The n candidates.

    Returns
    -------
    list of LinearSums
        Empty if only the majority label of each leaf is released, or if the view contains neither
        the tests of the trees nor the forest.
    """
    drawn = [m.splits() for _, m in view.messages(RandomTests)]
    drawn += [m.model().splits for _, m in view.messages(PrivateForest)]
    if not drawn:
        return []
    splits = drawn[0]
    local = view.rows
    unknown = view.n_rows - (0 if local is None else len(local))
    exact = list(_received(view))
    if exact:
        groups = [(m.counts, 0.0, is_sum) for m, is_sum in exact]
    else:
        groups = list(_released(view))
    sums = []
    for counts, variance, includes_local in groups:
        total = counts.astype(np.float64)
        if includes_local and local is not None:
            total = total - splits.count(local.X, local.y, counts.shape[2])
        share = unknown / len(groups)
        sums.append(_linear(splits, rows, total, variance, share))
    return sums


def _received(view: View) -> Iterator[tuple[LeafClassCounts, bool]]:
    """Yield exact counts that the server received, and whether the principals' rows are in them."""
    if any(isinstance(c, Share) for c in view.changes(LeafClassCounts, "counts", "client")):
        return
    messages = list(view.messages(LeafClassCounts))
    opened = [m for item, m in messages if item.opened]
    if opened:
        yield opened[-1], True
        return
    for item, m in messages:
        if item.sender not in view.principals:
            yield m, False


def _released(view: View) -> Iterator[tuple[NDArray[np.int64], float, bool]]:
    """Yield released counts, the variance of their noise, and whether local rows are in them."""
    model = next((m for _, m in view.messages(PrivateForest)), None)
    if model is None:
        return
    changes = view.changes(PrivateForest, "counts", "server")
    if any(isinstance(c, Mechanism) for c in changes):
        return  # a mechanism (permute-and-flip) releases one label per leaf, no sums
    law = chained(changes)
    variance = 0.0
    counts = model.counts
    if law is not None:
        mean, spread = law.within(1.0).error(np.zeros(1))
        variance = float(spread[0])
        counts = np.asarray(counts - np.rint(mean[0]).astype(np.int64))
    sent = [m for item, m in view.messages(LeafClassCounts) if item.sender in view.principals]
    shared = any(isinstance(c, Share) for c in view.changes(LeafClassCounts, "counts", "client"))
    if shared and sent:
        clients = sum(role == "client" for role in view.roles.values())
        counts = counts - np.sum([m.counts for m in sent], axis=0)
        yield counts, variance * (1 - len(sent) / clients), False
        return
    yield counts, variance, True


def _linear(
    splits: RandomSplits, rows: Table, total: Floats, variance: float, unknown: float
) -> LinearSums:
    """Return the counts as linear sums over the candidates."""
    trees, leaves, classes = total.shape
    at = splits.apply(rows.X) * classes + rows.y[:, None] + np.arange(trees) * leaves * classes
    index = np.repeat(np.arange(len(rows)), trees), at.ravel()
    matrix = csr_array((np.ones(at.size), index), shape=(len(rows), total.size))
    return LinearSums(matrix, total.ravel(), np.full(total.size, variance), float(unknown))
