"""Inversion of regressions: exact where messages are, and honest where they are not."""

from dataclasses import replace

import gmpy2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from present import CRYPTO
from regression_runs import by_columns, by_rows, inverted, seen, table, trained

from fedtrees.attacks.regression.columns import ColumnsView
from fedtrees.attacks.regression.exact_algebra import rank, solve_integers
from fedtrees.attacks.regression.rotation import Column, solutions
from fedtrees.benchmarks.papers.regression import known_data_ratios
from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec
from fedtrees.data.layout import columns_of
from fedtrees.linear import (
    drop_places,
    from_fixed_point,
    pack_integers,
    to_fixed_point,
    to_python_integers,
    unpack_integers,
)
from fedtrees.protocols.views import view_of

ATTACK = register.make("attack", Spec("regression-inversion"))


def unknown(n):
    return (n - 1) * (n - 2) // 2


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), m=st.integers(1, 7), more=st.integers(0, 3))
def test_whole_number_systems_are_solved_exactly_however_badly_conditioned(seed, m, more):
    rng = np.random.default_rng(seed)
    A = to_python_integers(rng.integers(-9, 9, (m + more, m))) * (1 << 60) + to_python_integers(
        rng.integers(-3, 3, (m + more, m))
    )
    X = to_python_integers(rng.integers(-(10**9), 10**9, (m, 2)))
    found = solve_integers(A, A @ X, 40)
    if rank(A) < m:
        assert found is None
    else:
        assert (found == X).all()
        wrong = A @ X
        wrong[-1, 0] += 1  # a rounded gradient: no whole number of such size solves it
        again = solve_integers(A, wrong, 40)
        assert again is None or (not more and (A @ again == wrong).all())


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_numbers_of_any_length_survive_their_bytes(seed):
    rng = np.random.default_rng(seed)
    values = to_python_integers(rng.integers(-(2**62), 2**62, (3, 2))) * (
        1 << int(rng.integers(0, 99))
    )
    assert (unpack_integers(pack_integers(values)) == values).all()
    x = rng.normal(size=4)
    assert np.array_equal(from_fixed_point(to_fixed_point(x, 120), 120), x)
    assert drop_places(to_python_integers([5, -5, 7]), 1).tolist() == [3, -2, 4]


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**4), hidden=st.integers(2, 4))
@example(seed=5798, hidden=3)  # a weight of 5e-7, known to 8e-11
def test_every_value_is_found_to_the_last_bit_with_the_entries_that_theory_asks_for(seed, hidden):
    rows, schema = table(9, 9 + hidden, seed)
    held = by_columns(rows, 9)
    run = trained("vertical-regression[bits=128,rounds=14]", held, schema)
    known = f",entries={unknown(hidden)}" if unknown(hidden) else ""
    scores, notes, every = inverted(run, held, f"active[queries=9{known}]")
    assert notes["exact"] == 1
    assert notes["directions"] == hidden
    assert scores["entries"] == scores["exact_entry_rows"] == 1
    assert scores["relative_error"] < 1e-6
    assert every["entries"]["blind"] < 0.5


@pytest.mark.parametrize(
    ("protocol", "classes", "threat"),
    [
        ("vertical-regression[kind=linear]", False, "active[queries=9,entries=1]"),
        ("vertical-regression[degree=3,lr=0.3]", True, "active[queries=9,entries=1]"),
        ("vertical-regression[alpha=0.1]", True, "active[entries=3]"),  # without an endpoint
        ("vertical-regression", True, "active[queries=9,entries=20]"),  # more than are unknown
    ],
)
def test_links_penalties_and_knowledge(protocol, classes, threat):
    rows, schema = table(8, 11, 3, classes)
    held = by_columns(rows, 8)
    scores, _, _ = inverted(trained(protocol, held, schema), held, threat)
    assert scores["entries"] == 1


def test_of_two_columns_two_solutions_remain_and_one_is_right():
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(5, 2)), rng.normal(size=2)
    L = np.linalg.cholesky(X.T @ X).T
    turn, _ = np.linalg.qr(rng.normal(size=(2, 2)))
    L = X @ turn  # X = L turn'
    found = solutions(L, [Column(along=w[0]), Column(along=w[1])], turn.T @ w, lambda j, x: 0, 1e-9)
    errors = sorted(
        np.abs(np.stack([L @ s.columns[j] for j in range(2)], axis=1) - X).max() for s in found
    )
    assert len(found) == 2
    assert errors[0] < 1e-12
    assert errors[1] > 0.1
    for s in found:
        guess = np.stack([L @ s.columns[j] for j in range(2)], axis=1)
        assert np.allclose(guess @ guess.T, X @ X.T)
        assert np.allclose(guess @ w, X @ w)
    known = [Column([0], [X[0, 0]], w[0]), Column(along=w[1])]
    (alone,) = solutions(L, known, turn.T @ w, lambda j, x: 0, 1e-9)
    assert np.allclose(L @ alone.columns[0], X[:, 0])


def test_exact_arithmetic_reads_what_float64_does_not():
    rows, schema = table(16, 24, 1)
    held = by_columns(rows, 16)
    run = trained("vertical-regression[bits=128]", held, schema)
    threat = f"active[queries=20,entries={unknown(8)}]"
    exact, _, _ = inverted(run, held, threat)
    rough, _, _ = inverted(run, held, threat, "regression-inversion[arithmetic=float64]")
    assert exact["entries"] == 1
    assert rough["entries"] < 0.5


def test_precision_is_a_frontier():
    rows, schema = table(9, 13, 2)
    held = by_columns(rows, 9)
    threat, found = f"active[queries=9,entries={unknown(4)}]", {}
    for bits in (6, 60):
        defense = f"decrypted-precision[bits={bits}]"
        run = trained("vertical-regression", held, schema, defense)
        assert run.transcript.acted == {0}
        scores, notes, _ = inverted(run, held, threat)
        assert notes["exact"] == 0
        found[bits] = scores["entries"]
    assert found[6] < 0.1
    assert found[60] == 1


def test_what_does_not_apply_says_why():
    rows, schema = table(9, 12, 0)
    held = by_columns(rows, 6)
    view, _ = seen(trained("vertical-regression[rounds=3]", held, schema), held, "active")
    assert "9 rows, and the columns of the adversary have rank 7" in str(ATTACK.inapplicable(view))
    padded = trained("vertical-regression[rounds=9,fake=2,bits=96]", held, schema)
    scores, _, _ = inverted(padded, held, f"active[queries=9,entries={unknown(6)}]")
    assert scores["entries"] == 1
    doubled = np.concatenate([rows.X[:, :4], rows.X[:, :4], rows.X[:, 4:]], axis=1)
    again, schema = Table(doubled, rows.y), table(9, 16, 0)[1]
    held = by_columns(again, 8)  # eight columns of rank four
    view, _ = seen(trained("vertical-regression[rounds=3]", held, schema), held, "active")
    assert "columns of the adversary have rank 5" in str(ATTACK.inapplicable(view))
    view, _ = seen(trained("vertical-regression[rounds=1,fake=9]", held, schema), held, "active")
    assert "two rounds" in str(ATTACK.inapplicable(view))


def test_constant_columns_and_missing_values():
    rows, schema = table(8, 11, 5)
    X = rows.X.copy()
    X[:, 9], X[2, 10], X[0, 1] = 7, np.nan, np.nan
    held = by_columns(Table(X, rows.y), 8)
    run = trained("vertical-regression", held, schema)
    scores, notes, _ = inverted(run, held, "active[queries=9]")
    assert notes["hidden_columns"] == 2
    assert scores["entries"] == 1


def test_rows_of_another_client_are_read_off_averages():
    rows, schema = table(14, 6, 4, classes=False)
    held = by_rows(rows, 4)
    run = trained("horizontal-regression[rounds=60,lr=0.3]", held, schema)
    scores, _, every = inverted(run, held, "client[index=0,entries=7]")
    assert scores["entries"] == 1
    assert every["entries"]["blind"] < 0.5
    view, _ = seen(run, held, "client[index=1]")
    assert "another client has 10 rows, and its 7 weights" in str(ATTACK.inapplicable(view))


def test_all_printed_known_data_rates_follow_from_the_formulas():
    ratios = list(known_data_ratios())
    assert len(ratios) == 27
    assert {c.status for c in ratios} == {"reproduced"}
    assert gmpy2.get_context().precision == 53  # nobody left another one behind


@pytest.mark.long
@pytest.mark.parametrize(
    "more", ["", ",degree=3,bits=40", *[",arbiter=real,key_bits=1024,bits=30"] * CRYPTO]
)
def test_an_arbiter_and_anybody_open_everything(more):
    rows, schema = table(12, 7, 6)
    held = by_columns(rows, 3)
    run = trained(f"vertical-regression[rounds=8{more}]", held, schema, "decrypted-precision")
    view, _ = seen(run, held, "active")
    assert ATTACK.inapplicable(view)  # three columns tell no residuals
    for alone in ("arbiter", "passive"):
        assert ATTACK.inapplicable(seen(run, held, alone)[0])
    scores, _, _ = inverted(run, held, "arbiter+active")
    assert scores["entries"] == 1
    few = trained("vertical-regression[rounds=4]", held, schema)  # of four columns
    scores, _, _ = inverted(few, held, "arbiter+active")
    assert 0 < scores["relative_error"] < 1
    one = trained("vertical-regression[rounds=1]", held, schema)
    assert "two rounds" in str(ATTACK.inapplicable(seen(one, held, "arbiter+active")[0]))
    view, _ = seen(run, held, "arbiter+passive[entries=6]")
    labels, _ = ATTACK.run(view, np.random.default_rng(0)).claims
    assert (labels.cluster == rows.y).all()
    scores, _, _ = inverted(run, held, "arbiter+passive[entries=6]")
    assert scores["entries"] == 1


@pytest.mark.long
@pytest.mark.parametrize("told", ["own", "public"])
@pytest.mark.parametrize("who", ["arbiter+active", "arbiter+passive[entries=12]"])
def test_an_arbiter_and_anybody_read_what_dp_gd_left_of_rows(told, who):
    """Scores at their bound are left out; of rows that were shortened the direction is told."""
    rows, schema = table(16, 7, 6)
    schema = replace(schema, features=tuple(replace(f, low=-60, high=60) for f in schema.features))
    held = by_columns(rows, 3)
    spec = f"vertical-regression[rounds=30,statistics={told}]"
    for clip, least, off in ((6, 1.0, 1e-3), (1.5, 0.0, 0.5)):
        run = trained(spec, held, schema, f"dp-gd[epsilon=50,clip={clip},parties=2]")
        scores, _, _ = inverted(run, held, who)
        assert scores["entries"] >= least
        assert scores["relative_error"] < off
        assert scores["entries_close"] > 0.6


def test_batches_in_turn_are_read_without_columns_of_coins():
    rows, schema = table(16, 12, 0)
    held = by_columns(rows, 9)
    whole, _ = seen(trained("vertical-regression[rounds=2]", held, schema), held, "active")
    assert "16 rows, and the columns of the adversary have rank 10" in str(
        ATTACK.inapplicable(whole)
    )
    run = trained("vertical-regression[batch=5,rounds=24,bits=128,alpha=0.1]", held, schema)
    scores, notes, _ = inverted(run, held, "active[queries=9,entries=1]")
    assert notes["exact"] == 1
    assert scores["entries"] == 1
    rough = trained(
        "vertical-regression[batch=5,rounds=32]", held, schema, "decrypted-precision[bits=60]"
    )
    scores, notes, every = inverted(rough, held, "active[queries=9,entries=1]")
    assert notes["exact"] == 0
    assert scores["entries_close"] == 1 > every["entries_close"]["blind"]
    short = trained("vertical-regression[batch=5,rounds=23]", held, schema)
    view, _ = seen(short, held, "active")
    assert "4 batches and 3 columns of other parties need 24 rounds" in str(
        ATTACK.inapplicable(view)
    )
    small, _ = seen(trained("vertical-regression[batch=2]", held, schema), held, "active")
    assert "other parties have 3 columns of 2 rows" in str(ATTACK.inapplicable(small))
    with pytest.raises(UsageError, match="batch=17: there are 16 rows"):
        trained("vertical-regression[batch=17]", held, schema)


def test_columns_of_several_parties_are_read_together():
    rows, schema = table(9, 12, 2)
    held = by_columns(rows, 9)
    parts = np.array_split(np.arange(9, 12), 2)
    held |= {f"passive-{k}": columns_of(rows, c, False) for k, c in enumerate(parts, 1)}
    run = trained("vertical-regression[bits=128]", held, schema)
    scores, notes, _ = inverted(run, held, "active[queries=9,entries=1]")
    assert notes["hidden_columns"] == 3
    assert scores["entries"] == 1


def test_averages_of_several_others_are_left_alone():
    rows, schema = table(14, 6, 4, classes=False)
    held = over_clients([rows.take(part) for part in np.array_split(np.arange(14), [10, 12])])
    run = trained("horizontal-regression[rounds=60]", held, schema)
    view, _ = seen(run, held, "client[index=0]")
    assert "those of 2 other clients" in str(ATTACK.inapplicable(view))


@pytest.mark.parametrize("defense", ["dp-gd[epsilon=1,parties=2]", "decrypted-precision[bits=4]"])
def test_where_errors_drown_all_it_claims_what_known_values_make_likely(defense):
    rows, schema = table(20, 6, 6)
    held, threat = by_columns(rows, 3), "active[entries=9]"
    spec = "vertical-regression[rounds=12,fake=20]"
    scores, notes, _ = inverted(trained(spec, held, schema, defense), held, threat)
    bare, read, _ = inverted(trained(spec, held, schema), held, threat)
    assert notes["submits_blind"] == 1
    assert read["submits_blind"] == 0
    assert scores["relative_error"] <= 1.05
    assert bare["entries"] > 0.9


def test_an_active_and_a_passive_party_together_read_the_gradients_of_both():
    rows, schema = table(9, 11, 3)
    columns = np.arange(11)
    held = {
        "active": columns_of(rows, columns[:7], True),
        "passive-1": columns_of(rows, columns[7:9], False),
        "passive-2": columns_of(rows, columns[9:], False),
    }
    run = trained("vertical-regression[bits=128,rounds=14]", held, schema)
    view, _ = seen(run, held, "active[queries=9]")
    both = view_of(run, ("active", "passive-1"), held)
    (alone,), together = ColumnsView.of(view).designs, ColumnsView.of(both).designs
    assert [design.name for design in together] == ["active", "passive-1"]
    assert len(together[0].gradients) == len(alone.gradients) == 14
    assert len(together[1].gradients) == 14
    assert {m.party for m in together[1].gradients} == {"passive-1"}
