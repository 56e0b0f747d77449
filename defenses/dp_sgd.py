"""DP-SGD: clients clip the gradient of every row and add noise to every step's sum."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, Mechanism
from fedtrees.core.defense import Context, Defense, Place, Stage
from fedtrees.core.errors import check_positive, check_share, check_whole
from fedtrees.core.guarantee import ApproximateDP, Guarantee
from fedtrees.core.messages import Reveal, Trait, exempting
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.messages.networks import NetworkUpdate
from fedtrees.privacy.accounting import composed
from fedtrees.privacy.sampled_gaussian import multiplier


@register.defense("dp-sgd")
@dataclass(frozen=True)
class DPSGD(Defense):
    """DP-SGD (Abadi et al. 2016) at every client.

    Every row is drawn into a batch by itself; its gradient is scaled down to norm `clip` where it
    is longer, and the sum gets Gaussian noise. So what a client sends is differentially private by
    itself, whoever reads it. The noise multiplier is the smallest that privacy loss distributions
    grant for all steps of the run (`fedtrees.privacy.sampled_gaussian`). Means of columns that
    inputs are standardised by are no part of that: with ``statistics=public`` none cross. Nor are
    trees that clients share before (`fedxgbllr`): it is the network over them alone that is
    private. Sampling rate, steps and so noise follow from how many rows a client has, and
    `fedavg-mlp` tells it: the claim says so, unless one number is declared for all in its place.

    Parameters
    ----------
    epsilon, delta : float
        Of the whole run, for one row added or removed; epsilon in nats.
    clip : float
        Bound on the Euclidean norm of a row's gradient.
    declared_rows : int
        How many rows each client is said to have, known beforehand; 0: as many as it has.
    """

    epsilon: float
    delta: float = 1e-5
    clip: float = 1.0
    declared_rows: int = 0

    acts_through = frozenset({"rows"})
    at = frozenset({"client"})
    protects = frozenset({Reveal.LABELS, Reveal.FEATURES, Reveal.COUNTS})
    guards = (NetworkUpdate,)
    exempts = exempting({
        Trait.SUMMED_SECURELY: "exact sums over all clients; `spent` counts them as unprotected, "
        "and the protocol's statistics=public sends none",
        Trait.GROWN_ALONE: "trees are grown and shared before; `spent` counts them as unprotected, "
        "and the claim speaks of the network that is trained on what they say",
    })  # fmt: skip
    acts_on = frozenset({"example-gradients"})
    poisson_sampling = True
    tries = {"epsilon": (1.0, 4.0, 16.0)}
    needs = ("dp_accounting",)

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_positive("clip", self.clip)
        check_share("delta", self.delta)
        check_whole("declared_rows", self.declared_rows, 0)

    @property
    def _told(self) -> str:
        return "" if self.declared_rows else "rows"

    def claim(self) -> Guarantee:
        """Return (epsilon, delta)-DP of all updates."""
        return ApproximateDP(float(self.epsilon), self.delta, unprotected=self._told)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State that rows are drawn, cut to a norm, and joined by one row of noise."""
        why = (
            "rows are drawn by chance and scaled down to a norm; one row of Gaussian noise is added"
        )
        return {("example-gradients", "rows"): Mechanism(why)}

    def rows(self, stage: Stage, values: NDArray[Any], ctx: Context) -> NDArray[Any]:
        """Clip the rows' gradients, and add one row of noise."""
        if stage.kind != "example-gradients":
            return values
        sigma = multiplier(float(self.epsilon), self.delta, stage.rate, stage.steps) * self.clip
        noise = sigma * ctx.rng("step-noise").standard_normal((1, values.shape[1]))
        ctx.spend("gaussian", l2=self.clip, scale=sigma, what="NetworkUpdate", rate=stage.rate)
        return np.concatenate([clipped(values, self.clip), noise.astype(np.float32)])

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose the steps that were taken; infinite where columns' sums or trees crossed."""
        own = [e for e in transcript.events if e.what == "NetworkUpdate"]
        found = composed(own, self.delta) if own else math.inf
        names = {Trait.SUMMED_SECURELY: "columns", Trait.GROWN_ALONE: "trees"}
        crossed = {trait for d in transcript for trait in d.message.traits}
        told = {names[trait] for trait in crossed & {*names}}
        unprotected = "+".join(sorted({*told, self._told} - {""}))
        if told:
            return ApproximateDP(math.inf, self.delta, unprotected=unprotected, updates=found)
        return ApproximateDP(found, self.delta, unprotected=unprotected)


def clipped(gradients: NDArray[np.float32], bound: float) -> NDArray[np.float32]:
    """Scale rows down to a norm, as ``opacus.optimizers.DPOptimizer`` does, float32, (n, P)."""
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    factor = np.minimum(np.float32(bound) / (norms + np.float32(1e-6)), np.float32(1))
    return np.asarray(gradients * factor, dtype=np.float32)
