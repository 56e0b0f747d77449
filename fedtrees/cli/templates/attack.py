"""A new attack: compute the class counts of the first tree's leaves from sent statistics.

fedtrees plugin check leaf_statistics.py
fedtrees bench --plugin leaf_statistics.py -a leaf-statistics --threat server -d none,split-only

A test trains a federation and compares a claim with the true rows:

>>> import fedtrees, sklearn.datasets
>>> X, y = sklearn.datasets.load_breast_cancer(return_X_y=True)
>>> model = fedtrees.FederatedGBDTClassifier(n_estimators=1, max_depth=3, random_state=0).fit(X, y)
>>> (claim,) = LeafStatistics().run(model.view("server"), None).claims
>>> bool(claim.counts.sum() == len(y))
True
"""

from dataclasses import dataclass

import numpy as np

from fedtrees import Attack, Guess, LeafCounts, register
from fedtrees.messages.horizontal import LeafValues

NO_STATISTICS = "the view contains no statistics of leaves"


@register.attack("leaf-statistics")
@dataclass(frozen=True)
class LeafStatistics(Attack):
    """Compute class counts from the sums G and H of every leaf.

    In the first tree, all rows have the same prediction p. A row with label y has the gradient
    p - y and the hessian p (1 - p), so that H is proportional to the number of rows of a leaf.
    """

    claims = (LeafCounts,)

    expected_share: float = 0.25  # of class 1, because G and H do not distinguish p from 1 - p

    def inapplicable(self, view):
        if view.rows is not None:
            return "the statistics also contain rows of the adversary"
        if len(view.schema.classes) != 2:
            return "the attack is for two classes"
        return None if self.leaf_messages(view) else NO_STATISTICS

    def run(self, view, rng):
        claims = []
        if messages := self.leaf_messages(view):
            nodes, g, h = (
                np.concatenate([getattr(m, field) for m in messages])
                for field in ("nodes", "g", "h")
            )
            # The mean hessian is p (1 - p). Both solutions for p are possible.
            variance = min(h.sum() / view.n_rows, 0.25)
            low = (1 - np.sqrt(1 - 4 * variance)) / 2
            p = min(low, 1 - low, key=lambda share: abs(share - self.expected_share))
            rows = np.rint(view.n_rows * h / h.sum())
            ones = np.clip(np.rint(rows * p - g), 0, rows)
            claims.append(LeafCounts(0, nodes, np.column_stack([rows - ones, ones]).astype(int)))
        return Guess.of(claims, otherwise=NO_STATISTICS)

    def leaf_messages(self, view):
        """Return the messages about leaves of the first tree that contain statistics."""
        first_tree = (m for _, m in view.messages(LeafValues) if m.tree == 0)
        return [m for m in first_tree if m.h is not None and m.h.ndim == 1 and m.h.sum() > 0]
