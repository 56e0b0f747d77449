"""Prediction endpoints return coarse or noisy scores, for few rows, and no leaf ids."""

import numpy as np
import pytest
from columns import run, table_of

from fedtrees.core.errors import UsageError
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_composed
from fedtrees.experiments.evaluate import make_defense
from fedtrees.protocols.compatibility import check_fit
from fedtrees.protocols.views import view_of

SMALL = "secureboost[trees=2,max_depth=2,max_bin=8]"


def defense_of(text):
    (part,) = make_defense(parse_composed([text])[0]).parts
    return part


@pytest.mark.long
def test_rounded_probabilities_are_multiples_of_the_step_and_add_up():
    X = table_of(3)[0].X
    plain = run(SMALL, classes=3)[0].predict(X)
    rounded = run(SMALL, classes=3, defense=defense_of("answer-rounding[decimals=1]"))[0].predict(X)
    np.testing.assert_allclose(rounded * 10, np.round(rounded * 10), atol=1e-9)
    np.testing.assert_allclose(rounded.sum(axis=1), 1)
    assert 0.02 < np.abs(rounded - plain).max() <= 0.1
    binary = run(SMALL, defense=defense_of("answer-rounding[decimals=1]"))[0].predict(
        table_of()[0].X
    )
    np.testing.assert_array_equal(binary, np.round(run(SMALL)[0].predict(table_of()[0].X), 1))


@pytest.mark.long
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_noise_is_fresh_in_every_answer_and_has_the_scale(classes):
    X = np.repeat(table_of(classes)[0].X, 10, axis=0)
    noisy, _ = run(SMALL, classes=classes, defense=defense_of("answer-noise[scale=0.05]"))
    plain = run(SMALL, classes=classes)[0].predict(X)
    first, second = noisy.predict(X), noisy.predict(X)
    assert not np.array_equal(first, second)
    if classes:
        assert first.min() >= 0
        assert first.max() <= 1
    is_away_from_ends = (
        np.abs(plain - 0.5) < 0.2 if classes == 2 else np.full(plain.shape, classes == 0)
    )
    # For 1500 draws, the mean is within 15% of the scale with a large margin.
    if is_away_from_ends.any():
        assert np.abs(first - plain)[is_away_from_ends].mean() == pytest.approx(0.05, rel=0.15)
    if classes == 3:
        np.testing.assert_allclose(first.sum(axis=1), 1)


def test_limits_and_kinds_compose_in_any_order():
    for text in ("query-limit[records=7]+hide-leaf-ids", "hide-leaf-ids+query-limit[records=7]"):
        parts = make_defense(parse_composed([text])[0])
        assert parts.limit_endpoint("leaf-ids", 100) == ("score", 7)
        assert parts.limit_endpoint("label", 5) == ("label", 5)


@pytest.mark.parametrize(
    "name", ["answer-rounding", "answer-noise", "query-limit", "hide-leaf-ids"]
)
def test_they_refuse_a_released_model(name):
    released = register.make("protocol", Spec("fedtree-hist"))
    assert "releases its model" in str(check_fit(released, [defense_of(name)]))


@pytest.mark.parametrize(
    "text",
    [
        "answer-rounding[decimals=1.5]", "answer-rounding[decimals=-1]", "answer-noise[scale=0]",
        "answer-noise[scale=inf]", "query-limit[records=0]", "query-limit[records=true]",
    ],
)  # fmt: skip
def test_impossible_parameters_are_refused(text):
    with pytest.raises(UsageError, match=r"must be|give a whole number"):
        defense_of(text)


def test_a_query_limit_does_not_raise_a_smaller_budget():
    training, local_data = run(SMALL, defense=defense_of("query-limit[records=50]"))
    assert view_of(training, ("active",), local_data, 20).oracle.budget == 20
