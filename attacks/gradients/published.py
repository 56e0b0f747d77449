"""Gradient inversion as published, with torch: TabLeak, cosine matching, and DLG."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.gradients.attack import TabLeak
from fedtrees.attacks.gradients.exact import restored_counts
from fedtrees.attacks.gradients.inversion import Inversion, mean_prediction
from fedtrees.attacks.gradients.observed import BatchGradient
from fedtrees.attacks.gradients.search import codes_of
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.neural.torch_module import torch_module

#: Size and number of Adam's steps on the sign of the gradient (Vero et al. 2023, code).
_RATE, _STEPS = 0.06, 1500


@dataclass(frozen=True)
class PublishedInversion(TabLeak):
    """Base of the published attacks, which differ from `tableak` in the inversion of a gradient."""

    is_reference: ClassVar[bool] = True
    by_algebra: ClassVar[bool] = False
    relaxed: ClassVar[bool] = True
    cosine: ClassVar[bool] = True
    ensemble: ClassVar[int] = 30

    def invert_gradient(
        self, item: BatchGradient, likely: Table | None, rng: np.random.Generator
    ) -> Inversion:
        """Return the rows that the published algorithm finds. Likely rows are not used."""
        runs, steps = self.restarts or self.ensemble, self.steps or _STEPS
        return invert_as_published(item, None, rng, (self.relaxed, self.cosine, runs, steps))


@register.attack("tableak-published")
@dataclass(frozen=True)
class PublishedTabLeak(PublishedInversion):
    """TabLeak (Vero et al. 2023) as in the authors' code: 30 restarts of 1500 steps, pooled.

    The search uses a softmax of the destandardised columns, sigmoids that keep numbers within their
    bounds (in the code, not in the paper), and Adam on the sign of the gradient of 1 - cos. The
    best restart is the one whose projected rows have the smallest loss. All restarts are matched to
    it and pooled by the median.
    """


@register.attack("cosine")
@dataclass(frozen=True)
class CosineMatching(PublishedInversion):
    """Inverting gradients (Geiping et al. 2020) for tables: one restart, no softmax, no pooling."""

    relaxed: ClassVar[bool] = False
    ensemble: ClassVar[int] = 1


@register.attack("dlg")
@dataclass(frozen=True)
class DeepLeakage(PublishedInversion):
    """Deep leakage from gradients (Zhu et al. 2019): squared distance, one restart."""

    relaxed: ClassVar[bool] = False
    cosine: ClassVar[bool] = False
    ensemble: ClassVar[int] = 1


def invert_as_published(
    batch: BatchGradient,
    labels: NDArray[np.int64] | None,
    rng: np.random.Generator,
    settings: tuple[bool, bool, int, int],
) -> Inversion:
    """Return the rows that a published algorithm finds.

    Parameters
    ----------
    batch : BatchGradient
        The observed gradient.
    labels : int64 array, shape (B,), or None
        Labels of the rows. If they are not known, they are inferred from the last layer.
    rng : numpy.random.Generator
        Starts of the search.
    settings : tuple (bool, bool, int, int)
        Whether to use softmax and bounds, whether to use the cosine instead of the squared
        distance, number of restarts, and number of steps.
    """
    relaxed, cosine, restarts, steps = settings
    torch, encoding = torch_module(), batch.encoding
    if labels is None:
        counts = restored_counts(batch.target[-1][1], mean_prediction(batch, rng), batch.rows)
        labels = np.repeat(np.arange(len(counts)), counts)
    objective = _Objective(batch, labels, cosine)
    ends, losses = [], []
    for _ in range(restarts):
        start = rng.uniform(-1, 1, (len(labels), len(encoding))).astype(np.float32)
        x = torch.tensor(start, requires_grad=True)
        adam = torch.optim.Adam([x], lr=_RATE)
        for _ in range(steps):
            adam.zero_grad()
            inputs = objective.relax(x) if relaxed else x
            objective.loss(inputs, create_graph=True).backward(inputs=[x])
            # as in the authors' code
            x.grad.sign_()
            adam.step()
        with torch.no_grad():
            ends.append((objective.relax(x) if relaxed else x).numpy())
        losses.append(float(objective.loss(torch.tensor(objective.project(ends[-1]))).detach()))
    best = int(np.argmin(losses))
    matched_ends = [ends[best]] + [
        _align_rows(ends[best], e) for k, e in enumerate(ends) if k != best
    ]
    middle = np.median([objective.scores(e) for e in matched_ends], axis=0)
    numbers = np.median([e[:, encoding.continuous] for e in matched_ends], axis=0)
    numbers = np.clip(numbers, *batch.bounds)
    table = Table(encoding.decode(codes_of(middle, encoding), numbers), labels)
    return Inversion(table, np.ones((len(labels), len(encoding.coded))), losses[best])


def _align_rows(best: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    _, order = linear_sum_assignment(((best[:, None] - other[None]) ** 2).sum(axis=2))
    return np.asarray(other[order])


class _Objective:
    """Gradient distance in torch, and the conversion of columns to rows as in the authors' code."""

    def __init__(self, batch: BatchGradient, labels: NDArray[np.int64], cosine: bool) -> None:
        torch, encoding = torch_module(), batch.encoding
        self.torch, self.encoding, self.cosine = torch, encoding, cosine
        parts = [p for layer in batch.network for p in layer]
        self.parameters = [torch.tensor(p, requires_grad=True) for p in parts]
        self.target = [torch.tensor(p) for layer in batch.target for p in layer]
        self.labels = torch.tensor(labels)
        self.mean, self.std = torch.tensor(encoding.mean), torch.tensor(encoding.std)
        self.low, self.high = (torch.tensor(end) for end in batch.bounds)

    def relax(self, x: Any) -> Any:
        """Return inputs: softmax of destandardised columns, numbers between their bounds."""
        torch, e = self.torch, self.encoding
        raw = x * self.std + self.mean
        parts = [None] * len(e)
        for g in e.groups:
            share = torch.softmax(raw[:, g], dim=1)
            for j, column in enumerate(g):
                parts[column] = (share[:, j] - self.mean[column]) / self.std[column]
        for j, column in enumerate(e.continuous):
            low, high = self.low[j], self.high[j]
            parts[column] = low + (high - low) * torch.sigmoid(x[:, column])
        return torch.stack(parts, dim=1)

    def loss(self, inputs: Any, create_graph: bool = False) -> Any:
        """Return 1 - cos, or the squared distance, between the gradient and the observed one."""
        torch, A, parameters = self.torch, inputs, self.parameters
        for k in range(0, len(parameters), 2):
            A = torch.nn.functional.linear(A, parameters[k], parameters[k + 1])
            A = torch.relu(A) if k < len(parameters) - 2 else A
        rows = torch.nn.functional.cross_entropy(A, self.labels)
        g = torch.autograd.grad(rows, parameters, create_graph=create_graph)
        pairs = list(zip(g, self.target, strict=True))
        if not self.cosine:
            return sum(((a - b) ** 2).sum() for a, b in pairs)
        inner = sum((a * b).sum() for a, b in pairs)
        sizes = [sum((a**2).sum() for a in parts) for parts in (g, self.target)]
        return 1 - inner / torch.sqrt(sizes[0] * sizes[1])

    def scores(self, end: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return destandardised columns. The largest of a group is its category."""
        return end * self.encoding.std + self.encoding.mean

    def project(self, end: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the nearest inputs that a row can have."""
        e, codes = self.encoding, codes_of(self.scores(end), self.encoding)
        return e.encode(e.decode(codes, end[:, e.continuous]))
