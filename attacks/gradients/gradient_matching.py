"""Distance between the gradient of guessed rows and the observed one, and its derivative.

Updates of several local steps are simulated, or converted to one gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.neural.perceptron import Layers, join_layers, softmax


@dataclass(frozen=True)
class LocalSteps:
    """Public parameters of a client's training in one round of FedAvg (McMahan et al. 2017).

    Attributes
    ----------
    batch : int
        Rows of a step.
    epochs : int
        Passes over the local rows.
    rate : float
        Learning rate.
    """

    batch: int
    epochs: int
    rate: float

    def count(self, rows: int) -> int:
        """Return the number of steps for the given number of rows."""
        return self.epochs * -(-rows // self.batch)

    def orders(self, rows: int, rng: np.random.Generator) -> list[NDArray[np.intp]]:
        """Draw the rows of every step, in a new order for each epoch."""
        drawn = [rng.permutation(rows) for _ in range(self.epochs)]
        return [o[i : i + self.batch] for o in drawn for i in range(0, rows, self.batch)]

    def update(
        self,
        layers: Layers,
        weights: NDArray[np.float32],
        X: NDArray[np.float32],
        y: NDArray[np.int64],
        steps: Sequence[NDArray[np.intp]],
    ) -> NDArray[np.float32]:
        """Return the change of the weights by steps on these rows, float32, (parameters,).

        Parameters
        ----------
        layers : Layers
            Sizes of the network.
        weights : float32 array, shape (parameters,)
            Initial weights.
        X : float32 array, shape (n, D)
            Inputs of all rows.
        y : int64 array, shape (n,)
            Classes.
        steps : sequence of intp array
            The rows of each step.
        """
        at, rate = weights, np.float32(self.rate)
        for rows in steps:
            at = at - rate * batch_gradient(layers, at, X[rows], y[rows])
        return at - weights

    def as_gradient(
        self, weights: NDArray[np.float32], update: NDArray[np.float32], rows: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Convert an update to one gradient and the weights at which it was taken.

        The order of rows need not be known. When a row is used, the weights have on average moved
        half of the way by the steps of other rows, and (E - 1) / 2 of E steps on the row. At this
        point the mean gradient of all rows is about the mean of the steps.

        Parameters
        ----------
        weights, update : float32 array, shape (parameters,)
            Initial weights, and their change.
        rows : int
            Number of rows.

        Returns
        -------
        weights, gradient : float32 array, shape (parameters,) each
        """
        on_row = (self.epochs - 1) / (2 * self.epochs)
        share = on_row if rows <= self.batch else (on_row + 0.5) / 2
        gradient = update / np.float32(-self.rate * self.count(rows))
        return weights + np.float32(share) * update, gradient


def batch_gradient(
    layers: Layers, weights: NDArray[np.float32], X: NDArray[np.float32], y: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the gradient of the mean cross-entropy, float32, (parameters,), without torch.

    Parameters
    ----------
    layers : Layers
        Sizes of the network.
    weights : float32 array, shape (parameters,)
        The network.
    X : float32 array, shape (n, D)
        Inputs.
    y : int64 array, shape (n,)
        Classes.
    """
    network = layers.split(weights)
    A, on = [X], []
    for k, (w, b) in enumerate(network):
        Z = A[-1] @ w.T + b
        if k < len(network) - 1:
            # derivative of the ReLU
            on.append(Z > 0)
            A.append(Z * on[-1])
    D = (softmax(Z) - np.eye(Z.shape[1], dtype=np.float32)[y]) / np.float32(len(y))
    parts = []
    for k in range(len(network) - 1, -1, -1):
        parts.append((D.T @ A[k], D.sum(axis=0)))
        if k:
            D = (D @ network[k][0]) * on[k - 1]
    return join_layers(parts[::-1]).astype(np.float32)


Layer = tuple[NDArray[Any], NDArray[Any]]


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
        forward, back = self._forward, self._back  # type: ignore[attr-defined]
        depth = len(forward)
        A, seen, on = [X.reshape(R * B, -1)], [], []
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
        D[-1] = (P - Y.reshape(R * B, -1)) / np.float32(B)
        behind: list[Any] = [None] * depth  # D_l [W_l | T_l]
        for k in range(depth - 1, -1, -1):
            behind[k] = D[k] @ back[k]
            if k:
                D[k - 1] = behind[k][:, : A[k].shape[1]] * on[k - 1]
        inner, square = np.zeros(R, X.dtype), np.zeros(R, X.dtype)
        ahead, behind_of = [], []  # A_{l-1} g_l' and D_l g_l
        for k in range(depth):
            a, d = A[k].reshape(R, B, -1), D[k].reshape(R, B, -1)
            inner += np.einsum("rbo,rbo->r", d, seen[k].reshape(R, B, -1))
            if self.shown is None:
                G = a @ a.transpose(0, 2, 1)
                G += 1
                H = d @ d.transpose(0, 2, 1)
                square += np.einsum("rab,rab->r", G, H)
                ahead.append(G @ d)
                behind_of.append(H @ a)
                continue
            weight, bias = (
                part * is_sent + (1 - is_sent) * (part - np.clip(part, -self.least, self.least))
                for part, is_sent in zip(
                    (d.transpose(0, 2, 1) @ a, d.sum(axis=1)), self.shown[k], strict=True
                )
            )
            square += (weight**2).sum(axis=(1, 2)) + (bias**2).sum(axis=1)
            ahead.append(a @ weight.transpose(0, 2, 1) + bias[:, None])
            behind_of.append(d @ weight)
        norm = np.sqrt(square) * np.asarray(self._size, X.dtype)  # type: ignore[attr-defined]
        # a guess with zero gradient must not divide by zero
        norm = np.maximum(norm, np.finfo(X.dtype).tiny)
        c = (inner / np.maximum(square, np.finfo(X.dtype).tiny))[:, None, None]
        # tangent of the units' inputs along V = c g - t, then of their derivatives
        moved: Any = None
        for k in range(depth):
            U = (c * ahead[k]).reshape(R * B, -1)
            U -= seen[k]
            if moved is not None:
                U += moved @ self.layers[k][0].T
            if k < depth - 1:
                moved = U * on[k]
        E = P * U
        E -= P * E.sum(axis=1, keepdims=True)
        E /= np.float32(B)
        for k in range(depth - 1, -1, -1):
            a = A[k].shape[1]
            S = (c * behind_of[k]).reshape(R * B, -1)
            S -= behind[k][:, a:]
            S += E @ self.layers[k][0]
            E = S * on[k - 1] if k else S
        loss = 1 - inner / norm
        slope = E.reshape(R, B, -1)
        slope /= norm[:, None, None]
        return loss, slope, P.reshape(R, B, -1)
