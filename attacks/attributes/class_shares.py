"""The attack `class-shares`: estimate how many of one client's rows belong to each class.

Secure aggregation hides the sums of one client behind those of all other clients. With one other
client these are its sums, and with two they are those of both. Every tree then gives one equation:
the total gradient of the other parties' rows is the number of their rows of each class times the
mean gradient of that class. The mean gradients are estimated on the adversary's rows, which pass
through the same trees. The numbers of rows follow by weighted least squares over all trees. Noise
that is drawn anew for every tree averages out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from fedtrees.attacks.clients.per_client import ClientObservations, observe_clients
from fedtrees.attacks.counts.leaf_sums import NOISE_FLOOR, victim_sums
from fedtrees.attacks.observations.boosting import BoostingObservations, add_values, gradients_of
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.observations.replay import cell_variance, cuts_of, hides, law_of_sums
from fedtrees.attacks.solvers.allocation import project_to_sum
from fedtrees.core.attack import Attack
from fedtrees.core.claims import ClassShares, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.captured import AgreedStart, GradientTotals, LabelShare
from fedtrees.messages.forests import ClassTotals, LocalForest
from fedtrees.messages.horizontal import BaseScore, Histogram, LabelSums
from fedtrees.messages.lightgbm import ClassRows
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import from_fixed
from fedtrees.trees.boosted.losses import objective_of
from fedtrees.trees.routing import Routes

Floats = NDArray[np.float64]

#: Largest number of other clients. With more, the sums reveal little about each client.
MOST_OTHERS = 2
#: Variance between clients, as multiples of that between samples of one population.
DOUBTS = (1.0, 10.0, 100.0, 1000.0)
# Smallest share of a class and smallest variance of a sum, and number of fits.
_LEAST, _REPEATS = 1e-6, 3


@dataclass(frozen=True, eq=False)
class Equation:
    """One tree: its total gradient and the contribution of a row of each class.

    Attributes
    ----------
    total : float
        Gradient sum of the other parties' rows.
    each : float64 array, shape (K,)
        Mean gradient of the adversary's rows of each class.
    variance : float
        Variance of the noise on the total.
    spread : float64 array, shape (K,)
        Variance of the gradient within each class.
    local_counts : float64 array, shape (K,)
        Number of the adversary's rows of each class.
    """

    total: float
    each: Floats
    variance: float
    spread: Floats
    local_counts: Floats


def other_clients(view: View) -> tuple[str, ...]:
    """Return the clients that the adversary does not control."""
    clients = (name for name, role in view.roles.items() if role == "client")
    return tuple(name for name in clients if name not in view.principals)


def regressed_counts(view: View) -> Floats | None:
    """Return other parties' rows of each class that fit the sums of all trees, (K,).

    The result is None if the adversary does not have labelled rows of every class, if there are no
    other clients or more than `MOST_OTHERS`, or if no gradient sums of common trees are visible.
    """
    own_rows, other_names = view.rows, other_clients(view)
    if own_rows is None or not 0 < len(other_names) <= MOST_OTHERS:
        return None
    if view.weighted or not view.schema.classes:
        return None
    classes = max(len(view.schema.classes), 2)
    counts = np.bincount(own_rows.y, minlength=classes)
    evidence = read_boosting(view, "statistics")
    if evidence is None or evidence.distortion.hides_small_bins or not counts.all():
        return None
    if evidence.observed.level == "values":
        return None
    rows = view.n_rows - len(own_rows)
    equations = list(_equations(evidence, own_rows, classes))
    if rows <= 0 or not equations:
        return None
    return _solve_class_counts(equations, float(rows), counts / counts.sum())


def _equations(evidence: BoostingObservations, own_rows: Table, classes: int) -> Iterator[Equation]:
    """Yield one equation for every tree."""
    sums = victim_sums(evidence, own_rows, len(evidence.trees), evidence.observed.own_inside)
    nodes, margin = Routes.of(evidence.trees).apply(own_rows.X), evidence.start(len(own_rows))
    of_class = [own_rows.y == c for c in range(classes)]
    size = np.array([rows.sum() for rows in of_class], dtype=np.float64)
    before = margin.copy()
    for t, (tree, leaf) in enumerate(zip(evidence.trees, sums, strict=True)):
        output = t % evidence.outputs
        if output == 0:
            before = margin.copy()
        g, _ = gradients_of(evidence, before, own_rows.y, own_rows.X[:, -1], output)
        add_values(margin, output, tree.value[nodes[:, t]])
        if leaf.g is None or evidence.is_foreign(t):
            continue
        each = np.array([g[rows].mean() for rows in of_class])
        spread = np.array([g[rows].var() for rows in of_class])
        share, noise = evidence.share, float(leaf.var_g.sum())
        yield Equation(float(leaf.g.sum()) / share, each, noise / share**2, spread, size)


def _solve_class_counts(equations: Sequence[Equation], rows: float, prior: Floats) -> Floats:
    """Return the counts of least weighted squared error that add up to all rows.

    The class shares of the local rows are the mean of a normal prior. Its covariance is that of two
    samples of the same population, times the factor of `DOUBTS` that makes the sums most probable,
    because clients may differ by more than chance. The variances depend on the counts, so that the
    fit is repeated.
    """
    n_own, shares = float(equations[0].local_counts.sum()), prior
    each = np.stack([e.each for e in equations])
    left = np.array([e.total for e in equations]) - rows * each @ prior
    basis = np.linalg.svd(np.ones((1, len(prior))))[2][1:]  # directions that keep the sum of shares
    A = rows * each @ basis.T
    covariance = (np.diag(prior) - np.outer(prior, prior)) * (1 / rows + 1 / n_own)
    covariance = basis @ covariance @ basis.T
    for _ in range(_REPEATS):
        counts = rows * shares
        noise = np.array([
            e.variance + float((counts * e.spread * (1 + counts / e.local_counts)).sum())
            for e in equations
        ])  # fmt: skip
        noise = np.maximum(noise, _LEAST)
        fits = [_fit_prior_weighted(A, left, noise, doubt * covariance) for doubt in DOUBTS]
        moved = max(fits, key=lambda fit: fit[1])[0]
        shares = np.maximum(prior + basis.T @ moved, _LEAST)
        shares = shares / shares.sum()
    return np.asarray(rows * shares)


def _fit_prior_weighted(
    A: Floats, left: Floats, noise: Floats, prior: Floats
) -> tuple[Floats, float]:
    """Return the posterior mean of x, and the log evidence, for ``left = A x + noise``.

    `noise` contains the variances of the equations, and `prior` the covariance of x.
    """
    covariance = np.diag(noise) + A @ prior @ A.T
    solved = np.linalg.solve(covariance, left)
    evidence = -0.5 * (float(left @ solved) + float(np.linalg.slogdet(covariance)[1]))
    return prior @ A.T @ solved, evidence


@register.attack("class-shares")
@dataclass(frozen=True)
class ClassShareInference(Attack):
    """Infer the share of each class among one client's rows (Ateniese et al. 2015).

    This is property inference. All rows of a class have the same gradient in the first tree of each
    output. The numbers of rows are fitted to the sums over all rows of a client (Di Gennaro et al.
    2025, Eqs. 4-9). With noise, the sums are averaged over columns and adjusted to the known total
    of all clients. Forests contain the counts. Workers of `xgboost-ring` and machines of
    `lightgbm-data` announce them (`announced_counts`).

    If only sums over all clients are visible and at most two other clients take part, the total
    gradients of all trees are regressed on the local rows (`regressed_counts`). The resulting
    shares are claimed for every other client.
    """

    claims = (ClassShares,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return the reason if a view reveals no class counts of one client, else None."""
        if counts_of(view) or regressed_counts(view) is not None:
            return None
        return Reason("no-client-sums")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the class shares of clients whose sums were seen, singly or in pairs."""
        counts = counts_of(view)
        together = None if counts else regressed_counts(view)
        if together is not None:
            counts = dict.fromkeys(other_clients(view), together)
        claims = (ClassShares(n, c / c.sum()) for n, c in counts.items())
        return Guess.of(claims, otherwise=Reason("no-client-sums"))


def counts_of(view: View) -> dict[str, Floats]:
    """Return rows of each class of other clients whose sums were seen, (K,), by name.

    Counts of forests are only proportional to the numbers of rows.
    """
    counts_by_client = announced_counts(view)
    for item, m in view.messages(ClassTotals):
        if item.sender not in view.principals and not item.opened:
            before = counts_by_client.get(item.sender, 0.0)
            counts_by_client[item.sender] = np.asarray(before + m.counts, dtype=np.float64)
    for item, forest in view.messages(LocalForest):
        is_own_forest = view.roles[item.sender] == "client"  # the server sends a pooled one
        if is_own_forest and item.sender not in view.principals and forest.counts is not None:
            before = counts_by_client.get(item.sender, 0.0)
            in_leaves = forest.counts[forest.feature < 0].sum(axis=0)
            counts_by_client[item.sender] = np.asarray(before + in_leaves, dtype=np.float64)
    if not counts_by_client:
        total_counts, noise = None, cell_variance(view.channel(Histogram, "totals", "client"))
        sums = {name: client_sums for name, *client_sums in _sums(view)}
        # with noise, the known totals of all clients correct the counts
        if min(noise) > NOISE_FLOOR:
            total_counts = _of_all(view, {*sums})
        if total_counts is None:
            counts_by_client = {
                name: _shares_by_regression(view, *client_sums)
                for name, client_sums in sums.items()
            }
        else:
            counts_by_client = reconcile_counts(
                {
                    name: _shares_by_intervals(view, *client_sums)
                    for name, client_sums in sums.items()
                },
                total_counts,
            )
        late = [v for v in _victims(view) if v.late is not None and v.owner is not None]
        counts_by_client |= {v.owner: _late(v) for v in late if v.owner}
    return {name: counts for name, counts in counts_by_client.items() if counts.sum() > 0}


def announced_counts(view: View) -> dict[str, Floats]:
    """Return the rows of each class that other clients announce, float64, (2,), by name.

    Every machine of `lightgbm-data` broadcasts its rows of each class. Every worker of
    `xgboost-ring` broadcasts its number of rows and the sum of its labels divided by the number of
    all rows. The latter is a float32, so that the product is rounded to an integer.
    """
    announced = {
        item.sender: np.array([message.negatives, message.positives], dtype=np.float64)
        for item, message in view.messages(ClassRows)
    }
    if view.schema.classes:
        for _, message in view.messages(LabelShare):
            positives = round(message.share * view.n_rows)
            counts = np.array([message.rows - positives, positives], dtype=np.float64)
            announced[message.owner] = counts
    return {name: counts for name, counts in announced.items() if name not in view.principals}


def _victims(view: View) -> list[ClientObservations]:
    """Return clients whose trees, or sums in leaves, are seen separately."""
    return observe_clients(view, max_level="statistics")


def _of_all(view: View, clients: set[str]) -> Floats | None:
    """Return the rows of each class of all these clients together, None if unknown."""
    other_names = {n for n, role in view.roles.items() if role == "client"} - {*view.principals}
    opened_sums = [m.sums for item, m in view.messages(LabelSums) if item.opened]
    if not opened_sums or other_names != clients or view.changes(LabelSums, "sums"):
        return None
    total_counts = opened_sums[0][1:].astype(np.float64)
    return (
        total_counts
        if view.rows is None
        else total_counts - np.bincount(view.rows.y, minlength=len(total_counts))
    )


def reconcile_counts(
    counts_by_client: dict[str, Floats], class_totals: Floats
) -> dict[str, Floats]:
    """Return the closest non-negative counts that add up, for equal noise at all clients.

    The first argument maps clients to noisy rows of each class (float64, shape (K,)), and the
    second one is their exact total. For example, 3.2 and 1.2 rows with a total of 4 become 3.0 and
    1.0.
    """
    counts = np.stack([*counts_by_client.values()])
    columns = [
        project_to_sum(x, total) for x, total in zip(counts.T, class_totals.tolist(), strict=True)
    ]
    return dict(zip(counts_by_client, np.column_stack(columns), strict=True))


def _sums(view: View) -> Iterator[tuple[str, NDArray[Any], Floats]]:
    """Yield clients with the margin of each output, (K,), and sums over their rows, (K, 2)."""
    start = next((m.margin for _, m in view.messages(BaseScore)), None)
    roots: dict[str, dict[int, Floats]] = {}
    for item, m in view.messages(Histogram):
        if item.sender not in view.principals and not item.opened and len(m.totals):
            roots.setdefault(item.sender, {})[m.tree] = _total(view, m)
    if not roots:
        yield from _broadcast_sums(view)
    for name, sums in roots.items():
        if start is not None and {*range(len(start))} <= sums.keys():
            yield name, start, np.array([sums[t] for t in range(len(start))])
    for victim in _victims(view) if not roots else ():
        base_margin, seen = np.atleast_1d(victim.evidence.base_margin), victim.evidence
        first = seen.trees[: len(base_margin)]
        shows_sums = all(t.g is not None and t.h is not None for t in first)
        if victim.owner is not None and shows_sums and not seen.is_foreign(0):
            yield victim.owner, base_margin, np.array([_summed_leaves(t) for t in first])


def _broadcast_sums(view: View) -> Iterator[tuple[str, NDArray[Any], Floats]]:
    """Yield the sums of the workers of a ring, which broadcast those of the first root."""
    start = next((m.margin for _, m in view.messages(AgreedStart)), None)
    for _, m in view.messages(GradientTotals):
        is_one_other = "," not in m.parties and m.parties not in view.principals
        if start is not None and m.tree == 0 and is_one_other:
            yield m.parties, start, m.sums.reshape(1, 2)


def _total(view: View, m: Histogram) -> Floats:
    """Return the sums of all rows of a client, (2,). Noisy ones are averaged over columns."""
    cuts, total = cuts_of(view), from_fixed(m.totals[0], m.bits)
    noise = cell_variance(view.channel(Histogram, "totals", "client"))
    if (
        cuts is None
        or min(noise) <= NOISE_FLOOR
        or hides(view.changes(Histogram, "sums", "client"))
    ):
        return total
    of_bin = cell_variance(law_of_sums(view))
    # the bins of a column without missing values contain every row once
    columns = np.flatnonzero(view.schema.complete)
    sums = from_fixed(np.add.reduceat(m.sums[0], cuts.offsets[:-1])[columns], m.bits)
    estimates = np.concatenate([total[None], sums])
    off = np.concatenate([[noise], cuts.n_bins[columns, None] * np.array(of_bin)])
    return np.asarray(np.average(estimates, axis=0, weights=1 / np.maximum(off, NOISE_FLOOR)))


def _summed_leaves(tree: Tree) -> list[float]:
    return [float(part[tree.leaves].sum()) for part in (tree.g, tree.h) if part is not None]


def _late(victim: ClientObservations) -> Floats:
    """Return the counts of a first tree that was grown on foreign trees, for two classes."""
    assert victim.late is not None
    n, n1 = victim.late.n.sum(), victim.late.n1.sum()
    return np.array([n - n1, n1], dtype=np.float64)


def _shares_by_regression(view: View, margin: Floats, sums: Floats) -> Floats:
    """Return the non-negative rows of each class that fit the sums, float64, shape (K,)."""
    return np.asarray(nnls(_brought(view, margin), sums.T.ravel())[0], dtype=np.float64)


def _shares_by_intervals(view: View, margin: Floats, sums: Floats) -> Floats:
    """Return the rows of each class that fit noisy sums. They may be negative."""
    return np.asarray(np.linalg.lstsq(_brought(view, margin), sums.T.ravel())[0])


def _brought(view: View, margin: Floats) -> Floats:
    """Return the gradients, then hessians, of a row of each class in all sums, (2 K, K)."""
    classes = np.arange(max(len(view.schema.classes), 2))
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    start = np.repeat(np.asarray(margin, dtype=np.float32)[:, None], len(classes), axis=1)
    contribution = objective.gradients(start, classes).astype(np.float64)
    requirements = view.defense.requirements
    clip = requirements.gradient_clip or np.inf
    g = np.clip(contribution[..., 0], -clip, clip)
    h = np.ones_like(g) if requirements.unit_hessian else np.minimum(contribution[..., 1], 2 * clip)
    return np.concatenate([g, h])
