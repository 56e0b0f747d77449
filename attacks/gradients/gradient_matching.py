"""Distance between the gradient of guessed rows and the observed one, and its derivative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.gradients.observed import Layer


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
