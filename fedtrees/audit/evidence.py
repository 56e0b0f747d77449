"""What the audit takes from the attacks: everything that `fedtrees.audit` imports of them."""

from fedtrees.attacks.shared_trees.hessians import (
    AGREES,
    FLOAT32,
    Splits,
    hessians_from_gains,
    pieces,
)
from fedtrees.attacks.shared_trees.start_of_values import (
    PER_ROW,
    VALUE_ERROR,
    LeafValues,
    shares_of_values,
    subset_sums,
    union,
)
from fedtrees.attacks.timberstrike import Evidence, Options, reconstruct
from fedtrees.attacks.timberstrike.values import positives_of_value

__all__ = [
    "AGREES",
    "FLOAT32",
    "PER_ROW",
    "VALUE_ERROR",
    "Evidence",
    "LeafValues",
    "Options",
    "Splits",
    "hessians_from_gains",
    "pieces",
    "positives_of_value",
    "reconstruct",
    "shares_of_values",
    "subset_sums",
    "union",
]
