"""A minimal defense: Laplace noise on every sum of the clients' histograms.

fedtrees plugin check docs/examples/minimal_defense.py
fedtrees bench --plugin docs/examples/minimal_defense.py -d "histogram-noise[epsilon=1,8]"
"""

import math
from dataclasses import dataclass

from fedtrees import ChannelDefense, DefenseInfo, PureDP, Requirements, Reveal, register
from fedtrees.core.parameters import positive
from fedtrees.messages.horizontal import (
    FeatureRanges,
    FeatureSketch,
    GridCounts,
    Histogram,
    LabelSums,
)
from fedtrees.privacy.noise import Laplace


@register.defense("histogram-noise")
@dataclass(frozen=True)
class HistogramNoise(ChannelDefense):
    """Add Laplace noise to every gradient sum of a client (Dwork et al. 2006)."""

    epsilon: float = positive(1.0)  # of one element of one histogram
    clip: float = positive(1.0)

    roles = frozenset({"client"})
    protects = frozenset({Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES})
    handled_types = (Histogram,)
    permitted_types = dict.fromkeys(
        (FeatureSketch, FeatureRanges, GridCounts, LabelSums), "not covered; sent without noise"
    )
    info = DefenseInfo(bench_grid={"epsilon": (1.0, 8.0)})

    @property
    def requirements(self):
        return Requirements(gradient_clip=self.clip, bounded_hessian=True)

    def claim(self):
        return PureDP(self.epsilon, unit="histogram")

    def channels(self, schema, parameters):
        noise = Laplace(2 * self.clip / self.epsilon)
        return {(Histogram, "sums"): noise, (Histogram, "totals"): noise}

    def spent(self, transcript):
        # The cut points and the base score are exact, so that the complete run has no epsilon.
        return PureDP(math.inf, histograms=self.epsilon, unprotected=("cuts", "base-score"))
