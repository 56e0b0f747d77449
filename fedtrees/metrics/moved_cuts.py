"""What came of cut points and root splits that a client meant to move."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.columns import Measure
from fedtrees.core.guess import Claim, CutWindows
from fedtrees.core.registry import register
from fedtrees.messages.cuts import CutPoints
from fedtrees.metrics.metric import Case, Metric, Score
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.sketch import local_sketch, merge_sketches


@dataclass(frozen=True, eq=False)
class Settled:
    """Cut points as told and as honest sketches make them, root splits, and the victims' values."""

    told: Cuts
    honest: Cuts
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    X: NDArray[np.float32]


@register.metric("moved-cuts")
class MovedCutsMetric(Metric[Settled]):
    """How many root splits and cut points lie where a client wanted them, and who is alone there.

    ``cuts_won``: share of the claimed trees whose root is split in the claimed window; beside it
    that of the trees after them, in which nobody lies. ``cuts_inside``: share of all cut points in
    the windows; ``rows_alone``: share of the victims' values there that are alone in their bin
    among the victims; beside each, what honest sketches give.
    """

    of: ClassVar[type[Claim]] = CutWindows
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("cuts_won", "root splits that a client chose", "share of trees",
                klass="diagnostic"),
        Measure("cuts_inside", "cut points where a client wants them", "share of cut points",
                klass="diagnostic"),
        Measure("rows_alone", "values there alone in a bin", "share of values", klass="group"),
    )  # fmt: skip

    def truth(self, case: Case) -> Settled | None:
        """Return what was settled; None without cut points, trees or victims' whole rows."""
        told = [d.message for d in case.transcript or () if isinstance(d.message, CutPoints)]
        trees, rows = getattr(case.model, "trees", ()), case.victims_rows
        if not told or not trees or rows is None:
            return None
        cuts = Cuts(told[-1].values, told[-1].offsets, told[-1].minimum, told[-1].categorical)
        most = max(int(cuts.n_bins.max()), 2)
        every = [local_sketch(held.X, most) for held in case.local_data.values()]
        roots = np.array([(t.feature[0], t.threshold[0]) for t in trees])
        return Settled(cuts, merge_sketches(every, most), roots[:, 0].astype(np.int64),
                       roots[:, 1], rows.X)  # fmt: skip

    def score(self, claims: Sequence[CutWindows], truth: Settled) -> list[Score]:
        """Score the windows of trees and of cut points, each beside what is honest."""
        (claim,) = claims
        trees = claim.tree >= 0
        if trees.any():
            value, blind = (_won(claim, truth, after) for after in (0, 1))
            return [Score("cuts_won", value, blind)] if value is not None else []
        (inside, alone), (expected, beside) = (_looked_at(claim, c, truth.X)
                                               for c in (truth.told, truth.honest))  # fmt: skip
        return [Score("cuts_inside", inside, expected), Score("rows_alone", alone, beside)]


def _won(claim: CutWindows, truth: Settled, after: int) -> float | None:
    """Return in how many of the trees so long after those claimed the root is split so."""
    there = claim.tree + after < len(truth.feature)
    at = claim.tree[there] + after
    same = truth.feature[at] == claim.feature[there]
    within = (claim.low[there] <= truth.threshold[at]) & (truth.threshold[at] <= claim.high[there])
    return float((same & within).mean()) if len(at) else None


def _looked_at(
    claim: CutWindows, cuts: Cuts, X: NDArray[np.float32]
) -> tuple[float | None, float | None]:
    """Return the share of cut points in the windows, and of values there alone in a bin."""
    codes = bin_rows(X, cuts).codes
    inside, alone = [], []
    for f, low, high in zip(claim.feature.tolist(), claim.low, claim.high, strict=True):
        inner = cuts.of(f)[:-1]
        inside.append((low <= inner) & (inner <= high))
        there = codes[(low <= X[:, f]) & (X[:, f] <= high), f]
        alone.append(np.bincount(codes[:, f])[there] == 1)
    shares = (np.concatenate(found) for found in (inside, alone))
    a, b = (float(share.mean()) if len(share) else None for share in shares)
    return a, b
