"""Search for batches with the observed gradient: the loss, its derivative, and the descent.

Logits of categories are unconstrained, and all restarts are searched at once. Several restarts
are combined into one batch, with the confidence of every cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.gradients.observed import BatchGradient, Layer, accepted_errors
from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.core.compilation import kernel
from fedtrees.core.schema import Table
from fedtrees.neural.encoding import Encoding


class _Passes(NamedTuple):
    """Forward and backward pass of n = R * B rows. Lists have one entry per layer.

    Attributes
    ----------
    A : list of float array, shape (n, inputs)
        Inputs of the layer.
    seen : list of float array, shape (n, units)
        Inputs of the units along the observed gradient, ``A T'``.
    on : list of bool array, shape (n, units)
        Whether the unit is active, without the last layer.
    probability : float array, shape (n, K)
        Predicted probabilities.
    D : list of float array, shape (n, units)
        Derivative of the loss by the inputs of the units.
    behind : list of float array, shape (n, 2 * inputs)
        ``D [W | T]``.
    """

    A: list[Any]
    seen: list[Any]
    on: list[Any]
    probability: NDArray[Any]
    D: list[Any]
    behind: list[Any]


@dataclass(frozen=True, eq=False)
class Matching:
    """The loss 1 - cos(g(X), t) between the gradients of guesses and the observed gradient.

    g is never formed. With D_l the derivative of the loss by the inputs of layer l's units and A_l
    the outputs of these units, <g, t> is the sum of D_l (A_{l-1} T_l'), and |g|^2 that of (A A' +
    1) (D D'). The derivative by X of <V, g(X)> for a constant V is that of the rows' loss along V
    in the parameters: one tangent pass forward and one back (Pearlmutter 1994).

    Attributes
    ----------
    layers : sequence of Layer
        The network, as `fedtrees.neural.perceptron.Layers.split` returns it.
    target : sequence of Layer
        The gradient t in the same format.
    shown : sequence of Layer, or None
        1 where t was sent, else 0. None means all. With some coordinates only, g is formed, and the
        missing coordinates contribute as far as they exceed the smallest sent one.
    """

    layers: Sequence[Layer]
    target: Sequence[Layer]
    # None if all coordinates were sent.
    shown: Sequence[Layer] | None = None

    @cached_property
    def least(self) -> Any:
        """The smallest absolute coordinate of t that was sent."""
        assert self.shown is not None
        pairs = (
            p
            for layers in zip(self.target, self.shown, strict=True)
            for p in zip(*layers, strict=True)
        )
        return min(np.abs(t[is_sent > 0]).min(initial=np.inf) for t, is_sent in pairs)

    def __post_init__(self) -> None:
        forward, back = [], []
        for (w, b), (t, s) in zip(self.layers, self.target, strict=True):
            forward.append((np.ascontiguousarray(np.concatenate([w, t]).T), np.concatenate([b, s])))
            back.append(np.ascontiguousarray(np.concatenate([w, t], axis=1)))
        size = float(np.sqrt(sum((t**2).sum() + (s**2).sum() for t, s in self.target)))
        object.__setattr__(self, "_forward", forward)
        object.__setattr__(self, "_back", back)
        object.__setattr__(self, "_size", size)

    def __call__(
        self, X: NDArray[Any], Y: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the loss of every guess, its derivative by X, and the predicted probabilities.

        Parameters
        ----------
        X : float array, shape (R, B, D)
            Inputs of R guesses of a batch.
        Y : float array, shape (R, B, K)
            Their labels, one-hot.

        Returns
        -------
        loss : float array, shape (R,)
        slope : float array, shape (R, B, D)
        probability : float array, shape (R, B, K)
        """
        R, B, _ = X.shape
        both = self._propagate(X.reshape(R * B, -1), Y.reshape(R * B, -1), B)
        inner, square, ahead, behind = self._products(both, R, B)
        norm = np.sqrt(square) * np.asarray(self._size, X.dtype)  # type: ignore[attr-defined]
        # a guess with zero gradient must not divide by zero
        norm = np.maximum(norm, np.finfo(X.dtype).tiny)
        scale = (inner / np.maximum(square, np.finfo(X.dtype).tiny))[:, None, None]
        slope = self._along(both, scale, ahead, behind, B).reshape(R, B, -1)
        slope /= norm[:, None, None]
        return 1 - inner / norm, slope, both.probability.reshape(R, B, -1)

    def _propagate(self, X: NDArray[Any], Y: NDArray[Any], B: int) -> _Passes:
        """Return the forward and the backward pass of all rows through the network."""
        forward, back = self._forward, self._back  # type: ignore[attr-defined]
        depth = len(forward)
        A, seen, on = [X], [], []
        for k, (weight, bias) in enumerate(forward):
            Z = A[-1] @ weight
            Z += bias
            out = Z.shape[1] // 2
            seen.append(Z[:, out:])
            if k < depth - 1:
                on.append(Z[:, :out] > 0)
                A.append(Z[:, :out] * on[-1])
        Z = Z[:, :out]
        P = np.exp(Z - Z.max(axis=1, keepdims=True))
        P /= P.sum(axis=1, keepdims=True)
        D: list[Any] = [None] * depth
        D[-1] = (P - Y) / np.float32(B)
        behind: list[Any] = [None] * depth
        for k in range(depth - 1, -1, -1):
            behind[k] = D[k] @ back[k]
            if k:
                D[k - 1] = behind[k][:, : A[k].shape[1]] * on[k - 1]
        return _Passes(A, seen, on, P, D, behind)

    def _products(
        self, both: _Passes, R: int, B: int
    ) -> tuple[NDArray[Any], NDArray[Any], list[Any], list[Any]]:
        """Return <g, t> and |g|^2 of every guess, and A_{l-1} g_l' and D_l g_l of every layer."""
        dtype = both.A[0].dtype
        inner, square = np.zeros(R, dtype), np.zeros(R, dtype)
        ahead, behind = [], []
        for k, (a, d, t) in enumerate(zip(both.A, both.D, both.seen, strict=True)):
            a, d, t = (part.reshape(R, B, -1) for part in (a, d, t))
            inner += np.einsum("rbo,rbo->r", d, t)
            if self.shown is None:
                G = a @ a.transpose(0, 2, 1)
                G += 1
                H = d @ d.transpose(0, 2, 1)
                square += np.einsum("rab,rab->r", G, H)
                ahead.append(G @ d)
                behind.append(H @ a)
                continue
            weight, bias = (
                part * is_sent + (1 - is_sent) * (part - np.clip(part, -self.least, self.least))
                for part, is_sent in zip(
                    (d.transpose(0, 2, 1) @ a, d.sum(axis=1)), self.shown[k], strict=True
                )
            )
            square += (weight**2).sum(axis=(1, 2)) + (bias**2).sum(axis=1)
            ahead.append(a @ weight.transpose(0, 2, 1) + bias[:, None])
            behind.append(d @ weight)
        return inner, square, ahead, behind

    def _along(
        self, both: _Passes, scale: NDArray[Any], ahead: list[Any], behind: list[Any], B: int
    ) -> NDArray[Any]:
        """Return the derivative by the inputs of the rows' loss along V = c g - t.

        ``scale`` is c, shape (R, 1, 1). The tangent of the units' inputs along V is propagated
        forward, and then that of their derivatives backward.
        """
        depth, rows = len(both.A), len(both.A[0])
        moved: Any = None
        for k in range(depth):
            U = (scale * ahead[k]).reshape(rows, -1)
            U -= both.seen[k]
            if moved is not None:
                U += moved @ self.layers[k][0].T
            if k < depth - 1:
                moved = U * both.on[k]
        E = both.probability * U
        E -= both.probability * E.sum(axis=1, keepdims=True)
        E /= np.float32(B)
        for k in range(depth - 1, -1, -1):
            S = (scale * behind[k]).reshape(rows, -1)
            S -= both.behind[k][:, both.A[k].shape[1] :]
            S += E @ self.layers[k][0]
            E = S * both.on[k - 1] if k else S
        return E


#: Adam's decays (Kingma and Ba 2015), and the largest steps for logits and standardised numbers.
_DECAYS, _STEPS = (0.9, 0.92), (0.3, 0.2)
#: Weight of the span term, and singular value up to which a direction counts as unused.
_SPAN, _ZERO = 0.003, 1e-6
#: Weights of squared inputs of categories and of numbers if there is no span: rows are then pulled
#: to the average row. If there is a span, these terms reduce the accuracy.
_SHARES, _NUMBERS = 9e-5, 3e-4


@dataclass(frozen=True, eq=False)
class Found:
    """Results of R restarts.

    Attributes
    ----------
    weights : float32 array, shape (R, B, D)
        Shares of every category, 0 in columns of continuous features.
    numbers : float32 array, shape (R, B, continuous features)
        Standardised numbers.
    loss : float64 array, shape (R,)
        1 - cos at the last step, for shares that need not be 0 or 1.
    probability : float32 array, shape (R, B, K)
        Predictions of the network for the rows.
    """

    weights: NDArray[np.float32]
    numbers: NDArray[np.float32]
    loss: NDArray[np.float64]
    probability: NDArray[np.float32]


def null_space(weight: NDArray[Any], bias: NDArray[Any]) -> NDArray[np.float32]:
    """Return the projection on directions that no row [x, 1] of the batch has, times the weight.

    Parameters
    ----------
    weight, bias : float array, shape (units, D) and (units,)
        Gradient of the first layer: sums over the rows of a derivative times [x, 1]. The rows are
        therefore in its row space, provided that its rank is the number of rows.

    Returns
    -------
    float32 array, shape (D + 1, D + 1)
    """
    both = np.column_stack([weight, bias]).astype(np.float64)
    _, size, right = np.linalg.svd(both)
    rank = int((size > _ZERO).sum())
    return np.asarray(_SPAN * (right[rank:].T @ right[rank:]), dtype=np.float32)


def average_pull(encoding: Encoding) -> NDArray[np.float32]:
    """Return the weights of squared inputs on the diagonal, shape (D + 1, D + 1)."""
    weight = np.where(encoding.category < 0, _NUMBERS, _SHARES)
    return np.diag(np.append(weight, 0)).astype(np.float32)


def search(
    batch: BatchGradient,
    matching: Matching,
    pull: NDArray[np.float32],
    labels: NDArray[np.int64],
    effort: tuple[int, int],
    rng: np.random.Generator,
) -> Found:
    """Change guessed batches until their gradient is the observed one.

    Parameters
    ----------
    batch : BatchGradient
        The observed gradient.
    matching : Matching
        The loss.
    pull : float32 array, shape (D + 1, D + 1)
        Symmetric matrix from `null_space` or `average_pull`. The mean of its quadratic form of [x,
        1] over the rows is added to the loss.
    labels : int64 array, shape (B,)
        Labels of the rows.
    effort : (int, int)
        Number of restarts, and steps of each.
    rng : numpy.random.Generator
        Starts of the search.

    Notes
    -----
    The logits of a category are unconstrained: they are not scaled by the column's standard
    deviation, which would nearly fix those of rare categories. Numbers are changed directly and
    clipped. The optimiser is plain Adam with step sizes that fall to 0 along a cosine.
    """
    encoding, (restarts, steps) = batch.encoding, effort
    B, D = len(labels), len(encoding)
    classes = matching.layers[-1][0].shape[0]
    Y = np.broadcast_to(np.eye(classes, dtype=np.float32)[labels], (restarts, B, classes))
    z = rng.uniform(-1, 1, (restarts * B, D)).astype(np.float32)
    low, high = np.full(D, -np.inf, np.float32), np.full(D, np.inf, np.float32)
    low[encoding.continuous], high[encoding.continuous] = batch.bounds
    starts, sizes = _groups(encoding)
    X, p = np.zeros_like(z), np.zeros_like(z)
    m, v = np.zeros_like(z), np.zeros_like(z)
    where = (starts, sizes, encoding.mean, encoding.std, low, high)
    _place(z, X, p, *where)
    loss = np.zeros(restarts)
    P = np.zeros((restarts, B, classes), np.float32)
    for step in range(steps + 1):
        loss, slope, P = matching(X.reshape(restarts, B, D), Y)
        if step == steps:
            break
        G = slope.reshape(restarts * B, D)
        off = X @ pull[:D, :D]
        off += pull[D, :D]
        off *= np.float32(2 / B)
        G += off
        share = np.float32(0.5 * (1 + math.cos(math.pi * step / steps)))
        first, second = 1 - _DECAYS[0] ** (step + 1), 1 - _DECAYS[1] ** (step + 1)
        _move(z, X, p, m, v, G, share, np.float32(first), np.float32(second), *where)
    numbers = X[:, encoding.continuous].reshape(restarts, B, -1)
    return Found(p.reshape(restarts, B, D), numbers, loss.astype(np.float64), P)


def _groups(encoding: Encoding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first column of every feature, and its number of columns, 0 for a number."""
    starts = np.flatnonzero(np.diff(encoding.feature, prepend=-1))
    sizes = np.diff(np.append(starts, len(encoding)))
    return starts, np.where(encoding.category[starts] < 0, 0, sizes)


@kernel
def _place(z, X, p, starts, sizes, mean, std, low, high) -> Any:  # type: ignore[no-untyped-def]
    """Convert logits to shares and inputs, and clip numbers to their bounds."""
    for r in range(z.shape[0]):
        for k in range(len(starts)):
            a = starts[k]
            if sizes[k] == 0:
                x = min(max(z[r, a], low[a]), high[a])
                z[r, a] = x
                X[r, a] = x
                continue
            largest = z[r, a]
            for j in range(a, a + sizes[k]):
                largest = max(largest, z[r, j])
            total = np.float32(0)
            for j in range(a, a + sizes[k]):
                p[r, j] = np.exp(z[r, j] - largest)
                total += p[r, j]
            for j in range(a, a + sizes[k]):
                p[r, j] /= total
                X[r, j] = (p[r, j] - mean[j]) / std[j]


@kernel
def _move(z, X, p, m, v, G, share, first, second, starts, sizes, mean, std, low, high) -> Any:  # type: ignore[no-untyped-def]
    """Take one step of Adam."""
    for r in range(z.shape[0]):
        for k in range(len(starts)):
            a = starts[k]
            n = max(sizes[k], 1)
            along = np.float32(0)
            if sizes[k]:
                for j in range(a, a + n):
                    G[r, j] /= std[j]
                    along += p[r, j] * G[r, j]
            rate = share * np.float32(_STEPS[0] if sizes[k] else _STEPS[1])
            for j in range(a, a + n):
                g = G[r, j]
                if sizes[k]:
                    g = p[r, j] * (g - along)
                m[r, j] += np.float32(1 - _DECAYS[0]) * (g - m[r, j])
                v[r, j] += np.float32(1 - _DECAYS[1]) * (g * g - v[r, j])
                z[r, j] -= rate * (m[r, j] / first) / (np.sqrt(v[r, j] / second) + np.float32(1e-8))
    _place(z, X, p, starts, sizes, mean, std, low, high)


#: Restarts whose loss exceeds this multiple of the best one are left out.
_STUCK = 1.5


def pool_restarts(
    restarts: Found, encoding: Encoding, labels: NDArray[np.int64]
) -> tuple[Table, NDArray[np.float64]]:
    """Match the rows of all good restarts with those of the best one and vote for each cell.

    Parameters
    ----------
    restarts : Found
        Results of the restarts.
    encoding : Encoding
        Conversion of rows to inputs.
    labels : int64 array, shape (B,)
        Rows are matched with rows of the same label.

    Returns
    -------
    table : Table
        B rows.
    confidence : float64 array, shape (B, features)
        In schema order. For a category, 1 less the entropy of the mean shares relative to its
        largest value. For a number, exp(-s), with s its standard deviation over restarts.
    """
    order = np.argsort(restarts.loss, kind="stable")
    good = order[restarts.loss[order] <= _STUCK * max(restarts.loss[order[0]], 1e-6)]
    p, x = match_restarts(restarts.weights[good], restarts.numbers[good], labels)
    tables = [
        Table(encoding.decode(codes_of(q, encoding), z), labels) for q, z in zip(p, x, strict=True)
    ]
    table = matched_consensus(
        tables,
        accepted_errors(encoding),
        rounds=1,
        block=len(labels),
        groups=labels,
        start=tables[0],
    )
    confidence, mean = np.empty((len(labels), len(encoding.coded))), p.mean(axis=0)
    for g in encoding.groups:
        q = np.clip(mean[:, g], 1e-12, 1)
        share = -(q * np.log(q)).sum(axis=1) / np.log(max(len(g), 2))
        confidence[:, encoding.feature[g[0]]] = 1 - np.minimum(share, 1)
    k = encoding.feature[encoding.continuous]
    confidence[:, k] = np.exp(-x.std(axis=0))
    return Table(table.X, labels), confidence


def codes_of(shares: NDArray[np.float32], encoding: Encoding) -> NDArray[np.int64]:
    """Return the largest category of every group, int64, shape (B, categorical features)."""
    codes = np.empty((len(shares), len(encoding.groups)), dtype=np.int64)
    for k, g in enumerate(encoding.groups):
        codes[:, k] = shares[:, g].argmax(axis=1)
    return codes


def match_restarts(
    weights: NDArray[np.float32], numbers: NDArray[np.float32], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return shares and numbers of all restarts, with rows in the order of the first one's.

    Parameters
    ----------
    weights : float32 array, shape (R, B, D)
        Shares of the categories.
    numbers : float32 array, shape (R, B, continuous features)
        Standardised numbers.
    labels : int64 array, shape (B,)
        Only rows of the same label are matched.
    """
    p, x = weights.copy(), numbers.copy()
    for r in range(1, len(p)):
        order = np.empty(len(labels), dtype=np.intp)
        for y in np.unique(labels):
            rows = np.flatnonzero(labels == y)
            shares = -(p[0][rows] @ p[r][rows].T)
            # a number counts no more than a category
            apart = np.abs(x[0][rows][:, None] - x[r][rows][None]).clip(max=1).sum(axis=2)
            a, b = linear_sum_assignment(shares + apart)
            order[rows[a]] = rows[b]
        p[r], x[r] = p[r][order], x[r][order]
    return p, x
