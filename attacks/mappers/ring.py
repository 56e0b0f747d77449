"""Sums of one worker alone on their way round a ring, as an attack on a view."""

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
    """Read rows and positives of one worker's bins off the first sums that go round a ring.

    XGBoost's all-reduce (``allreduce.cc``) passes parts of a histogram on, the first hop of each
    with the sums of its sender alone; so whoever follows sees these, and whoever sees two sums one
    worker apart, what it added. In the first tree all rows have one gradient for each class.
    """

    claims = (BinClassCounts,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no sums of a ring of one worker, None if they do."""
        ring = not any(True for _ in view.messages(BinMappers))
        sent = any(i.sender not in view.principals for i, _ in view.messages(HistogramSegment))
        return None if ring and sent and _start(view) is not None else Reason("no-own-sums")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return class counts of bins, -1: unknown; notes count those that are seen."""
        start = _start(view)
        first = [m for _, m in view.messages(HistogramSegment) if m.tree == m.level == 0]
        if start is None or not first:
            return Guess.none(Reason("no-own-sums"))
        found, roots = {}, dict[str, NDArray[np.int64]]()
        notes = {"bins_seen": 0.0, "bins_of_one_row": 0.0}
        for owner, own in sorted(shares(first).items()):
            if owner in view.principals or len(own) % 2:
                continue
            rows, positives = counts(own, start).T
            told = np.where(rows < 0, -1, np.stack([rows - positives, positives])).T
            found[owner] = told
            notes["bins_seen"] += float((rows >= 0).sum())
            notes["bins_of_one_row"] += float((rows == 1).sum())
        for _, m in view.messages(GradientTotals):
            if m.tree == 0 and m.parties not in view.principals and "," not in m.parties:
                g, h = m.sums
                ones, rows = h / (1 - start) - g, h / (start * (1 - start))
                notes[f"positives of {m.parties}"] = round(float(ones), 3)
                roots[m.parties] = np.rint([rows - ones, ones]).astype(np.int64)
        if found:
            found = dealt(view, found, _of_all(view, first, start), roots)
        claims = (BinClassCounts(*item) for item in sorted(found.items()))
        return Guess.of(claims, notes, otherwise=Reason("no-own-sums"))


def _of_all(view: View, first: Sequence[HistogramSegment], start: float) -> NDArray[np.int64]:
    """Return class counts of all workers together, int64, shape (b, 2); -1: unknown."""
    workers = sum(role == "client" for role in view.roles.values())
    sums = np.full(max(one.first + len(one.sums) for one in first), np.nan)
    for one in first:
        if one.parties.count(",") + 1 == workers:
            sums[one.first : one.first + len(one.sums)] = one.sums
    rows, ones = counts(sums, start).T
    return np.where(rows < 0, -1, np.stack([rows - ones, ones])).T


def _start(view: View) -> float | None:
    """Return the probability where boosting starts, as it was told or as the protocol says."""
    told = next((m.value for _, m in view.messages(Intercept)), None)
    start = view.parameters.get("base_score") if told is None else told
    return float(start) if start is not None and 0 < start < 1 else None
