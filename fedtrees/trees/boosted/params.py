"""Hyperparameters of boosted forests."""

from dataclasses import dataclass

from fedtrees.core.errors import UsageError, is_finite_number
from fedtrees.core.parameters import check_parameters, fraction, nonnegative, one_of, whole
from fedtrees.trees.binning import MOST_BINS

GROW_POLICIES = ("depthwise", "lossguide")
#: Nodes are numbered in 32 bits.
DEEPEST = 30
UNLIMITED = 2**31 - 1
_COLUMN_SHARES = ("colsample_bytree", "colsample_bylevel", "colsample_bynode")


@dataclass(frozen=True, kw_only=True)
class TreeParams:
    """Hyperparameters with XGBoost's names, and its defaults where it has one.

    Attributes
    ----------
    trees : int
        Boosting rounds, at least 1. With more than two classes, each round grows one tree per
        class.
    max_depth : int
        Splits on the longest path, 1 to 30.
    max_leaves : int
        Largest number of leaves of a tree, 2 or more. 0: no limit.
    grow_policy : {"depthwise", "lossguide"}
        Split level by level, or the node with the largest gain first.
    learning_rate : float
        Shrinkage ``eta`` in (0, 1].
    reg_lambda : float
        L2 penalty on leaf values, at least 0.
    reg_alpha : float
        L1 penalty on leaf values, at least 0.
    gamma : float
        Smallest gain of a split, at least 0.
    min_child_weight : float
        Smallest sum of hessians in a child, at least 0.
    max_bin : int
        Largest number of bins per feature, 2 to 65534.
    subsample : float
        Probability that a row is used in a round, in (0, 1]. Rows are drawn independently.
    colsample_bytree, colsample_bylevel, colsample_bynode : float
        Share of the features that a tree, a level of it, and a node of it may use, in (0, 1]. The
        shares are multiplied.
    max_cat_to_onehot : int
        For features that are split by categories: a feature with fewer categories than this, at
        least 2, is split into one category and the rest. The categories of further features are
        partitioned.
    max_cat_threshold : int
        A partition has fewer categories than this on one side, at least 2.
    base_score : float or None
        Initial prediction of every row: a probability in (0, 1) for `binary:logistic`, a margin for
        `multi:softprob`, a value for `reg:squarederror`. None: an estimate from the training labels
        (for example their mean), as in XGBoost.

    Raises
    ------
    UsageError
        If a value is outside its range.
    """

    trees: int = whole(1, UNLIMITED, default=100)
    max_depth: int = whole(1, DEEPEST, default=6)
    max_leaves: int = whole(0, UNLIMITED, default=0)
    grow_policy: str = one_of(GROW_POLICIES, default="depthwise")
    learning_rate: float = fraction(0.3)
    reg_lambda: float = nonnegative(1.0)
    reg_alpha: float = nonnegative(0.0)
    gamma: float = nonnegative(0.0)
    min_child_weight: float = nonnegative(1.0)
    max_bin: int = whole(2, MOST_BINS, default=256)
    subsample: float = fraction(1.0)
    colsample_bytree: float = fraction(1.0)
    colsample_bylevel: float = fraction(1.0)
    colsample_bynode: float = fraction(1.0)
    max_cat_to_onehot: int = whole(2, UNLIMITED, default=4)
    max_cat_threshold: int = whole(2, UNLIMITED, default=64)
    base_score: float | None = None

    @property
    def samples_columns(self) -> bool:
        """Whether some splits may use only a sample of the features."""
        return any(getattr(self, name) < 1 for name in _COLUMN_SHARES)

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.max_leaves == 1:
            raise UsageError("max_leaves=1: a tree needs 2 leaves or more; 0 sets no limit")
        if self.base_score is not None and not is_finite_number(self.base_score):
            raise UsageError(f"base_score={self.base_score!r}: give a finite number")
