"""What all protocols of boosted trees have in common: the engine's parameters and an objective."""

from dataclasses import dataclass

from fedtrees.core.errors import UsageError, check_known
from fedtrees.core.schema import Schema
from fedtrees.protocols.base import Protocol
from fedtrees.trees.boosted.losses import OBJECTIVES, Logistic, Objective, objective_of
from fedtrees.trees.boosted.params import TreeParams


@dataclass(frozen=True, kw_only=True)
class BoostingProtocol(TreeParams, Protocol):
    """Boosted trees: the engine's parameters, and this.

    `objective`: None: what the target asks for.
    """

    objective: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective is not None:
            check_known("objective", self.objective, OBJECTIVES)
        if self.objective == Logistic.name:
            self._check_probability()

    def objective_for(self, schema: Schema) -> Objective:
        """Return what is minimised on such a target.

        Raises `UsageError` if the objective does not suit it, or the base score does not suit the
        objective.
        """
        objective = objective_of(self.objective, schema.classes)
        if isinstance(objective, Logistic):
            self._check_probability()
        return objective

    def check(self, schema: Schema) -> None:
        """Refuse a target that the objective does not suit."""
        self.objective_for(schema)

    def _check_probability(self) -> None:
        score = self.base_score
        if score is not None and not 0 < score < 1:
            raise UsageError(
                f"base_score={score!r}: {Logistic.name} starts from a probability, strictly "
                "between 0 and 1"
            )


@dataclass(frozen=True, kw_only=True)
class PlainBoosting(BoostingProtocol):
    """Two classes, and all rows and columns in every tree, level by level.

    Raises `UsageError` for anything else.
    """

    trees: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.subsample < 1 or self.samples_columns or self.grow_policy != "depthwise":
            raise UsageError(
                f"{self.name!r} grows trees level by level on all rows and columns: leave "
                "subsample, colsample_* and grow_policy out"
            )
        check_known("objective", self.objective or Logistic.name, (Logistic.name,))

    def objective_for(self, schema: Schema) -> Objective:
        """Return the logistic loss; raises `UsageError` unless there are two classes."""
        objective = super().objective_for(schema)
        if not isinstance(objective, Logistic):
            raise UsageError(f"{self.name!r} trains on two classes, not {objective.name}")
        return objective
