"""`isolated-histogram`: the server reads a client's bins off sums over its rows alone."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.cheating.counts import class_counts, sums_by_node, unreadable
from fedtrees.core.attack import Attack
from fedtrees.core.guess import BinClassCounts, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.boosting import BaseScore, NodeSplits
from fedtrees.messages.cuts import CutPoints

Counts = NDArray[np.int64]


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
        found, isolated = [], []
        for m in (m for name, m in told if name == victim and (m.tree, 1) in asked):
            counts = class_counts(asked[m.tree, 1], start)
            if ((counts >= 0) & (counts <= view.n_rows)).all():
                first = int(cuts.offsets[m.feature[0]])
                isolated.append(slice(first + 1, first + int(m.bin[0]) + 1))
                found.append(counts)
        clients = sum(role == "client" for role in view.roles.values())
        counts = _most_frequent(found) if found else class_counts(asked[0, 0], start, clients)
        for own, between in zip(found, isolated, strict=True):
            counts[between] = own[between]
        return Guess((BinClassCounts(victim, counts),), {"opened": len(found)})


def _most_frequent(found: list[Counts]) -> Counts:
    """Return the counts that most say, bin by bin and class by class."""
    every = np.stack(found)
    votes = (every[:, None] == every[None]).sum(axis=1)
    best = votes.argmax(axis=0)[None]
    return np.take_along_axis(every, best, axis=0)[0]
