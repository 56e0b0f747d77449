"""Membership inference as an attack on a view."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.readable import no_trees
from fedtrees.attacks.evidence.replay import cuts_of, grown_alone, params_of
from fedtrees.attacks.evidence.sketched import columns_of
from fedtrees.attacks.evidence.told_forests import told_forest
from fedtrees.attacks.evidence.view import evidence_of
from fedtrees.attacks.membership.ratios import lira, rmia, weight_of
from fedtrees.attacks.membership.references import (
    REFERENCES,
    Trainer,
    adds,
    boosts,
    counts,
    grows,
    logit_of_own,
    references,
    said_by,
)
from fedtrees.attacks.membership.shared import shared_model, shares
from fedtrees.attacks.membership.structure import held_thresholds, in_columns, on_path
from fedtrees.core.attack import Attack
from fedtrees.core.errors import UsageError
from fedtrees.core.guess import Claim, Guess, Membership
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.statistics import middle_ranks
from fedtrees.core.view import View
from fedtrees.messages.additive import AdditiveModel, ShapeFunctions
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.losses import objective_of
from fedtrees.trees.forest.params import ForestParams
from fedtrees.trees.forest.random_decision import RandomDecisionForest
from fedtrees.trees.forest.random_forest import RandomForest

Trees = Forest | RandomForest | RandomDecisionForest
Model = Trees | AdditiveModel
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

    claims = (Membership,)

    candidates: ClassVar[bool] = True

    numbers: ClassVar[bool] = True

    models: int = REFERENCES

    def __post_init__(self) -> None:
        if type(self.models) is not int or self.models < 2 or self.models % 2:
            raise UsageError(f"models={self.models!r}: give an even number of 2 or more")

    def inapplicable(self, view: View) -> Reason | None:
        """Return why there is no model of trees in a view, or nothing to ask."""
        if view.own and view.rows is None:
            return Reason("rows-known-by-id")
        return Reason("no-trees") if self.model(view) is None else None

    def model(self, view: View) -> Any:
        """Return the model that candidates are asked about, None if there is none."""
        shapes = [m for _, m in view.messages(ShapeFunctions)]
        return shapes[-1].model() if shapes else model_in(view)

    def trainer(self, view: View, model: Any) -> Trainer:
        """Return what trains as the model was."""
        return _trainer(view, model)

    def said(self, view: View, model: Any, rows: Table) -> Floats:
        """Return the logit that the model gives each row's own class, float64, shape (n,)."""
        if isinstance(model, Forest):
            return said_by(model, rows)
        adds_up = isinstance(model, AdditiveModel)
        scores = model.predict(rows.X) if adds_up else model.probabilities(rows.X)
        return logit_of_own(scores, rows.y)

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Score the candidates by every test that there is, and by all together."""
        model, rows = self.model(view), view.candidates
        if rows is None or model is None:
            return Guess.none(self.inapplicable(view) or Reason("empty-claims"))
        found, weight = self.tests(view, model, rows, rng)
        claims: list[Claim] = [Membership("together", together(found, weight))]
        return Guess((*claims, *(Membership(name, score) for name, score in found.items())))

    def tests(
        self, view: View, model: Any, rows: Table, rng: np.random.Generator
    ) -> tuple[dict[str, Floats], float]:
        """Return what each test scores, and what a nat of the last is worth."""
        found = dict[str, Floats]()
        sketches = [c for c in columns_of(view).values() if not any(part.middles for part in c)]
        if sketches:
            found["sketch"] = in_columns(rows.X, sketches)
        seen, cuts = _seen(view), cuts_of(view)
        if seen is not None and cuts is not None and _followed(seen):
            found["path"] = on_path(rows, seen, cuts)
        trees = getattr(model, "trees", ())
        if trees and not isinstance(model, RandomDecisionForest):  # its tests are no values of rows
            found["thresholds"] = held_thresholds(rows.X, trees, view.rows)
        if sketches:  # others' values tell more than what a model makes of them
            return found, 0.0
        numbers, trainer = not view.schema.classes, self.trainer(view, model)
        refs = references(rows, view.rows, trainer, self.models, rng, numbers)
        logit = self.said(view, model, rows)
        found |= {"lira": lira(logit, refs), "rmia": rmia(logit, refs)}
        return found, weight_of(refs)


def _trainer(view: View, model: Model) -> Trainer:
    """Return what trains as the model was."""
    if isinstance(model, AdditiveModel):
        return adds()
    cuts = cuts_of(view)
    if isinstance(model, RandomDecisionForest):
        return counts(model)
    if isinstance(model, RandomForest):
        known = {k: v for k, v in view.parameters.items() if k in ForestParams.__dataclass_fields__}
        return grows(ForestParams(**known), model.n_classes, cuts)
    if grown_alone(view):
        return shares(view, model.objective)
    return boosts(params_of(view), model.objective, cuts)


def _followed(seen: Evidence) -> bool:
    """Tell whether rows are followed through what was seen: sums of one output, thresholds."""
    by_sets = any(t.categories is not None for t in seen.trees)
    return bool(seen.histograms) and np.ndim(seen.base_margin) == 0 and not by_sets


def _seen(view: View) -> Evidence | None:
    return None if no_trees(view, numbers=True) else evidence_of(view)


def model_in(view: View) -> Trees | None:
    """Return the model of trees that was released or can be read, None if there is none."""
    for seen in view.seen:
        if hasattr(seen.message, "model"):
            found = seen.message.model()
            if isinstance(found, Trees):
                return found
    if grown_alone(view):
        return shared_model(view)
    evidence = _seen(view)
    if evidence is None:
        return told_forest(view)
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    return Forest(evidence.trees, np.atleast_1d(evidence.base_margin), objective)


def together(found: dict[str, Floats], weight: float = 0.0) -> Floats:
    """Return one score of all tests, shape (n,).

    First whether a sketch holds all values and whether all sums can hold the row, which is true of
    members; then the log-odds by thresholds and `rmia`, as ranks beside those of the other two.

    `weight`: What a nat of ``rmia`` is worth, as of `weight_of`.
    """
    sure = sum(np.where(found[name] >= full, 1.0, 0.0)
               for name, full in (("sketch", 1.0), ("path", 0.0)) if name in found)  # fmt: skip
    none = np.zeros(len(next(iter(found.values()))))
    odds = found.get("thresholds", none) + weight * found.get("rmia", none)
    others = [middle_ranks(found[name]) for name in ("sketch", "path") if name in found]
    ranks = np.mean([*others, middle_ranks(odds)], axis=0)
    return np.asarray(sure + ranks, dtype=np.float64)
