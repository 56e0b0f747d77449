"""How far the gradient of guessed rows is from one that was seen, and where to move them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedtrees.neural.tree_outputs import Parts, RatesNetwork

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Matching:
    """A gradient to explain."""

    network: RatesNetwork
    # weights, target: float32 array, shape (parameters,): where the gradient was taken, and the
    # mean gradient of the batch
    weights: Floats
    target: Floats
    start: float  # added to the network's output
    # float32 array, shape (parameters,), or None: None: the target is the gradient. Else it is
    # Adam's first step along it, ``g / (|g| + 1e-8)``, little more than signs, to which ``g / (|g|
    # + width)`` is compared.
    width: Floats | None = None
    noise: float = 0.0  # standard deviation of a defense's noise on every coordinate
    # bool array, shape (parameters,): coordinates that were sent, where others were not; else None
    shown: NDArray[np.bool_] | None = None
    changed: bool = False  # whether a defense changes what is sent

    @cached_property
    def scale(self) -> Floats:
        """What residuals are multiplied by, float32, (parameters,): each part counts alike."""
        out = np.zeros_like(self.target)
        for part, of in zip(self.network.split(self.target), self.network.split(out), strict=True):
            size = float(np.linalg.norm(part))
            of[...] = 1 / size if size > 0 else 0
        if self.shown is not None:
            out *= self.shown
        return out / np.float32(2)

    def slopes(self, V: Floats, y: Floats) -> Floats:
        """Return the derivatives of the rows' losses by their outputs, shape (n,)."""
        z = self.network.outputs(self.weights, V) + self.start
        return np.asarray(expit(z) - y, dtype=np.float32)

    def of(self, V: Floats, y: NDArray[Any]) -> Floats:
        """Return the mean gradient of rows, float32, shape (parameters,)."""
        slope = self.slopes(V, y.astype(np.float32)) / np.float32(len(V))
        return np.asarray(self.network.gradient(self.weights, V, slope), dtype=np.float32)

    def _met(
        self, g: Floats, target: Floats, scale: Floats, width: Floats | None
    ) -> tuple[Floats, Floats]:
        """Return residuals of a part of gradients and the derivative of their squares, (R, ...)."""
        if width is None:
            off = (g - target) * scale
            return off, 2 * off * scale
        below = np.abs(g) + width
        off = (g / below - target) * scale
        return off, 2 * off * scale * width / below**2

    def __call__(self, V: Floats, Y: Floats) -> tuple[Floats, Floats]:
        """Return losses, (R,), and their derivatives by the outputs of the trees, as V.

        `V`: float32 array, shape (R, B, K, M)
        `Y`: float32 array, shape (R, B)

        Notes
        -----
        The loss is the squared residual r of the gradient g. Its derivative is that of <2 r, g>,
        and <r, g> is the sum over the rows of slope times the tangent of the output along r: one
        tangent forward pass and its derivative, no second one by autograd.
        """
        R, B, K, M = V.shape
        net, w = self.network, self.network.split(self.weights)
        C = net.channels
        flat = V.reshape(R * B * K, M)
        H = (flat @ w.rates.T + w.shift).reshape(R, B, K, C)
        on = (H > 0).astype(np.float32)
        A = H * on
        z = A.reshape(R, B, K * C) @ w.weight.T.reshape(-1) + w.bias + np.float32(self.start)
        p = expit(z)
        slope = (p - Y) / np.float32(B)
        back = on * w.weight.T * slope[:, :, None, None]
        g_rates = np.matmul(back.reshape(R, B * K, C).transpose(0, 2, 1), V.reshape(R, B * K, M))
        g = Parts(
            g_rates, back.sum(axis=(1, 2)),
            np.einsum("rb,rbkc->rck", slope, A), slope.sum(axis=1, keepdims=True),
        )  # fmt: skip
        widths = (None,) * 4 if self.width is None else net.split(self.width)
        told = (net.split(self.target), net.split(self.scale), widths)
        met = [self._met(*part) for part in zip(g, *told, strict=True)]
        loss = sum((off.reshape(R, -1) ** 2).sum(axis=1) for off, _ in met)
        r = Parts(*(pull for _, pull in met))
        along = np.matmul(V.reshape(R, B * K, M), r.rates.transpose(0, 2, 1)).reshape(R, B, K, C)
        along += r.shift[:, None, None, :]
        weight = r.weight.transpose(0, 2, 1)[:, None]
        tangent = (A * weight + along * on * w.weight.T).sum(axis=(2, 3)) + r.bias
        bent = (p * (1 - p) / np.float32(B) * tangent)[:, :, None, None]
        by_H = on * (bent * w.weight.T + slope[:, :, None, None] * weight)
        out = (by_H.reshape(-1, C) @ w.rates).reshape(R, B * K, M)
        out += np.matmul(back.reshape(R, B * K, C), r.rates)
        return np.asarray(loss), out.reshape(V.shape)
