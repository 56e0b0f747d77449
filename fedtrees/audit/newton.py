"""eta and lambda of a training, from how the statistics of its trees fit together.

Two equations per split tie weights, gains and hessian sums (`Splits`). Only the true eta and lambda
agree with all of them. Where the sums are masked they are unknowns of the same equations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence import AGREES, FLOAT32, Splits, hessians_from_gains, pieces
from fedtrees.audit.model import Statistics
from fedtrees.audit.pinned import freedom
from fedtrees.trees.boosted.forest import Tree

Floats = NDArray[np.float64]

TREES_READ = 6  # trees that eta and lambda are fitted on; they have a hundred equations,
ENOUGH = 60  # and stumps two each: this many equations are read, or more
_GOOD_SIZE = 12  # leaves: enough equations beyond the unknown sums, and quickly solved
MOST_PIECES = 200  # of which the ones to fit on are chosen
_ETA = (0.001, 2.0)  # learning rates searched
_AT_ONCE = 24  # of these: matrices of 128 leaves take 8 MB then
MOST_PARTS = 50  # clients or trees that a round learning rate was divided by
HONEST = 4.0  # residual up to which round numbers are taken; the largest seen is 1.9
MOST_RATES = 50
PINNED = 0.02  # error of eta, relative, and of lambda up to which they follow
MOST_ALPHA = 0.1  # an L1 penalty that may move G by this much leaves whole labels as they are
MOST_FAILURES = 5  # trees that no eta and lambda explain, after which no more are tried
NEAR = 1e-3  # relative distance from the fitted learning rate to the round one


@dataclass(frozen=True)
class Settings:
    """Learning rate and L2 penalty of a training, and how they are known.

    XGBoost divides eta by the number of trees a round, and so is this one.
    """

    learning_rate: float
    reg_lambda: float
    source: str  # file, inferred or given
    equations: int = 0  # of the file that agree with them
    worst: float = 0.0  # largest residual of these, in units of its float32 error
    unshrunk: bool = True  # no L1 penalty moved G, as far as whole labels may tell


def infer_settings(trees: Sequence[Tree], statistics: Sequence[Statistics]) -> Settings | None:
    """Return the eta and lambda that agree with the statistics, rounded as people choose them.

    Where `cover` is None the leaves' sums are unknowns. None where no eta and lambda agree to
    float32 (an L1 penalty or a limit on steps was used, or trees were changed after training), and
    where others would agree as well (`fedtrees.audit.pinned`).
    """
    fits = _fits(trees, statistics)
    found = _fitted(fits)
    if found is None:
        return None
    eta, reg_lambda = found.learning_rate, found.reg_lambda
    free = freedom([f.part(eta) for f in fits], eta, reg_lambda)
    if free.eta > PINNED or free.reg_lambda > PINNED * max(1.0, reg_lambda):
        return None
    return replace(found, unshrunk=free.alpha <= MOST_ALPHA)


def _fits(trees: Sequence[Tree], statistics: Sequence[Statistics]) -> Sequence[_Fit]:
    """Return the pieces that are read: `TREES_READ`, and more where they are small."""
    found = (fit for pair in zip(trees, statistics, strict=True) for fit in _pieces(*pair))
    usable = list(islice((fit for fit in found if len(fit) > 1), MOST_PIECES))
    usable.sort(key=lambda fit: abs(len(fit) - _GOOD_SIZE))
    before = np.cumsum([0, *(2 * len(f.splits.inner) for f in usable)])[:-1]
    return [f for k, f in enumerate(usable) if k < TREES_READ or before[k] < ENOUGH]


def _fitted(fits: Sequence[_Fit]) -> Settings | None:
    """Return the eta and lambda that agree best, None where they do not agree to float32."""
    if sum(f.spare for f in fits) < 2:
        return None
    eta, reg_lambda = _search(fits)
    eta, reg_lambda = _round_settings(fits, eta, reg_lambda) or (eta, reg_lambda)
    worst = _worst(fits, eta, reg_lambda)
    count = sum(2 * len(f.splits.inner) for f in fits)
    if not (worst <= AGREES and reg_lambda > -1e-6):
        return None
    # 0.0 first: of equal numbers max takes the first, and rounding leaves -0.0
    return Settings(eta, max(0.0, reg_lambda), "inferred", count, worst)


def is_unshrunk(
    trees: Sequence[Tree], statistics: Sequence[Statistics], eta: float, reg_lambda: float
) -> bool:
    """Tell whether the equations of trees exclude an L1 penalty, given eta and lambda."""
    parts = [f.part(eta) for f in _fits(trees, statistics)]
    return freedom(parts, eta, reg_lambda, given=True).alpha <= MOST_ALPHA


def _round_settings(
    fits: Sequence[_Fit], eta: float, reg_lambda: float
) -> tuple[float, float] | None:
    """Return the roundest numbers near eta and lambda that agree, None where none do.

    eta may be a round number divided by the number of clients (NVFlare does so) or of trees. It may
    also be round no more; then only lambda is.
    """
    honest = max(HONEST, 1.5 * _worst(fits, eta, reg_lambda))
    tried = [
        (float(f"{eta * parts:.{digits}g}") / parts, digits)
        for digits in range(1, 4)
        for parts in range(1, MOST_PARTS + 1)
    ]
    near = [(short, digits) for short, digits in tried if abs(short - eta) <= NEAR * eta]
    rounded = ((x, round(reg_lambda, k)) for x, k in [*near, *((eta, k) for k in range(1, 4))])
    return next((both for both in rounded if _worst(fits, *both) <= honest), None)


@dataclass(frozen=True, eq=False)
class _Fit:
    """The equations of one tree, or of a piece of a large one, and its leaves' sums where known."""

    splits: Splits
    h: Floats | None

    def __len__(self) -> int:
        return len(self.splits.inner) + 1  # leaves

    @property
    def spare(self) -> int:
        """Equations beyond the unknown sums."""
        return 2 * len(self.splits.inner) - (len(self) if self.h is None else 0)

    def part(self, eta: float) -> tuple[Splits, Floats, bool]:
        """Return the equations, H of the leaves, and whether the file tells it."""
        return self.splits, self.at(eta).h, self.h is not None

    def curve(self, eta: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return ``c`` and ``b - A H``, and their errors' parts, for E values of eta and known H.

        float64, shape (E, 2k) each; the error of an equation is the first part and lambda times
        the second one, as `Splits` has them.
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
        alone = [np.abs(w) * inner + u * (below @ (size * h)), both + w**2 * inner]
        each = [np.abs(w) + u * (below @ size), left + right + w**2]
        parts = [np.concatenate(x, axis=1) for x in (c, b, alone, each)]
        return parts[0], parts[1], parts[2], parts[3]

    def at(self, eta: float | Floats) -> _Equations:
        """Return the equations at every eta, and H: known, or near enough to tell errors by."""
        a, c, b = self.splits.system(eta)
        if self.h is not None:
            return _Equations(self, eta, (a, c, b), self.h)
        scale = self.splits.error(np.ones(a.shape[-1]), eta, 1.0)
        both = np.concatenate([a, c[..., None]], axis=-1) / scale[..., None]  # H and lambda
        u, size, v = _decomposed(both)
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
        """Return A, c, b in units of each equation's float32 error."""
        a, c, b = self.system
        scale = self.fit.splits.error(self.h, self.eta, reg_lambda)
        return a / scale[..., None], c / scale, b / scale

    def residual(self, reg_lambda: float | Floats) -> Floats:
        """Return what no sums explain, float64, shape (..., 2k)."""
        a, c, b = self.weighted(reg_lambda)
        target = b - c * np.asarray(reg_lambda)[..., None]
        if self.fit.h is not None:
            return np.asarray(a @ self.h - target)
        u, size, _ = _decomposed(a)
        return _beside(u * (size > 0)[..., None, :], target)

    def without_sums(self) -> tuple[Floats, Floats]:
        """Return c and b with the unknown sums projected out."""
        a, c, b = self.weighted(1.0)
        if self.fit.h is not None:
            return c, b - a @ self.h
        q = np.linalg.qr(a)[0]
        return _beside(q, c), _beside(q, b)


def _decomposed(a: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the singular vectors and values of matrices; values of no size are 0."""
    u, size, v = np.linalg.svd(a, full_matrices=False)
    least = max(a.shape[-2:]) * np.finfo(float).eps * size[..., :1]
    return u, np.where(size > least, size, 0.0), v


def _times(a: Floats, x: Floats) -> Floats:
    return np.asarray((a @ x[..., None])[..., 0])


def _beside(q: Floats, x: Floats) -> Floats:
    """Return what of vectors is no combination of orthonormal columns."""
    return x - _times(q, _times(np.swapaxes(q, -1, -2), x))


def _search(fits: Sequence[_Fit]) -> tuple[float, float]:
    """Return eta and lambda of least residual: a grid of eta, refined around its best point.

    Each eta has its lambda, by least squares. Far from the truth residuals are 10^8 of their error,
    so their logarithms are added up. The dip at the truth is then narrow, and the grid therefore
    holds every eta of two digits.
    """
    short = [k * 10.0**-d for d in (1, 2, 3) for k in range(1, 100)]
    even = np.geomspace(*_ETA, 150)
    grid = np.log(np.unique([*even, *(x for x in short if _ETA[0] <= x <= _ETA[1])]))
    some = fits[:3]
    best = float(grid[int(np.argmin(_costs(some, np.exp(grid))))])
    step = 0.05
    while step > 1e-9:
        grid = np.linspace(best - 1.5 * step, best + 1.5 * step, 17)  # its middle is the best
        best = float(grid[int(np.argmin(_costs(fits, np.exp(grid))))])
        step = float(grid[1] - grid[0])
    eta = float(np.exp(best))
    return eta, float(_reg_lambda([f.at(eta) for f in fits]))


def _reg_lambda(equations: Sequence[_Equations]) -> Floats:
    """Return the lambda of least squares at every eta."""
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
    c, b, alone, each = (np.concatenate(x, axis=1) for x in zip(*curves, strict=True))

    def scale(lam: Floats) -> Floats:
        return np.asarray(FLOAT32 * (alone + each * np.maximum(lam, 0)[:, None]) + 1e-12)

    unit = scale(np.ones(len(eta)))
    lam = (c * b / unit**2).sum(axis=1) / np.maximum(((c / unit) ** 2).sum(axis=1), 1e-300)
    off = np.abs(c * lam[:, None] - b) / scale(lam)
    return np.where(lam < -0.01, np.inf, np.arcsinh(off).sum(axis=1))  # below 0 is no penalty


def _pieces(tree: Tree, statistics: Statistics) -> list[_Fit]:
    """Return the equations of a tree, piece by piece; none where weights or gains are missing."""
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
    return float(max(np.abs(f.at(eta).residual(reg_lambda)).max() for f in fits))


def agreement(settings: Settings, trees: Sequence[Tree], statistics: Sequence[Statistics]) -> float:
    """Return the largest residual over trees, in units of its float32 error; 0 without any."""
    eta, reg_lambda = settings.learning_rate, settings.reg_lambda
    found = (fit for pair in zip(trees, statistics, strict=True) for fit in _pieces(*pair))
    return max((_worst([fit], eta, reg_lambda) for fit in found if len(fit) > 1), default=0.0)


def leaf_sums(
    tree: Tree, statistics: Statistics, settings: Settings
) -> tuple[Floats, Floats] | None:
    """Return the hessian sums of the leaves and their errors, float64, shape (J,) each.

    They are the file's or, where it masks them, solved for. None where neither is possible.
    """
    if statistics.cover is not None:
        h = statistics.cover[tree.leaves]
        return h, FLOAT32 * h
    if statistics.weight is None or statistics.gain is None:
        return None
    eta, reg_lambda = settings.learning_rate, settings.reg_lambda
    return hessians_from_gains(tree, statistics.weight, statistics.gain, eta, reg_lambda)


def settings_by_tree(
    trees: Sequence[Tree], statistics: Sequence[Statistics]
) -> list[Settings | None]:
    """Return eta and lambda of each tree, None where they do not explain a second tree.

    The few equations of one tree agree with some eta by chance; those of two do not. NVFlare's
    ``lr_mode="scaled"`` shrinks leaves by eta times the client's share of the rows.
    """
    pairs = list(zip(trees, statistics, strict=True))
    found: list[Settings] = []
    failures = 0
    for pair in pairs:
        if failures == MOST_FAILURES or len(found) == MOST_RATES:
            break
        if any(_explains(s, *pair) for s in found):
            continue
        if alone := _fitted(_fits([pair[0]], [pair[1]])):
            found.append(alone)
        else:
            failures += 1
    shared: list[Settings] = []
    for candidate in found:
        members = [pair for pair in pairs if _explains(candidate, *pair)]
        if len(members) > 1 and (together := infer_settings(*zip(*members, strict=True))):
            shared.append(together)
    return [next((s for s in shared if _explains(s, *pair)), None) for pair in pairs]


def _explains(settings: Settings, tree: Tree, known: Statistics) -> bool:
    """Tell whether a tree has equations, and all agree with eta and lambda."""
    return bool(0 < agreement(settings, [tree], [known]) <= AGREES)
