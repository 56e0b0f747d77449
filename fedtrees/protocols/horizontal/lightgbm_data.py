"""Protocol `lightgbm-data`: LightGBM's data-parallel training between machines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedtrees.core.errors import DataError, UsageError, check_known, check_whole
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.captured import HistogramSegment
from fedtrees.messages.lightgbm import (
    BinMappers,
    ClassRows,
    FoundSplits,
    OwnStart,
    RootSums,
    WeightedLabels,
)
from fedtrees.protocols.horizontal.lightgbm_machine import FirstMachine, Machine
from fedtrees.protocols.lockstep import RowPeers
from fedtrees.trees.boosted.losses import Logistic, Objective, SquaredError, objective_of
from fedtrees.trees.lightgbm.splits import Limits

_MOST_ROWS = 200_000  # with more rows, LightGBM computes bins from a sample


@register.protocol("lightgbm-data")
@dataclass(frozen=True, kw_only=True)
class LightGBMData(RowPeers):
    """LightGBM 4.7 with ``tree_learner=data, pre_partition=true``, machine to machine.

    Each machine computes the bins of a block of columns from its local rows and sends them to all
    machines. Histograms are summed by recursive halving, those of an odd machine through a leader.
    Each machine finds the best splits of the columns that it has the sums of. The trees equal
    LightGBM's, node by node. Some parameters have other names in LightGBM: ``trees``
    (num_iterations), ``reg_lambda`` (lambda_l2), ``gamma`` (min_gain_to_split).

    Parameters
    ----------
    max_depth : int
        Largest depth, -1 for no limit.
    """

    trees: int = 100
    num_leaves: int = 31
    max_depth: int = -1
    learning_rate: float = 0.1
    reg_lambda: float = 0.0
    gamma: float = 0.0
    min_data_in_leaf: int = 20
    min_sum_hessian_in_leaf: float = 1e-3
    max_bin: int = 255
    min_data_in_bin: int = 3
    objective: str | None = None

    says: ClassVar[tuple[type[Message], ...]] = (
        BinMappers, ClassRows, WeightedLabels, OwnStart, RootSums, HistogramSegment, FoundSplits
    )  # fmt: skip
    alike: ClassVar[str] = "machines"
    kinds: ClassVar[tuple[type[Machine], type[Machine]]] = (FirstMachine, Machine)
    sometimes: ClassVar[Mapping[type[Message], str]] = dict.fromkeys(
        (ClassRows, WeightedLabels), "labels are classes"
    )

    def __post_init__(self) -> None:
        for name, low, high in (
            ("trees", 1, 2**31 - 1), ("num_leaves", 2, 131_072), ("min_data_in_leaf", 0, 2**31 - 1),
            ("max_bin", 2, 65_535), ("min_data_in_bin", 1, 2**31 - 1), ("max_depth", -1, 2**31 - 1),
        ):  # fmt: skip
            check_whole(name, getattr(self, name), low, high)
        for name in ("reg_lambda", "gamma", "min_sum_hessian_in_leaf"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UsageError(f"{name}={getattr(self, name)!r}: give a finite number, 0 or more")
        if not 0 < self.learning_rate <= 1:
            raise UsageError(f"learning_rate={self.learning_rate!r}: give a number in (0, 1]")
        if self.objective is not None:
            check_known("objective", self.objective, (Logistic.name, SquaredError.name))

    @property
    def limits(self) -> Limits:
        """Constraints on splits."""
        return Limits(
            self.min_data_in_leaf, self.min_sum_hessian_in_leaf, self.reg_lambda, self.gamma
        )

    def objective_for(self, schema: Schema) -> Objective:
        """Return the loss function. Raise `UsageError` for more than two classes."""
        objective = objective_of(self.objective, schema.classes)
        if not isinstance(objective, Logistic | SquaredError):
            raise UsageError(
                f"{self.name!r} trains on two classes or numbers, not {objective.name}"
            )
        return objective

    def check(self, schema: Schema) -> None:
        """Check that the objective suits the target."""
        self.objective_for(schema)

    def check_held(self, name: str, held: LocalData, schema: Schema) -> None:
        """Refuse weights, no rows, and so many rows that LightGBM would sample them."""
        if held.weight is not None or len(held) > _MOST_ROWS or not len(held):
            raise DataError(
                f"{self.name!r} takes 1 to {_MOST_ROWS:,} rows of {name!r}, without weights"
            )
