"""DP gradient descent of vertical regressions: what a row moves, the noise, the claim."""

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


def federation(rows, seed=0, classes=True):
    """Return columns of two parties, all with declared ranges."""
    told, schema = table(rows, 6, seed, classes)
    declared = (replace(f, low=-60.0, high=60.0) for f in schema.features)
    return told, replace(schema, features=tuple(declared))


def opened(run, round):
    """Return what was opened of a round, party by party."""
    found = (d.message for d in run.transcript if isinstance(d.message, Gradient))
    return {
        m.party: from_fixed_point(unpack_integers(m.values), m.bits)
        for m in found
        if m.round == round
    }


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), degree=st.sampled_from([1, 3]), parties=st.integers(1, 4))
def test_no_row_brings_more_to_a_gradient_than_is_accounted_for(seed, degree, parties):
    rng, b, link = np.random.default_rng(seed), 20, SIGMOIDS[degree]
    size = 10.0 ** rng.integers(-2, 4)
    bounds = (float(rng.choice([0.3, 1.0, 2.5])), SCORE_BOUND / parties)
    z, rows = 0, []
    for _ in range(parties):
        design = to_python_integers(np.rint(size * rng.normal(size=(5, 3)) * 2**b))
        kept = shorten_rows(design, b, bounds)
        scores = kept @ to_python_integers(np.rint(3 * rng.normal(size=3) * 2**b))
        z = z + from_fixed_point(clip_scores(scores, 2 * b, bounds), 2 * b)
        rows.append(from_fixed_point(kept, b))
        short = np.linalg.norm(from_fixed_point(design, b), axis=1) < bounds[0] * (1 - 1e-9)
        assert (kept[short] == design[short]).all()
    residual = sum(float(c) * z**k for k, c in enumerate(link)) - rng.integers(0, 2, 5)
    for X in rows:
        moved = np.linalg.norm(X, axis=1) * np.abs(residual)
        assert (moved <= bounds[0] * largest_residual(link) * (1 + 1e-6)).all()


def test_one_row_more_moves_the_first_gradients_by_no_more_than_that():
    told, schema = federation(40)
    spec = "vertical-regression[statistics=public,rounds=2]"
    runs = [
        trained(spec, by_columns(told.take(np.arange(n)), 3), schema, "dp-gd[epsilon=1,clip=0.5]")
        for n in (39, 40)
    ]
    fewer, more = (opened(run, 0) for run in runs)  # with the same noise
    for party in fewer:
        assert 0 < np.linalg.norm(more[party] - fewer[party]) <= 0.5 * 0.5 + 1e-6


def test_noise_is_as_wide_as_the_claim_asks_for_and_spent_is_what_was_claimed():
    told, schema = federation(30)
    held, spec = by_columns(told, 3), "vertical-regression[rounds=40,statistics={}]"
    public, own = (
        trained(spec.format(s), held, schema, "dp-gd[epsilon=1,clip=1e-6,parties=2]")
        for s in ("public", "own")
    )
    assert public.spent[1].epsilon == pytest.approx(1, rel=1e-3)
    assert public.spent[1].epsilon <= 1
    assert public.spent[1].unprotected == public.claims[1].unprotected == ("rows",)
    assert public.spent[1].trusted == ("arbiter",)
    assert all(d.message.declared for d in public.transcript if type(d.message) is ColumnScales)
    assert own.spent[1].epsilon == np.inf
    assert own.spent[1].unprotected == ("columns", "rows")
    assert own.spent[1].updates == pytest.approx(1, rel=1e-3)
    scale, _, places = DPGradientDescent(1.0, clip=1e-6, parties=2).scale(
        schema, public.protocol.parameters
    )
    values = np.concatenate([x for k in range(40) for x in opened(public, k).values()])
    assert values.std() == pytest.approx(scale / 2.0**places, rel=0.2)
    # four times the rounds, twice the noise
    wider = DPGradientDescent(1.0, clip=1e-6, parties=2).scale(
        schema, {"rounds": 160, "fake": 0, "kind": None}
    )
    assert wider[0] / 2.0 ** wider[2] == pytest.approx(2 * scale / 2.0**places, rel=1e-3)


def test_what_its_bounds_do_not_cover_is_refused():
    told, schema = federation(30)
    held = by_columns(told, 3)
    for spec, said in (
        ("vertical-regression[batch=10]", "batch=10: an additional row would move other"),
        ("vertical-regression", "dp-gd\\[parties=1\\]: 2 have columns"),
    ):
        defense = "dp-gd[epsilon=1]" if "batch" in spec else "dp-gd[epsilon=1,parties=1]"
        with pytest.raises(UsageError, match=said):
            trained(spec, held, schema, defense)
    told, schema = federation(30, classes=False)
    with pytest.raises(UsageError, match="numeric target"):
        trained("vertical-regression", by_columns(told, 3), schema, "dp-gd[epsilon=1]")


def test_beside_it_no_value_is_found_that_all_are_without():
    told, schema = federation(9)
    held, spec = by_columns(told, 3), "vertical-regression[fake=8,rounds=12]"
    for defense, share in (("none", 1), ("dp-gd[epsilon=8]", 0)):
        run = trained(spec, held, schema, defense)
        scores, _, _ = inverted(run, held, "active[queries=9,entries=1]")
        assert scores["entries"] == share
