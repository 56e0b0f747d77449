"""Laplace noise on each row's gradient, and none on counts: FedTree's noise as it was attacked."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, Removal
from fedtrees.core.defense import Context, Defense, Place, Stage
from fedtrees.core.errors import check_positive
from fedtrees.core.guarantee import Guarantee, PureDP
from fedtrees.core.messages import Reveal
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.defenses.laplace_hist import exact_releases
from fedtrees.messages.boosting import Histogram, LabelSums
from fedtrees.messages.cuts import FeatureRanges, FeatureSketch, GridCounts
from fedtrees.privacy.accounting import composed
from fedtrees.privacy.noise import Laplace
from fedtrees.trees.boosted.losses import clipped_bounds, objective_of

_EXEMPT = (
    "not covered by the published rule and exact (a sketch is the column itself); `spent` counts "
    "it as unprotected"
)

# Half of the budget of a tree is for its leaves; the other half is for choosing splits by the
# exponential mechanism, which the code leaves out.
_HALVES = 2.0


@register.defense("laplace-gradient")
@dataclass(frozen=True)
class LaplaceGradient(Defense):
    """Add discrete Laplace noise to each row's gradient, once a tree; make each hessian 1.

    FedTree (Li et al. 2023) as Di Gennaro et al. (2025) extended it to horizontal data: before a
    tree, every row's g is clipped to [-R, R] and gets Laplace(2R / e) with e = epsilon / 2T, T the
    number of trees; the same noisy g then enters every sum of the tree. We follow their code: their
    paper (Appendix B.1.1) prints noise on each histogram element, of g and h alike, which is
    `laplace-hist`. Hessians get no noise. They are the constant 1, so that a leaf is
    ``-eta G / (N + lambda)``, and every N that crosses is exact: what is left is label DP of
    epsilon / 4 (two classes, R = 1, a given base score), for a label moves its g by 1 in T trees.
    `laplace-hist` with ``calibrated=true`` protects rows.

    `epsilon`: In nats, of the whole run, as published.
    `clip`: Bound R on a row's absolute gradient.
    """

    epsilon: float
    clip: float = 1.0

    acts_through = frozenset({"rows"})
    at = frozenset({"client"})
    protects = frozenset({Reveal.LABELS, Reveal.FEATURES, Reveal.COUNTS})
    guards = (Histogram,)
    exempts = dict.fromkeys((FeatureSketch, FeatureRanges, GridCounts, LabelSums), _EXEMPT)
    acts_on = frozenset({"gradients"})
    unit_hessian = True
    tries = {"epsilon": (1.0, 8.0, 64.0)}

    def __post_init__(self) -> None:
        for name in ("epsilon", "clip"):
            check_positive(name, getattr(self, name))

    @cached_property
    def gradient_clip(self) -> float:  # type: ignore[override]
        """The clip each client applies row by row."""
        return float(self.clip)

    def claim(self) -> Guarantee:
        """Return pure DP of the whole run, as published."""
        return PureDP(epsilon=float(self.epsilon))

    def scale(self, schema: Schema, parameters: Mapping[str, Any]) -> float:
        """Return the Laplace scale, in units of the gradient, from what is public."""
        outputs = objective_of(parameters.get("objective"), schema.classes).n_outputs
        per_tree = self.epsilon / (_HALVES * parameters["trees"] * outputs)
        return float(2.0 * self.clip / per_tree)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State the noise on a row, one draw in all sums of a tree, and that hessians are 1."""
        law = Laplace(self.scale(schema, parameters))
        return {("gradients", "g"): law, ("gradients", "h"): Removal(1.0)}

    def rows(self, stage: Stage, values: NDArray[Any], ctx: Context) -> NDArray[Any]:
        """Add noise to g, make h 1, and enter the cost."""
        if stage.kind != "gradients":
            return values
        units, bits = values, stage.bits
        scale = self.scale(ctx.schema, ctx.parameters)
        law = Laplace(scale).within(np.ldexp(1.0, bits[0]))
        g = law.send(units[..., 0], ctx.rng("gradient-noise"))
        bound, _ = clipped_bounds(
            objective_of(ctx.parameters.get("objective"), ctx.schema.classes), self.clip
        )
        for _ in units:  # a tree of the round each; any gradient for any other
            ctx.spend("laplace", l1=2.0 * bound, scale=scale, what="gradients")
        return np.stack([g, np.full_like(g, 1 << bits[1])], axis=-1)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return infinity, for counts cross exactly; beside it, what the gradients compose to.

        That is for a row whose gradient is replaced by any other and that stays in its bins.
        """
        own = composed(e for e in transcript.events if e.what == "gradients")
        unprotected = "+".join(["counts", *exact_releases(transcript)])
        return PureDP(math.inf, histograms=own, unprotected=unprotected)
