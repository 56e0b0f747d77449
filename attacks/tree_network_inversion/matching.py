"""Observed gradients of FedXGBllr's network, and their distance from those of guessed rows.

`SoftTrees` sends rows through soft splits, so that gradients reach the features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from fedtrees.core.channel import ConditionalOmission
from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.core.view import View
from fedtrees.messages.horizontal import ClientModels
from fedtrees.messages.models import unpack
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights, start_of
from fedtrees.neural.perceptron import Parts, RatesNetwork
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import objective_of
from fedtrees.trees.routing import Routes

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class SoftTrees:
    """Trees on a scale on which a feature value is replaced by its rank among the thresholds.

    The thresholds of a feature are placed at the quantiles of a standard normal distribution. All
    features therefore have the same scale whatever their units, and the ranges of the victim are
    not needed. For example, the single threshold of a feature is at 0, the median.

    Attributes
    ----------
    trees : tuple of Tree
        Trees of all clients, concatenated.
    models : int
        Number of clients, each with the same number of trees.
    d : int
        Number of features.
    """

    trees: tuple[Tree, ...]
    models: int
    d: int

    @cached_property
    def routes(self) -> Routes:
        """All trees in concatenated arrays."""
        return Routes.of(self.trees)

    @cached_property
    def value(self) -> Floats:
        """Outputs of all nodes, float32, shape (nodes,)."""
        return np.concatenate([t.value for t in self.trees]).astype(np.float32)

    @cached_property
    def edges(self) -> list[Floats]:
        """Thresholds of every feature, ascending."""
        r = self.routes
        return [np.unique(r.threshold[r.feature == f]) for f in range(self.d)]

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        """Number of cells into which thresholds divide each feature, int64, shape (d,)."""
        return np.array([len(e) + 1 for e in self.edges])

    @cached_property
    def edge_of(self) -> NDArray[np.int32]:
        """Rank of each node's threshold in its feature, int32, shape (nodes,), 0 at leaves.

        A row goes left if and only if the number of its cell is at most this rank.
        """
        r = self.routes
        rank = np.zeros(len(r.feature), dtype=np.int32)
        for f, edges in enumerate(self.edges):
            at = r.feature == f
            rank[at] = np.searchsorted(edges, r.threshold[at])
        return rank

    @cached_property
    def position(self) -> Floats:
        """Position of each node's split on the standard normal scale, float32, shape (nodes,)."""
        r = self.routes
        share = (self.edge_of + 1) / self.widths[np.maximum(r.feature, 0)]
        return np.where(r.feature < 0, 0, ndtri(np.minimum(share, 0.999999))).astype(np.float32)

    def cells(self, u: Floats) -> NDArray[np.int32]:
        """Return the cell of every coordinate, int32, for any shape (..., d)."""
        out = np.empty(u.shape, dtype=np.int32)
        for f, width in enumerate(self.widths):
            out[..., f] = np.searchsorted(ndtri(np.arange(1, width) / width), u[..., f])
        return out

    def cells_of(self, X: Floats) -> NDArray[np.int32]:
        """Return the cell of every value, int32, shape (n, d). Missing values are in cell 0."""
        cells = [np.searchsorted(e, X[:, f], side="right") for f, e in enumerate(self.edges)]
        return np.where(np.isnan(X), 0, np.stack(cells, axis=1)).astype(np.int32)

    def middle(self, cells: NDArray[np.int32]) -> Floats:
        """Return the coordinates of the centres of cells, float32."""
        return ndtri((cells + 0.5) / self.widths).astype(np.float32)

    def leaves(self, cells: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, like `Routes.apply`, int32, shape (n, T)."""
        out = np.empty((len(cells), len(self.trees)), dtype=np.int32)
        r = self.routes
        _hard(cells, r.start, r.feature, self.edge_of, r.left, r.right, out)
        return out

    def boxes(self, cells: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and the last cell of every feature, int64, shape (n, d) each.

        If one feature of a row changes within this range, the row stays in its leaf of every tree.
        """
        low, high = np.empty(cells.shape, np.int64), np.empty(cells.shape, np.int64)
        for i, row in enumerate(cells):
            for f, width in enumerate(self.widths):
                tried = np.repeat(row[None], width, axis=0)
                tried[:, f] = np.arange(width)
                changes = (np.diff(self.leaves(tried), axis=0) != 0).any(axis=1)
                # Cells with equal leaves form runs. The box is the run that contains the row's
                # cell.
                run = np.concatenate([[0], np.cumsum(changes)])
                same = np.flatnonzero(run == run[row[f]])
                low[i, f], high[i, f] = same[0], same[-1]
        return low, high

    def outputs(self, leaves: NDArray[np.int32]) -> Floats:
        """Return the values of leaves, float32, shape (n, models, trees per model)."""
        return self.value[self.routes.start + leaves].reshape(len(leaves), self.models, -1)

    def soft(self, u: Floats, tau: float) -> tuple[Floats, Floats]:
        """Return the outputs of rows that are sent through soft splits.

        Parameters
        ----------
        u : float32 array, shape (n, d)
            Coordinates of the rows.
        tau : float
            Width of the logistic function at each split. At 0 it would be a step.

        Returns
        -------
        outputs : float32 array, shape (n, models, trees per model)
        right : float32 array, shape (n, nodes)
            Share that goes right at each node, which `backpropagate` needs.
        """
        right = np.empty((len(u), len(self.value)), dtype=np.float32)
        out = np.empty((len(u), len(self.trees)), dtype=np.float32)
        r = self.routes
        where = (r.start, r.feature, self.position, r.left, r.right, self.value)
        _soft(u, np.float32(tau), *where, right, out)
        return out.reshape(len(u), self.models, -1), right

    def backpropagate(self, right: Floats, slope: Floats, tau: float) -> Floats:
        """Return the derivative by the coordinates, float32, shape (n, d).

        Parameters
        ----------
        right : float32 array, shape (n, nodes)
            Shares as returned by `soft`.
        slope : float32 array, shape (n, models, trees per model)
            Derivative by the outputs of `soft`.
        tau : float
            Width of the logistic function, as in `soft`.
        """
        out = np.zeros((len(right), self.d), dtype=np.float32)
        r = self.routes
        where = (r.start, r.feature, r.left, r.right, self.value)
        flat = np.ascontiguousarray(slope.reshape(len(right), -1), dtype=np.float32)
        _pull(right, flat, np.float32(tau), *where, out)
        return out


@kernel
def _hard(cells, start, feature, edge, left, right, out) -> Any:  # type: ignore[no-untyped-def]
    """Write the leaf of every row in every tree to `out`."""
    for i in range(cells.shape[0]):
        for t in range(start.shape[0]):
            node = 0
            k = start[t]
            while feature[k] >= 0:
                node = left[k] if cells[i, feature[k]] <= edge[k] else right[k]
                k = start[t] + node
            out[i, t] = node


@inner_kernel
def _mix_outputs(share, first, last, feature, left, right, value, below) -> Any:  # type: ignore[no-untyped-def]
    """Write the expected output below each node of a tree to `below`, given the shares of a row."""
    # Children have larger numbers than their parents, so that a backward pass finds them computed.
    for k in range(last - 1, first - 1, -1):
        if feature[k] < 0:
            below[k] = value[k]
        else:
            a, b = below[first + left[k]], below[first + right[k]]
            below[k] = a + share[k] * (b - a)


@kernel
def _soft(u, tau, start, feature, position, left, right, value, share, out) -> Any:  # type: ignore[no-untyped-def]
    """Write the shares that go right to `share`, and the expected outputs of trees to `out`."""
    one = np.float32(1)
    n = feature.shape[0]
    below = np.empty(n, dtype=np.float32)
    for i in range(u.shape[0]):
        for t in range(start.shape[0]):
            first = start[t]
            last = start[t + 1] if t + 1 < start.shape[0] else n
            for k in range(first, last):
                if feature[k] >= 0:
                    share[i, k] = one / (one + np.exp((position[k] - u[i, feature[k]]) / tau))
            _mix_outputs(share[i], first, last, feature, left, right, value, below)
            out[i, t] = below[first]


@kernel
def _pull(share, slope, tau, start, feature, left, right, value, out) -> Any:  # type: ignore[no-untyped-def]
    """Write the derivative by coordinates to `out` by backpropagation through the soft splits."""
    one = np.float32(1)
    n = feature.shape[0]
    below, reach = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.float32)
    for i in range(share.shape[0]):
        for t in range(start.shape[0]):
            first = start[t]
            last = start[t + 1] if t + 1 < start.shape[0] else n
            _mix_outputs(share[i], first, last, feature, left, right, value, below)
            # Backpropagation from the root to the leaves: `reach` is the derivative times the path
            # probability.
            reach[first] = slope[i, t]
            for k in range(first, last):
                if feature[k] < 0:
                    continue
                a, b, s = first + left[k], first + right[k], share[i, k]
                reach[a], reach[b] = reach[k] * (one - s), reach[k] * s
                out[i, feature[k]] += reach[k] * s * (one - s) / tau * (below[b] - below[a])


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
