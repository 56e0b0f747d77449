"""Released counts as linear sums of membership indicators.

An explainable boosting machine contains the number of rows in each bin of each column. With
differential privacy (Nori et al. 2021, Algorithm 2), the counts of cells of equal width over the
declared range get Gaussian noise, negative counts become 0, and neighbouring cells are merged until
they contain enough rows. A candidate that is a member adds 1 to one bin of every column. The attack
does not use the scores of the bins. They are sums of residuals over hundreds of rounds, and the
intermediate models that these residuals depend on are not released.

A quantile sketch of few values contains the number of rows with each value. A member adds 1 to one
number of every column.

Random decision trees contain class counts in their leaves. Their tests are drawn without looking at
data. A member adds 1 to one count of every tree, so that the released counts are linear in
membership, with the noise that the protocol states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from fedtrees.attacks.membership.base import LinearSums
from fedtrees.attacks.observations.columns import Column, split_bins
from fedtrees.core.channel import Channel, Mechanism, Share, chained
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.additive import ClientShapes, MergedShapes
from fedtrees.messages.forests import LeafClassCounts, PrivateForest, RandomTests
from fedtrees.trees.forest.random_decision import RandomSplits

Floats = NDArray[np.float64]


def machine_sums(view: View, rows: Table) -> list[LinearSums]:
    """Return the bin counts of every other client's model, one entry per client.

    Parameters
    ----------
    view : View
        Messages of a training of explainable boosting machines.
    rows : Table
        The n candidates.

    Returns
    -------
    list of LinearSums
        Empty if rows have weights, which the adversary does not know.
    """
    if view.weighted:
        return []
    columns = dict(_client_columns(view, rows))
    local = 0 if view.rows is None else len(view.rows)
    share = (view.n_rows - local) / max(len(columns), 1)
    noise, steps = _noise(view), 2 * (int(view.parameters.get("max_bins", 1)) - 1)
    sums = []
    for owner, client in columns.items():
        parts = [
            _cells(rows.X[:, f].astype(np.float64), edges, counts, noise, steps, share)
            for f, (edges, counts) in enumerate(client)
        ]
        matrix = csr_array(hstack([m for m, _, _ in parts], format="csr"))
        total, variance = (np.concatenate([p[k] for p in parts]) for k in (1, 2))
        sums.append(LinearSums(matrix, total, variance, share, owner))
    return sums


def _client_columns(view: View, rows: Table) -> Iterator[tuple[str, list[tuple[Floats, Floats]]]]:
    """Yield each client that is not a principal, with the edges and counts of every column."""
    models = {
        item.sender: m
        for item, m in view.messages(ClientShapes)
        if item.sender not in view.principals
    }
    for name, m in models.items():
        if len(m.bag_weights):
            columns_of_client = [
                (
                    np.concatenate([m.low[f : f + 1], m.cuts_of(f), m.high[f : f + 1]]),
                    m.bin_weights[bins][1:-1],
                )
                for f, bins in enumerate(m.bins)
            ]
            yield name, columns_of_client
    merged = next((m for _, m in view.messages(MergedShapes)), None)
    clients = [name for name, role in view.roles.items() if role == "client"]
    bags = int(view.parameters.get("outer_bags", 0)) * len(clients)
    if models or merged is None or len(merged.bag_weights) != bags:
        return
    noisy = bool(view.changes(ClientShapes, "bin_weights", "client"))
    columns = list(split_bins(merged, len(clients), noisy, rows.X))
    for k, name in enumerate(clients):
        if name not in view.principals:
            yield name, [(column[k].edges, column[k].rows) for column in columns]


def value_counts(owner: str, columns: Sequence[Column], rows: Table, size: float) -> LinearSums:
    """Return the numbers of rows of a client with each value of a column, as its sketch states.

    Parameters
    ----------
    owner : str
        The client.
    columns : sequence of Column
        The d columns of its sketch. Columns that are not exact are left out.
    rows : Table
        The n candidates.
    size : float
        Number of rows of the client.
    """
    parts = [csr_array((len(rows), 0))]
    for x, column in zip(rows.X.T, columns, strict=True):
        if column.exact:
            place = np.searchsorted(column.values, x)
            inside = np.flatnonzero(np.isin(x, column.values))
            index = inside, place[inside]
            shape = len(rows), len(column.values)
            parts.append(csr_array((np.ones(len(inside)), index), shape=shape))
    counts = [column.counts.astype(np.float64) for column in columns if column.exact]
    total = np.concatenate([np.zeros(0), *counts])
    matrix = csr_array(hstack(parts, format="csr"))
    return LinearSums(matrix, total, np.zeros(len(total)), size, owner)


def _noise(view: View) -> Channel | None:
    """Return the stated noise on the count of each cell, None if counts are exact."""
    changes = view.changes(ClientShapes, "bin_weights", "client")
    return next((c.noise for c in changes if isinstance(c, Mechanism)), None)


def _cells(
    x: Floats, edges: Floats, counts: Floats, noise: Channel | None, steps: int, rows: float
) -> tuple[csr_array, Floats, Floats]:
    """Return contributions to the bins of one column, counts, and the variance of their noise.

    A negative noisy count of a cell becomes 0. To first order around the expected count c of the
    cell, the released count is then linear in c with slope P(noise > -c).

    Parameters
    ----------
    x : float64 array, shape (n,)
        Values of the candidates. A missing value is in no bin.
    edges, counts : float64 array, shape (b + 1,) and (b,)
        Bins, and released rows in them.
    noise : Channel or None
        Noise on the count of one cell. None: counts are exact.
    steps : int
        Number of cells of equal width between the first and the last edge.
    rows : float
        Number of unknown rows.
    """
    present = np.flatnonzero(~np.isnan(x))
    place = np.clip(np.searchsorted(edges[1:-1], x[present], side="right"), 0, len(counts) - 1)
    slope, total = np.ones(len(present)), counts.astype(np.float64)
    variance: Floats = np.zeros(len(counts))
    if noise is not None and edges[-1] > edges[0]:
        from scipy.stats import norm  # takes half a second to load

        sd = float(np.sqrt(noise.posterior_moments(np.zeros(1))[1][0]))
        ends = np.linspace(edges[0], edges[-1], steps + 1)
        cell = np.clip(np.searchsorted(ends, x[present], side="right") - 1, 0, steps - 1)
        expected = np.bincount(cell, minlength=steps) * rows / max(len(x), 1)
        bin_of = np.searchsorted(edges[1:-1], (ends[:-1] + ends[1:]) / 2, side="right")
        z = expected / sd
        above_zero = norm.cdf(z)
        mean = expected * above_zero + sd * norm.pdf(z)
        square = (expected**2 + sd**2) * above_zero + expected * sd * norm.pdf(z)
        slope = above_zero[cell]
        total = total - np.bincount(bin_of, mean - above_zero * expected, len(counts))
        variance = np.bincount(bin_of, np.maximum(square - mean**2, 0), len(counts)).astype(float)
    matrix = csr_array((slope, (present, place)), shape=(len(x), len(counts)))
    return matrix, total, variance


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
    exact = list(_received_counts(view))
    if exact:
        groups = [(m.counts, 0.0, is_sum) for m, is_sum in exact]
    else:
        groups = list(_released_counts(view))
    sums = []
    for counts, variance, includes_local in groups:
        total = counts.astype(np.float64)
        if includes_local and local is not None:
            total = total - splits.count(local.X, local.y, counts.shape[2])
        share = unknown / len(groups)
        sums.append(_linear(splits, rows, total, variance, share))
    return sums


def _received_counts(view: View) -> Iterator[tuple[LeafClassCounts, bool]]:
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


def _released_counts(view: View) -> Iterator[tuple[NDArray[np.int64], float, bool]]:
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
        mean, spread = law.in_units_of(1.0).posterior_moments(np.zeros(1))
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
