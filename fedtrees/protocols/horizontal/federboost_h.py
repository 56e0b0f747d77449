"""Protocol `federboost-h`: secure sums of counts and histograms, splits without statistics."""

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
    """A server that broadcasts splits and leaf values without their statistics."""

    tells_statistics = False


@register.protocol("federboost-h")
@dataclass(frozen=True, kw_only=True)
class FederBoostH(FedTreeHist):
    """FederBoost (Tian et al. 2020), horizontal: only sums over clients are decrypted.

    Quantiles are computed from sums of counts of rows below a value. The paper uses a binary search
    for each quantile. Here the rows are counted twice in the cells of a grid, as in the defense
    `grid-cuts`. Histograms are summed securely (ideal functionality). The server broadcasts splits
    and leaf values.

    Parameters
    ----------
    cuts : {"grid", "public"}
        Cut points from sums of counts, or declared ones.
    """

    cuts: str = "grid"

    # Clients send counts on a grid instead of summaries.
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
