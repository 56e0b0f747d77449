"""Infer the victims' columns from the sum of counts on a grid that the clients send."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.column import Column, of_own, shortest, unknown
from fedtrees.attacks.evidence.noisy_counts import likely_counts
from fedtrees.attacks.evidence.rows_held import not_held_out, victims_rows
from fedtrees.core.channel import Channel, Share, chained
from fedtrees.core.schema import Feature, Table
from fedtrees.core.view import View
from fedtrees.messages.horizontal import GridCounts, GridRequest
from fedtrees.trees.cut_points import count_cells

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]


def on_grid(view: View) -> tuple[Column, ...] | None:
    """Return the victims' columns according to the last opened sum of counts on a grid.

    The counts that the adversary's parties sent are subtracted. The rows of a cell get the values
    that the prior's rows (`View.prior_rows`) have in it. A cell without such a value gets its
    number with the fewest decimal places. Noisy counts are combined with the prior's counts
    according to the variance of the noise.

    None is returned if there is no grid or no opened sum.
    """
    laid = [m for _, m in view.messages(GridRequest)]
    opened = [m for item, m in view.messages(GridCounts) if item.opened]
    if not laid or not opened:
        return None
    borders = np.split(laid[-1].borders, laid[-1].offsets[1:-1])
    likely = view.prior_rows or Table.empty(view.schema)
    expected, sent = count_cells(likely.X, borders), _sent(view)
    other_counts = opened[-1].counts - sum((m.counts for m in sent), start=np.zeros_like(expected))
    variance = _noise_left(view, len(sent))
    sizes = [len(inner) + 1 if len(inner) else 0 for inner in borders]
    n_own = 0 if view.rows is None else len(view.rows)
    ends, n = np.cumsum(sizes)[:-1], victims_rows(view) or not_held_out(view, n_own)
    columns = []
    parts = (np.split(part, ends) for part in (other_counts, expected))
    for feature, x, b, noisy, own_counts in zip(
        view.schema.features, likely.X.T, borders, *parts, strict=True
    ):
        # the number of present values is estimated from the prior's rows, plus one row
        present = round(n * (np.isfinite(x).sum() + 1) / (len(x) + 1))
        if not len(b):
            columns.append(unknown(feature, present, x))
            continue
        counts, reliability = np.maximum(noisy, 0), 1.0
        if variance:
            counts, reliability = likely_counts(noisy, own_counts, present, variance)
        column = _in_cells(b.astype(np.float64), counts, feature, x)
        columns.append(replace(column, reliability=reliability))
    return tuple(columns)


def _sent(view: View) -> list[GridCounts]:
    """Return the counts that each of the adversary's parties sent for the last grid.

    They include the noise that the party added.
    """
    last = {
        item.sender: m
        for item, m in view.messages(GridCounts)
        if item.sender in view.principals and not item.opened
    }
    return list(last.values())


def _noise_left(view: View, sent: int) -> float:
    """Return the variance of the noise on one count, as far as the adversary does not know it.

    The result is in squared rows. `sent` is the number of clients whose share of the noise the
    adversary knows.
    """
    clients = sum(role == "client" for role in view.roles.values())
    changes = view.changes(GridCounts, "counts", "client")
    shares = (c.law(clients, known_shares=sent) for c in changes if isinstance(c, Share))
    shared = chained(law for law in shares if law is not None)
    independent = chained((c for c in changes if isinstance(c, Channel)), clients - sent)
    return sum(
        float(law.error(np.zeros(1))[1][0]) for law in (independent, shared) if law is not None
    )


def _in_cells(
    borders: NDArray[np.float64], counts: Longs, feature: Feature, own_values: Floats
) -> Column:
    """Return a column with the local values in each cell, or else its `shortest` number."""
    gap = [float(np.diff(b).sum()) for b in (borders[:2], borders[-2:])]
    low = borders[0] - gap[0] if feature.low is None else feature.low
    high = borders[-1] + gap[1] if feature.high is None else feature.high
    ends = np.concatenate([[min(low, borders[0])], borders, [max(high, borders[-1])]])
    return of_own(shortest(ends[:-1], ends[1:]), counts, borders, own_values)
