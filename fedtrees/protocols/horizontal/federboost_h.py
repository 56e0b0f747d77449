"""`federboost-h`: quantiles and histograms by secure sums alone, splits told without statistics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedtrees.core.messages import Message
from fedtrees.core.registry import register
from fedtrees.messages.boosting import Histogram, LabelSums, ValidationLoss
from fedtrees.messages.cuts import (
    CutsRequest,
    FeatureRanges,
    FeatureSketch,
    GridCounts,
    GridRequest,
)
from fedtrees.protocols.horizontal.fedtree_hist import FedTreeHist
from fedtrees.protocols.horizontal.histograms import DecidingServer


class SummingServer(DecidingServer):
    """A server that tells splits and leaf values, and nothing behind them."""

    tells_statistics = False


@register.protocol("federboost-h")
@dataclass(frozen=True, kw_only=True)
class FederBoostH(FedTreeHist):
    """FederBoost (Tian et al. 2020), horizontally: only sums over clients are opened.

    All quantiles are looked up by sums of how many rows are below a value. The paper's lookup is a
    binary search for each; here rows are counted in the cells of a grid, twice, as `grid-cuts` does
    it. Histograms are summed securely (the ideal functionality); whoever finds the splits tells
    them, and leaf values.

    `cuts`: {"grid", "public"}. By sums of counts, or declared.
    """

    cuts: str = "grid"

    says: ClassVar[tuple[type[Message], ...]] = tuple(
        kind for kind in FedTreeHist.says if kind not in (CutsRequest, FeatureSketch, FeatureRanges)
    )
    sometimes: ClassVar[Mapping[type[Message], str]] = {
        kind: when
        for kind, when in FedTreeHist.sometimes.items()
        if kind not in (FeatureRanges, GridRequest, GridCounts)
    }
    summed: ClassVar[tuple[type[Message], ...]] = (LabelSums, ValidationLoss, Histogram, GridCounts)
    server: ClassVar[type[DecidingServer]] = SummingServer
    cut_methods: ClassVar[tuple[str, ...]] = ("grid", "public")
