"""The attack `membership`: infer which candidates were in the training data of a model.

The model is a boosted forest, a random forest, a forest of random decision trees, or an additive
model. The view supplies the candidates. The neighbouring modules implement one test each. This
module decides which tests apply to a view and combines their scores.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.membership.leaf_sums import boosted_sums
from fedtrees.attacks.membership.learners import shared_model, trainer_of
from fedtrees.attacks.membership.posterior import LinearSums, any_of, log_odds
from fedtrees.attacks.membership.references import (
    REFERENCES,
    Trainer,
    class_logits,
    forest_logits,
    lira,
    ratio_weights,
    references,
    rmia,
)
from fedtrees.attacks.membership.released_counts import forest_sums, machine_sums
from fedtrees.attacks.membership.structure import (
    column_overlap,
    hessian_shortfall,
    shared_thresholds,
)
from fedtrees.attacks.observations.applicability import no_trees
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.observations.columns import columns_of
from fedtrees.attacks.observations.forests import told_forest
from fedtrees.attacks.observations.reading import read_boosting, releases_leaves
from fedtrees.attacks.observations.replay import cuts_of, grown_alone
from fedtrees.core.attack import Attack
from fedtrees.core.errors import UsageError
from fedtrees.core.guess import Guess, Membership
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.statistics import middle_ranks
from fedtrees.core.view import View
from fedtrees.messages.additive import AdditiveModel, ShapeFunctions
from fedtrees.messages.horizontal import FeatureSketch
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.losses import objective_of
from fedtrees.trees.forest.random_decision import RandomDecisionForest
from fedtrees.trees.forest.random_forest import RandomForest

Trees = Forest | RandomForest | RandomDecisionForest
Model = Trees | AdditiveModel
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tests:
    """Scores of all tests that a view allows.

    Attributes
    ----------
    scores : dict of str to float64 array, shape (n,)
        Scores by name of the test. Greater means more probably a member.
    weights : mapping of str to float
        Log-odds of membership that a nat of `lira` and `rmia` is worth.
    notes : dict of str to float
        Diagnostics of the attack.
    """

    scores: dict[str, Floats]
    weights: Mapping[str, float] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)


@register.attack("membership")
@dataclass(frozen=True, kw_only=True)
class MembershipInference(Attack):
    """Infer which candidates were training rows, by likelihood ratios and released sums.

    The attack combines every test that the messages allow: whether a sketch contains the values of
    the candidate, whether histogram sums are large enough to include it, the posterior of
    membership given released sums with their stated noise, cut points that are values of the
    candidate, and the likelihood ratios LiRA (Carlini et al. 2022) and RMIA (Zarifzadeh et al.
    2024) over reference models.

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

    claims = (Membership,)

    candidates: ClassVar[bool] = True

    numbers: ClassVar[bool] = True

    models: int = REFERENCES

    def __post_init__(self) -> None:
        if type(self.models) is not int or self.models < 2 or self.models % 2:
            raise UsageError(f"models={self.models!r}: give an even number of 2 or more")

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the attack does not apply, None if it does.

        It does not apply if the view contains no model, or if the principals have only columns of
        the rows, as in a vertical partition. They then know the members by their ids.
        """
        if view.own and view.rows is None:
            return Reason("rows-known-by-id")
        return Reason("no-trees") if self.model(view) is None else None

    def model(self, view: View) -> Any:
        """Return the model under attack, None if the view contains none."""
        shapes = [m for _, m in view.messages(ShapeFunctions)]
        return shapes[-1].model() if shapes else model_in(view)

    def trainer(self, view: View, model: Any) -> Trainer | None:
        """Return the learner that trained the model, None if fedtrees has no such learner."""
        return trainer_of(view, model)

    def logits(self, view: View, model: Any, rows: Table) -> Floats:
        """Return the logit that the model under attack gives the true class of each row.

        Parameters
        ----------
        view : View
            Not used here. Subclasses may need it.
        model : Forest, RandomForest, RandomDecisionForest or AdditiveModel
            The model under attack.
        rows : Table
            The n candidates with their labels.

        Returns
        -------
        float64 array, shape (n,)
            In log-odds. For a numeric target see `answer_logits`.
        """
        if isinstance(model, Forest):
            return forest_logits(model, rows)
        is_additive = isinstance(model, AdditiveModel)
        scores = model.predict(rows.X) if is_additive else model.probabilities(rows.X)
        return class_logits(scores, rows.y)

    def linear_sums(self, view: View, model: Any, rows: Table) -> list[LinearSums]:
        """Return released sums that are linear in the membership indicators of the candidates.

        Parameters
        ----------
        view : View
            Messages of the training.
        model : Forest, RandomForest, RandomDecisionForest or AdditiveModel
            The model under attack. Its type decides which sums are read.
        rows : Table
            The n candidates.

        Returns
        -------
        list of LinearSums
            One entry per group of clients whose sums are separate. Empty for a random forest, and
            where the view contains no suitable sums.
        """
        if isinstance(model, AdditiveModel):
            return machine_sums(view, rows)
        if isinstance(model, RandomDecisionForest):
            return forest_sums(view, rows)
        return boosted_sums(view, rows) if isinstance(model, Forest) else []

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Score the candidates by all tests together, and by each test.

        Parameters
        ----------
        view : View
            Messages of the training, and the candidates (``view.candidates``).
        rng : numpy.random.Generator
            Draws the halves of the candidates that reference models are trained on.

        Returns
        -------
        guess : Guess
            One `Membership` claim named ``together``, followed by one per test. The guess is empty
            if there are no candidates, no model, or no applicable test.
        """
        model, rows = self.model(view), view.candidates
        if rows is None or model is None:
            return Guess.none(self.inapplicable(view) or Reason("no-membership-test"))
        tests = self.tests(view, model, rows, rng)
        if not tests.scores:
            return Guess.none(Reason("no-membership-test"), tests.notes)
        combined = Membership("together", together(tests.scores, tests.weights))
        parts = (Membership(name, score) for name, score in tests.scores.items())
        return Guess((combined, *parts), tests.notes)

    def tests(self, view: View, model: Any, rows: Table, rng: np.random.Generator) -> Tests:
        """Run every test that the view allows.

        Parameters
        ----------
        view : View
            Messages of the training.
        model : Forest, RandomForest, RandomDecisionForest or AdditiveModel
            The model under attack.
        rows : Table
            The n candidates.
        rng : numpy.random.Generator
            Draws the training sets of the reference models.

        Returns
        -------
        Tests
            Scores by name of the test: ``sketch``, ``path``, ``thresholds``, ``posterior``,
            ``lira`` and ``rmia``.
        """
        scores = dict[str, Floats]()
        sketches = [c for c in columns_of(view).values() if not any(part.middles for part in c)]
        if sketches:
            scores["sketch"] = column_overlap(rows.X, sketches)
        seen, cuts = _evidence(view), cuts_of(view)
        if seen is not None and cuts is not None and _paths_are_followed(seen):
            scores["path"] = hessian_shortfall(rows, seen, cuts)
        trees = getattr(model, "trees", ())
        if trees and not isinstance(model, RandomDecisionForest) and _cuts_are_values(view):
            scores["thresholds"] = shared_thresholds(rows.X, trees, view.rows)
        if sketches and not _sketches_are_changed(view):
            # values of training records are stronger evidence than any test of the model
            return Tests(scores, notes={"reference_models": 0.0})
        sums = self.linear_sums(view, model, rows)
        if sums:
            scores["posterior"] = any_of([log_odds(part) for part in sums])
        ratios = self.ratios(view, model, rows, rng)
        covered = "posterior" in scores and _splits_ignore_data(view, model)
        weights = {} if covered else ratios.weights
        return Tests(scores | ratios.scores, weights, ratios.notes)

    def ratios(self, view: View, model: Any, rows: Table, rng: np.random.Generator) -> Tests:
        """Train reference models and return the scores of `lira` and `rmia`.

        Parameters
        ----------
        view : View
            Its public parameters determine the learner.
        model : Forest, RandomForest, RandomDecisionForest or AdditiveModel
            The model under attack.
        rows : Table
            The n candidates.
        rng : numpy.random.Generator
            Draws the training sets of the reference models.

        Returns
        -------
        Tests
            Without scores if `trainer` returns None.
        """
        trainer = self.trainer(view, model)
        if trainer is None:
            return Tests({}, notes={"reference_models": 0.0})
        numbers = not view.schema.classes
        refs = references(rows, view.rows, trainer, self.models, rng, numbers)
        logit = self.logits(view, model, rows)
        scores = {"lira": lira(logit, refs), "rmia": rmia(logit, refs)}
        return Tests(scores, ratio_weights(refs), {"reference_models": float(self.models)})


def _paths_are_followed(seen: BoostingObservations) -> bool:
    """Return whether histograms and thresholds of a single output are visible."""
    by_sets = any(t.categories is not None for t in seen.trees)
    return bool(seen.observed.histograms) and np.ndim(seen.base_margin) == 0 and not by_sets


def _splits_ignore_data(view: View, model: Any) -> bool:
    """Return whether the released sums determine the model.

    The posterior then uses all evidence. Likelihood ratios would count it a second time.
    """
    return isinstance(model, RandomDecisionForest) or releases_leaves(view)


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
    return None if no_trees(view, numbers=True) else read_boosting(view)


def model_in(view: View) -> Trees | None:
    """Return the model of trees in a view, None if there is none.

    It is the released model, or else the one that follows from the messages of the training.
    """
    for seen in view.seen:
        if hasattr(seen.message, "model"):
            model = seen.message.model()
            if isinstance(model, Trees):
                return model
    if grown_alone(view):
        return shared_model(view)
    evidence = _evidence(view)
    if evidence is None:
        return told_forest(view)
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    return Forest(evidence.trees, np.atleast_1d(evidence.base_margin), objective)


def together(scores: Mapping[str, Floats], weights: Mapping[str, float] | None = None) -> Floats:
    """Combine the scores of all tests into one score per candidate.

    Candidates are ordered first by the conditions that every member fulfils: one sketch contains
    all its values, and no histogram sum is too small to include it. Within a class of equal
    candidates, the log-odds of the posterior, of shared thresholds and of the likelihood ratios are
    added up. Without a posterior, the extent to which the conditions are violated counts as well,
    by its rank.

    Parameters
    ----------
    scores : mapping of str to float64 array, shape (n,)
        By name of the test.
    weights : mapping of str to float, or None
        Log-odds that a nat of ``lira`` and of ``rmia`` is worth (`ratio_weights`). Tests that are
        missing here have weight 0.

    Returns
    -------
    float64 array, shape (n,)
        Number of fulfilled conditions (0, 1 or 2) plus a mean rank.

    Examples
    --------
    The second candidate is ruled out by a histogram sum, although its posterior is highest:

    >>> scores = {"path": np.array([0.0, -1.0, 0.0]), "posterior": np.array([0.3, 2.0, -0.5])}
    >>> together(scores).argsort()[::-1].tolist()
    [0, 2, 1]
    """
    weights = weights or {}
    n = len(next(iter(scores.values())))
    conditions = sum(
        (np.where(scores[name] >= full, 1.0, 0.0)
         for name, full in (("sketch", 1.0), ("path", 0.0)) if name in scores),
        np.zeros(n),
    )  # fmt: skip
    odds = np.zeros(n)
    for name in ("posterior", "thresholds"):
        odds = odds + scores.get(name, 0.0)
    for name in ("lira", "rmia"):
        if name in scores:
            odds = odds + weights.get(name, 0.0) * scores[name]
    ranks = [middle_ranks(odds)]
    if "posterior" not in scores:
        ranks += [middle_ranks(scores[name]) for name in ("sketch", "path") if name in scores]
    return np.asarray(conditions + np.mean(ranks, axis=0), dtype=np.float64)
