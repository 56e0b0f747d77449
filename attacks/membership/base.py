"""Base of the attacks that infer which candidates were in the training data of a model.

The attacks differ in the model: trees and additive models (`fedtrees.attacks.membership.attack`),
networks (`fedtrees.attacks.gradients.membership`) and regressions
(`fedtrees.attacks.regression.membership`). All of them compare the model with reference models, and
some solve for membership in released sums (`log_odds`).

A released sum, such as the gradient sum of a leaf, adds the contributions of all rows, and noise of
a known variance. If the adversary can compute the contribution of every candidate, then the sums
are linear in the unknown membership indicators. With a Gaussian approximation of the prior this is
a Bayesian linear regression with known noise, whose posterior has a closed form. It needs no
reference model, and uses the published noise distribution of a differentially private mechanism
directly.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array
from scipy.special import logsumexp

from fedtrees.attacks.membership.references import (
    REFERENCES,
    Trainer,
    lira,
    ratio_weights,
    references,
    rmia,
)
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Membership
from fedtrees.core.errors import UsageError
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Table
from fedtrees.core.statistics import middle_ranks
from fedtrees.core.view import View

Floats = NDArray[np.float64]

#: Standard deviations that a sum without noise may be given, as shares of the largest contribution
#: to it. The first only covers rounding (float32 gradients, leaf values of 24 bits). The larger
#: ones are for sums that do not follow the model exactly, for example because the adversary had to
#: estimate where the boosting of a client started.
MISFITS = (1e-3, 1e-2, 1e-1, 0.5)
#: Bounds on the prior probability of membership. Near 0 or 1 the prior would decide everything.
LEAST_PRIOR, GREATEST_PRIOR = 0.05, 0.95


@dataclass(frozen=True, eq=False)
class LinearSums:
    """Released sums, and the contribution of every candidate to them.

    Attributes
    ----------
    contribution : sparse array, shape (n, K)
        Contribution of candidate i to sum k, if it is a member.
    total : float64 array, shape (K,)
        The released sums, without the contributions of rows that the adversary knows to be
        members.
    variance : float64 array, shape (K,)
        Variance of the noise in each sum. It is 0 if the sum is exact, and infinite if the sum is
        to be ignored.
    rows : float
        Number of unknown members whose contributions are in the sums.
    """

    contribution: csr_array
    total: Floats
    variance: Floats
    rows: float


def log_odds(sums: LinearSums) -> Floats:
    """Return the log-odds of membership that the sums add to the prior, nats, shape (n,).

    Let z be the vector of membership indicators with prior variance v = q (1 - q), A the
    contributions, W = A / sd, and r the standardised difference between the released sums and their
    prior mean. The posterior of z has precision P = I / v + W W^T and mean q + P^-1 W r. The prior
    of a single candidate is then divided out, and the remaining Gaussian likelihood is evaluated at
    the only possible values, 0 and 1.

    If there are more unknown members than candidates, then the other members are assumed to be
    distributed like the candidates. Each candidate then represents several rows, whose number has a
    variance above v.

    Parameters
    ----------
    sums : LinearSums
        Sums of K cells over n candidates.

    Returns
    -------
    float64 array, shape (n,)
        Zero for a candidate if the sums contain no information about it.
    """
    n = sums.contribution.shape[0]
    mean = sums.rows / max(n, 1)  # expected number of members per candidate
    prior = float(np.clip(mean if mean < 1 else 0.5, LEAST_PRIOR, GREATEST_PRIOR))
    background = max(mean - prior, 0.0)  # members that are no candidates, per candidate
    spread = prior * (1 - prior) + background

    largest = np.asarray(abs(sums.contribution).max(axis=0).todense()).ravel()
    used = np.flatnonzero((largest > 0) & np.isfinite(sums.variance))
    if not len(used):
        return np.zeros(n)
    columns, largest, noise = sums.contribution[:, used], largest[used], sums.variance[used]
    residual = sums.total[used] - mean * np.asarray(columns.sum(axis=0)).ravel()
    exact = bool((noise < (MISFITS[0] * largest) ** 2).any())
    fits = [
        _solve(columns, residual, np.sqrt(noise + (misfit * largest) ** 2), spread)
        for misfit in (MISFITS if exact else MISFITS[:1])
    ]
    _, shift, variance = max(fits, key=lambda fit: fit[0])

    # Divide the posterior of each candidate by its prior. What remains is a Gaussian likelihood of
    # precision `gained` and mean `shift / variance / gained`, measured from the prior mean.
    gained = np.maximum(1 / variance - 1 / spread, 0.0)
    evidence = shift / variance - gained * (0.5 - prior)
    return np.asarray(evidence / (1 + gained * background), dtype=np.float64)


def _solve(
    columns: csr_array, residual: Floats, deviation: Floats, spread: float
) -> tuple[float, Floats, Floats]:
    """Return the log marginal likelihood, and posterior mean and variance of every candidate."""
    n = columns.shape[0]
    weights = csr_array(columns.multiply(1 / deviation[None, :]))
    standard = residual / deviation
    precision = (weights @ weights.T).toarray()
    precision[np.diag_indices(n)] += 1 / spread
    factor = cho_factor(precision, lower=True, overwrite_a=True)
    weighted = weights @ standard
    shift = cho_solve(factor, weighted)
    variance = np.diag(cho_solve(factor, np.eye(n)))
    log_det = 2 * np.log(np.diag(factor[0])).sum() + n * np.log(spread)
    fit = float(standard @ standard - weighted @ shift + 2 * np.log(deviation).sum() + log_det)
    return -fit / 2, shift, variance


def any_of(parts: Sequence[Floats]) -> Floats:
    """Return the log-odds that a candidate is a member of one of several groups of rows.

    Each group, for example the local data of one client, has separate sums. A member is in exactly
    one group, and in each with the same prior probability.

    Parameters
    ----------
    parts : sequence of float64 array, shape (n,)
        Log-odds of membership in each group, nats.

    Examples
    --------
    Strong evidence for one of two groups counts almost completely, minus log 2:

    >>> any_of([np.array([5.0]), np.array([-5.0])]).round(3).tolist()
    [4.307]
    """
    return np.asarray(logsumexp(parts, axis=0) - np.log(len(parts)), dtype=np.float64)


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


@dataclass(frozen=True, kw_only=True)
class MembershipAttack(Attack):
    """Score how likely each candidate is a training row, by all tests that a view allows.

    Subclasses define `model`, `trainer` and `logits`. They define `linear_sums` if messages contain
    sums over training rows, and extend `tests` if there is further evidence.

    Parameters
    ----------
    models : int
        Number of reference models, even and at least 2.
    """

    claims = (Membership,)

    receives_candidates: ClassVar[bool] = True

    supports_regression: ClassVar[bool] = True

    models: int = REFERENCES

    def __post_init__(self) -> None:
        if type(self.models) is not int or self.models < 2 or self.models % 2:
            raise UsageError(f"models={self.models!r}: give an even number of 2 or more")

    @abstractmethod
    def model(self, view: View) -> Any:
        """Return the model under attack, None if the view contains none."""

    @abstractmethod
    def trainer(self, view: View, model: Any) -> Trainer | None:
        """Return the learner that trained the model, None if fedtrees has no such learner."""

    @abstractmethod
    def logits(self, view: View, model: Any, rows: Table) -> Floats:
        """Return the logit that the model gives the true class of n rows, float64, shape (n,).

        It is in log-odds. For a numeric target see `answer_logits`.
        """

    def linear_sums(self, view: View, model: Any, rows: Table) -> list[LinearSums]:
        """Return released sums that are linear in the membership indicators of the candidates.

        There is one entry per group of clients whose sums are separate.
        """
        return []

    def sums_determine_model(self, view: View, model: Any) -> bool:
        """Return whether the released sums determine the model.

        The posterior then uses all evidence. Likelihood ratios would count it a second time.
        """
        return True

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
        """Solve for membership in released sums, and compare with reference models.

        Parameters
        ----------
        view : View
            Messages of the training. Public parameters determine the learner.
        model : object
            The model under attack.
        rows : Table
            The n candidates.
        rng : numpy.random.Generator
            Draws the training sets of the reference models.

        Returns
        -------
        Tests
            Scores by name of the test: ``posterior`` if there are sums, ``lira`` and ``rmia`` if
            there is a learner.
        """
        scores, sums = dict[str, Floats](), self.linear_sums(view, model, rows)
        if sums:
            scores["posterior"] = any_of([log_odds(part) for part in sums])
        trainer = self.trainer(view, model)
        if trainer is None:
            return Tests(scores, notes={"reference_models": 0.0})
        refs = references(rows, view.rows, trainer, self.models, rng, not view.schema.classes)
        logit = self.logits(view, model, rows)
        scores |= {"lira": lira(logit, refs), "rmia": rmia(logit, refs)}
        covered = bool(sums) and self.sums_determine_model(view, model)
        weights = {} if covered else ratio_weights(refs)
        return Tests(scores, weights, {"reference_models": float(self.models)})


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
