"""Observed gradients of FedXGBllr's network, and their distance from those of guessed rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedtrees.attacks.tree_network_inversion.soft_trees import SoftTrees
from fedtrees.core.channel import ConditionalOmission
from fedtrees.core.view import View
from fedtrees.messages.horizontal import ClientModels
from fedtrees.messages.models import unpack
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights, start_of
from fedtrees.neural.perceptron import Parts, RatesNetwork
from fedtrees.trees.boosted.losses import objective_of

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Matching:
    """A gradient to match, and the network at which it was computed.

    Attributes
    ----------
    trees : SoftTrees
        Trees of all clients.
    network : RatesNetwork
        Network over the outputs of the trees.
    weights : float32 array, shape (parameters,)
        Weights at which the gradient was computed.
    target : float32 array, shape (parameters,)
        Observed mean gradient of the batch.
    start : float
        Constant that is added to the output of the network, in log-odds.
    width : float32 array, shape (parameters,), or None
        None if the target is a gradient. Otherwise the target is Adam's first step ``g / (|g| +
        1e-8)``, which is little more than a sign. It is compared with the smooth function ``g /
        (|g| + width)``.
    noise : float
        Standard deviation of a defense's noise on every coordinate.
    shown : bool array, shape (parameters,), or None
        Coordinates that were sent if a defense sends only some of them.
    changed : bool
        Whether a defense changes the gradient.
    """

    trees: SoftTrees
    network: RatesNetwork
    weights: Floats
    target: Floats
    start: float
    width: Floats | None = None
    noise: float = 0.0
    shown: NDArray[np.bool_] | None = None
    changed: bool = False

    @cached_property
    def scale(self) -> Floats:
        """Weight of each residual, float32, (parameters,). All layers have equal influence."""
        out = np.zeros_like(self.target)
        for part, scale_of_part in zip(
            self.network.split(self.target), self.network.split(out), strict=True
        ):
            size = float(np.linalg.norm(part))
            scale_of_part[...] = 1 / size if size > 0 else 0
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

    def of_cells(self, cells: NDArray[np.int32], y: NDArray[Any]) -> Floats:
        """Return the mean gradient of rows in the given cells, float32, shape (parameters,)."""
        return self.of(self.trees.outputs(self.trees.leaves(cells)), y)

    def _met(
        self, g: Floats, target: Floats, scale: Floats, width: Floats | None
    ) -> tuple[Floats, Floats]:
        """Return the residuals of one layer and the derivative of their squares, (R, ...)."""
        if width is None:
            residual = (g - target) * scale
            return residual, 2 * residual * scale
        # Derivative of g / (|g| + width) is width / (|g| + width)^2.
        below = np.abs(g) + width
        residual = (g / below - target) * scale
        return residual, 2 * residual * scale * width / below**2

    def __call__(self, V: Floats, Y: Floats) -> tuple[Floats, Floats]:
        """Return losses, (R,), and their derivatives by the outputs of the trees, shaped as V.

        Parameters
        ----------
        V : float32 array, shape (R, B, K, M)
            Outputs of the M trees of each of K clients for R batches of B rows.
        Y : float32 array, shape (R, B)
            Labels.

        Notes
        -----
        The loss is the squared residual r of the gradient g. Its derivative equals that of <2 r,
        g>, and <r, g> is the sum over the rows of the slope times the tangent of the output along
        r. One forward pass of the tangent and its derivative therefore suffice, without a second
        backward pass.
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
        # Backward pass: derivative of the loss by the hidden units.
        back = on * w.weight.T * slope[:, :, None, None]
        g_rates = np.matmul(back.reshape(R, B * K, C).transpose(0, 2, 1), V.reshape(R, B * K, M))
        g = Parts(
            g_rates, back.sum(axis=(1, 2)),
            np.einsum("rb,rbkc->rck", slope, A), slope.sum(axis=1, keepdims=True),
        )  # fmt: skip
        widths = (None,) * 4 if self.width is None else net.split(self.width)
        compared_parts = (net.split(self.target), net.split(self.scale), widths)
        residuals = [self._met(*part) for part in zip(g, *compared_parts, strict=True)]
        loss = sum((residual.reshape(R, -1) ** 2).sum(axis=1) for residual, _ in residuals)
        r = Parts(*(pull for _, pull in residuals))
        tangent_hidden = np.matmul(V.reshape(R, B * K, M), r.rates.transpose(0, 2, 1)).reshape(
            R, B, K, C
        )
        tangent_hidden += r.shift[:, None, None, :]
        weight = r.weight.transpose(0, 2, 1)[:, None]
        # Forward pass of the tangent along the residual, and then its derivative by the inputs.
        tangent = (A * weight + tangent_hidden * on * w.weight.T).sum(axis=(2, 3)) + r.bias
        curvature = (p * (1 - p) / np.float32(B) * tangent)[:, :, None, None]
        by_H = on * (curvature * w.weight.T + slope[:, :, None, None] * weight)
        out = (by_H.reshape(-1, C) @ w.rates).reshape(R, B * K, M)
        out += np.matmul(back.reshape(R, B * K, C), r.rates)
        return np.asarray(loss), out.reshape(V.shape)


@dataclass(frozen=True, eq=False)
class SeenBatch:
    """Observed mean gradient of a batch, or the first Adam step along it.

    Attributes
    ----------
    owner : tuple of str
        Clients whose rows are in the batch. Several if the gradient is a sum over clients.
    round : int
        Round of the update.
    rows : int
        Number of rows in the batch.
    weights : float32 array, shape (parameters,)
        Weights at which the gradient was computed.
    gradient : float32 array, shape (parameters,)
        Mean gradient, or the negative step divided by the learning rate.
    signs : bool
        Whether it is an Adam step.
    """

    owner: tuple[str, ...]
    round: int
    rows: int
    weights: NDArray[np.float32]
    gradient: NDArray[np.float32]
    signs: bool

    def matching(self, models: ClientModels, view: View) -> Matching:
        """Return the loss that compares guessed rows with this gradient."""
        network = RatesNetwork.of(len(models.trees), int(models.trees[0]), len(self.weights))
        objective = objective_of(view.parameters["objective"], view.schema.classes)
        start = float(start_of(models, objective))
        width = np.ones_like(self.gradient) if self.signs else None
        law, noise = view.channel(NetworkUpdate, "update"), 0.0
        if law is not None:
            # The gradient is a mean over clients, so that its noise variance is divided by their
            # number.
            noise = float(
                np.sqrt(law.posterior_moments(np.zeros((1, 1)))[1][0, 0] / len(self.owner))
            )
        changes = view.changes(NetworkUpdate, "update")
        sparsified = (
            any(isinstance(c, ConditionalOmission) for c in changes) and len(self.owner) == 1
        )
        shown = self.gradient != 0 if sparsified else None
        changed = bool(changes or view.changes("example-gradients", "rows"))
        trees = soft_trees(models, view)
        return Matching(
            trees, network, self.weights, self.gradient, start, width, noise, shown, changed
        )


def models_of(view: View) -> ClientModels | None:
    """Return the trees of all clients, None if no network is trained on their outputs."""
    if "sends" not in view.parameters:
        return None
    return next((m for _, m in view.messages(ClientModels)), None)


def soft_trees(models: ClientModels, view: View) -> SoftTrees:
    """Return the trees of all clients in differentiable form."""
    return SoftTrees(tuple(unpack(models)), len(models.trees), len(view.schema.features))


def seen_batches(view: View) -> Iterator[SeenBatch]:
    """Yield the gradients, or single Adam steps, of rows of other clients in the order of rounds.

    Sums of the Adam steps of several clients are skipped, because they are not a function of one
    gradient.
    """
    p, signs = view.parameters, view.parameters["sends"] == "update"
    sent = {m.round: m.weights for _, m in view.messages(NetworkWeights)}
    clients = [n for n, role in view.roles.items() if role == "client"]
    for item, update in view.messages(NetworkUpdate):
        rows = int(update.rows[0])
        if not rows or (item.sender in view.principals and not item.opened):
            continue
        owner = tuple(n for n in clients if item.opened or n == item.sender)
        mean = update.update / np.float32(rows)
        if signs:
            # A sum of Adam steps does not determine a gradient.
            if item.opened:
                continue
            mean, rows = mean / -np.float32(p["lr"]), min(p["batch"] or rows, rows)
        yield SeenBatch(owner, update.round, rows, sent[update.round], mean, signs)
