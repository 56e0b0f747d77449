"""Parameters and checks that both regression protocols share."""

from dataclasses import dataclass

from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.parameters import check_parameters, flag, one_of, positive, whole
from fedtrees.core.schema import Schema

KINDS = ("linear", "logistic")


@dataclass(frozen=True, kw_only=True)
class RegressionParams:
    """Parameters of a regression by gradient descent.

    Parameters
    ----------
    kind : {"linear", "logistic"} or None
        None for logistic regression with two classes and linear regression otherwise.
    rounds : int
        Number of steps.
    lr : float
        Learning rate of the mean gradient over standardised columns.
    alpha : float
        L2 penalty.
    bits : int
        Binary places of columns and weights.
    intercept : bool
        Whether the model has an intercept.
    """

    kind: str | None = one_of(KINDS, default=None)
    rounds: int = whole(1, default=30)
    lr: float = positive(0.1)
    alpha: float = 0.0
    bits: int = 40
    intercept: bool = flag(True)

    def __post_init__(self) -> None:
        check_parameters(self)
        if isinstance(self.alpha, bool) or not 0 <= self.alpha < 1 / self.lr:
            raise UsageError(f"alpha={self.alpha!r}: an L2 penalty from 0 to below 1 / lr")

    def kind_for(self, schema: Schema) -> str:
        """Return the kind of regression for a target.

        Raises
        ------
        UsageError
            For more than two classes, or for a logistic regression of a numeric target.
        """
        if len(schema.classes) > 2:
            raise UsageError(
                f"the target {schema.target!r} has {len(schema.classes)} classes; a regression "
                "takes two, or a number"
            )
        if self.kind == "logistic" and not schema.classes:
            raise UsageError(f"kind=logistic: the target {schema.target!r} is a number")
        return self.kind or ("logistic" if schema.classes else "linear")


def check_weightless(name: str, local_data: LocalData) -> None:
    """Refuse sample weights and missing columns.

    Raises
    ------
    DataError
        If the rows have sample weights, or the party has no column.
    """
    if local_data.weight is not None:
        raise DataError(f"{name!r} has sample weights; regressions count every row once")
    if len(local_data) and not len(local_data.columns):
        raise DataError(f"{name!r} has no column; give it one, or leave it out")
