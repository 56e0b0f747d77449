"""Membership inference as an attack on a view."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.readable import no_trees
from fedtrees.attacks.evidence.replay import cuts_of, params_of
from fedtrees.attacks.evidence.view import evidence_of
from fedtrees.attacks.membership.ratios import lira, rmia
from fedtrees.attacks.membership.references import REFERENCES, references, said_by
from fedtrees.attacks.membership.structure import held_thresholds, in_sketch, on_path
from fedtrees.core.attack import Attack
from fedtrees.core.errors import UsageError
from fedtrees.core.guess import Claim, Guess, Membership
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.statistics import middle_ranks
from fedtrees.core.view import View
from fedtrees.messages.cuts import FeatureSketch
from fedtrees.messages.models import BoostedModel
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.losses import objective_of

Floats = NDArray[np.float64]


@register.attack("membership")
@dataclass(frozen=True, kw_only=True)
class MembershipInference(Attack):
    """Tell which candidates were trained on.

    What is seen of single rows decides: whether a sketch holds a candidate's values, whether sums
    of hessians on its path can have it inside (not in a paper). Where nothing is, likelihood ratios
    do, over models of random halves of the candidates: LiRA (Carlini et al. 2022) and RMIA
    (Zarifzadeh et al. 2024), and the thresholds that a candidate holds.

    `models`: Reference models, an even number.
    """

    candidates: ClassVar[bool] = True

    numbers: ClassVar[bool] = True

    models: int = REFERENCES

    def __post_init__(self) -> None:
        if type(self.models) is not int or self.models < 2 or self.models % 2:
            raise UsageError(f"models={self.models!r}: give an even number of 2 or more")

    def inapplicable(self, view: View) -> Reason | None:
        """Return why there is no boosted model in a view."""
        return Reason("no-trees") if model_in(view) is None else None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Score the candidates by every test that there is, and by all together."""
        model, rows = model_in(view), view.candidates
        if rows is None or model is None:
            return Guess()
        found = dict(self._tests(view, model, rows, rng))
        claims: list[Claim] = [Membership("together", together(found))]
        return Guess((*claims, *(Membership(name, score) for name, score in found.items())))

    def _tests(
        self, view: View, model: Forest, rows: Table, rng: np.random.Generator
    ) -> Iterator[tuple[str, Floats]]:
        sketches = [m for s, m in view.messages(FeatureSketch) if s.sender not in view.principals]
        if sketches:
            yield "sketch", in_sketch(rows.X, sketches)
        seen, cuts = _seen(view), cuts_of(view)
        if seen is not None and cuts is not None and _followed(seen):
            yield "path", on_path(rows, seen, cuts)
        yield "thresholds", held_thresholds(rows.X, model.trees)
        if sketches:  # others' values tell more than what a model makes of them
            return
        how = params_of(view), model.objective, cuts
        refs, logit = references(rows, view.rows, *how, self.models, rng), said_by(model, rows)
        yield "lira", lira(logit, refs)
        yield "rmia", rmia(logit, refs)


def _followed(seen: Evidence) -> bool:
    """Tell whether rows are followed through what was seen: sums of one output, thresholds."""
    by_sets = any(t.categories is not None for t in seen.trees)
    return bool(seen.histograms) and np.ndim(seen.base_margin) == 0 and not by_sets


def _seen(view: View) -> Evidence | None:
    return None if no_trees(view, numbers=True) else evidence_of(view)


def model_in(view: View) -> Forest | None:
    """Return the boosted model that was released or can be read, None if there is none."""
    for _, message in view.messages(BoostedModel):
        return message.model()
    evidence = _seen(view)
    if evidence is None:
        return None
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    return Forest(evidence.trees, np.atleast_1d(evidence.base_margin), objective)


def together(found: dict[str, Floats]) -> Floats:
    """Return one score of all tests, shape (n,).

    First whether a sketch holds all values and whether all sums can hold the row, which is true of
    members; then how it ranks by the other tests, in the mean.
    """
    sure = sum(np.where(found[name] >= full, 1.0, 0.0)
               for name, full in (("sketch", 1.0), ("path", 0.0)) if name in found)  # fmt: skip
    ranks = [middle_ranks(score) for score in found.values()]
    return np.asarray(sure + np.mean(ranks, axis=0), dtype=np.float64)
