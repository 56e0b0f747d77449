"""Hyperparameters of random forests."""

import math
from dataclasses import dataclass
from typing import Any

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.parameters import check_parameters, flag, whole
from fedtrees.trees.binning import MOST_BINS

# "Unlimited" is represented by a number that no tree with 2^31 rows can reach.
UNLIMITED = 2**31 - 1
_NAMED = ("sqrt", "log2")


def _is_whole(value: Any) -> bool:
    """Return whether a value is an integer and no boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def feature_count(rule: str | int | float | None, available: int) -> int:
    """Return the number of features that a rule such as ``"sqrt"`` or 0.3 selects of `available`.

    It is at least 1 and at most `available`. Fractions are rounded down, as in scikit-learn.
    """
    if rule is None:
        return available
    if isinstance(rule, str):
        count = int(math.sqrt(available) if rule == "sqrt" else math.log2(available))
    else:
        count = rule if isinstance(rule, int) else int(rule * available)
    return min(max(count, 1), available)


@dataclass(frozen=True, kw_only=True)
class ForestParams:
    """Hyperparameters with scikit-learn's names, and its defaults where it has one.

    A row that was drawn three times counts as three rows in `min_samples_split` and
    `min_samples_leaf`, because summed class counts do not distinguish them. scikit-learn counts
    distinct rows.

    Attributes
    ----------
    trees : int
        Number of trees (``n_estimators``), at least 1.
    max_depth : int or None
        Splits on the longest path, at least 1. None: until leaves are pure.
    min_samples_split : int
        Smallest number of rows of a node that is split, at least 2.
    min_samples_leaf : int
        Smallest number of rows of a leaf, at least 1.
    max_features : {"sqrt", "log2"}, int, float or None
        Features that are tried at each node: a number, a fraction, or all (None).
    tree_features : {"sqrt", "log2"}, int, float or None
        Features that a complete tree may use, drawn once per tree by the same rule (not in
        scikit-learn). `max_features` then refers to these features.
    bootstrap : bool
        True: draw the rows of each tree with replacement. False: without.
    max_samples : float or None
        Rows that are drawn for each tree, as a fraction in (0, 1] of the rows of each party. None:
        as many as there are.
    max_leaf_nodes : int or None
        Largest number of leaves per tree, at least 2. The splits that decrease the impurity most
        are used.
    max_bin : int
        Bins per feature, 2 to 65534.

    Raises
    ------
    UsageError
        If a value is outside its range.
    """

    trees: int = whole(1, UNLIMITED, default=100)
    max_depth: int | None = whole(1, UNLIMITED, default=None)
    min_samples_split: int = whole(2, UNLIMITED, default=2)
    min_samples_leaf: int = whole(1, UNLIMITED, default=1)
    max_features: str | int | float | None = "sqrt"
    tree_features: str | int | float | None = None
    bootstrap: bool = flag(True)
    max_samples: float | None = None
    max_leaf_nodes: int | None = whole(2, UNLIMITED, default=None)
    max_bin: int = whole(2, MOST_BINS, default=256)

    def __post_init__(self) -> None:
        check_parameters(self)
        _check_features("max_features", self.max_features)
        _check_features("tree_features", self.tree_features)
        # A number of rows would not have the same meaning for parties of different size.
        if self.max_samples is not None and not _is_fraction(self.max_samples):
            raise UsageError(
                f"max_samples={self.max_samples!r}: give a fraction in (0, 1], or none "
                "for all rows (a number of rows is not supported, because every owner "
                "has another number)"
            )

    def check_whole_levels(self) -> None:
        """Raise `UsageError` if the number of leaves is limited, for growth by whole levels."""
        if self.max_leaf_nodes is not None:
            raise UsageError(
                f"max_leaf_nodes={self.max_leaf_nodes}: levels are grown whole here; limit "
                "max_depth or min_samples_leaf instead"
            )

    @property
    def depth(self) -> int:
        """The depth limit as a number."""
        return UNLIMITED if self.max_depth is None else self.max_depth


def _is_fraction(value: Any) -> bool:
    """Return whether a value is a number in (0, 1]."""
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 < value <= 1


def _check_features(name: str, rule: Any) -> None:
    """Raise `UsageError` unless a rule for the number of features is valid."""
    if rule is None or (_is_whole(rule) and rule >= 1):
        return
    if isinstance(rule, float) and _is_fraction(rule):
        return
    if isinstance(rule, str) and rule in _NAMED:
        return
    hint = did_you_mean(rule, _NAMED) if isinstance(rule, str) else ""
    raise UsageError(
        f"{name}={rule!r}{hint}: give sqrt, log2, a number of features from 1, a fraction in "
        "(0, 1], or none for all"
    )
