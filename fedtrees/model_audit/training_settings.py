"""Infer eta, lambda and an L1 penalty of a training from the statistics of its trees.

Two equations per split connect weights, gains and sums of hessians (`Splits`). Only the true eta
and lambda agree with all of them. Masked sums of hessians are unknowns of the same equations.

The module also computes how precisely these equations determine the settings. Several values of eta
and lambda can agree with all equations, for example if the only tree is a stump. An L1 penalty
alpha, which moves every G towards 0 by alpha, leaves no trace in a stump whose gradients add up to
0, because both leaves move by the same amount. This module linearises the equations around the
solution, and includes every further effect that a training may have had as an unknown:

* G of a node with weight w is ``-w (H + lambda) - sign(w) alpha``, and arbitrary if w is 0.
* A node with the largest weight may have been truncated there (``max_delta_step``). Its G is free.
* Gains are those of the weights or, with a limit on steps or monotone constraints, contain a
  further term ``2 alpha |w|`` (XGBoost 3.2, ``split_evaluator.h``). Both cases are tried.

A quantity that these equations determine was therefore determined by the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.clients.masked_hessians import (
    AGREES,
    FLOAT32,
    Splits,
    hessians_from_gains,
    pieces,
)
from fedtrees.model_audit.model import Statistics
from fedtrees.trees.boosted.forest import Tree

Floats = NDArray[np.float64]

# Assumed error of every equation in float32 roundings. The largest residual of valid models is 1.9.
ROUNDINGS = 4.0
# Largest eta. A truncated inner node has the weight of a truncated leaf, which is at least the
# largest leaf value divided by this.
MOST_ETA = 2.0
TRUNCATION_TOLERANCE = (
    1e-5  # largest relative difference of weights that were truncated at one limit
)
_STEP = 1e-5  # step of log eta for the numerical derivative
_NONE = 1e-9  # singular values below this (relative to the largest) determine nothing


@dataclass(frozen=True)
class SettingsUncertainty:
    """Errors of eta, lambda and alpha that the equations admit, infinite if any value agrees."""

    eta: float  # relative
    reg_lambda: float
    alpha: float


def freedom(
    parts: Sequence[tuple[Splits, Floats, bool]],
    eta: float,
    reg_lambda: float,
    settings_known: bool = False,
) -> SettingsUncertainty:
    """Return how far eta, lambda and alpha may deviate from `eta`, `reg_lambda` and 0.

    Parameters
    ----------
    parts : sequence of (Splits, float64 array of shape (J,), bool)
        Equations, sums of hessians of the leaves, and whether the file contains the sums. If it
        does not, they are further unknowns.
    eta, reg_lambda : float
        The solution around which the equations are linearised.
    settings_known : bool
        True if eta and lambda are known independently of the file, so that only alpha is unknown.

    Returns
    -------
    freedom : Freedom
        The larger error of both forms of the gains.
    """
    leaf = max((float(np.abs(s.child[s.leaf]).max()) for s, _, _ in parts), default=0.0)
    inner = max((float(np.abs(s.weight).max()) for s, _, _ in parts), default=0.0)
    largest = leaf, max(inner, leaf / MOST_ETA)
    every = []
    for in_gain in (False, True):
        blocks = [_derivatives(part, eta, reg_lambda, largest, in_gain) for part in parts]
        wide = sum(free.shape[1] for _, free in blocks)
        rows, at = [], 0
        for sought, free in blocks:
            apart = np.zeros((len(sought), wide))
            apart[:, at : at + free.shape[1]] = free
            at += free.shape[1]
            rows.append(np.column_stack([sought[:, 2:] if settings_known else sought, apart]))
        errors = _errors(np.concatenate(rows)) if rows else np.full(3, np.inf)
        every.append([0.0, 0.0, errors[0]] if settings_known else errors[:3])
    return SettingsUncertainty(*map(float, np.max(every, axis=0)))


def _derivatives(
    part: tuple[Splits, Floats, bool],
    eta: float,
    reg_lambda: float,
    largest: tuple[float, float],
    in_gain: bool,
) -> tuple[Floats, Floats]:
    """Return the derivatives of the equations, in units of their errors.

    The first array, shape (2k, 3), contains the derivatives by log eta, lambda and alpha. The
    second one, shape (2k, m), contains those by the m further unknowns.
    """
    splits, h, h_known = part
    a, c, _ = splits.system(eta)

    def off(at: float) -> Floats:
        a, c, b = splits.system(at)
        residuals: Floats = a @ h + c * reg_lambda - b
        return residuals

    by_eta = (off(eta * np.exp(_STEP)) - off(eta * np.exp(-_STEP))) / (2 * _STEP)
    weight = np.abs(np.where(splits.leaf, splits.child / eta, splits.child))
    sign = np.sign(splits.child)
    below = splits.member[splits.inner]
    moved = sign[splits.inner] - below @ sign[splits.leaf]
    inner, left, right = splits.inner, splits.left, splits.right
    more = 2 * (weight[left] + weight[right] - weight[inner]) * in_gain
    by_alpha = np.concatenate([moved, more])
    limit = np.where(splits.leaf, *largest) * (1 - TRUNCATION_TOLERANCE)
    nodes = np.flatnonzero((np.abs(splits.child) >= limit) | (splits.child == 0))
    free = np.zeros((2 * len(inner), len(nodes)))
    leaves = np.flatnonzero(splits.leaf)
    for k, node in enumerate(nodes):
        if splits.leaf[node]:
            free[: len(inner), k] = -below[:, np.searchsorted(leaves, node)]
        free[: len(inner), k] += inner == node
        child = (left == node).astype(float) + (right == node)
        free[len(inner) :, k] = 2 * weight[node] * sign[node] * (child - (inner == node))
    if not h_known:
        free = np.column_stack([free, a])
    scale = splits.error(h, eta, reg_lambda)[:, None]
    return np.column_stack([by_eta, c, by_alpha]) / scale, free / scale


def _errors(derivatives: Floats) -> Floats:
    """Return the error of every unknown if the equations are exact up to `ROUNDINGS`."""
    size = np.linalg.norm(derivatives, axis=0)
    used = np.where(size > 0, size, 1.0)
    # R of the QR decomposition has the singular values of the (much taller) matrix.
    triangle = np.linalg.qr(derivatives / used, mode="r")
    _, s, v = np.linalg.svd(triangle, full_matrices=True)
    s = np.concatenate([s, np.zeros(len(v) - len(s))])
    with np.errstate(divide="ignore"):
        spread = np.where(s > _NONE * max(s[0], 1e-300), 1 / s, np.inf)
    share = np.abs(v) > 1e-7
    parts = np.where(share, v * np.where(np.isinf(spread), 1.0, spread)[:, None], 0.0)
    error = np.sqrt((parts**2).sum(axis=0))
    error[(share & np.isinf(spread)[:, None]).any(axis=0)] = np.inf
    error[size == 0] = np.inf
    return np.asarray(ROUNDINGS * error / used)


# Eta and lambda are fitted on this many trees, which usually have about 100 equations. Stumps have
# two equations each, so that further trees are added until there are `ENOUGH` equations.
TREES_READ = 6
ENOUGH = 60
# Preferred number of leaves of a fitted piece. It has enough equations beyond the unknown sums and
# is solved quickly.
_GOOD_SIZE = 12
MOST_PIECES = 200  # number of pieces from which the fitted ones are selected
_ETA = (0.001, 2.0)  # range of the searched learning rates
_AT_ONCE = 24  # learning rates per batch. The matrices of 128 leaves then take 8 MB
MOST_PARTS = 50  # largest number of clients or trees by which a learning rate may be divided
HONEST = 4.0  # largest residual of accepted round numbers. The largest observed one is 1.9
MOST_RATES = 50  # largest number of different settings in one model
PINNED = 0.02  # largest error of eta (relative) and of lambda for which they count as determined
MOST_ALPHA = 0.1  # an L1 penalty that moves G by at most this does not change integer labels
MOST_FAILURES = 5  # trees without a matching eta and lambda, after which the search ends
ROUND_RATE_TOLERANCE = (
    1e-3  # largest relative distance between the fitted and the round learning rate
)


@dataclass(frozen=True)
class Settings:
    """Learning rate and L2 penalty of a training, and their source.

    XGBoost divides eta by the number of trees per round. `learning_rate` is the result of this
    division.
    """

    learning_rate: float
    reg_lambda: float
    source: str  # ``file``, ``inferred`` or ``given``
    equations: int = 0  # number of equations in the file that agree with the two values
    worst: float = 0.0  # largest residual of these equations, in units of its float32 error
    unshrunk: bool = True  # whether an L1 penalty that changes integer labels is excluded


def infer_settings(trees: Sequence[Tree], statistics: Sequence[Statistics]) -> Settings | None:
    """Infer the eta and lambda that agree with the statistics, rounded as users choose them.

    Parameters
    ----------
    trees : sequence of Tree
        Trees of one training.
    statistics : sequence of Statistics
        Their statistics. If `cover` is None, the sums of the leaves are unknowns.

    Returns
    -------
    settings : Settings or None
        None if no values agree up to float32 errors, for example because of an L1 penalty, a limit
        on steps, or a change after the training. None also if the equations do not determine eta
        and lambda (`fedtrees.model_audit.training_settings`).
    """
    fits = _fits(trees, statistics)
    fitted = _choose_settings(fits)
    if fitted is None:
        return None
    eta, reg_lambda = fitted.learning_rate, fitted.reg_lambda
    free = freedom([f.part(eta) for f in fits], eta, reg_lambda)
    if free.eta > PINNED or free.reg_lambda > PINNED * max(1.0, reg_lambda):
        return None
    return replace(fitted, unshrunk=free.alpha <= MOST_ALPHA)


def _fits(trees: Sequence[Tree], statistics: Sequence[Statistics]) -> Sequence[_Fit]:
    """Select the pieces of trees to fit on: `TREES_READ` of them, and more if they are small."""
    candidates = (fit for pair in zip(trees, statistics, strict=True) for fit in _pieces(*pair))
    usable = list(islice((fit for fit in candidates if len(fit) > 1), MOST_PIECES))
    usable.sort(key=lambda fit: abs(len(fit) - _GOOD_SIZE))
    before = np.cumsum([0, *(2 * len(f.splits.inner) for f in usable)])[:-1]
    return [f for k, f in enumerate(usable) if k < TREES_READ or before[k] < ENOUGH]


def _choose_settings(fits: Sequence[_Fit]) -> Settings | None:
    """Return the eta and lambda that agree best, None if they do not agree up to float32 errors."""
    if sum(f.spare for f in fits) < 2:
        return None
    eta, reg_lambda = _search(fits)
    eta, reg_lambda = _round_settings(fits, eta, reg_lambda) or (eta, reg_lambda)
    worst = _worst(fits, eta, reg_lambda)
    count = sum(2 * len(f.splits.inner) for f in fits)
    if not (worst <= AGREES and reg_lambda > -1e-6):
        return None
    # For equal numbers, max returns the first one. Rounding can leave -0.0, so 0.0 comes first.
    return Settings(eta, max(0.0, reg_lambda), "inferred", count, worst)


def is_unshrunk(
    trees: Sequence[Tree], statistics: Sequence[Statistics], eta: float, reg_lambda: float
) -> bool:
    """Return whether the equations of the trees exclude an L1 penalty, given eta and lambda.

    Parameters
    ----------
    trees : sequence of Tree
        Trees of one training.
    statistics : sequence of Statistics
        Their statistics.
    eta, reg_lambda : float
        Settings of the training.

    Returns
    -------
    unshrunk : bool
        True if alpha is at most `MOST_ALPHA`.
    """
    parts = [f.part(eta) for f in _fits(trees, statistics)]
    return freedom(parts, eta, reg_lambda, settings_known=True).alpha <= MOST_ALPHA


def _round_settings(
    fits: Sequence[_Fit], eta: float, reg_lambda: float
) -> tuple[float, float] | None:
    """Return the roundest numbers near eta and lambda that agree, None if none agree.

    Eta may be a round number divided by the number of clients (as in NVFlare) or of trees. If no
    round eta agrees, only lambda is rounded.
    """
    honest = max(HONEST, 1.5 * _worst(fits, eta, reg_lambda))
    tried = [
        (float(f"{eta * parts:.{digits}g}") / parts, digits)
        for digits in range(1, 4)
        for parts in range(1, MOST_PARTS + 1)
    ]
    near = [
        (short, digits) for short, digits in tried if abs(short - eta) <= ROUND_RATE_TOLERANCE * eta
    ]
    rounded = ((x, round(reg_lambda, k)) for x, k in [*near, *((eta, k) for k in range(1, 4))])
    return next((both for both in rounded if _worst(fits, *both) <= honest), None)


@dataclass(frozen=True, eq=False)
class _Fit:
    """The equations of one tree, or of a piece of a large one, and its leaves' sums if known."""

    splits: Splits
    h: Floats | None

    def __len__(self) -> int:
        return len(self.splits.inner) + 1  # number of leaves

    @property
    def spare(self) -> int:
        """Number of equations minus the number of unknown sums."""
        return 2 * len(self.splits.inner) - (len(self) if self.h is None else 0)

    def part(self, eta: float) -> tuple[Splits, Floats, bool]:
        """Return the equations, H of the leaves, and whether the file contains H."""
        return self.splits, self.at(eta).h, self.h is not None

    def curve(self, eta: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the terms of the equations for E values of eta if H is known.

        The result is ``c``, ``b - A H`` and the two parts of the errors, float64, shape (E, 2k)
        each. The error of an equation is the first part plus lambda times the second one, as in
        the method `error` of `Splits`.
        """
        s, h, u = self.splits, np.asarray(self.h), 1 / eta[:, None]
        below, at, w = s.member[s.inner], s.member @ h, s.weight
        inner, value = at[s.inner], s.child[s.leaf]
        left, right = (
            np.where(s.leaf[side], s.child[side] * u, s.child[side]) ** 2
            for side in (s.left, s.right)
        )
        both = left * at[s.left] + right * at[s.right]
        size = np.abs(value)
        c = [w - u * (below @ value), left + right - w**2]
        b = [u * (below @ (value * h)) - w * inner, s.gain - both + w**2 * inner]
        fixed = [np.abs(w) * inner + u * (below @ (size * h)), both + w**2 * inner]
        each = [np.abs(w) + u * (below @ size), left + right + w**2]
        parts = [np.concatenate(x, axis=1) for x in (c, b, fixed, each)]
        return parts[0], parts[1], parts[2], parts[3]

    def at(self, eta: float | Floats) -> _Equations:
        """Return the equations at every eta, with H of the leaves.

        Unknown H is estimated by least squares, which is precise enough to weight the equations.
        """
        a, c, b = self.splits.system(eta)
        if self.h is not None:
            return _Equations(self, eta, (a, c, b), self.h)
        scale = self.splits.error(np.ones(a.shape[-1]), eta, 1.0)
        both = np.concatenate([a, c[..., None]], axis=-1) / scale[..., None]  # H and lambda
        u, size, v = _decompose(both)
        share = _times(np.swapaxes(u, -1, -2), b / scale) / np.where(size > 0, size, np.inf)
        h = np.maximum(_times(np.swapaxes(v, -1, -2), share)[..., :-1], 1e-3)
        return _Equations(self, eta, (a, c, b), h)


@dataclass(frozen=True, eq=False)
class _Equations:
    """``A H + c lambda = b`` at every eta, float64, shapes (..., 2k, J), (..., 2k) and (2k,)."""

    fit: _Fit
    eta: float | Floats
    system: tuple[Floats, Floats, Floats]
    h: Floats

    def weighted(self, reg_lambda: float | Floats) -> tuple[Floats, Floats, Floats]:
        """Return A, c and b, divided by the float32 error of each equation."""
        a, c, b = self.system
        scale = self.fit.splits.error(self.h, self.eta, reg_lambda)
        return a / scale[..., None], c / scale, b / scale

    def residual(self, reg_lambda: float | Floats) -> Floats:
        """Return the part of the equations that no sums explain, float64, shape (..., 2k)."""
        a, c, b = self.weighted(reg_lambda)
        target = b - c * np.asarray(reg_lambda)[..., None]
        if self.fit.h is not None:
            return np.asarray(a @ self.h - target)
        u, size, _ = _decompose(a)
        return _project_out(u * (size > 0)[..., None, :], target)

    def without_sums(self) -> tuple[Floats, Floats]:
        """Return c and b after projecting out the unknown sums."""
        a, c, b = self.weighted(1.0)
        if self.fit.h is not None:
            return c, b - a @ self.h
        q = np.linalg.qr(a)[0]
        return _project_out(q, c), _project_out(q, b)


def _decompose(a: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the singular vectors and values of matrices, with negligible values set to 0."""
    u, size, v = np.linalg.svd(a, full_matrices=False)
    least = max(a.shape[-2:]) * np.finfo(float).eps * size[..., :1]
    return u, np.where(size > least, size, 0.0), v


def _times(a: Floats, x: Floats) -> Floats:
    """Multiply matrices with vectors, for stacks of both."""
    return np.asarray((a @ x[..., None])[..., 0])


def _project_out(q: Floats, x: Floats) -> Floats:
    """Project vectors onto the orthogonal complement of orthonormal columns."""
    return x - _times(q, _times(np.swapaxes(q, -1, -2), x))


def _search(fits: Sequence[_Fit]) -> tuple[float, float]:
    """Return the eta and lambda with the smallest residual.

    The function searches a grid of eta and refines it around the best point. Lambda is computed for
    each eta by least squares. Far from the solution, residuals are 10^8 times their errors. Their
    logarithms are therefore added up. This makes the minimum narrow, and the grid must contain
    every eta with two digits.
    """
    short = [k * 10.0**-d for d in (1, 2, 3) for k in range(1, 100)]
    even = np.geomspace(*_ETA, 150)
    grid = np.log(np.unique([*even, *(x for x in short if _ETA[0] <= x <= _ETA[1])]))
    some = fits[:3]
    best = float(grid[int(np.argmin(_costs(some, np.exp(grid))))])
    step = 0.05
    while step > 1e-9:
        grid = np.linspace(best - 1.5 * step, best + 1.5 * step, 17)  # centred at the best point
        best = float(grid[int(np.argmin(_costs(fits, np.exp(grid))))])
        step = float(grid[1] - grid[0])
    eta = float(np.exp(best))
    return eta, float(_reg_lambda([f.at(eta) for f in fits]))


def _reg_lambda(equations: Sequence[_Equations]) -> Floats:
    """Return the lambda with the smallest squared residual at every eta."""
    parts = [e.without_sums() for e in equations]
    c, b = (np.concatenate(x, axis=-1) for x in zip(*parts, strict=True))
    return np.asarray((c * b).sum(axis=-1) / np.maximum((c * c).sum(axis=-1), 1e-300))


def _costs(fits: Sequence[_Fit], eta: Floats) -> Floats:
    """Return the residuals of every eta with its lambda, float64, shape (E,)."""
    if any(f.h is None for f in fits):
        if len(eta) > _AT_ONCE:
            parts = np.array_split(eta, range(_AT_ONCE, len(eta), _AT_ONCE))
            return np.concatenate([_costs(fits, part) for part in parts])
        equations = [f.at(eta) for f in fits]
        lam = _reg_lambda(equations)
        off = np.concatenate([e.residual(lam) for e in equations], axis=-1)
        return np.where(lam < -0.01, np.inf, np.arcsinh(np.abs(off)).sum(axis=-1))
    curves = [f.curve(eta) for f in fits]
    c, b, fixed, each = (np.concatenate(x, axis=1) for x in zip(*curves, strict=True))

    def scale(lam: Floats) -> Floats:
        return np.asarray(FLOAT32 * (fixed + each * np.maximum(lam, 0)[:, None]) + 1e-12)

    unit = scale(np.ones(len(eta)))
    lam = (c * b / unit**2).sum(axis=1) / np.maximum(((c / unit) ** 2).sum(axis=1), 1e-300)
    off = np.abs(c * lam[:, None] - b) / scale(lam)
    # A negative lambda is not a penalty. Values slightly below 0 can be rounding errors.
    return np.where(lam < -0.01, np.inf, np.arcsinh(off).sum(axis=1))


def _pieces(tree: Tree, statistics: Statistics) -> list[_Fit]:
    """Return the equations of a tree, piece by piece, none if weights or gains are missing."""
    if statistics.weight is None or statistics.gain is None:
        return []
    cover = statistics.cover
    return [
        _Fit(
            piece.splits(statistics.weight, statistics.gain),
            None if cover is None else cover[piece.nodes[piece.tree.leaves]],
        )
        for piece in pieces(tree)
    ]


def _worst(fits: Sequence[_Fit], eta: float, reg_lambda: float) -> float:
    """Return the largest residual, in units of its float32 error."""
    return float(max(np.abs(f.at(eta).residual(reg_lambda)).max() for f in fits))


def agreement(settings: Settings, trees: Sequence[Tree], statistics: Sequence[Statistics]) -> float:
    """Return the largest residual of trees, in units of its float32 error.

    Parameters
    ----------
    settings : Settings
        Eta and lambda.
    trees : sequence of Tree
        The trees.
    statistics : sequence of Statistics
        Their statistics.

    Returns
    -------
    worst : float
        0 if there are no equations. Values above `AGREES` contradict the settings.
    """
    eta, reg_lambda = settings.learning_rate, settings.reg_lambda
    fits = (fit for pair in zip(trees, statistics, strict=True) for fit in _pieces(*pair))
    return max((_worst([fit], eta, reg_lambda) for fit in fits if len(fit) > 1), default=0.0)


def leaf_sums(
    tree: Tree, statistics: Statistics, settings: Settings
) -> tuple[Floats, Floats] | None:
    """Return the sums of hessians of the leaves and their errors.

    Parameters
    ----------
    tree : Tree
        The tree.
    statistics : Statistics
        Its statistics. If `cover` is masked, H is solved for from weights and gains.
    settings : Settings
        Eta and lambda.

    Returns
    -------
    sums : (float64 array, float64 array) or None
        H and its error, shape (J,) each. None if the file contains neither H nor weights and gains.
    """
    if statistics.cover is not None:
        h = statistics.cover[tree.leaves]
        return h, FLOAT32 * h
    if statistics.weight is None or statistics.gain is None:
        return None
    eta, reg_lambda = settings.learning_rate, settings.reg_lambda
    weight, gain = statistics.weight, statistics.gain
    sums: tuple[Floats, Floats] | None = hessians_from_gains(tree, weight, gain, eta, reg_lambda)
    return sums


def settings_by_tree(
    trees: Sequence[Tree], statistics: Sequence[Statistics]
) -> list[Settings | None]:
    """Return eta and lambda of each tree, None if they do not explain a second tree.

    The few equations of one tree agree with some eta by chance, but those of two trees do not. For
    example, NVFlare's ``lr_mode="scaled"`` multiplies eta by the client's share of the rows.
    """
    pairs = list(zip(trees, statistics, strict=True))
    candidates: list[Settings] = []
    failures = 0
    for pair in pairs:
        if failures == MOST_FAILURES or len(candidates) == MOST_RATES:
            break
        if any(_explains(s, *pair) for s in candidates):
            continue
        if fitted := _choose_settings(_fits([pair[0]], [pair[1]])):
            candidates.append(fitted)
        else:
            failures += 1
    # A candidate is accepted only if it explains at least two trees, on which it is fitted again.
    shared: list[Settings] = []
    for candidate in candidates:
        members = [pair for pair in pairs if _explains(candidate, *pair)]
        if len(members) > 1 and (together := infer_settings(*zip(*members, strict=True))):
            shared.append(together)
    return [next((s for s in shared if _explains(s, *pair)), None) for pair in pairs]


def _explains(settings: Settings, tree: Tree, statistics: Statistics) -> bool:
    """Return whether a tree has equations, and all of them agree with eta and lambda."""
    return bool(0 < agreement(settings, [tree], [statistics]) <= AGREES)
