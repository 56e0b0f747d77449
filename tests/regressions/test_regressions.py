"""Regressions: their results, their equality under Paillier, and invalid input."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from present import CRYPTO
from regression_runs import by_columns, by_rows, table, trained

from fedtrees.core.errors import DataError, FedtreesError, ProtocolError, UsageError
from fedtrees.core.messages import without_payload
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.core.wire import encode


def descent(X, y, rounds=30, lr=0.1, slope=0.25, constant=0.5, alpha=0.0):
    """Return the scores of full gradient descent in float64."""
    Z = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))])
    w = np.zeros(Z.shape[1])
    for _ in range(rounds):
        w -= lr * (Z.T @ (constant + slope * (Z @ w) - y) / len(y) + alpha * w)
    return Z @ w


def test_the_vertical_regression_equals_gradient_descent_on_the_joined_table():
    rows, schema = table(60, 7)
    run = trained("vertical-regression[alpha=0.1]", by_columns(rows, 3), schema)
    X = rows.X.astype(np.float64)
    scores = descent(X, rows.y, alpha=0.1)
    assert np.allclose(run.predict(rows.X), 1 / (1 + np.exp(-scores)), atol=1e-9)
    rows, schema = table(60, 7, classes=False)
    run = trained("vertical-regression", by_columns(rows, 3), schema)
    y = (rows.y - rows.y.mean()) / rows.y.std()
    scores = descent(rows.X.astype(np.float64), y, slope=1.0, constant=0.0)
    assert np.allclose(run.predict(rows.X), rows.y.mean() + rows.y.std() * scores)


def test_the_horizontal_regression_of_equal_clients_equals_gradient_descent():
    rows, schema = table(60, 7)
    run = trained("horizontal-regression", by_rows(rows, 30), schema)
    z = descent(rows.X.astype(np.float64), rows.y)
    assert np.allclose(run.predict(rows.X), 1 / (1 + np.exp(-z)), atol=1e-8)


@pytest.mark.parametrize("degree", [1, 3] * CRYPTO)
def test_messages_under_real_and_ideal_paillier_are_equal(degree):
    rows, schema = table(6, 5)
    local_data = by_columns(rows, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The warning says that 1024 bits are weak.
        real, ideal = (
            trained(
                f"vertical-regression[rounds=2,degree={degree},arbiter={kind},key_bits=1024]",
                local_data,
                schema,
            )
            for kind in ("real", "ideal")
        )
    pairs = list(zip(real.transcript, ideal.transcript, strict=True))
    assert all(
        encode(without_payload(real_delivery.message))
        == encode(without_payload(ideal_delivery.message))
        for real_delivery, ideal_delivery in pairs
    )
    assert any(
        real_delivery.message is not without_payload(real_delivery.message)
        for real_delivery, _ in pairs
    )
    assert np.array_equal(real.predict(rows.X), ideal.predict(rows.X))
    counts = [
        {name: cost for name, cost in run.transcript.costs.items() if not name.startswith("cpu")}
        for run in (real, ideal)
    ]
    assert counts[0] == counts[1]


def test_a_plaintext_that_is_too_long_is_refused_ideal_or_real():
    rows, schema = table(6, 5)
    with pytest.raises(FedtreesError, match="fewer binary places"):
        trained("vertical-regression[bits=700,rounds=2]", by_columns(rows, 3), schema)


def test_invalid_input_is_refused_with_a_remedy():
    rows, schema = table(12, 6)
    local_data = by_columns(rows, 3)
    weighted = replace(local_data["active"], weight=np.ones(12, dtype=np.float32))
    with pytest.raises(DataError, match="count every row once"):
        trained("vertical-regression", {**local_data, "active": weighted}, schema)
    X = rows.X.copy()
    X[0, 5] = np.inf
    with pytest.raises(DataError, match="infinite"):
        trained("vertical-regression", by_columns(Table(X, rows.y), 3), schema)
    constant_target = Table(rows.X, np.zeros(12))
    with pytest.raises(DataError, match="all targets are the same"):
        trained(
            "vertical-regression", by_columns(constant_target, 3), table(12, 6, classes=False)[1]
        )
    three_classes = Schema(schema.features, "t", ("a", "b", "c"))
    for name in ("vertical-regression", "horizontal-regression"):
        with pytest.raises(UsageError, match="has 3 classes"):
            register.make("protocol", Spec(name)).check(three_classes)
    with pytest.raises(ProtocolError, match="take a smaller lr"):
        trained("horizontal-regression[lr=50]", by_rows(*[table(30, 6)[0], 15]), schema)
    for text, message in [
        ("degree=2", "degree 1 or 3"),
        ("bits=2", "8 to 1024"),
        ("kind=cubic", "unknown kind"),
        ("alpha=-1", "L2 penalty"),
        ("rounds=0", "whole number, 1 or more"),
    ]:
        key, value = text.split("=")
        value = int(value) if value.lstrip("-").isdigit() else value
        with pytest.raises(UsageError, match=message):
            register.make("protocol", Spec("vertical-regression", {key: value}))
