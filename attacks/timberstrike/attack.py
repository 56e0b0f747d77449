"""TimberStrike as an attack on a view, and its control."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from fedtrees.attacks.timberstrike.evidence import Level, Options
from fedtrees.attacks.timberstrike.reconstruct import reconstruct
from fedtrees.attacks.timberstrike.view import LEVELS, evidence_of
from fedtrees.core.attack import Attack
from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.guess import Guess
from fedtrees.core.registry import register
from fedtrees.core.view import View


@register.attack("timberstrike")
@dataclass(frozen=True, kw_only=True)
class TimberStrike(Options, Attack):
    """Reconstruct training rows from the trees of a boosted model (Di Gennaro et al. 2025).

    It adapts to the view: bin histograms where they are seen, else sums per node, else leaf
    values alone; and to declared noise and rounding. Options as in `Options`.

    Attributes
    ----------
    most : {"histograms", "statistics", "values"}
        Use no more than this even if more was seen.
    """

    most: Level = "histograms"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most not in LEVELS:
            raise UsageError(f"unknown most {self.most!r}{did_you_mean(self.most, LEVELS)}")

    def inapplicable(self, offers: Set[str], roles: Set[str]) -> str | None:
        """Return why the principals see no boosted trees, None if they do."""
        if not offers & {"leaf-values", "histograms"}:
            return "the protocol shares neither leaf values nor histograms"
        if not offers & {"logistic-leaves", "softmax-leaves"}:
            return (
                "it needs threshold splits and leaves that are Newton steps of log loss on all rows"
            )
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Guess the victims' rows and the class counts of the first tree's leaves."""
        evidence = evidence_of(view, self.most)
        if evidence is None:
            return Guess()
        return reconstruct(evidence, view.own, view.schema, self, rng)


@register.attack("random-leaf")
@dataclass(frozen=True, kw_only=True)
class RandomLeaf(TimberStrike):
    """The control: from the second tree on every row goes to a random reachable leaf.

    Published as "RA (F-TP)", where the authors' code runs this over all trees.
    """

    random_leaf: bool = True
