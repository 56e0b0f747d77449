"""`isolated-histogram`: the server reads a client's bins off sums over its rows alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.cheating.counts import class_counts, sums_by_node, unreadable
from fedtrees.attacks.cheating.noisy import denoised, likely_class_counts
from fedtrees.attacks.evidence.counts import NOISE_FLOOR
from fedtrees.attacks.evidence.laws import cell_variance, law_of_sums
from fedtrees.core.attack import Attack
from fedtrees.core.guess import BinClassCounts, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.boosting import BaseScore, NodeSplits
from fedtrees.messages.cuts import CutPoints

Counts = NDArray[np.int64]

#: Standard deviation of noise, in rows, from which sums are averaged: of less, each is rounded.
MOST = 0.5


@register.attack("isolated-histogram")
@dataclass(frozen=True)
class IsolatedHistogram(Attack):
    """Read one client's class counts of every bin off the sums that a cheating server opened.

    A column's bins between the two cuts that were told are the client's; of its other bins, what
    most of the other columns' sums say. Where nothing opened, its even share of the first sum over
    all is claimed.
    """

    behaviours: ClassVar[tuple[str, ...]] = ("isolating",)
    threats: ClassVar[tuple[str, ...]] = ("server:isolating",)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why counts do not follow from the sums, None if they do."""
        return unreadable(view)

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the counts of the client that was told other splits."""
        if self.inapplicable(view):
            return Guess()
        start = next(m for _, m in view.messages(BaseScore))
        cuts = next(m for _, m in view.messages(CutPoints))
        asked = sums_by_node(view)
        told = [(s.receivers[0], m) for s, m in view.messages(NodeSplits) if len(s.receivers) == 1]
        if not told:  # no column has a bin between two others
            return Guess()
        victim = max(told, key=lambda item: int(item[1].bin[0]))[0]
        clients = sum(role == "client" for role in view.roles.values())
        law = law_of_sums(view, clients, hiding=False)
        noise, p = cell_variance(law), 1 / (1 + np.exp(-float(start.margin[0])))
        if max(noise) > (MOST * p * (1 - p)) ** 2:
            trees = [m.tree for name, m in told if name == victim and (m.tree, 1) in asked]
            counts = _through_noise(asked, trees, start, noise, clients)
            return Guess((BinClassCounts(victim, counts),), {"opened": len(trees)})
        found, isolated = [], []
        for m in (m for name, m in told if name == victim and (m.tree, 1) in asked):
            counts = class_counts(asked[m.tree, 1], start)
            counts = np.maximum(counts, 0) if max(noise) > NOISE_FLOOR else counts
            if ((counts >= 0) & (counts <= view.n_rows)).all():
                first = int(cuts.offsets[m.feature[0]])
                isolated.append(slice(first + 1, first + int(m.bin[0]) + 1))
                found.append(counts)
        counts = _most_frequent(found) if found else class_counts(asked[0, 0], start, clients)
        for own, between in zip(found, isolated, strict=True):
            counts[between] = own[between]
        return Guess((BinClassCounts(victim, counts),), {"opened": len(found)})


def _through_noise(
    asked: Mapping[tuple[int, int], Counts],
    trees: Sequence[int],
    start: BaseScore,
    variance: tuple[float, float],
    clients: int,
) -> Counts:
    """Return the likeliest counts of a client whose rows every tree isolates with other noise."""
    units, p = np.ldexp(1.0, (start.g_bits, start.h_bits)), 1 / (1 + np.exp(-start.margin[0]))
    roots = [t for t, node in asked if node == 0]
    g, h = (np.mean([asked[t, 0] for t in roots], axis=0) / units).T
    rows = h / (p * (1 - p))
    off = np.array(variance) / len(roots)
    off = off[1] / (1 - p, p) ** np.array(2) + off[0]  # of n (1 - p) + g and n p - g
    everybody = denoised(np.stack([rows * (1 - p) + g, rows * p - g], axis=1), off)
    alone = [asked[t, 1] for t in trees]
    if not alone:
        return np.maximum(np.rint(everybody / clients), 0).astype(np.int64)
    sums, each = np.mean(alone, axis=0) / units, np.array(variance) / len(alone)
    return likely_class_counts(sums, start, (each[0], each[1]), everybody / clients)


def _most_frequent(found: list[Counts]) -> Counts:
    """Return the counts that most say, bin by bin and class by class."""
    every = np.stack(found)
    votes = (every[:, None] == every[None]).sum(axis=1)
    best = votes.argmax(axis=0)[None]
    return np.take_along_axis(every, best, axis=0)[0]
