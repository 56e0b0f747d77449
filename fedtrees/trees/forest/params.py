"""What a random forest is grown with."""

import math
from dataclasses import dataclass
from typing import Any

from fedtrees.core.errors import UsageError, check_flag, check_whole, did_you_mean
from fedtrees.trees.binning import MOST_BINS

# Trees and nodes say "unlimited" by a number no tree of 2^31 rows can reach.
UNLIMITED = 2**31 - 1
_NAMED = ("sqrt", "log2")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def feature_count(rule: str | int | float | None, available: int) -> int:
    """Return how many of `available` features a rule such as ``"sqrt"`` or 0.3 asks for.

    At least 1, at most all; fractions are rounded down, as scikit-learn does.
    """
    if rule is None:
        return available
    if isinstance(rule, str):
        wanted = int(math.sqrt(available) if rule == "sqrt" else math.log2(available))
    else:
        wanted = rule if isinstance(rule, int) else int(rule * available)
    return min(max(wanted, 1), available)


@dataclass(frozen=True, kw_only=True)
class ForestParams:
    """Hyperparameters, under scikit-learn's names and with its defaults where it has one.

    A row drawn three times counts as three rows in `min_samples_split` and `min_samples_leaf`:
    summed class counts know no difference (scikit-learn counts distinct rows).

    Raises `UsageError` if a value is outside its range.

    Attributes
    ----------
    trees : int
        Number of trees (``n_estimators``), at least 1.
    max_depth : int or None
        Splits on the longest path, at least 1. None: until leaves are pure.
    min_samples_split : int
        Rows a node needs to be split, at least 2.
    min_samples_leaf : int
        Rows every leaf keeps, at least 1.
    max_features : {"sqrt", "log2"}, int, float or None
        Features tried at each node: that many, that fraction, or (None) all.
    tree_features : {"sqrt", "log2"}, int, float or None
        Features a whole tree may use, drawn once per tree, by the same rule (not in
        scikit-learn). `max_features` then speaks of these.
    bootstrap : bool
        Draw the rows of each tree with replacement; False: without.
    max_samples : float or None
        Rows drawn for each tree, as a fraction in (0, 1] of each owner's rows. None: all.
    max_leaf_nodes : int or None
        Leaves per tree, at least 2; those splits stay that lower the impurity most.
    max_bin : int
        Bins per feature, 2 to 65534.
    """

    trees: int = 100
    max_depth: int | None = None
    min_samples_split: int = 2
    min_samples_leaf: int = 1
    max_features: str | int | float | None = "sqrt"
    tree_features: str | int | float | None = None
    bootstrap: bool = True
    max_samples: float | None = None
    max_leaf_nodes: int | None = None
    max_bin: int = 256

    def __post_init__(self) -> None:
        for name, low, high in (
            ("trees", 1, UNLIMITED),
            ("max_depth", 1, UNLIMITED),
            ("min_samples_split", 2, UNLIMITED),
            ("min_samples_leaf", 1, UNLIMITED),
            ("max_leaf_nodes", 2, UNLIMITED),
            ("max_bin", 2, MOST_BINS),
        ):
            value = getattr(self, name)
            if value is not None or name not in ("max_depth", "max_leaf_nodes"):
                check_whole(name, value, low, high)
        _check_features("max_features", self.max_features)
        _check_features("tree_features", self.tree_features)
        check_flag("bootstrap", self.bootstrap)
        if self.max_samples is not None and not _is_fraction(self.max_samples):
            raise UsageError(
                f"max_samples={self.max_samples!r}: give a fraction in (0, 1], or none for all "
                "rows (no number of rows: every owner holds another number)"
            )

    @property
    def depth(self) -> int:
        """The depth limit as a number."""
        return UNLIMITED if self.max_depth is None else self.max_depth


def _is_fraction(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 < value <= 1


def _check_features(name: str, rule: Any) -> None:
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
