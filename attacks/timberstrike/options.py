"""Options of TimberStrike, and their validation."""

from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np

from fedtrees.attacks.reconstruction.prior import Ranges
from fedtrees.core.errors import check_known, check_whole

Solver = Literal["max-ent", "local-search"]
Points = Literal["auto", "prior", "mid", "joint", "published"]
Scope = Literal["victims", "union"]

# A row that is assigned to a wrong leaf stays there, and later trees then narrow a wrong box.
# Reconstruction accuracy with three chains, victims only, 5 / 20 / 100 trees: Pima depth 3
# 71.4 / 72.9 / 73.6, depth 6 72.4 / 73.8 / 74.2; Stroke (5,207 victims) depth 3 89.8 / 89.7 / 88.6,
# depth 6 90.2 / 90.2 / 89.7. Twenty trees are close to the best of both and cost a fifth of 100.
AUTO_TREES = 20


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of TimberStrike. The defaults are those of the attack `timberstrike`.

    Attributes
    ----------
    solver : {"max-ent", "local-search"}
        Method that assigns rows to the leaves of the second and later trees: sampling from the
        maximum-entropy assignment, or local search.
    points : {"auto", "prior", "mid", "joint", "published"}
        Rule that chooses a point of the box of every row; see
        `fedtrees.attacks.timberstrike.sample_from_boxes`.
    scope : {"victims", "union"}
        Reconstruct the rows of the other clients, or the rows of all clients as the paper does.
    use_prior : bool
        Use the adversary's local data as the prior. If False, only value ranges are used.
    max_trees : int or None
        Largest number of rounds to use. None: all rounds if histograms are decoded bin by bin, else
        `AUTO_TREES`.
    chains : int or None
        Number of independent reconstructions that are merged by matched consensus. None: 20, as
        many as the blind adversary draws, for up to 5,000 victims, fewer for more, at least 5.
    random_leaf : bool
        Control: from the second tree on, each row is assigned to a uniformly random reachable leaf.
        The columns "F-TP" of Di Gennaro et al. (2025) are such runs in the authors' code.
    ranges : {"schema", "own"}
        Source of value ranges that cut points do not reveal. "schema" uses the range of local data
        for a column without declared range.
    sketches : bool
        If the view contains the sketches of all victims, use their columns as a prior in addition
        to local data.
    """

    solver: Solver = "max-ent"
    points: Points = "auto"
    scope: Scope = "victims"
    use_prior: bool = True
    max_trees: int | None = None
    chains: int | None = None
    random_leaf: bool = False
    ranges: Ranges = "schema"
    sketches: bool = True

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if get_origin(kind) is Literal:
                check_known(name, getattr(self, name), get_args(kind))
        if self.max_trees is not None:
            check_whole("max_trees", self.max_trees, 0)
        if self.chains is not None:
            check_whole("chains", self.chains, 1)

    def chains_for(self, n_rows: int) -> int:
        """Return the number of reconstructions to merge, so that the work is bounded.

        Examples
        --------
        >>> [Options().chains_for(n) for n in (100, 10_000, 100_000)]
        [20, 10, 5]
        """
        return self.chains or int(np.clip(100_000 // max(n_rows, 1), 5, 20))

    @property
    def weighs_blind(self) -> bool:
        """Whether the submitted rows are weighed against draws from the prior.

        This is false for controls, for fixed rules for the points of boxes, and for runs that are
        compared with published tables.
        """
        usual = self.points == "auto" and self.scope == "victims" and self.use_prior
        return usual and not self.random_leaf
