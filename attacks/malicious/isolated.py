"""Attack `isolated-histogram`: infer one client's class counts in every bin.

The adversary is the server of `fedtrees.protocols.behaviours.horizontal.Isolating`. It sends one
client a split that differs from the split of the remaining clients. In all bins between the two
splits, the left child contains rows of that client only.

The module also estimates single rows that are isolated in a node, from sums with noise.
`halved-rows` uses this if noise prevents exact class counts. Each column yields the most probable
bin of the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from fedtrees.attacks.counts.leaf_sums import NOISE_FLOOR
from fedtrees.attacks.malicious.nodes import (
    TreeSums,
    class_counts,
    likely_class_counts,
    shrink_counts,
    sums_by_node,
    unreadable,
)
from fedtrees.attacks.observations.replay import cell_variance, hides, law_of_sums
from fedtrees.core.attack import Attack
from fedtrees.core.claims import BinClassCounts, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.horizontal import BaseScore, CutPoints, Histogram, NodeSplits

Doubles = NDArray[np.float64]

#: Hypotheses about the class counts of a node, which its sums over all bins must distinguish.
FEW = np.array([(a, b) for a in range(4) for b in range(4)])
#: Minimum posterior probability of a row, over its class counts and all its bins.
SURE = 0.999
#: Two estimates that agree in at least this share of bins are attributed to the same row.
SAME = 0.7


def lone_rows(
    trees: Sequence[TreeSums],
    start: BaseScore,
    offsets: NDArray[np.int32],
    noise: Doubles,
    complete: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], Doubles]:
    """Estimate the rows of nodes that contain exactly one row.

    The class counts of a node follow from the sums over all columns without missing values, because
    each of these columns contains every row of the node once.

    Parameters
    ----------
    trees : sequence of TreeSums
        Sums of the nodes, as fixed-point numbers.
    start : BaseScore
        Initial log-odds and the fixed-point units.
    offsets : int32 array, shape (d + 1,)
        The bins of column ``f`` are ``offsets[f]`` to ``offsets[f + 1] - 1``.
    noise : float64 array, shape (2,)
        Variance of the noise on a gradient and a hessian sum.
    complete : bool array, shape (d,)
        Columns without missing values.

    Returns
    -------
    rows : int64 array, shape (m, d + 1)
        Bin of every column, -1 for a missing value, and the label.
    probability : float64 array, shape (m,)
        Posterior probability of each row.
    """
    p = 1 / (1 + np.exp(-float(start.margin[0])))
    contribution = np.array([[p, p * (1 - p)], [p - 1, p * (1 - p)]])
    widths, units = np.diff(offsets), np.ldexp(1.0, (start.g_bits, start.h_bits))
    # The sum over a column's bins has noise in proportion to their number. Weights of one over this
    # number give the estimate with the least variance.
    weight = np.repeat(np.where(complete, 1 / np.maximum(widths, 1), 0.0), widths)
    readings = []
    for n_summands, sums in ((m, s / units) for tree in trees for s, m in tree.sums.values()):
        if not weight.any():
            break
        share = (complete / np.maximum(widths, 1)).sum()
        average, variance = weight @ sums / share, n_summands * noise / share
        chances = softmax(-((average - FEW @ contribution) ** 2 / variance).sum(axis=1) / 2)
        hypothesis = int(chances.argmax())
        if FEW[hypothesis].sum() != 1 or chances[hypothesis] < SURE:
            continue
        label, probability = int(FEW[hypothesis, 1]), float(chances[hypothesis])
        # Log-likelihood ratio of "the row is in this bin" to "the bin is empty" under Gaussian
        # noise.
        likely = (
            (sums * contribution[label] - contribution[label] ** 2 / 2) / (n_summands * noise)
        ).sum(axis=1)
        row = []
        for (low, end), is_complete in zip(pairwise(offsets.tolist()), complete, strict=True):
            bin_chances = softmax(np.append(likely[low:end], -np.inf if is_complete else 0.0))
            row.append(int(bin_chances.argmax()) if bin_chances.argmax() < end - low else -1)
            probability *= float(bin_chances.max())
        if probability >= SURE:
            readings.append(([*row, label], probability))
    return _different(readings, len(offsets))


def _different(
    readings: list[tuple[list[int], float]], width: int
) -> tuple[NDArray[np.int64], Doubles]:
    """Return the most probable estimate of each distinct row."""
    distinct: list[tuple[list[int], float]] = []
    for row, probability in sorted(readings, key=lambda item: -item[1]):
        if all(np.mean(np.array(row) == accepted) < SAME for accepted, _ in distinct):
            distinct.append((row, probability))
    rows = np.array([row for row, _ in distinct], dtype=np.int64).reshape(-1, width)
    return rows, np.array([probability for _, probability in distinct])


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
        histograms = list(_root_histograms(view, victim, len(cuts.offsets) - 1))
        if not histograms:
            counts = class_counts(node_sums[0, 0], base_score, clients)
        elif hides(view.changes(Histogram, "sums", "client")):
            counts = class_counts(histograms[0].sums[0], base_score)
            _fill(counts, class_counts(histograms[0].totals, base_score)[0], cuts.offsets)
        else:
            mean_sums = np.mean([node_sums[m.tree, 0] for m in histograms], axis=0)
            counts = _likely(view, histograms, base_score, mean_sums / clients)
        return Guess((BinClassCounts(victim, counts),), {"opened": len(opened)})


def _root_histograms(view: View, client: str, trees: int) -> Iterator[Histogram]:
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
    expected = shrink_counts(np.stack([rows * (1 - p) + g, rows * p - g], axis=1), off)
    sums = np.mean([m.sums[0] for m in histograms], axis=0) / units
    return likely_class_counts(sums, start, (noise[0], noise[1]), expected)


def _fill(counts: Counts, total: Counts, offsets: NDArray[np.int32]) -> None:
    """Distribute the rows that a column's bins lack evenly over its bins without rows."""
    for column in np.split(counts, offsets[1:-1]):
        empty = ~column.any(axis=1)
        left = np.maximum(total - column.sum(axis=0), 0)
        column[empty] = np.rint(left / max(int(empty.sum()), 1))
