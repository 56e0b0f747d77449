"""A new protocol: every tree uses a third of the features only, by a public schedule.

fedtrees plugin check rotating_features.py
fedtrees bench --plugin rotating_features.py -p fedtree-hist,rotating-features
"""

from dataclasses import dataclass, replace

from fedtrees import handles, register
from fedtrees.messages.horizontal import Histogram, HistogramRequest
from fedtrees.protocols.horizontal.histogram_parties import HistogramClient
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist


class RotatingClient(HistogramClient):
    """A client that sends zeros in the bins of all features except those of the current tree."""

    @handles(HistogramRequest)
    def histogram(self, message: HistogramRequest) -> Histogram:
        full = super().histogram(message)
        sums, turns = full.sums.copy(), min(self.params.turns, self.cuts.n_features)
        for feature in range(self.cuts.n_features):
            if feature % turns != message.tree % turns:
                start, end = self.cuts.offsets[feature : feature + 2]
                sums[:, start:end] = 0
        return replace(full, sums=sums)


@register.protocol("rotating-features")
@dataclass(frozen=True, kw_only=True)
class RotatingFeatures(FedTreeHist):
    """FedTree's boosting where tree t uses only features f with f = t modulo `turns`."""

    turns: int = 3
    party_types = {**FedTreeHist.party_types, "client": RotatingClient}
