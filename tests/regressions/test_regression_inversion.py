"""Inversion of regressions: exact if messages are exact, and without overconfident claims
otherwise.
"""

from dataclasses import replace

import gmpy2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from present import CRYPTO
from regression_runs import by_columns, by_rows, inverted, table, trained, view_and_case_of

from fedtrees.attacks.regression.columns import ColumnsView
from fedtrees.attacks.regression.exact_algebra import rank, solve_integers
from fedtrees.attacks.regression.rotation import Column, solutions
from fedtrees.benchmarks.papers.regression import known_data_ratios
from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec
from fedtrees.data.partition import columns_of
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


def needed_entries(n):
    """Return the number of known entries that theory requires for n hidden columns."""
    return (n - 1) * (n - 2) // 2


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n_unknown=st.integers(1, 7), n_extra=st.integers(0, 3))
def test_ill_conditioned_integer_systems_are_solved_exactly(seed, n_unknown, n_extra):
    rng = np.random.default_rng(seed)
    A = to_python_integers(rng.integers(-9, 9, (n_unknown + n_extra, n_unknown))) * (
        1 << 60
    ) + to_python_integers(rng.integers(-3, 3, (n_unknown + n_extra, n_unknown)))
    X = to_python_integers(rng.integers(-(10**9), 10**9, (n_unknown, 2)))
    solution = solve_integers(A, A @ X, 40)
    if rank(A) < n_unknown:
        assert solution is None
    else:
        assert (solution == X).all()
        inconsistent = A @ X
        inconsistent[-1, 0] += 1  # A rounded gradient has no integer solution of this size.
        second_solution = solve_integers(A, inconsistent, 40)
        assert second_solution is None or (
            not n_extra and (A @ second_solution == inconsistent).all()
        )


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_integers_of_any_length_are_packed_and_unpacked(seed):
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
# This seed has a weight of 5e-7, which is known with an error of 8e-11.
@example(seed=5798, hidden=3)
def test_every_value_is_exact_with_the_number_of_known_entries_from_theory(seed, hidden):
    rows, schema = table(9, 9 + hidden, seed)
    local_data = by_columns(rows, 9)
    run = trained("vertical-regression[bits=128,rounds=14]", local_data, schema)
    entries_option = f",entries={needed_entries(hidden)}" if needed_entries(hidden) else ""
    scores, notes, results = inverted(run, local_data, f"active[queries=9{entries_option}]")
    assert notes["exact"] == 1
    assert notes["directions"] == hidden
    assert scores["entries"] == scores["exact_entry_rows"] == 1
    assert scores["relative_error"] < 1e-6
    assert results["entries"]["blind"] < 0.5


@pytest.mark.parametrize(
    ("protocol", "classes", "threat"),
    [
        ("vertical-regression[kind=linear]", False, "active[queries=9,entries=1]"),
        ("vertical-regression[degree=3,lr=0.3]", True, "active[queries=9,entries=1]"),
        # This threat has no endpoint.
        ("vertical-regression[alpha=0.1]", True, "active[entries=3]"),
        # The threat gives more entries than are unknown.
        ("vertical-regression", True, "active[queries=9,entries=20]"),
    ],
)
def test_all_values_are_recovered_for_several_links_penalties_and_threats(
    protocol, classes, threat
):
    rows, schema = table(8, 11, 3, classes)
    local_data = by_columns(rows, 8)
    scores, _, _ = inverted(trained(protocol, local_data, schema), local_data, threat)
    assert scores["entries"] == 1


def test_two_columns_have_two_solutions_one_of_which_is_correct():
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(5, 2)), rng.normal(size=2)
    L = np.linalg.cholesky(X.T @ X).T
    rotation, _ = np.linalg.qr(rng.normal(size=(2, 2)))
    L = X @ rotation  # X = L turn'
    both_solutions = solutions(
        L, [Column(along=w[0]), Column(along=w[1])], rotation.T @ w, lambda j, x: 0, 1e-9
    )
    errors = sorted(
        np.abs(np.stack([L @ solution.columns[j] for j in range(2)], axis=1) - X).max()
        for solution in both_solutions
    )
    assert len(both_solutions) == 2
    assert errors[0] < 1e-12
    assert errors[1] > 0.1
    for solution in both_solutions:
        guess = np.stack([L @ solution.columns[j] for j in range(2)], axis=1)
        assert np.allclose(guess @ guess.T, X @ X.T)
        assert np.allclose(guess @ w, X @ w)
    known_columns = [Column([0], [X[0, 0]], w[0]), Column(along=w[1])]
    (single_solution,) = solutions(L, known_columns, rotation.T @ w, lambda j, x: 0, 1e-9)
    assert np.allclose(L @ single_solution.columns[0], X[:, 0])


def test_exact_arithmetic_recovers_values_that_float64_does_not():
    rows, schema = table(16, 24, 1)
    local_data = by_columns(rows, 16)
    run = trained("vertical-regression[bits=128]", local_data, schema)
    threat = f"active[queries=20,entries={needed_entries(8)}]"
    exact_scores, _, _ = inverted(run, local_data, threat)
    float64_scores, _, _ = inverted(
        run, local_data, threat, "regression-inversion[arithmetic=float64]"
    )
    assert exact_scores["entries"] == 1
    assert float64_scores["entries"] < 0.5


def test_the_precision_of_decrypted_values_limits_the_attack():
    rows, schema = table(9, 13, 2)
    local_data = by_columns(rows, 9)
    threat, shares_by_bits = f"active[queries=9,entries={needed_entries(4)}]", {}
    for bits in (6, 60):
        defense = f"decrypted-precision[bits={bits}]"
        run = trained("vertical-regression", local_data, schema, defense)
        assert run.transcript.acted == {0}
        scores, notes, _ = inverted(run, local_data, threat)
        assert notes["exact"] == 0
        shares_by_bits[bits] = scores["entries"]
    assert shares_by_bits[6] < 0.1
    assert shares_by_bits[60] == 1


def test_inapplicable_settings_give_a_reason():
    rows, schema = table(9, 12, 0)
    local_data = by_columns(rows, 6)
    view, _ = view_and_case_of(
        trained("vertical-regression[rounds=3]", local_data, schema), local_data, "active"
    )
    assert "9 rows, and the columns of the adversary have rank 7" in str(ATTACK.inapplicable(view))
    padded = trained("vertical-regression[rounds=9,fake=2,bits=96]", local_data, schema)
    scores, _, _ = inverted(padded, local_data, f"active[queries=9,entries={needed_entries(6)}]")
    assert scores["entries"] == 1
    doubled = np.concatenate([rows.X[:, :4], rows.X[:, :4], rows.X[:, 4:]], axis=1)
    doubled_rows, schema = Table(doubled, rows.y), table(9, 16, 0)[1]
    local_data = by_columns(doubled_rows, 8)  # The eight columns have rank four.
    view, _ = view_and_case_of(
        trained("vertical-regression[rounds=3]", local_data, schema), local_data, "active"
    )
    assert "columns of the adversary have rank 5" in str(ATTACK.inapplicable(view))
    view, _ = view_and_case_of(
        trained("vertical-regression[rounds=1,fake=9]", local_data, schema), local_data, "active"
    )
    assert "two rounds" in str(ATTACK.inapplicable(view))


def test_constant_columns_and_missing_values_are_handled():
    rows, schema = table(8, 11, 5)
    X = rows.X.copy()
    X[:, 9], X[2, 10], X[0, 1] = 7, np.nan, np.nan
    local_data = by_columns(Table(X, rows.y), 8)
    run = trained("vertical-regression", local_data, schema)
    scores, notes, _ = inverted(run, local_data, "active[queries=9]")
    assert notes["hidden_columns"] == 2
    assert scores["entries"] == 1


def test_averages_reveal_the_rows_of_another_client():
    rows, schema = table(14, 6, 4, classes=False)
    local_data = by_rows(rows, 4)
    run = trained("horizontal-regression[rounds=60,lr=0.3]", local_data, schema)
    scores, _, results = inverted(run, local_data, "client[index=0,entries=7]")
    assert scores["entries"] == 1
    assert results["entries"]["blind"] < 0.5
    view, _ = view_and_case_of(run, local_data, "client[index=1]")
    assert "another client has 10 rows, and its 7 weights" in str(ATTACK.inapplicable(view))


def test_all_printed_known_data_rates_follow_from_the_formulas():
    ratios = list(known_data_ratios())
    assert len(ratios) == 27
    assert {ratio.status for ratio in ratios} == {"reproduced"}
    # The precision of the context must not be changed.
    assert gmpy2.get_context().precision == 53


@pytest.mark.long
@pytest.mark.parametrize(
    "options", ["", ",degree=3,bits=40", *[",arbiter=real,key_bits=1024,bits=30"] * CRYPTO]
)
def test_an_arbiter_and_any_party_recover_all_values(options):
    rows, schema = table(12, 7, 6)
    local_data = by_columns(rows, 3)
    run = trained(
        f"vertical-regression[rounds=8{options}]", local_data, schema, "decrypted-precision"
    )
    view, _ = view_and_case_of(run, local_data, "active")
    assert ATTACK.inapplicable(view)  # Three columns do not determine the residuals.
    for party in ("arbiter", "passive"):
        assert ATTACK.inapplicable(view_and_case_of(run, local_data, party)[0])
    scores, _, _ = inverted(run, local_data, "arbiter+active")
    assert scores["entries"] == 1
    # There are four columns.
    few_rounds = trained("vertical-regression[rounds=4]", local_data, schema)
    scores, _, _ = inverted(few_rounds, local_data, "arbiter+active")
    assert 0 < scores["relative_error"] < 1
    one_round = trained("vertical-regression[rounds=1]", local_data, schema)
    assert "two rounds" in str(
        ATTACK.inapplicable(view_and_case_of(one_round, local_data, "arbiter+active")[0])
    )
    view, _ = view_and_case_of(run, local_data, "arbiter+passive[entries=6]")
    labels, _ = ATTACK.run(view, np.random.default_rng(0)).claims
    assert (labels.cluster == rows.y).all()
    scores, _, _ = inverted(run, local_data, "arbiter+passive[entries=6]")
    assert scores["entries"] == 1


@pytest.mark.long
@pytest.mark.parametrize("statistics", ["own", "public"])
@pytest.mark.parametrize("threat", ["arbiter+active", "arbiter+passive[entries=12]"])
def test_an_arbiter_and_any_party_recover_clipped_rows_under_dp_gd(statistics, threat):
    """Clipped scores are not used. For shortened rows the attack recovers the direction."""
    rows, schema = table(16, 7, 6)
    schema = replace(
        schema, features=tuple(replace(feature, low=-60, high=60) for feature in schema.features)
    )
    local_data = by_columns(rows, 3)
    spec = f"vertical-regression[rounds=30,statistics={statistics}]"
    for clip, least_share, largest_error in ((6, 1.0, 1e-3), (1.5, 0.0, 0.5)):
        run = trained(spec, local_data, schema, f"dp-gd[epsilon=50,clip={clip},parties=2]")
        scores, _, _ = inverted(run, local_data, threat)
        assert scores["entries"] >= least_share
        assert scores["relative_error"] < largest_error
        assert scores["entries_close"] > 0.6


def test_alternating_batches_are_attacked_without_random_columns():
    rows, schema = table(16, 12, 0)
    local_data = by_columns(rows, 9)
    view_of_full_batches, _ = view_and_case_of(
        trained("vertical-regression[rounds=2]", local_data, schema), local_data, "active"
    )
    assert "16 rows, and the columns of the adversary have rank 10" in str(
        ATTACK.inapplicable(view_of_full_batches)
    )
    run = trained("vertical-regression[batch=5,rounds=24,bits=128,alpha=0.1]", local_data, schema)
    scores, notes, _ = inverted(run, local_data, "active[queries=9,entries=1]")
    assert notes["exact"] == 1
    assert scores["entries"] == 1
    rounded_run = trained(
        "vertical-regression[batch=5,rounds=32]", local_data, schema, "decrypted-precision[bits=60]"
    )
    scores, notes, results = inverted(rounded_run, local_data, "active[queries=9,entries=1]")
    assert notes["exact"] == 0
    assert scores["entries_close"] == 1 > results["entries_close"]["blind"]
    short_run = trained("vertical-regression[batch=5,rounds=23]", local_data, schema)
    view, _ = view_and_case_of(short_run, local_data, "active")
    assert "4 batches and 3 columns of other parties need 24 rounds" in str(
        ATTACK.inapplicable(view)
    )
    view_of_small_batches, _ = view_and_case_of(
        trained("vertical-regression[batch=2]", local_data, schema), local_data, "active"
    )
    assert "other parties have 3 columns of 2 rows" in str(
        ATTACK.inapplicable(view_of_small_batches)
    )
    with pytest.raises(UsageError, match="batch=17: there are 16 rows"):
        trained("vertical-regression[batch=17]", local_data, schema)


def test_columns_of_several_parties_are_recovered_together():
    rows, schema = table(9, 12, 2)
    local_data = by_columns(rows, 9)
    parts = np.array_split(np.arange(9, 12), 2)
    local_data |= {
        f"passive-{k}": columns_of(rows, columns, False) for k, columns in enumerate(parts, 1)
    }
    run = trained("vertical-regression[bits=128]", local_data, schema)
    scores, notes, _ = inverted(run, local_data, "active[queries=9,entries=1]")
    assert notes["hidden_columns"] == 3
    assert scores["entries"] == 1


def test_averages_of_several_clients_are_not_attacked():
    rows, schema = table(14, 6, 4, classes=False)
    local_data = over_clients([rows.take(part) for part in np.array_split(np.arange(14), [10, 12])])
    run = trained("horizontal-regression[rounds=60]", local_data, schema)
    view, _ = view_and_case_of(run, local_data, "client[index=0]")
    assert "those of 2 other clients" in str(ATTACK.inapplicable(view))


@pytest.mark.parametrize("defense", ["dp-gd[epsilon=1,parties=2]", "decrypted-precision[bits=4]"])
def test_the_blind_guess_is_submitted_if_errors_dominate(defense):
    rows, schema = table(20, 6, 6)
    local_data, threat = by_columns(rows, 3), "active[entries=9]"
    spec = "vertical-regression[rounds=12,fake=20]"
    scores, notes, _ = inverted(trained(spec, local_data, schema, defense), local_data, threat)
    undefended_scores, undefended_notes, _ = inverted(
        trained(spec, local_data, schema), local_data, threat
    )
    assert notes["submits_blind"] == 1
    assert undefended_notes["submits_blind"] == 0
    assert scores["relative_error"] <= 1.05
    assert undefended_scores["entries"] > 0.9


def test_colluding_parties_use_the_gradients_of_both():
    rows, schema = table(9, 11, 3)
    columns = np.arange(11)
    local_data = {
        "active": columns_of(rows, columns[:7], True),
        "passive-1": columns_of(rows, columns[7:9], False),
        "passive-2": columns_of(rows, columns[9:], False),
    }
    run = trained("vertical-regression[bits=128,rounds=14]", local_data, schema)
    view, _ = view_and_case_of(run, local_data, "active[queries=9]")
    view_of_both = view_of(run, ("active", "passive-1"), local_data)
    (design_of_active,), designs_of_both = (
        ColumnsView.of(view).designs,
        ColumnsView.of(view_of_both).designs,
    )
    assert [design.name for design in designs_of_both] == ["active", "passive-1"]
    assert len(designs_of_both[0].gradients) == len(design_of_active.gradients) == 14
    assert len(designs_of_both[1].gradients) == 14
    assert {gradient.party for gradient in designs_of_both[1].gradients} == {"passive-1"}
