"""DP gradient descent of vertical regressions: the influence of a row, the noise, and the claim."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from regression_runs import by_columns, inverted, table, trained

from fedtrees.core.errors import UsageError
from fedtrees.defenses.dp_gd import DPGradientDescent
from fedtrees.linear import (
    SCORE_BOUND,
    SIGMOIDS,
    clip_scores,
    from_fixed_point,
    largest_residual,
    shorten_rows,
    to_python_integers,
    unpack_integers,
)
from fedtrees.messages.regression import ColumnScales, Gradient


def declared_table(n_rows, seed=0, classes=True):
    """Return a table whose columns all have declared ranges, and its schema."""
    undeclared_rows, schema = table(n_rows, 6, seed, classes)
    declared = (replace(f, low=-60.0, high=60.0) for f in schema.features)
    return undeclared_rows, replace(schema, features=tuple(declared))


def decrypted_gradients(run, round):
    """Return the decrypted gradients of a round by party."""
    messages = (
        delivery.message for delivery in run.transcript if isinstance(delivery.message, Gradient)
    )
    return {
        message.party: from_fixed_point(unpack_integers(message.values), message.bits)
        for message in messages
        if message.round == round
    }


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), degree=st.sampled_from([1, 3]), parties=st.integers(1, 4))
def test_the_contribution_of_a_row_to_a_gradient_is_bounded(seed, degree, parties):
    rng, places, link = np.random.default_rng(seed), 20, SIGMOIDS[degree]
    size = 10.0 ** rng.integers(-2, 4)
    bounds = (float(rng.choice([0.3, 1.0, 2.5])), SCORE_BOUND / parties)
    score, rows = 0, []
    for _ in range(parties):
        design = to_python_integers(np.rint(size * rng.normal(size=(5, 3)) * 2**places))
        shortened = shorten_rows(design, places, bounds)
        scores = shortened @ to_python_integers(np.rint(3 * rng.normal(size=3) * 2**places))
        score = score + from_fixed_point(clip_scores(scores, 2 * places, bounds), 2 * places)
        rows.append(from_fixed_point(shortened, places))
        is_short = np.linalg.norm(from_fixed_point(design, places), axis=1) < bounds[0] * (1 - 1e-9)
        assert (shortened[is_short] == design[is_short]).all()
    residual = sum(
        float(coefficient) * score**k for k, coefficient in enumerate(link)
    ) - rng.integers(0, 2, 5)
    for X in rows:
        contribution = np.linalg.norm(X, axis=1) * np.abs(residual)
        assert (contribution <= bounds[0] * largest_residual(link) * (1 + 1e-6)).all()


def test_an_additional_row_changes_the_first_gradients_within_the_bound():
    rows, schema = declared_table(40)
    spec = "vertical-regression[statistics=public,rounds=2]"
    runs = [
        trained(spec, by_columns(rows.take(np.arange(n)), 3), schema, "dp-gd[epsilon=1,clip=0.5]")
        for n in (39, 40)
    ]
    without_row, with_row = (
        decrypted_gradients(run, 0) for run in runs
    )  # Both runs draw the same noise.
    for party in without_row:
        assert 0 < np.linalg.norm(with_row[party] - without_row[party]) <= 0.5 * 0.5 + 1e-6


def test_noise_has_the_claimed_scale_and_the_claimed_budget_is_spent():
    rows, schema = declared_table(30)
    local_data, spec = by_columns(rows, 3), "vertical-regression[rounds=40,statistics={}]"
    with_public_statistics, with_local_statistics = (
        trained(spec.format(statistics), local_data, schema, "dp-gd[epsilon=1,clip=1e-6,parties=2]")
        for statistics in ("public", "own")
    )
    assert with_public_statistics.spent[1].epsilon == pytest.approx(1, rel=1e-3)
    assert with_public_statistics.spent[1].epsilon <= 1
    assert (
        with_public_statistics.spent[1].unprotected
        == with_public_statistics.claims[1].unprotected
        == ("rows",)
    )
    assert with_public_statistics.spent[1].trusted == ("arbiter",)
    assert all(
        delivery.message.declared
        for delivery in with_public_statistics.transcript
        if type(delivery.message) is ColumnScales
    )
    assert with_local_statistics.spent[1].epsilon == np.inf
    assert with_local_statistics.spent[1].unprotected == ("columns", "rows")
    assert with_local_statistics.spent[1].updates == pytest.approx(1, rel=1e-3)
    scale, _, places = DPGradientDescent(1.0, clip=1e-6, parties=2).scale(
        schema, with_public_statistics.protocol.parameters
    )
    values = np.concatenate(
        [x for k in range(40) for x in decrypted_gradients(with_public_statistics, k).values()]
    )
    assert values.std() == pytest.approx(scale / 2.0**places, rel=0.2)
    # Four times as many rounds need twice the noise.
    wider = DPGradientDescent(1.0, clip=1e-6, parties=2).scale(
        schema, {"rounds": 160, "fake": 0, "kind": None}
    )
    assert wider[0] / 2.0 ** wider[2] == pytest.approx(2 * scale / 2.0**places, rel=1e-3)


def test_settings_outside_the_proof_are_refused():
    rows, schema = declared_table(30)
    local_data = by_columns(rows, 3)
    for spec, message in (
        ("vertical-regression[batch=10]", "batch=10: an additional row would move other"),
        ("vertical-regression", "dp-gd\\[parties=1\\]: 2 have columns"),
    ):
        defense = "dp-gd[epsilon=1]" if "batch" in spec else "dp-gd[epsilon=1,parties=1]"
        with pytest.raises(UsageError, match=message):
            trained(spec, local_data, schema, defense)
    rows, schema = declared_table(30, classes=False)
    with pytest.raises(UsageError, match="numeric target"):
        trained("vertical-regression", by_columns(rows, 3), schema, "dp-gd[epsilon=1]")


def test_dp_gd_prevents_the_recovery_of_values():
    rows, schema = declared_table(9)
    local_data, spec = by_columns(rows, 3), "vertical-regression[fake=8,rounds=12]"
    for defense, share in (("none", 1), ("dp-gd[epsilon=8]", 0)):
        run = trained(spec, local_data, schema, defense)
        scores, _, _ = inverted(run, local_data, "active[queries=9,entries=1]")
        assert scores["entries"] == share
