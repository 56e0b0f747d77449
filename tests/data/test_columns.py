"""Columns are distributed by share, by name or by file; files are joined by an id."""

import csv

import numpy as np
import pytest
from columns import table_of
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.schema import Feature, Schema
from fedtrees.core.specs import parse_grid
from fedtrees.data.client_tables import load_joined
from fedtrees.data.partition import Partition, split, spread_columns
from fedtrees.experiments.federation import load_dataset, spread
from fedtrees.experiments.suite import DataRef

SCHEMA = Schema(tuple(Feature(name) for name in "abcdefg"), "y")
NAMES = ("active", "passive-1", "passive-2")


def columns(text, names=NAMES, seed=0, files=()):
    (spec,) = parse_grid(text)
    partition = Partition(spec.name, dict(spec.params))
    rng = np.random.default_rng(seed)
    columns_of_parties = spread_columns(partition.name, partition.params, SCHEMA, names, rng, files)
    assert list(columns_of_parties) == list(names)
    return {
        name: "".join("abcdefg"[column] for column in part)
        for name, part in columns_of_parties.items()
    }


def test_a_share_is_a_share_of_all_columns_and_other_parties_get_the_rest():
    with_half = columns("shares[active=0.5]", NAMES[:2])
    assert [len(party_columns) for party_columns in with_half.values()] == [
        3,
        4,
    ]  # int(0.5 * 7), as in the authors' code
    assert columns("shares[active=0]")["active"] == ""
    assert [len(party_columns) for party_columns in columns("shares[passive-1=0.3]").values()] == [
        3,
        2,
        2,
    ]
    assert with_half != columns("shares[active=0.5]", NAMES[:2], seed=1)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_every_column_belongs_to_exactly_one_party(first_share, second_share, seed):
    text = f"shares[active={first_share},passive-1={second_share}]"
    if int(7 * first_share) + int(7 * second_share) > 7:
        with pytest.raises(UsageError, match="of the columns; at most all"):
            columns(text, seed=seed)
    else:
        assert sorted("".join(columns(text, seed=seed).values())) == list("abcdefg")


def test_columns_are_given_by_name():
    assert columns("named[passive-1=g|b]", NAMES[:2]) == {"active": "acdef", "passive-1": "bg"}
    assert columns("named[passive-1=g|b]") == {
        "active": "acd",
        "passive-1": "bg",
        "passive-2": "ef",
    }


@pytest.mark.parametrize(
    ("text", "error_message"),
    [
        ("shares[actve=0.5]", "no party 'actve'; did you mean 'active'"),
        ("shares[active=1.5]", r"active=1.5; give a share of the columns"),
        ("shares[active=0.2,passive-1=0.2,passive-2=0.2]", "4 columns are not assigned"),
        ("named[active=a|z]", "no column 'z' is left"),
        ("named[active=a|b,passive-1=b]", "no column 'b' is left; it is named twice"),
        ("named[active=a,passive-1=b,passive-2=c]", r"4 columns are not assigned \(d, e, f, g\)"),
        ("label-skew", "spreads rows; columns are spread by iid, shares, named, by-file"),
        ("by-file", "there are 3 parties and 0 files joined by an id; give one file per party"),
    ],
)
def test_impossible_distributions_are_refused_with_the_reason(text, error_message):
    with pytest.raises(UsageError, match=error_message):
        columns(text)


def test_columns_cannot_be_distributed_by_a_protocol_with_complete_rows():
    table, schema = table_of(2)
    with pytest.raises(UsageError, match="'shares' distributes columns, but the parties"):
        split("shares", table, schema, 2, np.random.default_rng(0))


# --- one file per party


def write(folder, name, rows):
    path = folder / f"{name}.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


BANK = [["id", "income", "y"], *([f"r{i}", 10 * i, i % 2] for i in range(8))]
SHOP = [["age", "id", "city"], *([20 + i, f"r{i}", "ab"[i % 2]] for i in reversed(range(8)))]


def joined(folder, bank=BANK, shop=SHOP, **options):
    paths = [write(folder, "bank", bank), write(folder, "shop", shop)]
    return load_joined(paths, "y", id="id", categorical=["city"], **options)


def test_rows_are_aligned_by_id_whatever_their_order(tmp_path):
    data = joined(tmp_path)
    assert data.schema.names == ("income", "age", "city")
    assert data.schema.classes == ("0", "1")
    assert data.files == ((0,), (1, 2))
    assert data.name == "bank+shop"
    np.testing.assert_array_equal(data.table.X[:, 0] / 10 + 20, data.table.X[:, 1])
    np.testing.assert_array_equal(data.table.X[:, 2], data.table.y)


def test_every_party_gets_the_columns_of_its_file(tmp_path):
    ref = DataRef.parse(
        {
            "csv": f"{write(tmp_path, 'bank', BANK)},{write(tmp_path, 'shop', SHOP)}",
            "target": "y", "id": "id", "categorical": ["city"],
        }
    )  # fmt: skip
    assert ref.name == "bank+shop"
    data = load_dataset(ref, None)
    for partition_name in ("iid", "by-file"):
        local_data = spread(
            data, Partition(partition_name), ["active", "passive-1"], 0, "columns"
        ).local_data
        assert [h.columns.tolist() for h in local_data.values()] == [[0], [1, 2]]
        assert local_data["passive-1"].y is None
    with pytest.raises(
        UsageError, match="there are 3 parties and 2 files joined by an id; use --clients 2"
    ):
        spread(data, Partition("iid"), NAMES, 0, "columns")


def test_the_labels_may_come_without_columns(tmp_path):
    bank = [[row[0], row[2]] for row in BANK]
    assert joined(tmp_path, bank).files == ((), (0, 1))


@pytest.mark.parametrize(
    ("bank", "shop", "error_message"),
    [
        (BANK, [*SHOP, [30, "r3", "a"]], "line 10: the id 'r3' is also in line 6; keep one"),
        (BANK, [*SHOP[:-1], [30, "", "a"]], "line 9: no id in column 'id'"),
        (BANK, SHOP[:-2], r"shop.csv lacks 2 of the ids of .*bank.csv \('r0', 'r1'\)"),
        (BANK, [SHOP[0], *([a, k.upper(), c] for a, k, c in SHOP[1:])], "'R0' seems to be 'r0' of"),
        (BANK[:-1], SHOP, r"bank.csv lacks 1 of the ids of .*shop.csv \('r7'\)"),
        (BANK, [["age", "key", "city"], *SHOP[1:]], "shop.csv: no column 'id'"),
        (BANK, [["income", "id", "city"], *SHOP[1:]], "column 'income' is in .*bank.csv and in"),
        (SHOP, BANK, "the target 'y' is in .*shop.csv; name the file with the labels first"),
        (BANK, [["id"], *([row[1]] for row in SHOP[1:])], "no column 'city'"),
        ([[*row[:2], "0" if i else "y"] for i, row in enumerate(BANK)], SHOP, "has one class only"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path, bank, shop, error_message):
    with pytest.raises(DataError, match=error_message):
        joined(tmp_path, bank, shop)


@pytest.mark.parametrize(
    ("ids", "error_message"),
    [
        (["1000", "1001", "1002", "1003"], None),
        (["1000.0", "1001.0", "1002.0", "1003.0"], "'1000.0' seems to be '1000' .*4 such ids"),
        (["1000", "1001", "1,002", "1003"], None),
        (["01000", "1001", "1002", "1003"], "'01000' seems to be '1000' of .*1 such id"),
        (["1000", "01000", "1002", "1003"], r"shop.csv lacks 1 of the ids .*\('1001'\)"),
    ],
)
def test_ids_in_different_notation_are_reported_and_not_matched(tmp_path, ids, error_message):
    bank = [
        ["id", "income", "y"],
        *([1000 + number, 5 * number, number % 2] for number in range(4)),
    ]
    shop = [["id", "age"], *([key, 20 + number] for number, key in enumerate(ids))]
    paths = [write(tmp_path, "bank", bank), write(tmp_path, "shop", shop)]
    if error_message is None:
        data = load_joined(paths, "y", id="id", keep=["income", "age"])
        assert data.notes[0].startswith("files: 2, joined by 'id'; ")
        return
    with pytest.raises(DataError, match=error_message):
        load_joined(paths, "y", id="id", keep=["income", "age"])


def test_a_file_without_columns_is_named(tmp_path):
    paths = [write(tmp_path, "bank", BANK), write(tmp_path, "shop", [[r[1]] for r in SHOP])]
    with pytest.raises(DataError, match=r"shop.csv: no columns except the id 'id'; leave this"):
        load_joined(paths, "y", id="id")
