from __future__ import annotations

from dataclasses import dataclass

import pytest

from fedtrees.core.errors import UsageError
from fedtrees.trees.boosted.params import TreeParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trees", 0),
        ("trees", 2.5),
        ("trees", True),
        ("max_depth", 0),
        ("max_depth", 31),
        ("max_bin", 1),
        ("max_bin", 65535),
        ("learning_rate", 0.0),
        ("learning_rate", 1.5),
        ("reg_lambda", -1.0),
        ("reg_lambda", float("nan")),
        ("gamma", float("inf")),
        ("min_child_weight", "1"),
        ("base_score", float("nan")),
    ],
)
def test_impossible_value_is_named(name, value):
    with pytest.raises(UsageError, match=f"{name}={value!r}"):
        TreeParams(**{name: value})


def test_limits_are_allowed():
    params = TreeParams(
        trees=1, max_depth=30, max_bin=2, learning_rate=1, reg_lambda=0, gamma=0, min_child_weight=0
    )
    assert params.base_score is None


def test_a_subclass_with_another_default_keeps_the_rule():
    @dataclass(frozen=True, kw_only=True)
    class SmallForest(TreeParams):
        trees: int = 3

    assert SmallForest().trees == 3
    with pytest.raises(UsageError, match="trees=0"):
        SmallForest(trees=0)
