"""`isolated-histogram`: the server reads a client's bins off sums over its rows alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.cheating.counts import class_counts, sums_by_node, unreadable
from fedtrees.attacks.cheating.noisy import denoised, likely_class_counts
from fedtrees.attacks.evidence.counts import NOISE_FLOOR
from fedtrees.attacks.evidence.laws import cell_variance, law_of_sums
from fedtrees.attacks.evidence.replay import hides
from fedtrees.core.attack import Attack
from fedtrees.core.guess import BinClassCounts, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.horizontal import BaseScore, CutPoints, Histogram, NodeSplits

Counts = NDArray[np.int64]


@register.attack("isolated-histogram")
@dataclass(frozen=True)
class IsolatedHistogram(Attack):
    """Read one client's class counts of every bin off the sums that a cheating server opened.

    Where a sum over its rows alone opens, its own sums over all of them are seen, too, and say
    more: these are read, through noise as the likeliest counts, and rows in bins that are hidden
    are dealt out. Else its even share of the first sum over all is claimed.
    """

    claims = (BinClassCounts,)

    behaviours: ClassVar[tuple[str, ...]] = ("isolating",)
    threats: ClassVar[tuple[str, ...]] = ("server:isolating",)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why counts do not follow from the sums, None if they do."""
        return unreadable(view)

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the counts of the client that was told other splits."""
        if why := self.inapplicable(view):
            return Guess.none(why)
        start = next(m for _, m in view.messages(BaseScore))
        cuts = next(m for _, m in view.messages(CutPoints))
        node_sums = sums_by_node(view)
        single_splits = [
            (s.receivers[0], m) for s, m in view.messages(NodeSplits) if len(s.receivers) == 1
        ]
        if not single_splits:
            return Guess.none(Reason("no-inner-bin"))
        victim = max(single_splits, key=lambda item: int(item[1].bin[0]))[0]
        clients = sum(role == "client" for role in view.roles.values())
        opened = [m for name, m in single_splits if name == victim and (m.tree, 1) in node_sums]
        histograms = list(_own(view, victim, len(cuts.offsets) - 1))
        if not histograms:
            counts = class_counts(node_sums[0, 0], start, clients)
        elif hides(view.changes(Histogram, "sums", "client")):
            counts = class_counts(histograms[0].sums[0], start)
            _fill(counts, class_counts(histograms[0].totals, start)[0], cuts.offsets)
        else:
            mean_sums = np.mean([node_sums[m.tree, 0] for m in histograms], axis=0)
            counts = _likely(view, histograms, start, mean_sums / clients)
        return Guess((BinClassCounts(victim, counts),), {"opened": len(opened)})


def _own(view: View, client: str, trees: int) -> Iterator[Histogram]:
    """Yield the sums of a client alone over all its rows, before anybody's predictions moved."""
    for item, m in view.messages(Histogram):
        if item.sender == client and m.tree < trees and m.nodes.tolist() == [0]:
            yield m


def _likely(
    view: View, histograms: Sequence[Histogram], start: BaseScore, everybody: NDArray[np.float64]
) -> Counts:
    """Return the likeliest counts of a client whose same sums crossed several times.

    `everybody`: float64 array, shape (bins, 2). The mean of all clients' sums, in fixed point.
    """
    noise = np.array(cell_variance(law_of_sums(view))) / len(histograms)
    if max(noise) <= NOISE_FLOOR:
        return class_counts(histograms[0].sums[0], start)
    units, p = np.ldexp(1.0, (start.g_bits, start.h_bits)), 1 / (1 + np.exp(-start.margin[0]))
    g, h = (everybody / units).T
    rows = h / (p * (1 - p))
    off = noise[1] / (1 - p, p) ** np.array(2) + noise[0]  # of n (1 - p) + g and n p - g
    expected = denoised(np.stack([rows * (1 - p) + g, rows * p - g], axis=1), off)
    sums = np.mean([m.sums[0] for m in histograms], axis=0) / units
    return likely_class_counts(sums, start, (noise[0], noise[1]), expected)


def _fill(counts: Counts, total: Counts, offsets: NDArray[np.int32]) -> None:
    """Deal the rows that a column's bins lack evenly to those that look empty."""
    for column in np.split(counts, offsets[1:-1]):
        empty = ~column.any(axis=1)
        left = np.maximum(total - column.sum(axis=0), 0)
        column[empty] = np.rint(left / max(int(empty.sum()), 1))
