"""Base of the attacks that infer which candidates were in the training data of a model.

The attacks differ in the model: trees and additive models (`fedtrees.attacks.membership.attack`),
networks (`fedtrees.attacks.gradients.membership`) and regressions
(`fedtrees.attacks.regression.membership`). All of them compare the model with reference models, and
some solve for membership in released sums (`log_odds`), or compare a candidate with values of
training rows that messages contain: `column_overlap` with the columns of sketches, and
`shared_thresholds` with the thresholds of a model.

A released sum, such as the gradient sum of a leaf, adds the contributions of all rows, and noise of
a known variance. If the adversary can compute the contribution of every candidate, then the sums
are linear in the unknown membership indicators. With a Gaussian approximation of the prior this is
a Bayesian linear regression with known noise, whose posterior has a closed form. It needs no
reference model, and uses the published noise distribution of a differentially private mechanism
directly.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky
from scipy.linalg.lapack import dpotri
from scipy.sparse import csc_array, csr_array, hstack
from scipy.special import logit, logsumexp

from fedtrees.attacks.membership.references import (
    REFERENCES,
    Trainer,
    lira,
    ratio_weights,
    references,
    rmia,
)
from fedtrees.attacks.observations.columns import Column
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Membership
from fedtrees.core.compilation import kernel
from fedtrees.core.errors import UsageError
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Table
from fedtrees.core.statistics import middle_ranks
from fedtrees.core.view import View
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.forest.random_forest import ClassTree

Floats = NDArray[np.float64]
#: Weight of the rarity of a candidate's values, which only breaks ties.
_RARE = 1e-6


def shared_thresholds(
    X: NDArray[np.float32], trees: Sequence[Tree | ClassTree], known_rows: Table | None = None
) -> Floats:
    """Return the evidence for membership from thresholds that equal values of a candidate.

    A cut point of a sketch is the value of a training row. Of k candidates with this value at
    least one is a member, and each is with probability 1/2. The value of a non-member must come
    from one of the other candidates, which has the log probability log(1 - 2^(1-k)). A single
    candidate with the value is a member, unless the value is also that of a row that is not a
    candidate. The log-odds are set to log n in this case. Columns are added up.

    Parameters
    ----------
    X : float32 array, shape (n, d)
        Candidates.
    trees : sequence of Tree or ClassTree
        The model under attack.
    known_rows : Table or None
        Rows known to be members. Thresholds that are among their values are ignored.

    Returns
    -------
    float64 array, shape (n,)
        Log-odds in nats.
    """
    nats = np.zeros(len(X))
    for column in range(X.shape[1]):
        used = [t.threshold[t.feature == column] for t in trees]
        values = np.unique(np.concatenate([*used, np.zeros(0, dtype=np.float32)]))
        values = values[~np.isnan(values)]
        if known_rows is not None:
            values = np.setdiff1d(values, known_rows.X[:, column])
        x = X[:, column]
        _, at, count = np.unique(x, return_inverse=True, return_counts=True)
        shared = -np.log1p(-(0.5 ** np.maximum(count - 1, 1)))
        each = np.where(count == 1, np.log(len(x)), shared)
        nats += np.where(np.isin(x, values), each[at.ravel()], 0.0)
    return nats


def column_overlap(X: NDArray[np.float32], owners: Iterable[Sequence[Column]]) -> Floats:
    """Return the largest share of a candidate's values that the sketches of one client contain.

    Parameters
    ----------
    X : float32 array, shape (n, d)
        Candidates. A missing value counts as contained.
    owners : iterable of sequence of Column
        The d columns of each client's sketch.

    Returns
    -------
    float64 array, shape (n,)
        At least 1 if one client's sketch contains all values. Among candidates with the same share,
        those with rare values have a score that is greater by at most `_RARE`.
    """
    best, rare = np.zeros(len(X)), np.zeros(len(X))
    for x in X.T:
        _, at, count = np.unique(x, return_inverse=True, return_counts=True)
        rare -= np.log(count / len(X))[at.ravel()]
    for columns in owners:
        contained = [np.isin(x, c.values) | np.isnan(x) for x, c in zip(X.T, columns, strict=True)]
        best = np.maximum(best, np.mean(contained, axis=0))
    return np.asarray(best + _RARE * rare / max(rare.max(initial=0.0), 1.0))


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
        Contribution of candidate i to sum k, if it is a member. Groups of rows may share it.
    total : float64 array, shape (K,)
        The released sums, without the contributions of rows that the adversary knows to be
        members.
    variance : float64 array, shape (K,)
        Variance of the noise in each sum. It is 0 if the sum is exact, and infinite if the sum is
        to be ignored.
    rows : float
        Number of unknown members whose contributions are in the sums.
    owner : str or None
        The client whose rows are in the sums. None: those of several clients, or of an unknown one.
    possible : int64 array, shape (n,), or None
        Positions of the n candidates among all candidates. The other candidates have values that
        the client does not have. None: all candidates are possible.
    """

    contribution: csr_array | csc_array
    total: Floats
    variance: Floats
    rows: float
    owner: str | None = None
    possible: NDArray[np.intp] | None = None

    def restricted(self, possible: NDArray[np.intp]) -> "LinearSums":
        """Return the sums over a part of the candidates, because the others are no members."""
        if self.possible is not None:
            return self
        contribution = csr_array(self.contribution)[possible]
        return replace(self, contribution=contribution, possible=possible)

    def joined(self, other: "LinearSums") -> "LinearSums":
        """Return the sums of both, for the same candidates and the same unknown members."""
        return replace(
            self,
            contribution=csr_array(hstack([self.contribution, other.contribution])),
            total=np.concatenate([self.total, other.total]),
            variance=np.concatenate([self.variance, other.variance]),
        )


class WeightedSums:
    """Products of contributions, which groups of rows with the same contributions share.

    Parameters
    ----------
    contribution : sparse array, shape (n, K)
        Contribution of candidate i to sum k, as in `LinearSums`.

    Attributes
    ----------
    largest, added : float64 array, shape (K,)
        Largest absolute contribution to each sum, and the sum of all contributions.
    """

    def __init__(self, contribution: csr_array | csc_array) -> None:
        self._columns = columns = csc_array(contribution)
        sum_of = np.repeat(np.arange(columns.shape[1]), np.diff(columns.indptr))
        self.added = np.bincount(sum_of, columns.data, columns.shape[1])
        self.largest = np.zeros(columns.shape[1])
        filled = np.diff(columns.indptr) > 0
        starts = columns.indptr[:-1][filled]
        self.largest[filled] = np.maximum.reduceat(np.abs(columns.data), starts)
        self._weights, self._products = np.zeros(0), np.zeros((0, 0))

    def products(self, weights: Floats) -> Floats:
        """Return ``A diag(weights) A^T`` for the contributions A, of which the lower triangle.

        The products are only computed again if the weights are not those of the previous call.

        Parameters
        ----------
        weights : float64 array, shape (K,)
            Weight of each sum, at least 0.

        Returns
        -------
        float64 array, shape (n, n)
            Zeros above the diagonal.
        """
        if not np.array_equal(self._weights, weights):
            A, self._weights = self._columns, weights
            self._products = np.zeros((A.shape[0], A.shape[0]))
            _add_products(A.indptr, A.indices, A.data, weights, self._products)
        return self._products

    def total(self, weighted: Floats) -> Floats:
        """Return ``A weighted`` for weighted sums of shape (K,), float64, shape (n,)."""
        return np.asarray(self._columns @ weighted, dtype=np.float64)


@kernel
def _add_products(indptr, rows, values, weights, out) -> None:  # type: ignore[no-untyped-def]
    """Add the weighted outer product of every sparse column to the lower triangle of `out`."""
    for k in range(len(weights)):
        if weights[k] == 0:
            continue
        for a in range(indptr[k], indptr[k + 1]):
            weighted = weights[k] * values[a]
            for b in range(indptr[k], a + 1):
                out[rows[a], rows[b]] += weighted * values[b]


def log_odds(sums: LinearSums, weighted_sums: WeightedSums | None = None) -> Floats:
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
    weighted_sums : WeightedSums, optional
        That of ``sums.contribution``, if several groups share it.

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

    weighted_sums = weighted_sums or WeightedSums(sums.contribution)
    if not (np.isfinite(sums.variance) & (weighted_sums.largest > 0)).any():
        return np.zeros(n)
    residual = sums.total - mean * weighted_sums.added
    shift, variance = _most_likely_fit(weighted_sums, residual, sums.variance, spread)

    # Divide the posterior of each candidate by its prior. What remains is a Gaussian likelihood of
    # precision `gained` and mean `shift / variance / gained`, measured from the prior mean.
    gained = np.maximum(1 / variance - 1 / spread, 0.0)
    evidence = (shift / variance - gained * (0.5 - prior)) / (1 + gained * background)
    # Candidates with the same contributions have the same evidence, apart from rounding errors.
    unit = max(float(np.abs(evidence).max()), 1e-300) * 1e-11
    return np.asarray(np.rint(evidence / unit) * unit, dtype=np.float64)


def _most_likely_fit(
    sums: WeightedSums, residual: Floats, noise: Floats, spread: float
) -> tuple[Floats, Floats]:
    """Return the posterior of membership under the most likely misfit of the sums (`MISFITS`).

    Larger misfits than the first are only tried if there are exact sums, and only until the
    likelihood decreases.

    Parameters
    ----------
    sums : WeightedSums
        Contributions of the candidates.
    residual : float64 array, shape (K,)
        Released sums minus their prior mean.
    noise : float64 array, shape (K,)
        Variance of the noise in each sum. Sums of infinite variance are ignored.
    spread : float
        Prior variance of a membership indicator.

    Returns
    -------
    mean, variance : float64 array, shape (n,)
        Posterior mean minus the prior mean, and posterior variance of every candidate.
    """
    used = (sums.largest > 0) & np.isfinite(noise)
    # A misfit has the same unit in all sums: the largest contribution.
    unit = sums.largest[used]
    is_exact = (noise[used] < (MISFITS[0] * unit) ** 2).any()
    best_fit, best_shift, best_factor = -np.inf, np.zeros(0), np.zeros((0, 0))
    for misfit in MISFITS if is_exact else MISFITS[:1]:
        # Exact sums have the same relative weights under all misfits.
        variance = noise[used] / misfit**2 + unit**2
        weights, standardised = np.zeros(len(noise)), np.zeros(len(noise))
        weights[used] = 1 / variance
        standardised[used] = residual[used] / variance / misfit**2
        precision = sums.products(weights) / misfit**2
        n = len(precision)
        precision[np.diag_indices(n)] += 1 / spread
        factor = cholesky(precision, lower=True, overwrite_a=True, check_finite=False)
        weighted = sums.total(standardised)
        shift = cho_solve((factor, True), weighted)
        log_det = 2 * np.log(np.diag(factor)).sum() + n * np.log(spread)
        squares = residual[used] @ standardised[used] - weighted @ shift
        fit = -0.5 * float(squares + np.log(misfit**2 * variance).sum() + log_det)
        if fit <= best_fit:
            break
        best_fit, best_shift, best_factor = fit, shift, factor
    inverse, _ = dpotri(best_factor, lower=True)
    return best_shift, np.diag(inverse)


#: Log-odds of membership in the local data of a client that lacks a value of the candidate, nats.
IMPOSSIBLE = -50.0


def member_of_any(groups: Sequence[LinearSums], n: int) -> Floats:
    """Return the log-odds that each of n candidates is a member of one of several groups of rows.

    Parameters
    ----------
    groups : sequence of LinearSums
        Sums of each group.
    n : int
        Number of candidates.

    Returns
    -------
    float64 array, shape (n,)
        In nats.
    """
    # Clients whose sums belong to the same trees share the contributions of the candidates.
    contributions = {id(sums.contribution): sums.contribution for sums in groups}
    shared = {key: WeightedSums(matrix) for key, matrix in contributions.items()}
    odds = np.full((len(groups), n), IMPOSSIBLE)
    for row, sums in zip(odds, groups, strict=True):
        evidence = log_odds(sums, shared[id(sums.contribution)])
        if sums.possible is None:
            row[:] = evidence
        elif m := len(sums.possible):
            # A client with few possible candidates has more members among them.
            gain = _prior_odds(sums.rows, m) - _prior_odds(sums.rows, n)
            row[sums.possible] = evidence + gain
    return any_of(list(odds))


def _prior_odds(rows: float, n: int) -> float:
    """Return the log-odds that one of n candidates is among a number of rows."""
    return float(logit(np.clip(rows / n, 0.5 / n, 1 - 0.5 / n)))


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

    def posterior(self, view: View, model: Any, rows: Table) -> dict[str, Floats]:
        """Return the test ``posterior``, or no test if there are no released sums."""
        groups = self.linear_sums(view, model, rows)
        return {"posterior": member_of_any(groups, len(rows))} if groups else {}

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
        scores = self.posterior(view, model, rows)
        trainer = self.trainer(view, model)
        if trainer is None:
            return Tests(scores, notes={"reference_models": 0.0})
        refs = references(rows, view.rows, trainer, self.models, rng, not view.schema.classes)
        logit = self.logits(view, model, rows)
        scores |= {"lira": lira(logit, refs), "rmia": rmia(logit, refs)}
        covered = "posterior" in scores and self.sums_determine_model(view, model)
        weights = {} if covered else ratio_weights(refs)
        return Tests(scores, weights, {"reference_models": float(self.models)})


def together(scores: Mapping[str, Floats], weights: Mapping[str, float] | None = None) -> Floats:
    """Combine the scores of all tests into one score per candidate.

    Candidates are ordered first by the condition that every member fulfils: one sketch contains all
    its values. Among candidates that are equal in this, the log-odds of the posterior, of shared
    thresholds and of the likelihood ratios are added up. Candidates with equal sums are ordered by
    the share of values that a sketch contains. Without a posterior, this share counts as well, by
    its rank.

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
        Whether a sketch contains all values (0 or 1), plus a mean rank.

    Examples
    --------
    No sketch contains all values of the second candidate, although its posterior is highest:

    >>> scores = {"sketch": np.array([1.0, 0.9, 1.0]), "posterior": np.array([0.3, 2.0, -0.5])}
    >>> together(scores).argsort()[::-1].tolist()
    [0, 2, 1]
    """
    weights = {"posterior": 1.0, "thresholds": 1.0, **(weights or {})}
    n = len(next(iter(scores.values())))
    contained = scores.get("sketch", np.zeros(n))
    odds = sum((weights.get(name, 0.0) * s for name, s in scores.items()), np.zeros(n))
    _, order = np.unique(odds, return_inverse=True)
    ranks = [middle_ranks(order + middle_ranks(contained) / 2)]
    if "sketch" in scores and "posterior" not in scores:
        ranks.append(middle_ranks(contained))
    return np.asarray((contained >= 1) + np.mean(ranks, axis=0), dtype=np.float64)
