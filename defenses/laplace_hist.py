"""Laplace noise on the histograms that clients send."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.defense import Context, Declared, Defense
from fedtrees.core.errors import UsageError, check_positive
from fedtrees.core.guarantee import Guarantee, PureDP
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.messages.boosting import Histogram, LabelSums, ValidationLoss
from fedtrees.messages.cuts import (
    SUMMARIES,
    FeatureRanges,
    FeatureSketch,
    GridCounts,
    exact_summaries,
)
from fedtrees.privacy.accounting import compose_pure, histogram_sensitivity
from fedtrees.privacy.mechanisms import discrete_laplace
from fedtrees.trees.boosted.fixed_point import LOSS_BITS
from fedtrees.trees.boosted.losses import LOSS_BOUND, Objective, clipped_bounds, objective_of

_EXEMPT = (
    "not covered by the published rule and exact (a sketch is the column itself); `spent` counts "
    "it as unprotected"
)


@register.defense("laplace-hist")
@dataclass(frozen=True)
class LaplaceHistogram(Defense):
    """Add discrete Laplace noise to every gradient and hessian sum, at each client.

    The published rule (Di Gennaro et al. 2025, Appendix B.1.1) clips g to `clip` and h to
    2 `clip` and adds Laplace(2 clip / epsilon) to each histogram element; epsilon then speaks
    of *one element of one histogram*. What the whole run costs one row is composed from the
    ledger: every tree, level and feature adds up. With ``calibrated=true`` the noise is scaled
    so that this sum is `epsilon` instead.

    Parameters
    ----------
    epsilon : float
        In nats: per histogram element, or of the whole run if calibrated.
    clip : float
        Bound R on a row's absolute gradient; its hessian is bounded by 2R, and both by what the
        loss allows (1 and 1/4 for two classes).
    calibrated : bool
        Scale the noise to the composed budget.
    """

    epsilon: float
    clip: float = 1.0
    calibrated: bool = False

    at = frozenset({"client"})
    protects = frozenset({Reveal.LABELS, Reveal.FEATURES, Reveal.COUNTS})
    guards = (Histogram, ValidationLoss)
    exempts = dict.fromkeys((FeatureSketch, FeatureRanges, GridCounts, LabelSums), _EXEMPT)
    requires = (Histogram,)
    bounds_hessian = True

    def __post_init__(self) -> None:
        for name in ("epsilon", "clip"):
            check_positive(name, getattr(self, name))
        if not isinstance(self.calibrated, bool):
            raise UsageError(f"calibrated must be true or false; got {self.calibrated!r}")

    @cached_property
    def gradient_clip(self) -> float:  # type: ignore[override]
        """The clip each client applies row by row."""
        return float(self.clip)

    def claim(self) -> Guarantee:
        """Return pure DP, per histogram element as published or per record if calibrated."""
        unit = "record" if self.calibrated else "histogram"
        return PureDP(epsilon=float(self.epsilon), unit=unit)

    def scale(self, schema: Schema, parameters: Mapping[str, Any]) -> float:
        """Return the Laplace scale, in units of the gradient, from what is public."""
        if not self.calibrated:
            return 2.0 * self.clip / self.epsilon
        trees = parameters["trees"] * _objective(schema, parameters).n_outputs
        return float(trees * self.tree_sensitivity(schema, parameters) / self.epsilon)

    def tree_sensitivity(self, schema: Schema, parameters: Mapping[str, Any]) -> float:
        """Return the L1 sensitivity of one tree: `max_depth` levels of histograms, a root total.

        Grown best node first, a row still meets one node per level.
        """
        bounds = clipped_bounds(_objective(schema, parameters), self.clip)
        return histogram_sensitivity(_histograms(schema, parameters), *bounds)

    def declares(self, schema: Schema, parameters: Mapping[str, Any]) -> Declared:
        """Publish the variance of the noise."""
        return Declared(noise_variance=2.0 * self.scale(schema, parameters) ** 2)

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Add noise to sums and enter the cost."""
        if isinstance(message, ValidationLoss):
            return self._noisy_loss(message, ctx)
        assert isinstance(message, Histogram)
        scale = self.scale(ctx.schema, ctx.parameters)
        rng = ctx.rng("histogram-noise")
        sums = message.sums + _noise(scale, message.bits, message.sums.shape, rng)
        totals = message.totals
        if totals.size:
            totals = totals + _noise(scale, message.bits, totals.shape, rng)
            # A tree is paid for in full at its root: how deep it grows depends on the data.
            for bound in clipped_bounds(_objective(ctx.schema, ctx.parameters), self.clip):
                count = _histograms(ctx.schema, ctx.parameters)
                ctx.spend("laplace", l1=bound, scale=scale, count=count, what="Histogram")
        return replace(message, sums=sums, totals=totals)

    def _noisy_loss(self, message: ValidationLoss, ctx: Context) -> ValidationLoss:
        """Add noise to the loss of held-out rows and to their number."""
        l1 = LOSS_BOUND + 1.0
        rounds = ctx.parameters["trees"] if self.calibrated else 1
        scale = rounds * l1 / self.epsilon
        noise = discrete_laplace(float(np.ldexp(scale, LOSS_BITS)), 2, ctx.rng("loss-noise"))
        ctx.spend("laplace", l1=l1, scale=scale, what="ValidationLoss")
        return replace(message, sums=message.sums + np.ldexp(noise.astype(float), -LOSS_BITS))

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose the ledger, noisy summaries for cut points included.

        Infinite where such summaries or the base score crossed exactly.
        """
        own = [e for e in transcript.events if e.what == "Histogram"]
        held_out = [e for e in transcript.events if e.what == "ValidationLoss"]
        # A row is trained on or held out, by a draw that ignores its values: it pays one of them.
        cuts = [e for e in transcript.events if e.what in {t.__name__ for t in SUMMARIES}]
        composed = max(compose_pure([*own, *cuts]), compose_pure([*held_out, *cuts]))
        unprotected = exact_releases(transcript)
        if not own:
            return PureDP(epsilon=math.inf, unprotected="everything")
        if unprotected:
            return PureDP(math.inf, histograms=composed, unprotected="+".join(unprotected))
        return PureDP(epsilon=composed)


def exact_releases(transcript: Transcript) -> list[str]:
    """Name what crossed before the first tree and is the data's own: cut points, base score."""
    cuts = ["cuts"] if exact_summaries(transcript) else []
    exact_start = any(isinstance(d.message, LabelSums) for d in transcript)
    return cuts + (["base-score"] if exact_start else [])


def _objective(schema: Schema, parameters: Mapping[str, Any]) -> Objective:
    return objective_of(parameters.get("objective"), schema.classes)


def _histograms(schema: Schema, parameters: Mapping[str, Any]) -> int:
    """Return how many histograms of a tree a row is in: every level's and feature's, a total."""
    return int(parameters["max_depth"] * len(schema.features) + 1)


def _noise(
    scale: float, bits: tuple[int, int], shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw noise for (gradient, hessian) pairs in fixed point, int64."""
    grids = np.ldexp(scale, bits)
    return np.stack([discrete_laplace(g, shape[:-1], rng) for g in grids], axis=-1)
