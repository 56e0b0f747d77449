"""Names of the previous release still work."""

from types import SimpleNamespace

import numpy as np
import pytest
from report.synthetic_run import Table

from fedtrees.conformance.samples import sample_table
from fedtrees.core import attack
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense
from fedtrees.core.errors import UsageError
from fedtrees.data.partition import ONCE, Partition, lay_out
from fedtrees.estimators.federated import FederatedEstimator
from fedtrees.moved import DEFENSE_NAMES
from fedtrees.protocols import base
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist


def test_classes_are_available_under_their_old_names():
    assert FederatedEstimator.holdings_.fget(SimpleNamespace(local_data_=7)) == 7


def test_layouts_are_available_under_their_old_names():
    table, schema = sample_table(rows=30)
    for old, new in ONCE.items():
        names = ("one",) if new == "centralised" else ("one", "two")
        parts_of_layout = [
            lay_out(layout, table, schema, names, Partition("iid"), np.random.default_rng(0))
            for layout in (old, new)
        ]
        assert all(
            np.array_equal(parts_of_layout[0][name].X, parts_of_layout[1][name].X) for name in names
        )


def test_adversaries_are_read_from_results_of_the_previous_release(tmp_path):
    table = Table(tmp_path)
    table.train("none", 0, 0.7)
    table.add("exposure", "none", 0, "applies", 1.0, attack="joint", threat="t")
    assert [*table.rows()["stage"]] == ["train", "adversary"]


@pytest.mark.parametrize("old", DEFENSE_NAMES)
def test_a_defense_with_an_old_name_is_refused_with_the_new_name(old):
    with pytest.raises(UsageError) as error_info:
        type("Old", (Defense,), {old: None})
    assert f"defense Old defines {old!r}, which is now {DEFENSE_NAMES[old]}" in str(
        error_info.value
    )
    with pytest.raises(AttributeError, match="it is now"):
        getattr(Defense(), old)


def test_parameters_of_a_defense_may_have_any_name():
    """For example, `declared_rows` is a parameter of dp-sgd."""
    defense_class = type("Free", (Defense,), {"__annotations__": {"rows": int}, "rows": 3})
    assert defense_class().rows == 3


def test_an_attack_that_reads_an_old_requirement_gets_its_new_name():
    with pytest.raises(UsageError, match=r"it is now requirements\.min_leaf_rows"):
        Composition().least_leaf_rows  # noqa: B018
    assert not hasattr(Composition(), "gradient_clip")


@pytest.mark.parametrize("old", base.RENAMED)
def test_a_protocol_with_an_old_name_is_refused_with_the_new_name(old):
    with pytest.raises(UsageError) as error_info:
        type("Old", (FedTreeHist,), {old: None})
    assert f"protocol Old defines {old!r}, which is now {base.RENAMED[old]}" in str(
        error_info.value
    )


@pytest.mark.parametrize("old", attack.RENAMED)
def test_an_attack_with_an_old_name_is_refused_with_the_new_name(old):
    with pytest.raises(UsageError) as error_info:
        type("Old", (attack.Attack,), {old: None})
    assert f"attack Old defines {old!r}, which is now {attack.RENAMED[old]}" in str(
        error_info.value
    )
