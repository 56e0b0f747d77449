"""Protocol `dp-ebm`: merged explainable boosting machines with differential privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedtrees.core.channel import Change, Mechanism
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Place
from fedtrees.core.errors import DataError, UsageError, check_share
from fedtrees.core.guarantee import ApproximateDP, Guarantee, NoGuarantee
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.network import Network
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import Transcript
from fedtrees.messages.additive import ClientShapes
from fedtrees.privacy.accounting import composed
from fedtrees.privacy.gaussian_dp import mu_of
from fedtrees.privacy.noise import Gaussian
from fedtrees.protocols.horizontal.ebm_merge import EBMMerge
from fedtrees.protocols.horizontal.shape_canaries import ShapeCanaries
from fedtrees.trees.forest.random_decision import undeclared

#: Parameters of an audit: `max_bins` (there are twice as many equal-width bins, minus two), the
#: number of bags whose noise is measured, and the share of epsilon for the bins.
_BINS, _BAGS, _BIN_SHARE = 3073, 64, 0.99


@register.protocol("dp-ebm")
@dataclass(frozen=True, kw_only=True)
class DPEBM(EBMMerge):
    """`ebm-merge` of DP-EBMs (Nori et al. 2021, Algorithm 2), as in interpret-core.

    Each client adds Gaussian noise to the counts of equal-width bins over declared ranges, merges
    bins by these counts, and adds noise to the sums of residuals of each round's random splits.
    Clients have disjoint rows, so that `epsilon` holds for the merged model. Numbers of rows are
    sent without noise (`bag_weights`, which also determine the merging of bins). The default
    learning rate of interpret-core is .01.

    Parameters
    ----------
    epsilon : float
        In nats, for one row added or removed. inf means no noise: `ebm-merge` with these
        parameters.
    delta : float
        Failure probability of the guarantee.
    bin_share : float
        Share of epsilon for the bins. They also get half of delta.
    """

    max_bins: int = 32
    outer_bags: int = 1
    max_rounds: int = 300
    learning_rate: float = 0.05
    epsilon: float = 4.0
    delta: float = 1e-5
    bin_share: float = 0.1

    noised: ClassVar[tuple[type[Message], ...]] = (ClientShapes,)
    adversaries: ClassVar[tuple[str, ...]] = ("public", "server")
    example: ClassVar[str] = "digits[rows=300]"  # all columns declare a range

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (type(self.epsilon) in (int, float) and self.epsilon > 0):
            raise UsageError(f"epsilon={self.epsilon!r}: give a number > 0, or inf for no noise")
        check_share("delta", self.delta)
        check_share("bin_share", self.bin_share)

    def estimator(self, schema: Schema, seed: int | None) -> Any:
        """Return the estimator that a client fits."""
        if not self.noisy:
            return super().estimator(schema, seed)
        from interpret.privacy import DPExplainableBoostingClassifier

        return DPExplainableBoostingClassifier(
            epsilon=self.epsilon, delta=self.delta, bin_budget_frac=self.bin_share,
            privacy_bounds=dict(enumerate(self.ranges(schema))), **self.settings(schema, seed),
        )  # fmt: skip

    @property
    def noisy(self) -> bool:
        """Whether there is any noise."""
        return math.isfinite(self.epsilon)

    def exact(self) -> DPEBM:
        """Return the same protocol without noise."""
        return replace(self, epsilon=math.inf)

    def ranges(self, schema: Schema) -> list[tuple[float, float]]:
        """Return the declared range of every column.

        Raises
        ------
        UsageError
            If a column declares no range. A range computed from rows would not be private.
        """
        ranges = [f.declared_range for f in schema.features]
        if None in ranges:
            raise UsageError(str(self.lacks(schema, Composition())))
        return [r for r in ranges if r is not None]

    def lacks(self, schema: Schema, defense: Composition) -> Reason | None:
        """Return which columns declare no range."""
        return undeclared(schema)

    def scales(self, columns: int) -> tuple[float, float]:
        """Return the scales of the noise on counts of bins, in rows, and on sums of residuals."""
        half, share = self.delta / 2, self.bin_share
        # Every round of every bag releases one noisy sum per column.
        rounds = self.max_rounds * columns * self.outer_bags
        return (
            math.sqrt(columns) / mu_of(share * self.epsilon, half),
            math.sqrt(rounds) / mu_of((1 - share) * self.epsilon, half),
        )

    def seed_of(self, streams: Streams) -> int | None:
        """Return the seed of the noise. None for the system's randomness.

        A seed is used only in experiments with ``noise_from="seed"``. Seeds of interpret-core have
        31 bits, so that an adversary could try all of them and learn the noise.
        """
        return None if streams.secret else int(streams.noise.rng("noise").integers(2**31))

    def enter_noise(self, net: Network, columns: int) -> None:
        """Record the privacy loss of the counts of bins and of the sums of all rounds."""
        if not self.noisy:
            return
        rounds, what = self.max_rounds * columns * self.outer_bags, ClientShapes.__name__
        for scale, count in zip(self.scales(columns), (columns, rounds), strict=True):
            net.spend("gaussian", l2=1, scale=scale, count=count, what=what)

    def claim(self) -> Guarantee:
        """Return the guarantee of each client's model, which also holds for the merged model."""
        return self._guarantee(float(self.epsilon)) if self.noisy else NoGuarantee()

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose the privacy losses of a transcript."""
        if not self.noisy:
            return NoGuarantee()
        return self._guarantee(composed(transcript.events, self.delta))

    def _guarantee(self, epsilon: float) -> ApproximateDP:
        return ApproximateDP(epsilon, self.delta, unprotected="rows")

    def canaries(self) -> ShapeCanaries | None:
        """Create canaries for an audit of the bin counts. None without noise."""
        if not self.noisy:
            return None
        # With several rounds, the scores are sums over rounds, and single sums are not visible.
        once = self.max_rounds == 1
        return ShapeCanaries(
            2 * (self.max_bins - 1) // 3, self.scales(1), self.learning_rate if once else 0.0
        )

    def worst_case(self, defense: Composition) -> tuple[DPEBM, ShapeCanaries] | None:
        """Spend almost the complete budget on the bins of one column, with one round per bag."""
        bare = replace(self, max_bins=_BINS, max_rounds=1, outer_bags=_BAGS, bin_share=_BIN_SHARE)
        canaries = bare.canaries()
        return None if canaries is None else (bare, canaries)

    def laws(self, schema: Schema) -> Mapping[Place, Change]:
        """Return that counts and scores contain noise. The merged cut points depend on it, too."""
        if not self.noisy:
            return {}
        why = "Gaussian noise on counts of even bins, and on each round's sums"
        counts = Mechanism(why, noise=Gaussian(self.scales(len(schema.features))[0]))
        # The distribution of the noise on scores depends on the merged bins and is not stated.
        rest = Mechanism(why)
        return {
            (ClientShapes, "bin_weights"): counts,
            (ClientShapes, "scores"): rest,
            (ClientShapes, "cuts"): rest,
        }

    def check_held(self, name: str, held: LocalData, schema: Schema) -> None:
        """Refuse missing values, and weights, which exceed the sensitivity of the noise."""
        if held.weight is not None:
            raise DataError(f"{self.name!r} takes no sample weights; drop those of {name!r}")
        if self.noisy and np.isnan(held.X).any():
            raise DataError(f"{self.name!r} has no bins for missing values, as {name!r} has")

    def check(self, schema: Schema) -> None:
        """Refuse a target without exactly two classes, and columns without a declared range."""
        super().check(schema)
        self.ranges(schema)
