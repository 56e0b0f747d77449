from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.data.partition import PARTITIONS, Partition, parameters, split

SCHEMA = Schema((Feature("sex", "categorical"), Feature("age"), Feature("bmi")), "ill")


def table(n, seed=0, positives=0.3):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.integers(0, 2, n), rng.integers(20, 80, n), rng.normal(25, 4, n)])
    return Table(X, (rng.random(n) < positives).astype(int))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(PARTITIONS)),
    n=st.integers(1, 200),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**20),
)
def test_parts_are_disjoint_cover_all_rows_and_are_never_empty(name, n, share, seed):
    clients = 1 + int(share * (min(n, 40) - 1))
    parts = split(name, table(n, seed), SCHEMA, clients, np.random.default_rng(seed))
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(n))
    assert min(map(len, parts)) >= 1


@settings(max_examples=20, deadline=None)
@given(alpha=st.floats(0.01, 100), seed=st.integers(0, 1000))
def test_no_client_is_empty_at_any_alpha(alpha, seed):
    spec = Partition("label-skew", {"alpha": alpha})
    parts = split(spec, table(60, seed), SCHEMA, 20, np.random.default_rng(seed))
    assert min(map(len, parts)) >= 1


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_the_generator_decides_and_the_same_one_repeats(name):
    data = table(300)

    def run(seed):
        return [p.tolist() for p in split(name, data, SCHEMA, 4, np.random.default_rng(seed))]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_iid_parts_differ_by_at_most_one_row():
    sizes = [len(p) for p in split("iid", table(103), SCHEMA, 4, np.random.default_rng(0))]
    assert max(sizes) - min(sizes) == 1


def test_label_skew_grows_as_alpha_falls():
    data = table(4000)

    def spread(alpha):
        spec = Partition("label-skew", {"alpha": alpha})
        gaps = []
        for seed in range(10):
            parts = split(spec, data, SCHEMA, 5, np.random.default_rng(seed))
            gaps.append(np.std([data.y[p].mean() for p in parts]))
        return np.mean(gaps)

    assert spread(0.1) > 2 * spread(5) > 4 * spread(1000)


def test_quantity_skew_keeps_labels_iid_and_sizes_above_the_minimum():
    data = table(614)
    for seed in range(10):
        parts = split("quantity-skew", data, SCHEMA, 3, np.random.default_rng(seed))
        sizes = [len(p) for p in parts]
        assert min(sizes) >= 50
        for p in parts:  # five standard errors
            assert abs(data.y[p].mean() - data.y.mean()) < 5 * 0.46 / len(p) ** 0.5
    sizes = [
        sorted(len(p) for p in split("quantity-skew", data, SCHEMA, 3, np.random.default_rng(s)))
        for s in range(20)
    ]
    assert np.mean([s[2] / s[0] for s in sizes]) > 2


def test_quantity_skew_tops_up_where_drawing_is_hopeless():
    spec = Partition("quantity-skew", {"alpha": 0.01, "min_size": 9})
    parts = split(spec, table(100), SCHEMA, 10, np.random.default_rng(0))
    assert min(map(len, parts)) >= 9


def test_quantity_skew_refuses_an_impossible_minimum():
    spec = Partition("quantity-skew", {"min_size": 30})
    with pytest.raises(DataError, match="needs 150 rows, the table has 100"):
        split(spec, table(100), SCHEMA, 5, np.random.default_rng(0))


def test_feature_bands_are_ordered_and_equal():
    data = table(400)
    parts = split("feature-bands", data, SCHEMA, 4, np.random.default_rng(0))
    assert [len(p) for p in parts] == [100] * 4
    for low, high in pairwise(parts):
        assert data.X[low, 1].max() <= data.X[high, 1].min()
    by_bmi = Partition("feature-bands", {"feature": "bmi"})
    parts = split(by_bmi, data, SCHEMA, 2, np.random.default_rng(0))
    assert data.X[parts[0], 2].max() <= data.X[parts[1], 2].min()


def test_missing_values_fall_into_the_last_band():
    X = table(20).X.copy()
    X[:5, 1] = np.nan
    data = Table(X, table(20).y)
    parts = split("feature-bands", data, SCHEMA, 4, np.random.default_rng(0))
    assert parts[3].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("clients", "message"), [(0, "at least one client"), (6, "6 clients but only 5 rows")]
)
def test_impossible_numbers_of_clients(clients, message):
    with pytest.raises(DataError, match=message):
        split("iid", table(5), SCHEMA, clients, np.random.default_rng(0))


def test_label_skew_needs_classes():
    number = Schema(SCHEMA.features, "days", ())
    data = Table(table(30).X, np.linspace(0, 1, 30))
    with pytest.raises(UsageError, match="label-skew spreads classes, the target 'days'"):
        split("label-skew", data, number, 3, np.random.default_rng(0))
    parts = split("quantity-skew", data, number, 3, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(30))


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf")])
def test_alpha_must_be_positive(alpha):
    with pytest.raises(UsageError, match="alpha"):
        split(
            Partition("label-skew", {"alpha": alpha}), table(9), SCHEMA, 2, np.random.default_rng(0)
        )


def test_names_and_parameters_are_checked_at_construction():
    with pytest.raises(UsageError, match="did you mean 'label-skew'"):
        Partition("lable-skew")
    with pytest.raises(UsageError, match="did you mean 'alpha'"):
        Partition("label-skew", {"alfa": 1})
    with pytest.raises(UsageError, match="takes no parameters"):
        Partition("iid", {"alpha": 1})
    with pytest.raises(UsageError, match="did you mean 'age'"):
        split(
            Partition("feature-bands", {"feature": "aeg"}), table(9), SCHEMA, 2,
            np.random.default_rng(0),
        )  # fmt: skip
    assert parameters("quantity-skew") == {"alpha": 0.3, "min_size": None}
    assert str(Partition("label-skew", {"alpha": 0.3})) == "label-skew[alpha=0.3]"
