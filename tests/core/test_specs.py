import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.core.errors import UsageError
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_composed, parse_grid, parse_list, parse_value, show

VALUES = st.one_of(
    st.booleans(), st.none(), st.integers(-(10**9), 10**9), st.floats(-1e9, 1e9), st.just("mean")
)


@given(st.dictionaries(st.sampled_from(["epsilon", "trees", "cuts"]), VALUES))
def test_a_written_spec_reads_back(params):
    spec = Spec("laplace-hist", params)
    (back,) = parse_grid(str(spec))
    assert back == spec
    assert {k: type(v) for k, v in back.params.items()} == {
        k: type(v) for k, v in params.items()
    } or all(float(back.params[k]) == float(v) for k, v in params.items() if type(v) is float)


def test_grids_are_products_in_written_order():
    grid = parse_grid("x[a=1,2,b=u,v]")
    assert [str(s) for s in grid] == ["x[a=1,b=u]", "x[a=1,b=v]", "x[a=2,b=u]", "x[a=2,b=v]"]


def test_compositions_and_lists():
    composed = parse_composed(["none,split-only+laplace-hist[epsilon=1,4]"])
    assert [str(c) for c in composed] == [
        "none",
        "split-only+laplace-hist[epsilon=1]",
        "split-only+laplace-hist[epsilon=4]",
    ]
    assert composed[1].name == "split-only+laplace-hist"
    assert composed[1].inline == ";epsilon=1"
    assert [str(s) for s in parse_list(["a,b[x=1,2]", "c"])] == ["a", "b[x=1]", "b[x=2]", "c"]


@pytest.mark.parametrize("text", ["", "a[", "a]", "a[1]", "a[x=1,x=2]", "a b", "[x=1]"])
def test_a_text_that_cannot_be_parsed_is_refused(text):
    with pytest.raises(UsageError, match=r"cannot read|twice|unbalanced"):
        parse_list([text]) if text not in ("",) else parse_grid(text)


@pytest.mark.parametrize("text", ["a+", "+a", "a[x=1]+"])
def test_a_plus_without_a_part_on_both_sides_is_refused(text):
    with pytest.raises(UsageError, match="joins a part to nothing"):
        parse_composed([text])


@pytest.mark.parametrize(
    ("text", "error_message"),
    [
        ("x[k=1_000]", "'1_000' is not a number here"),
        ("x[k=٣]", "'٣' is not a number here"),
        ("x[k=１２]", "'１２' is not a number here"),
        ("x[k=1_0.5]", "'1_0.5' is not a number here"),
        (f"x[k={'9' * 400}]", "'999999999999999999999999999999...999999999999999' has 400 digits"),
        (f"x[k={'9' * 5000}]", "has 5000 digits; whole numbers have 18 at most"),
        ("x[k=1e999]", "'1e999' is beyond float64"),
        ("x[k=1,,2]", "has an empty value"),
        ("x[,k=1]", "has an empty value"),
        ("x[k=1,]", "has an empty value"),
        ("x[k=a\x07b]", "cannot be printed"),
    ],
)
def test_unusual_numbers_are_refused_in_a_short_line(text, error_message):
    with pytest.raises(UsageError, match=re.escape(error_message)) as error_info:
        parse_grid(text)
    assert len(str(error_info.value)) < 150


def test_numbers_of_all_usual_forms_are_read():
    values_of_texts = {
        "-7": -7,
        "+7": 7,
        "007": 7,
        "5.": 5.0,
        ".5": 0.5,
        "1E-3": 0.001,
        "-inf": -math.inf,
        "Infinity": math.inf,
        "9" * 18: 10**18 - 1,
        "-0.0": 0.0,
    }
    for text, value in values_of_texts.items():
        assert parse_value(text) == value
        assert type(parse_value(text)) is type(value)
    assert math.isnan(parse_value("nan"))
    assert parse_value("1-2") == "1-2"
    assert parse_grid("x[]") == [Spec("x")]
    assert parse_grid("x[k=]") == [Spec("x", {"k": ""})]


def test_a_constructor_that_cannot_compute_with_a_number_is_a_usage_error():
    @register.attack("divides")
    class Divides:
        def __init__(self, k=1):
            self.k = int(1 / k)

    with pytest.raises(UsageError, match=r"divides\[k=0\]: division by zero"):
        register.make("attack", Spec("divides", {"k": 0}))
    with pytest.raises(UsageError, match="cannot convert float infinity"):
        register.make("attack", Spec("divides", {"k": 5e-324}))


def test_values_keep_their_types():
    values = [parse_value(text) for text in ("1", "1.5", "1e3", "true", "none", "mean")]
    assert values == [1, 1.5, 1000.0, True, None, "mean"]
    assert show(0.1) == "0.1"
    assert show(4.0) == "4"
