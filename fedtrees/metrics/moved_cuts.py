"""Metric `moved-cuts`: success of a malicious client that manipulates its quantile sketch.

The client sends a false sketch, so that merged cut points or splits of tree roots fall into windows
that it chose. A value of a victim that is the only one in its bin can then be isolated.
"""

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
    """Cut points and root splits of a training, and the victims' values.

    Attributes
    ----------
    told, honest : Cuts
        Cut points that were announced, and those that honest sketches of all parties would give.
    feature : int64 array, shape (n_trees,)
        Column of the split of every root.
    threshold : float64 array, shape (n_trees,)
        Threshold of the split of every root.
    X : float32 array, shape (n, d)
        Complete rows of the victims.
    """

    told: Cuts
    honest: Cuts
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    X: NDArray[np.float32]


@register.metric("moved-cuts")
class MovedCutsMetric(Metric[Settled]):
    """Share of root splits and cut points in windows that a malicious client chose.

    ``cuts_won`` is the share of the claimed trees whose root is split in the claimed window. Its
    baseline is the same share of the respective next trees, for which the client does not lie.
    ``cuts_inside`` is the share of all cut points of a claimed column that are in its window.
    ``rows_alone`` is the share of the victims' values in the windows that are the only value of the
    victims in their bin. The baselines of both are computed with cut points of honest sketches.
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
        """Return cut points and root splits.

        None if no cut points were announced, the model has no trees, or no victim has complete
        rows.
        """
        announced = [d.message for d in case.transcript or () if isinstance(d.message, CutPoints)]
        trees, rows = getattr(case.model, "trees", ()), case.victims_rows
        if not announced or not trees or rows is None:
            return None
        cuts = Cuts(
            announced[-1].values,
            announced[-1].offsets,
            announced[-1].minimum,
            announced[-1].categorical,
        )
        # Honest sketches are merged to as many bins as the announced cut points have.
        n_bins = max(int(cuts.n_bins.max()), 2)
        sketches = [local_sketch(local_data.X, n_bins) for local_data in case.local_data.values()]
        roots = np.array([(t.feature[0], t.threshold[0]) for t in trees])
        return Settled(cuts, merge_sketches(sketches, n_bins), roots[:, 0].astype(np.int64),
                       roots[:, 1], rows.X)  # fmt: skip

    def score(self, claims: Sequence[CutWindows], truth: Settled) -> list[Score]:
        """Score a claim about root splits or about cut points, together with the baseline."""
        (claim,) = claims
        trees = claim.tree >= 0
        if trees.any():
            # The trees after the claimed ones are the baseline, because the client does not lie in
            # them.
            value, blind = (_share_of_root_splits(claim, truth, after) for after in (0, 1))
            return [Score("cuts_won", value, blind)] if value is not None else []
        (inside, alone), (expected, alone_expected) = (_shares_in_windows(claim, c, truth.X)
                                               for c in (truth.told, truth.honest))  # fmt: skip
        return [Score("cuts_inside", inside, expected), Score("rows_alone", alone, alone_expected)]


def _share_of_root_splits(claim: CutWindows, truth: Settled, after: int) -> float | None:
    """Return the share of root splits as claimed, looked up `after` trees later.

    None if the model has no such tree.
    """
    exists = claim.tree + after < len(truth.feature)
    tree = claim.tree[exists] + after
    same = truth.feature[tree] == claim.feature[exists]
    within = (claim.low[exists] <= truth.threshold[tree]) & (
        truth.threshold[tree] <= claim.high[exists]
    )
    return float((same & within).mean()) if len(tree) else None


def _shares_in_windows(
    claim: CutWindows, cuts: Cuts, X: NDArray[np.float32]
) -> tuple[float | None, float | None]:
    """Return the share of cut points in the windows, and of values there that are single in a bin.

    A share is None if there is no cut point or no value to count.
    """
    codes = bin_rows(X, cuts).codes
    inside, alone = [], []
    for f, low, high in zip(claim.feature.tolist(), claim.low, claim.high, strict=True):
        # The last border separates no bins, because larger values belong to the last bin.
        inner = cuts.of(f)[:-1]
        inside.append((low <= inner) & (inner <= high))
        codes_in_window = codes[(low <= X[:, f]) & (X[:, f] <= high), f]
        alone.append(np.bincount(codes[:, f])[codes_in_window] == 1)
    shares = (np.concatenate(parts) for parts in (inside, alone))
    a, b = (float(share.mean()) if len(share) else None for share in shares)
    return a, b
