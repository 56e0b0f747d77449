"""Attack `ring-segments`: infer the class counts of one worker from its partial sums in a ring.

The adversary is a worker of a captured XGBoost training. In a ring all-reduce, the first message of
each segment contains the sums of its sender only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.shares import counts, shares
from fedtrees.attacks.mappers.dealt import dealt
from fedtrees.core.attack import Attack
from fedtrees.core.guess import BinClassCounts, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.captured import GradientTotals, HistogramSegment, Intercept
from fedtrees.messages.lightgbm import BinMappers


@register.attack("ring-segments")
@dataclass(frozen=True, kw_only=True)
class RingSegments(Attack):
    """Infer rows and positives in one worker's bins from the first sums of a ring all-reduce.

    XGBoost's all-reduce (``allreduce.cc``) passes segments of a histogram around a ring. The first
    hop of each segment contains the sums of its sender only, so that the next worker learns them. A
    worker that sees two sums that differ by one worker learns the contribution of that worker. In
    the first tree, all rows of a class have the same gradient.
    """

    claims = (BinClassCounts,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no sums of a single worker in a ring, None if they do."""
        ring = not any(True for _ in view.messages(BinMappers))
        sent = any(i.sender not in view.principals for i, _ in view.messages(HistogramSegment))
        return None if ring and sent and _start(view) is not None else Reason("no-own-sums")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Claim class counts of bins, -1 if unknown.

        Diagnostics: ``bins_seen`` counts bins with exact counts, and ``bins_of_one_row`` those with
        one row.
        """
        start = _start(view)
        first = [m for _, m in view.messages(HistogramSegment) if m.tree == m.level == 0]
        if start is None or not first:
            return Guess.none(Reason("no-own-sums"))
        counts_of_worker, roots = {}, dict[str, NDArray[np.int64]]()
        notes = {"bins_seen": 0.0, "bins_of_one_row": 0.0}
        for owner, sums in sorted(shares(first).items()):
            if owner in view.principals or len(sums) % 2:
                continue
            rows, positives = counts(sums, start).T
            class_counts = np.where(rows < 0, -1, np.stack([rows - positives, positives])).T
            counts_of_worker[owner] = class_counts
            notes["bins_seen"] += float((rows >= 0).sum())
            notes["bins_of_one_row"] += float((rows == 1).sum())
        for _, m in view.messages(GradientTotals):
            if m.tree == 0 and m.parties not in view.principals and "," not in m.parties:
                g, h = m.sums
                # Row sums of gradient p - y and hessian p (1 - p), solved for the class counts.
                ones, rows = h / (1 - start) - g, h / (start * (1 - start))
                notes[f"positives of {m.parties}"] = round(float(ones), 3)
                roots[m.parties] = np.rint([rows - ones, ones]).astype(np.int64)
        if counts_of_worker:
            counts_of_worker = dealt(view, counts_of_worker, _of_all(view, first, start), roots)
        claims = (BinClassCounts(*item) for item in sorted(counts_of_worker.items()))
        return Guess.of(claims, notes, otherwise=Reason("no-own-sums"))


def _of_all(view: View, first: Sequence[HistogramSegment], start: float) -> NDArray[np.int64]:
    """Return class counts of all workers together, int64, shape (b, 2), -1 if unknown."""
    workers = sum(role == "client" for role in view.roles.values())
    sums = np.full(max(segment.first + len(segment.sums) for segment in first), np.nan)
    for segment in first:
        if segment.parties.count(",") + 1 == workers:
            sums[segment.first : segment.first + len(segment.sums)] = segment.sums
    rows, ones = counts(sums, start).T
    return np.where(rows < 0, -1, np.stack([rows - ones, ones])).T


def _start(view: View) -> float | None:
    """Return the initial probability of boosting from a message, or from the parameters."""
    announced = next((m.value for _, m in view.messages(Intercept)), None)
    start = view.parameters.get("base_score") if announced is None else announced
    return float(start) if start is not None and 0 < start < 1 else None
