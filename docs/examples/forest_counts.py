"""An attack on a released random forest: a recipient of the model (role public) reads its leaves.

fedtrees bench --plugin docs/examples/forest_counts.py -p "forest-hist[bootstrap=false]" \\
    --threat public -a forest-counts -d none,split-only
"""

from dataclasses import dataclass

import numpy as np

from fedtrees import Attack, Guess, LeafCounts, register
from fedtrees.messages.forests import ForestModel


@register.attack("forest-counts")
@dataclass(frozen=True, kw_only=True)
class ForestCounts(Attack):
    """Claim the class counts that the leaves contain.

    If the leaves contain only class shares, all leaves are assumed to be equally large.
    """

    def inapplicable(self, view):
        forests = list(view.messages(ForestModel))
        return None if forests else "no released random forest is in the view"

    def run(self, view, rng):
        claims = []
        for _, message in view.messages(ForestModel):
            for t, tree in enumerate(message.model().trees):
                counts = tree.counts
                if counts is None:
                    even = tree.probability * view.n_rows / len(tree.leaves)
                    counts = np.rint(np.nan_to_num(even)).astype(np.int64)
                claims.append(LeafCounts(t, tree.leaves, counts[tree.leaves]))
        return Guess.of(claims, otherwise="no released random forest is in the view")
