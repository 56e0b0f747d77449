"""Estimate other parties' rows of each class from gradient sums over all of these parties.

Secure aggregation hides the sums of one client behind those of all other clients. With one other
client these are its sums, and with two they are those of both. Every tree then gives one equation:
the total gradient of the other parties' rows is the number of their rows of each class times the
mean gradient of that class. The mean gradients are estimated on the adversary's rows, which pass
through the same trees. The numbers of rows follow by weighted least squares over all trees. Noise
that is drawn anew for every tree averages out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.routing import add_values, gradients_of
from fedtrees.attacks.evidence.sums import victim_sums
from fedtrees.attacks.evidence.view import evidence_of
from fedtrees.core.schema import Table
from fedtrees.core.view import View
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
    own : float64 array, shape (K,)
        Number of the adversary's rows of each class.
    """

    total: float
    each: Floats
    variance: float
    spread: Floats
    own: Floats


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
    evidence = evidence_of(view, "statistics")
    if evidence is None or evidence.level == "values" or evidence.suppressed or not counts.all():
        return None
    rows = view.n_rows - len(own_rows)
    equations = list(_equations(evidence, own_rows, classes))
    if rows <= 0 or not equations:
        return None
    return _solved(equations, float(rows), counts / counts.sum())


def _equations(evidence: Evidence, own_rows: Table, classes: int) -> Iterator[Equation]:
    """Yield one equation for every tree."""
    sums = victim_sums(evidence, own_rows, len(evidence.trees), evidence.own_inside)
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


def _solved(equations: Sequence[Equation], rows: float, prior: Floats) -> Floats:
    """Return the counts of least weighted squared error that add up to all rows.

    The class shares of the local rows are the mean of a normal prior. Its covariance is that of two
    samples of the same population, times the factor of `DOUBTS` that makes the sums most probable,
    because clients may differ by more than chance. The variances depend on the counts, so that the
    fit is repeated.
    """
    n_own, shares = float(equations[0].own.sum()), prior
    each = np.stack([e.each for e in equations])
    left = np.array([e.total for e in equations]) - rows * each @ prior
    basis = np.linalg.svd(np.ones((1, len(prior))))[2][1:]  # directions that keep the sum of shares
    A = rows * each @ basis.T
    covariance = (np.diag(prior) - np.outer(prior, prior)) * (1 / rows + 1 / n_own)
    covariance = basis @ covariance @ basis.T
    for _ in range(_REPEATS):
        counts = rows * shares
        noise = np.array([
            e.variance + float((counts * e.spread * (1 + counts / e.own)).sum())
            for e in equations
        ])  # fmt: skip
        noise = np.maximum(noise, _LEAST)
        fits = [_fitted(A, left, noise, doubt * covariance) for doubt in DOUBTS]
        moved = max(fits, key=lambda fit: fit[1])[0]
        shares = np.maximum(prior + basis.T @ moved, _LEAST)
        shares = shares / shares.sum()
    return np.asarray(rows * shares)


def _fitted(A: Floats, left: Floats, noise: Floats, prior: Floats) -> tuple[Floats, float]:
    """Return the posterior mean of x, and the log evidence, for ``left = A x + noise``.

    `noise` contains the variances of the equations, and `prior` the covariance of x.
    """
    covariance = np.diag(noise) + A @ prior @ A.T
    solved = np.linalg.solve(covariance, left)
    evidence = -0.5 * (float(left @ solved) + float(np.linalg.slogdet(covariance)[1]))
    return prior @ A.T @ solved, evidence
