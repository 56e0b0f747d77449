"""The attack `membership`: infer which candidates were in the training data of a model.

The model is a boosted forest, a random forest, a forest of random decision trees, or an additive
model. The view supplies the candidates. The neighbouring modules implement one test each. This
module decides which tests apply to a view and combines their scores.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.membership.base import (
    Floats,
    LinearSums,
    MembershipAttack,
    Tests,
    column_overlap,
    member_of_any,
    shared_thresholds,
)
from fedtrees.attacks.membership.leaf_sums import boosted_sums
from fedtrees.attacks.membership.learners import shared_model, trainer_of
from fedtrees.attacks.membership.references import Trainer, class_logits, forest_logits
from fedtrees.attacks.membership.released_counts import (
    forest_sums,
    machine_sums,
    value_counts,
)
from fedtrees.attacks.observations.applicability import no_trees
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.observations.columns import Column, columns_of, fullest
from fedtrees.attacks.observations.forests import announced_forest
from fedtrees.attacks.observations.reading import read_boosting, releases_leaves
from fedtrees.attacks.observations.replay import trees_grown_locally
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.additive import AdditiveModel, ShapeFunctions
from fedtrees.messages.horizontal import FeatureSketch
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.losses import objective_of
from fedtrees.trees.forest.random_decision import RandomDecisionForest
from fedtrees.trees.forest.random_forest import RandomForest

Trees = Forest | RandomForest | RandomDecisionForest


@register.attack("membership")
@dataclass(frozen=True, kw_only=True)
class MembershipInference(MembershipAttack):
    """Infer which candidates were training rows, by likelihood ratios and released sums.

    The attack combines every test that the messages allow: whether a sketch contains the values of
    the candidate, the posterior of membership given released sums with their stated noise, cut
    points that are values of the candidate, and the likelihood ratios LiRA (Carlini et al. 2022)
    and RMIA (Zarifzadeh et al. 2024) over reference models.

    Parameters
    ----------
    models : int
        Number of reference models, even and at least 2.

    Notes
    -----
    The diagnostic ``reference_models`` is 0 if no reference models were trained. This is the case
    if the view contains sketches of exact values, because these are stronger evidence, or if
    fedtrees has no learner that trains like the protocol (`trainer_of`).

    References
    ----------
    Carlini, Chien, Nasr, Song, Terzis and Tramèr (2022), "Membership inference attacks from first
    principles". Zarifzadeh, Liu and Shokri (2024), "Low-cost high-power membership inference
    attacks".
    """

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the attack does not apply, None if it does.

        It does not apply if the view contains no model, or if the principals have only columns of
        the rows, as in a vertical partition. They then know the members by their ids.
        """
        if view.local_data and view.rows is None:
            return Reason("rows-known-by-id")
        return Reason("no-model") if self.model(view) is None else None

    def model(self, view: View) -> Any:
        """Return the model under attack, None if the view contains none."""
        shapes = [m for _, m in view.messages(ShapeFunctions)]
        return shapes[-1].model() if shapes else model_in(view)

    def trainer(self, view: View, model: Any) -> Trainer | None:
        """Return the learner of the protocol (`trainer_of`)."""
        return trainer_of(view, model)

    def logits(self, view: View, model: Any, rows: Table) -> Floats:
        """Return the logit of each row's true class, float64, shape (n,)."""
        if isinstance(model, Forest):
            return forest_logits(model, rows)
        is_additive = isinstance(model, AdditiveModel)
        scores = model.predict(rows.X) if is_additive else model.probabilities(rows.X)
        return class_logits(scores, rows.y)

    def linear_sums(
        self,
        view: View,
        model: Any,
        rows: Table,
        possible: Mapping[str, NDArray[np.intp]] | None = None,
    ) -> list[LinearSums]:
        """Return the sums of the type of model. There are none for a random forest.

        Parameters
        ----------
        view : View
            Messages of the training.
        model : object
            The model under attack.
        rows : Table
            The n candidates.
        possible : mapping of str to int64 array, or None
            By client: positions of the candidates that may be its rows. Clients that are missing
            here may have all candidates.
        """
        possible = possible or {}
        if isinstance(model, AdditiveModel):
            sums = machine_sums(view, rows)
            return [s.restricted(possible[s.owner]) if s.owner in possible else s for s in sums]
        if isinstance(model, RandomDecisionForest):
            return forest_sums(view, rows)
        return boosted_sums(view, rows, possible) if isinstance(model, Forest) else []

    def posterior(self, view: View, model: Any, rows: Table) -> dict[str, Floats]:
        """Return the test ``posterior``, or no test if there are no released sums.

        A sketch of all values of a client states how many of its rows have each value of a column.
        These numbers are sums as well, and only candidates with values of the sketch may be rows of
        the client.
        """
        return self._posterior(view, model, rows, columns_of(view))

    def _posterior(
        self, view: View, model: Any, rows: Table, columns: Mapping[str, tuple[Column, ...]]
    ) -> dict[str, Floats]:
        """Return the test ``posterior``, given the columns of every client (`columns_of`)."""
        is_changed = _sketches_are_changed(view)
        sketches = {
            owner: parts
            for owner, parts in columns.items()
            if not is_changed and not any(column.points or column.middles for column in parts)
        }
        possible = {
            owner: np.flatnonzero(column_overlap(rows.X, [parts]) >= 1)
            for owner, parts in sketches.items()
        }
        counts = {
            owner: value_counts(owner, parts, rows, fullest(parts)).restricted(possible[owner])
            for owner, parts in sketches.items()
            if any(column.exact for column in parts)
        }
        groups = self.linear_sums(view, model, rows, possible)
        if not sketches:
            return {"posterior": member_of_any(groups, len(rows))} if groups else {}
        joined = [s.joined(counts.pop(s.owner)) if s.owner in counts else s for s in groups]
        if len(joined) == 1 and joined[0].owner is None and counts:
            # The sums of all clients together are evidence in addition to each client's sketch.
            odds = member_of_any(list(counts.values()), len(rows))
            return {"posterior": odds + member_of_any(joined, len(rows))}
        joined += counts.values()
        return {"posterior": member_of_any(joined, len(rows))} if joined else {}

    def sums_determine_model(self, view: View, model: Any) -> bool:
        """Return whether splits ignore the data, so that leaf sums determine the model."""
        return isinstance(model, RandomDecisionForest) or releases_leaves(view)

    def tests(self, view: View, model: Any, rows: Table, rng: np.random.Generator) -> Tests:
        """Run the tests ``sketch`` and ``thresholds``, then those of the base class."""
        scores = dict[str, Floats]()
        columns = columns_of(view)
        sketches = [c for c in columns.values() if not any(part.middles for part in c)]
        if sketches:
            scores["sketch"] = column_overlap(rows.X, sketches)
        trees = getattr(model, "trees", ())
        if trees and not isinstance(model, RandomDecisionForest) and _cuts_are_values(view):
            scores["thresholds"] = shared_thresholds(rows.X, trees, view.rows)
        if sketches and not _sketches_are_changed(view):
            # Values of training records are stronger evidence than the answers of the model.
            scores |= self._posterior(view, model, rows, columns)
            return Tests(scores, notes={"reference_models": 0.0})
        more = super().tests(view, model, rows, rng)
        return Tests(scores | more.scores, more.weights, more.notes)


def _cuts_are_values(view: View) -> bool:
    """Return whether thresholds may be values of training rows.

    This is false if cut points are public, lie on a grid, or were changed or drawn by a defense. It
    is also false for LightGBM (parameter ``num_leaves``), whose cut points are midway between
    values.
    """
    if "num_leaves" in view.parameters or releases_leaves(view):
        return False
    plan = view.defense.cut_plan()
    method = view.parameters.get("cuts", "sketch") if plan is None else plan.method
    return method == "sketch" and not _sketches_are_changed(view)


def _sketches_are_changed(view: View) -> bool:
    """Return whether a defense changes sketches, whose values are then not those of rows."""
    return any(issubclass(FeatureSketch, part.handled_types) for part in view.defense.parts)


def _evidence(view: View) -> BoostingObservations | None:
    return None if no_trees(view, supports_regression=True) else read_boosting(view)


def model_in(view: View) -> Trees | None:
    """Return the model of trees in a view, None if there is none.

    It is the released model, or else the one that follows from the messages of the training.
    """
    for seen in view.seen:
        if hasattr(seen.message, "model"):
            model = seen.message.model()
            if isinstance(model, Trees):
                return model
    if trees_grown_locally(view):
        return shared_model(view)
    evidence = _evidence(view)
    if evidence is None:
        return announced_forest(view)
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    return Forest(evidence.trees, np.atleast_1d(evidence.base_margin), objective)
