"""TimberStrike (Di Gennaro et al. 2025): training rows from the statistics of shared trees."""

from fedtrees.attacks.timberstrike.numbers import reconstruct_numbers
from fedtrees.attacks.timberstrike.options import Options
from fedtrees.attacks.timberstrike.reconstruct import reconstruct

__all__ = ["Options", "reconstruct", "reconstruct_numbers"]
