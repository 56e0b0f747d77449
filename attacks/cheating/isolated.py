"""Attack `isolated-histogram`: infer one client's class counts in every bin.

The adversary is the server of `fedtrees.protocols.behaviours.horizontal.Isolating`. It sends one
client a split that differs from the split of the remaining clients. In all bins between the two
splits, the left child contains rows of that client only.
"""

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
    """Infer one client's class counts in every bin from sums that a malicious server opened.

    Whenever the sum of the isolated rows can be opened, the root histograms of the victim itself
    are visible as well and contain more information. The attack therefore computes the counts from
    these. Through noise, it returns the most probable counts given the mean of several histograms.
    If bins are suppressed, the missing rows are distributed evenly over the bins without rows. If
    the view contains no histogram of the victim, for example because secure aggregation detects the
    different splits, the attack claims an equal share of the first sum over all clients.
    """

    claims = (BinClassCounts,)

    behaviours: ClassVar[tuple[str, ...]] = ("isolating",)
    threats: ClassVar[tuple[str, ...]] = ("server:isolating",)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why class counts cannot be computed from the view, None if they can."""
        return unreadable(view)

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the class counts of the client that received a different split.

        The diagnostic ``opened`` counts the isolating splits after which the sum of the left child
        was received.
        """
        if reason := self.inapplicable(view):
            return Guess.none(reason)
        base_score = next(m for _, m in view.messages(BaseScore))
        cuts = next(m for _, m in view.messages(CutPoints))
        node_sums = sums_by_node(view)
        single_splits = [
            (s.receivers[0], m) for s, m in view.messages(NodeSplits) if len(s.receivers) == 1
        ]
        if not single_splits:
            return Guess.none(Reason("no-inner-bin"))
        # The victim splits at the highest bin of a column, the remaining clients at the lowest one.
        victim = max(single_splits, key=lambda item: int(item[1].bin[0]))[0]
        clients = sum(role == "client" for role in view.roles.values())
        opened = [m for name, m in single_splits if name == victim and (m.tree, 1) in node_sums]
        histograms = list(_own(view, victim, len(cuts.offsets) - 1))
        if not histograms:
            counts = class_counts(node_sums[0, 0], base_score, clients)
        elif hides(view.changes(Histogram, "sums", "client")):
            counts = class_counts(histograms[0].sums[0], base_score)
            _fill(counts, class_counts(histograms[0].totals, base_score)[0], cuts.offsets)
        else:
            mean_sums = np.mean([node_sums[m.tree, 0] for m in histograms], axis=0)
            counts = _likely(view, histograms, base_score, mean_sums / clients)
        return Guess((BinClassCounts(victim, counts),), {"opened": len(opened)})


def _own(view: View, client: str, trees: int) -> Iterator[Histogram]:
    """Yield the root histograms of one client from trees before the first update.

    The server uses the first `trees` trees, one per column, for isolation. They have leaf values of
    0.
    """
    for item, m in view.messages(Histogram):
        if item.sender == client and m.tree < trees and m.nodes.tolist() == [0]:
            yield m


def _likely(
    view: View, histograms: Sequence[Histogram], start: BaseScore, everybody: NDArray[np.float64]
) -> Counts:
    """Return the most probable counts of a client that sent the same sums several times.

    The last argument, float64 of shape (b, 2), is the mean of the sums of all clients in fixed
    point. It is the expectation before the sums of the client are seen.
    """
    noise = np.array(cell_variance(law_of_sums(view))) / len(histograms)
    if max(noise) <= NOISE_FLOOR:
        return class_counts(histograms[0].sums[0], start)
    units, p = np.ldexp(1.0, (start.g_bits, start.h_bits)), 1 / (1 + np.exp(-start.margin[0]))
    g, h = (everybody / units).T
    rows = h / (p * (1 - p))
    # Variance of the noise on the class counts n (1 - p) + g and n p - g.
    off = noise[1] / (1 - p, p) ** np.array(2) + noise[0]
    expected = denoised(np.stack([rows * (1 - p) + g, rows * p - g], axis=1), off)
    sums = np.mean([m.sums[0] for m in histograms], axis=0) / units
    return likely_class_counts(sums, start, (noise[0], noise[1]), expected)


def _fill(counts: Counts, total: Counts, offsets: NDArray[np.int32]) -> None:
    """Distribute the rows that a column's bins lack evenly over its bins without rows."""
    for column in np.split(counts, offsets[1:-1]):
        empty = ~column.any(axis=1)
        left = np.maximum(total - column.sum(axis=0), 0)
        column[empty] = np.rint(left / max(int(empty.sum()), 1))
