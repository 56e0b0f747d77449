"""How TimberStrike attacks."""

from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np

from fedtrees.attacks.evidence.prior import Ranges
from fedtrees.core.errors import UsageError, did_you_mean

Solver = Literal["max-ent", "local-search", "milp"]
Points = Literal["auto", "prior", "mid", "median", "joint", "published"]
Scope = Literal["victims", "union"]

# A row sent to a wrong leaf stays there, and later trees then narrow a wrong box. Measured with
# three chains, victims only, 5 / 20 / 100 trees: Pima depth 3 71.4 / 72.9 / 73.6, depth 6
# 72.4 / 73.8 / 74.2; Stroke (5,207 victims) depth 3 89.8 / 89.7 / 88.6, depth 6 90.2 / 90.2 / 89.7.
# Twenty trees lose little on either side and cost a fifth.
AUTO_TREES = 20


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to attack.

    Attributes
    ----------
    solver : {"max-ent", "local-search", "milp"}
        How rows are assigned to the leaves of the second and later trees.
    points : {"auto", "prior", "mid", "median", "joint", "published"}
        How a box becomes a row; see `fedtrees.attacks.timberstrike.points`.
    scope : {"victims", "union"}
        Reconstruct the other clients' rows, or all rows as the paper does.
    use_prior : bool
        Use own rows as knowledge of the distribution; False leaves ranges only.
    max_trees : int or None
        Read at most this many trees (rounds, where a round is a tree per class). None: all where
        bins can be read one by one, else the first `AUTO_TREES`.
    chains : int or None
        Independent reconstructions merged by matched consensus; 1 for a single one. None: 20, as
        many as the blind adversary draws, up to 5,000 victims; fewer for more, at least 5.
    time_limit : float
        Seconds per tree for ``solver="milp"`` (solver's deterministic seconds).
    random_leaf : bool
        Control: from the second tree on, each row goes to a uniformly random reachable leaf.
        The columns "F-TP" of Di Gennaro et al. (2025) are such runs in the authors' code.
    ranges : {"schema", "own"}
        Where value ranges come from that cut points do not tell; "schema" falls back to own rows
        where it declares none.
    sketches : bool
        Where every victim's sketch is seen, their columns are knowledge of the distribution beside
        own rows.
    """

    solver: Solver = "max-ent"
    points: Points = "auto"
    scope: Scope = "victims"
    use_prior: bool = True
    max_trees: int | None = None
    chains: int | None = None
    time_limit: float = 10.0
    random_leaf: bool = False
    ranges: Ranges = "schema"
    sketches: bool = True

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if get_origin(kind) is Literal and value not in get_args(kind):
                raise UsageError(f"unknown {name} {value!r}{did_you_mean(value, get_args(kind))}")
        if self.max_trees is not None and self.max_trees < 0:
            raise UsageError(f"max_trees {self.max_trees} must be at least 0")
        if self.chains is not None and self.chains < 1:
            raise UsageError(f"chains {self.chains} must be at least 1")
        if not self.time_limit > 0:
            raise UsageError(f"time_limit {self.time_limit} must be positive (seconds)")

    def chains_for(self, n: int) -> int:
        """Return how many chains to merge for n rows, so that the work stays bounded."""
        return self.chains or int(np.clip(100_000 // max(n, 1), 5, 20))

    @property
    def weighs_blind(self) -> bool:
        """Whether draws of own rows have a vote in what is submitted.

        Controls, fixed rules for the points of boxes, and what is made for comparison with
        published tables do not.
        """
        usual = self.points == "auto" and self.scope == "victims" and self.use_prior
        return usual and not self.random_leaf
