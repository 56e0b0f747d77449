"""Parameters that all protocols of boosted trees share: those of the engine, and an objective."""

from dataclasses import dataclass

from fedtrees.core.errors import UsageError, check_known
from fedtrees.core.schema import Schema
from fedtrees.protocols.base import Protocol
from fedtrees.trees.boosted.losses import OBJECTIVES, Logistic, Objective, objective_of
from fedtrees.trees.boosted.params import TreeParams


@dataclass(frozen=True, kw_only=True)
class BoostingProtocol(TreeParams, Protocol):
    """Boosted trees with the parameters of the engine (`TreeParams`) and an objective.

    Parameters
    ----------
    objective : str or None
        Loss function. None chooses it by the target.
    """

    objective: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective is not None:
            check_known("objective", self.objective, OBJECTIVES)
        if self.objective == Logistic.name:
            self._check_probability()

    def objective_for(self, schema: Schema) -> Objective:
        """Return the loss function for a target.

        Raises
        ------
        UsageError
            If the objective does not suit the target, or the base score does not suit the
            objective.
        """
        objective = objective_of(self.objective, schema.classes)
        if isinstance(objective, Logistic):
            self._check_probability()
        return objective

    def check(self, schema: Schema) -> None:
        """Check that the objective suits the target."""
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
    """Binary classification with all rows and columns in every tree, level by level.

    Raises
    ------
    UsageError
        If a parameter asks for anything else.
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
        """Return the logistic loss. Raise `UsageError` unless the target has two classes."""
        objective = super().objective_for(schema)
        if not isinstance(objective, Logistic):
            raise UsageError(f"{self.name!r} trains on two classes, not {objective.name}")
        return objective
