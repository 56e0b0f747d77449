"""TimberStrike (Di Gennaro et al. 2025): training rows from the statistics of shared trees."""

from fedtrees.attacks.evidence.boosted import (
    Evidence,
    NodeHistograms,
    NodeNoise,
    Options,
)
from fedtrees.attacks.timberstrike.reconstruct import reconstruct

__all__ = ["Evidence", "NodeHistograms", "NodeNoise", "Options", "reconstruct"]
