"""What ties the statistics of a tree together: every node is a Newton step.

A node of weight w and hessian sum H has gradient sum ``-w (H + lambda)`` (Chen and Guestrin 2016,
Eq. 5); a leaf holds ``eta w``. Gradients and hessians of children add up to those of the parent,
and the gain of a split is what ``w^2 (H + lambda)`` gains (Eq. 7). That makes two equations per
split, which tell eta and lambda where the sums are in the file; and where they are not, because
somebody masked them, they give the sums back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.audit.model import Statistics
from fedtrees.trees.forest import Tree

Floats = NDArray[np.float64]

FLOAT32 = 2.0**-23  # spacing of float32 relative to 1; statistics are stored as float32
# Largest residual of an equation in units of its float32 error. Honest models reach 1.7 (Pima,
# Stroke, depths 1 to 8, subsampling, several lambdas); wrong eta or lambda, thousands.
AGREES = 16.0
TREES_READ = 6  # trees that eta and lambda are fitted on; they have a hundred equations
_GOOD_SIZE = 12  # leaves: enough equations beyond the unknown sums, and quickly solved
MAX_LEAVES = 128  # solved for at once: the equations are a dense matrix
MOST_PIECES = 200  # of which the ones to fit on are chosen
_SPREAD = 4.0  # standard errors of a solved sum that count as its error; the largest seen is 1.7
_ETA = (0.001, 2.0)  # learning rates searched
MOST_PARTS = 50  # clients or trees that a round learning rate was divided by
NEAR = 1e-3  # relative distance from the fitted learning rate to the round one


@dataclass(frozen=True)
class Settings:
    """Learning rate and L2 penalty a model was trained with, and how they are known.

    Attributes
    ----------
    learning_rate, reg_lambda : float
        eta and lambda. With several trees a round XGBoost divides eta by their number; so is this.
    source : {"file", "inferred", "given"}
    equations : int
        Equations of the file that agree with them (0: nothing to check them on).
    worst : float
        Largest residual of those, in units of its float32 error.
    """

    learning_rate: float
    reg_lambda: float
    source: str
    equations: int = 0
    worst: float = 0.0


@dataclass(frozen=True, eq=False)
class Splits:
    """The inner nodes of one tree as equations.

    Attributes
    ----------
    member : float64 array, shape (n_nodes, J)
        1 where leaf j lies below the node.
    inner, left, right : intp array, shape (k,)
    weight, gain : float64 array, shape (k,)
    child : float64 array, shape (n_nodes,)
        Weight of inner nodes; value of leaves, still to be divided by eta.
    leaf : bool array, shape (n_nodes,)
    """

    member: Floats
    inner: NDArray[np.intp]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    weight: Floats
    gain: Floats
    child: Floats
    leaf: NDArray[np.bool_]

    @staticmethod
    def of(tree: Tree, statistics: Statistics) -> Splits:
        """Read them from a tree whose weights and gains are known."""
        assert statistics.weight is not None
        assert statistics.gain is not None
        inner = np.flatnonzero(tree.feature >= 0)
        leaf = tree.feature < 0
        return Splits(
            member=leaves_below(tree),
            inner=inner,
            left=tree.left[inner],
            right=tree.right[inner],
            weight=statistics.weight[inner],
            gain=statistics.gain[inner],
            child=np.where(leaf, tree.value.astype(np.float64), statistics.weight),
            leaf=leaf,
        )

    def system(self, eta: float) -> tuple[Floats, Floats, Floats]:
        """Return A, c, b of ``A H + c lambda = b`` for the hessian sums H of the leaves."""
        value = self.child[self.leaf] / eta
        below = self.member[self.inner]
        w, wl, wr = self.weight, *self._children(eta)
        of_gradient = (w[:, None] - value) * below
        of_gain = (
            (wl**2)[:, None] * self.member[self.left]
            + (wr**2)[:, None] * self.member[self.right]
            - (w**2)[:, None] * below
        )
        c = np.concatenate([w - below @ value, wl**2 + wr**2 - w**2])
        b = np.concatenate([np.zeros(len(w)), self.gain])
        return np.concatenate([of_gradient, of_gain]), c, b

    def error(self, h: Floats, eta: float, reg_lambda: float) -> Floats:
        """Return the float32 error of each equation, given the leaves' sums."""
        below = self.member[self.inner]
        at, shift = self.member @ h, max(reg_lambda, 0.0)
        value = np.abs(self.child[self.leaf]) / eta
        w, wl, wr = np.abs(self.weight), *self._children(eta)
        of_gradient = w * (at[self.inner] + shift) + below @ (value * (h + shift))
        of_gain = (
            wl**2 * (at[self.left] + shift)
            + wr**2 * (at[self.right] + shift)
            + w**2 * (at[self.inner] + shift)
        )
        return FLOAT32 * np.concatenate([of_gradient, of_gain]) + 1e-12

    def _children(self, eta: float) -> tuple[Floats, Floats]:
        scaled = np.where(self.leaf, self.child / eta, self.child)
        return scaled[self.left], scaled[self.right]


def leaves_below(tree: Tree) -> Floats:
    """Return which leaves lie below each node, float64, shape (n_nodes, J)."""
    leaves = tree.leaves
    member = np.zeros((len(tree), len(leaves)))
    member[leaves, np.arange(len(leaves))] = 1
    for node in range(len(tree) - 1, -1, -1):
        if tree.feature[node] >= 0:
            member[node] = member[tree.left[node]] + member[tree.right[node]]
    return member


def pieces(tree: Tree, statistics: Statistics) -> list[Piece]:
    """Cut a tree into subtrees of at most `MAX_LEAVES` leaves, whose equations stand alone.

    Small trees are one piece. Nothing where the file has no weights and gains.
    """
    if statistics.weight is None or statistics.gain is None:
        return []
    below = np.where(tree.feature < 0, 1, 0)
    parent = np.zeros(len(tree), dtype=np.intp)
    for node in range(len(tree) - 1, -1, -1):
        if tree.feature[node] >= 0:
            children = [tree.left[node], tree.right[node]]
            below[node], parent[children] = below[children].sum(), node
    top = (below <= MAX_LEAVES) & ((below[parent] > MAX_LEAVES) | (np.arange(len(tree)) == 0))
    root = np.where(top, np.arange(len(tree)), -1)
    for node in range(1, len(tree)):  # parents come first
        if not top[node]:
            root[node] = root[parent[node]]
    return [Piece.of(tree, statistics, np.flatnonzero(root == r)) for r in np.flatnonzero(top)]


@dataclass(frozen=True, eq=False)
class Piece:
    """A subtree with its statistics.

    Attributes
    ----------
    tree : Tree
    statistics : Statistics
    nodes : intp array, shape (n_nodes,)
        Their numbers in the whole tree.
    """

    tree: Tree
    statistics: Statistics
    nodes: NDArray[np.intp]

    @staticmethod
    def of(tree: Tree, statistics: Statistics, nodes: NDArray[np.intp]) -> Piece:
        """Take the given nodes, ascending, of which the first is above all others."""
        number = np.full(len(tree) + 1, -1, dtype=np.int32)  # the last entry: no child
        number[nodes] = np.arange(len(nodes), dtype=np.int32)
        part = Tree(
            feature=tree.feature[nodes],
            threshold=tree.threshold[nodes],
            left=number[tree.left[nodes]],
            right=number[tree.right[nodes]],
            default_left=tree.default_left[nodes],
            value=tree.value[nodes],
        )
        cover, weight, gain = (
            None if values is None else values[nodes]
            for values in (statistics.cover, statistics.weight, statistics.gain)
        )
        return Piece(part, Statistics(cover, weight, gain), nodes)

    @property
    def fit(self) -> _Fit:
        """Its equations."""
        cover = self.statistics.cover
        h = None if cover is None else cover[self.tree.leaves]
        return _Fit(Splits.of(self.tree, self.statistics), h)

    def __len__(self) -> int:
        return len(self.tree.leaves)


def infer_settings(trees: Sequence[Tree], statistics: Sequence[Statistics]) -> Settings | None:
    """Infer eta and lambda from how the statistics of a file fit together.

    Parameters
    ----------
    trees, statistics : sequences of one length
        With ``weight`` and ``gain``; where ``cover`` is None the leaves' sums are solved for too.

    Returns
    -------
    Settings or None
        None where no eta and lambda make the equations agree to float32: another penalty (alpha,
        a limit on steps) was used, or the trees were changed after training.
    """
    found = (p for k in range(len(trees)) for p in pieces(trees[k], statistics[k]))
    usable = [p for p, _ in zip((p for p in found if len(p) > 1), range(MOST_PIECES), strict=False)]
    usable.sort(key=lambda p: abs(len(p) - _GOOD_SIZE))
    fits = [p.fit for p in usable[:TREES_READ]]
    if sum(f.spare for f in fits) < 2:
        return None  # as many unknowns as equations: anything would agree
    eta, reg_lambda = _search(fits)
    short = _round_settings(fits, eta, reg_lambda)
    eta, reg_lambda = short or (eta, reg_lambda)
    worst = _worst(fits, eta, reg_lambda)
    count = sum(2 * len(f.splits.inner) for f in fits)
    if not (worst <= AGREES and reg_lambda > -1e-6):
        return None
    return Settings(eta, max(reg_lambda, 0.0), "inferred", count, worst)


def _round_settings(
    fits: Sequence[_Fit], eta: float, reg_lambda: float
) -> tuple[float, float] | None:
    """Return the roundest numbers near eta and lambda that agree: people choose round ones.

    A round number may have been divided by the number of clients, as NVFlare does it, or of trees.
    """
    for digits in range(1, 7):
        for parts in range(1, MOST_PARTS + 1):
            short = float(f"{eta * parts:.{digits}g}") / parts
            if abs(short - eta) > NEAR * eta:
                continue
            rounded = short, round(reg_lambda, digits)
            if _worst(fits, *rounded) <= AGREES:
                return rounded
    return None


@dataclass(frozen=True, eq=False)
class _Fit:
    """The equations of one tree, with the sums of its leaves where they are known."""

    splits: Splits
    h: Floats | None

    @property
    def spare(self) -> int:
        """Equations beyond the unknown sums."""
        equations, unknown = 2 * len(self.splits.inner), len(self.splits.inner) + 1
        return equations - (unknown if self.h is None else 0)

    def weighted(self, eta: float, reg_lambda: float) -> tuple[Floats, Floats, Floats]:
        """Return A, c, b in units of each equation's float32 error."""
        a, c, b = self.splits.system(eta)
        h = self.h
        if h is None:
            scale = self.splits.error(np.ones(a.shape[1]), eta, 1.0)
            h = np.maximum(_solve(a, c, b, scale)[:-1], 1e-3)
        scale = self.splits.error(h, eta, reg_lambda)
        return a / scale[:, None], c / scale, b / scale

    def residual(self, eta: float, reg_lambda: float) -> Floats:
        a, c, b = self.weighted(eta, reg_lambda)
        target = b - c * reg_lambda
        h = np.linalg.lstsq(a, target, rcond=None)[0] if self.h is None else self.h
        return np.asarray(a @ h - target)

    def without_sums(self, eta: float, reg_lambda: float) -> tuple[Floats, Floats]:
        """Return c and b with the unknown sums projected out."""
        a, c, b = self.weighted(eta, reg_lambda)
        if self.h is not None:
            return c, b - a @ self.h
        q = np.linalg.qr(a)[0]
        return c - q @ (q.T @ c), b - q @ (q.T @ b)


def _solve(a: Floats, c: Floats, b: Floats, scale: Floats) -> Floats:
    whole = np.column_stack([a, c]) / scale[:, None]
    return np.asarray(np.linalg.lstsq(whole, b / scale, rcond=None)[0])


def _search(fits: Sequence[_Fit]) -> tuple[float, float]:
    """Return eta and lambda of least residual: a grid of eta, refined around its best point.

    lambda follows from eta linearly. Far from the truth residuals are 10^8 of their error, so
    they are compared in orders of magnitude; the dip at the truth is then narrow, and the grid
    holds every eta of two digits, which is what people choose.
    """
    short = [k * 10.0**-d for d in (1, 2, 3) for k in range(1, 100)]
    even = np.geomspace(*_ETA, 150)
    grid = np.log(np.unique([*even, *(x for x in short if _ETA[0] <= x <= _ETA[1])]))
    some = fits[:3]
    best = float(grid[int(np.argmin([_cost(some, float(np.exp(x))) for x in grid]))])
    step = 0.05
    while step > 1e-9:
        grid = np.linspace(best - 1.5 * step, best + 1.5 * step, 17)  # its middle is the best
        best = float(grid[int(np.argmin([_cost(fits, float(np.exp(x))) for x in grid]))])
        step = float(grid[1] - grid[0])
    return float(np.exp(best)), _reg_lambda(fits, float(np.exp(best)))


def _reg_lambda(fits: Sequence[_Fit], eta: float) -> float:
    parts = [f.without_sums(eta, 1.0) for f in fits]
    c, b = (np.concatenate(x) for x in zip(*parts, strict=True))
    return float(c @ b / max(c @ c, 1e-300))


def _cost(fits: Sequence[_Fit], eta: float) -> float:
    lam = _reg_lambda(fits, eta)
    if lam < -0.01:
        return np.inf  # no penalty
    return float(sum(np.arcsinh(np.abs(f.residual(eta, lam))).sum() for f in fits))


def _worst(fits: Sequence[_Fit], eta: float, reg_lambda: float) -> float:
    return float(max(np.abs(f.residual(eta, reg_lambda)).max() for f in fits))


def agreement(settings: Settings, trees: Sequence[Tree], statistics: Sequence[Statistics]) -> float:
    """Return the largest residual over trees, in units of its float32 error; 0 without any."""
    eta, reg_lambda, worst = settings.learning_rate, settings.reg_lambda, 0.0
    for tree, known in zip(trees, statistics, strict=True):
        for piece in pieces(tree, known):
            if len(piece) > 1:
                worst = max(worst, float(np.abs(piece.fit.residual(eta, reg_lambda)).max()))
    return worst


def leaf_sums(
    tree: Tree, statistics: Statistics, settings: Settings
) -> tuple[Floats, Floats] | None:
    """Return the hessian sums of the leaves and their errors, shape (J,) each.

    They are the file's own where it has them. Where they are masked they are solved for from
    weights and gains.

    Returns
    -------
    tuple of float64 arrays, or None
        None where the file has neither.
    """
    if statistics.cover is not None:
        h = statistics.cover[tree.leaves]
        return h, FLOAT32 * h
    h, error = np.zeros(len(tree)), np.zeros(len(tree))
    parts = pieces(tree, statistics)
    if not parts or any(len(part) < 2 for part in parts):
        return None  # a lone leaf has no equation of its own
    for part in parts:
        solved = _solved(part.fit, settings)
        if solved is None:
            return None
        leaves = part.nodes[part.tree.leaves]
        h[leaves], error[leaves] = solved
    return h[tree.leaves], error[tree.leaves]


def _solved(fit: _Fit, settings: Settings) -> tuple[Floats, Floats] | None:
    """Return the sums of the leaves and their errors, None where the equations contradict."""
    eta, lam = settings.learning_rate, settings.reg_lambda
    a, c, b = fit.weighted(eta, lam)
    h = np.asarray(np.linalg.lstsq(a, b - c * lam, rcond=None)[0], dtype=np.float64)
    if np.abs(a @ h - (b - c * lam)).max() > AGREES or (h <= 0).any():
        return None
    spread = np.sqrt(np.diag(np.linalg.pinv(a.T @ a)))
    return h, _SPREAD * spread + FLOAT32 * h
