"""Inference from the transcript that several attacks share.

The modules read leaf sums, histograms and leaf values from a view, estimate how many rows of each
class are in each leaf, route rows through trees, and estimate priors and the rows of each client.

The package imports no attack. The names listed in ``__all__`` are public, and `fedtrees.audit`
imports only these. Attacks may import every module below.
"""

from fedtrees.attacks.evidence.boosted import Evidence, NodeHistograms, NodeNoise
from fedtrees.attacks.evidence.clients.hessians import (
    AGREES,
    FLOAT32,
    Splits,
    hessians_from_gains,
    pieces,
)
from fedtrees.attacks.evidence.clients.start_of_values import (
    PER_ROW,
    VALUE_ERROR,
    LeafValues,
    shares_of_values,
    subset_sums,
    union,
)
from fedtrees.attacks.evidence.counts import counts_from_sums
from fedtrees.attacks.evidence.sums import LeafSums
from fedtrees.attacks.evidence.targets import Moments
from fedtrees.attacks.evidence.values import positives_of_value
from fedtrees.attacks.evidence.view import evidence_of

__all__ = [
    "AGREES",
    "FLOAT32",
    "PER_ROW",
    "VALUE_ERROR",
    "Evidence",
    "LeafSums",
    "LeafValues",
    "Moments",
    "NodeHistograms",
    "NodeNoise",
    "Splits",
    "counts_from_sums",
    "evidence_of",
    "hessians_from_gains",
    "pieces",
    "positives_of_value",
    "shares_of_values",
    "subset_sums",
    "union",
]
