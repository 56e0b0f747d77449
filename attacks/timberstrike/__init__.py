"""TimberStrike (Di Gennaro et al. 2025): training rows from the statistics of shared trees."""

from fedtrees.attacks.timberstrike.reconstruct import reconstruct
from fedtrees.attacks.timberstrike.evidence import (
    Cuts,
    Evidence,
    NodeHistograms,
    NodeNoise,
    Options,
)

__all__ = ["Cuts", "Evidence", "NodeHistograms", "NodeNoise", "Options", "reconstruct"]
