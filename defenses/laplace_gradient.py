"""Defense `laplace-gradient`: Laplace noise on each row's gradient, and exact row counts.

This is FedTree's mechanism in the form that Di Gennaro et al. (2025) attacked. The module
`fedtrees.defenses.laplace_hist` adds noise to the histograms instead.
"""

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

# FedTree reserves half of a tree's budget for its leaves, and half for the choice of splits by the
# exponential mechanism. The published code does not implement the latter.
_HALVES = 2.0


@register.defense("laplace-gradient")
@dataclass(frozen=True)
class LaplaceGradient(Defense):
    """Add discrete Laplace noise to each row's gradient, once per tree, and set each hessian to 1.

    FedTree (Li et al. 2023) as Di Gennaro et al. (2025) extended it to horizontal data. Before each
    of the T trees, every row's gradient g is clipped to [-R, R] and gets noise of the distribution
    Laplace(2R / e) with e = epsilon / 2T. All sums of the tree then contain the same noisy g. We
    follow the authors' code. Their paper (Appendix B.1.1) describes noise on each histogram element
    of g and h, which is `laplace-hist`.

    Hessians get no noise. They are the constant 1, so that a leaf value is ``-eta G / (N +
    lambda)``, and the numbers of rows N are exact. The only remaining guarantee is label-DP. For
    two classes, R = 1 and a given base score it is epsilon / 4, because a label changes g by 1 in
    each of T trees. Use `laplace-hist` with ``calibrated=true`` to protect rows.

    Parameters
    ----------
    epsilon : float
        Budget of the complete run as published, in nats.
    clip : float
        Bound R on a row's absolute gradient.
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
        """Bound to which each client clips the gradient of every row."""
        return float(self.clip)

    def claim(self) -> Guarantee:
        """Return pure DP of the complete run, as published."""
        return PureDP(epsilon=float(self.epsilon))

    def scale(self, schema: Schema, parameters: Mapping[str, Any]) -> float:
        """Return the Laplace scale in the unit of the gradient. It is public."""
        outputs = objective_of(parameters.get("objective"), schema.classes).n_outputs
        # A round grows one tree per output, for example one per class.
        per_tree = self.epsilon / (_HALVES * parameters["trees"] * outputs)
        return float(2.0 * self.clip / per_tree)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State the noise on a row's gradient, and that hessians are 1."""
        law = Laplace(self.scale(schema, parameters))
        return {("gradients", "g"): law, ("gradients", "h"): Removal(1.0)}

    def rows(self, stage: Stage, values: NDArray[Any], ctx: Context) -> NDArray[Any]:
        """Add noise to the gradients, set the hessians to 1, and record the privacy loss.

        Parameters
        ----------
        stage : Stage
            Other kinds than ``gradients`` are returned unchanged.
        values : int64 array, shape (K, n, 2)
            Clipped gradients and hessians in fixed point, for the K trees of a round.
        ctx : Context

        Returns
        -------
        values : int64 array, shape (K, n, 2)
        """
        if stage.kind != "gradients":
            return values
        units, bits = values, stage.bits
        scale = self.scale(ctx.schema, ctx.parameters)
        # The noise is drawn in fixed-point units, because sums of integers are exact.
        law = Laplace(scale).within(np.ldexp(1.0, bits[0]))
        g = law.send(units[..., 0], ctx.rng("gradient-noise"))
        bound, _ = clipped_bounds(
            objective_of(ctx.parameters.get("objective"), ctx.schema.classes), self.clip
        )
        for _ in units:  # one tree of the round each; a row's gradient is replaced by any other
            ctx.spend("laplace", l1=2.0 * bound, scale=scale, what="gradients")
        return np.stack([g, np.full_like(g, 1 << bits[1])], axis=-1)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return an infinite epsilon, because counts are exact, and the epsilon of the gradients.

        The field ``histograms`` contains the latter. It holds for a row whose gradient is replaced
        by any other gradient and whose bins stay the same.
        """
        epsilon = composed(e for e in transcript.events if e.what == "gradients")
        # Hessians of 1 make the hessian sums equal to the numbers of rows.
        unprotected = "+".join(["counts", *exact_releases(transcript)])
        return PureDP(math.inf, histograms=epsilon, unprotected=unprotected)
