"""One description of columns is used for writing and for reading."""

import csv
import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.core import results
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import (
    Computational,
    LabelDP,
    MutualInformation,
    NoGuarantee,
    PureDP,
    Structural,
    Unknown,
    join,
    parse,
)
from fedtrees.core.specs import Composed, Spec, parse_one, written

SIX_DIGITS = st.floats(1e-9, 1e9).map(lambda x: float(f"{x:g}"))
WORDS = st.sampled_from(["row", "histogram", "Cuts", "Cuts+BaseScore"])
GUARANTEES = st.one_of(
    st.just(Structural()),
    st.builds(Computational, st.integers(0, 4096)),
    st.builds(LabelDP, SIX_DIGITS),
    st.builds(MutualInformation, SIX_DIGITS),
    st.builds(PureDP, SIX_DIGITS | st.just(math.inf), WORDS, SIX_DIGITS, WORDS),
)


@given(st.lists(GUARANTEES, min_size=1, max_size=3))
def test_a_guarantee_is_read_where_it_is_written(several):
    assert parse(join(several)) == tuple(several)


def test_none_is_a_guarantee_and_nothing_is_not():
    assert parse(join([])) == (NoGuarantee(),)
    assert parse("") == ()


@pytest.mark.parametrize("text", ["zcdp[rho=0.5]", "something-else", "pure-dp[epsilon=-1]"])
def test_an_unknown_guarantee_is_kept_as_text(text):
    (guarantee,) = parse(text)
    assert isinstance(guarantee, Unknown)
    assert str(guarantee) == text
    assert parse("zcdp[rho=0.5]")[0].budget == ("rho", 0.5)


def test_a_plus_inside_brackets_does_not_split_a_guarantee():
    first, second = parse("pure-dp[epsilon=1e+2]+structural")
    assert first == PureDP(100.0)
    assert second == Structural()


NAMES = st.sampled_from(["a", "split-only", "laplace-hist", "epsilon", "k2"])
WHOLE = st.integers(-(10**18) + 1, 10**18 - 1)  # 18 digits are read
PARTS = st.lists(
    st.builds(Spec, NAMES, st.dictionaries(NAMES, WHOLE | SIX_DIGITS | st.booleans(), max_size=3)),
    max_size=3,
)


@given(PARTS)
def test_two_columns_represent_a_composition(parts):
    composed = Composed(tuple(parts))
    text = written(composed.name, composed.inline)
    assert text == str(composed)
    assert parse_one(text) == composed


def test_a_grid_is_not_one_composition_and_its_size_is_bounded():
    with pytest.raises(UsageError, match="names 2 compositions"):
        parse_one("x[epsilon=1,4]")
    axis = ",".join("123456789")
    with pytest.raises(UsageError, match="more than 10000 combinations"):
        parse_one("+".join(f"x[a={axis}]" for _ in range(5)))


TYPED = {
    "dataset": 'a, "b"\nc',
    "seed": np.int64(3),
    "value": np.float64(0.1),
    "blind": math.nan,
    "advantage": None,
    "bytes_up": 12,
    "claimed": (Structural(), PureDP(4.0)),
    "spent": "",
}


def test_a_row_of_typed_values_is_written_and_read_back():
    text = results.write([results.plain(TYPED)])
    header, line = csv.reader(io.StringIO(text))
    assert header == [column.name for column in results.COLUMNS]
    back = {c.name: c.read(t) for c, t in zip(results.COLUMNS, line, strict=True)}
    assert back["dataset"] == TYPED["dataset"]
    assert (back["seed"], back["value"], back["bytes_up"]) == (3, 0.1, 12)
    assert math.isnan(back["blind"])
    assert math.isnan(back["advantage"])
    assert back["claimed"] == TYPED["claimed"]
    assert back["spent"] is None
    assert dict(zip(header, line, strict=True))["bytes_up"] == "12"


@pytest.mark.parametrize(
    ("row", "error_message"),
    [
        ({"sead": 1}, "no column 'sead'"),
        ({"seed": 1.5}, "'seed' of a row is 1.5; it must be of the kind whole"),
        ({"value": "high"}, "'value' of a row is 'high'; it must be of the kind number"),
        ({"value": True}, "'value' of a row is True"),
        ({"reason": 3}, "'reason' of a row is 3; it must be of the kind text"),
        ({"claimed": 3}, "'claimed' of a row is 3; it must be of the kind guarantee"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_with_its_column(row, error_message):
    with pytest.raises(UsageError, match=error_message):
        results.plain(row)


@pytest.mark.parametrize("text", ["", "0.5", "inf", "nan", "x", "9007199254740993"])
def test_a_seed_is_an_integer_that_a_table_can_represent(text):
    seed = next(column for column in results.COLUMNS if column.name == "seed")
    with pytest.raises(UsageError, match="not a whole number"):
        seed.read(text)
    assert seed.read("4") == 4
