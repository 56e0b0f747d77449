"""A threat may give an adversary attributes of all rows of others. Attacks and blind guesses use
them.
"""

import numpy as np
import pytest
from regression_runs import trained, view_and_case_of

from fedtrees.attacks.forests.attack import DraftDP
from fedtrees.attacks.forests.posterior import consensus
from fedtrees.attacks.forests.solvers import Enumeration
from fedtrees.attacks.forests.structure import Noise, NoisyForest, Variables
from fedtrees.core.claims import Records
from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.schema import Feature, OneHot, Schema, Table
from fedtrees.data import load_csv
from fedtrees.metrics.records import row_errors
from fedtrees.metrics.victims_rows import RecordMetric, SpecificityMetric
from fedtrees.report.adversaries import adversary_named

RANDOMNESS = np.random.default_rng(0)
KIND = RANDOMNESS.integers(0, 3, 60)
HOT = np.eye(3)[KIND]
OTHERS = np.where(
    RANDOMNESS.random((60, 4)) < 0.8, KIND[:, None] > 0, RANDOMNESS.random((60, 4)) < 0.5
)
NUMBER = RANDOMNESS.uniform(0, 8, (60, 1))
ROWS = Table(np.hstack([HOT, OTHERS, NUMBER]).astype(np.float32), (KIND > 1).astype(np.int64))
NAMES = ("a", "b", "c", "d", "e", "f", "g")
BITS = tuple(Feature(n, "categorical", categories=("0", "1")) for n in NAMES)
SCHEMA = Schema((*BITS, Feature("x", low=0, high=8)), "y", groups=(OneHot(("a", "b", "c")),))


@pytest.fixture(scope="module")
def forest_run():
    local_data = over_clients([ROWS.take(np.arange(30)), ROWS.take(np.arange(30, 60))])
    return trained("dp-forest[epsilon=40,trees=10,depth=4,bins=8]", local_data, SCHEMA), local_data


@pytest.mark.long
@pytest.mark.parametrize("threat", ["public", "server", "client"])
def test_known_attributes_are_kept_and_the_blind_guess_uses_them_too(forest_run, threat):
    view, case = view_and_case_of(*forest_run, f"{threat}[attributes=3]")
    columns, known_values = case.known_columns
    victims = case.victims_rows
    assert np.array_equal(victims.X[:, columns], known_values)
    # A one-hot group is known completely or not at all.
    assert sum(len({0, 1, 2} & {*columns}) == n for n in (0, 3)) == 1
    assert len(columns) in (3, 5)
    attack = DraftDP(work=0.2)
    assert attack.inapplicable(view) is None
    rows = attack.run(view, np.random.default_rng(0)).all(Records)[0].table
    # Numeric values are kept, too, although the forest reveals only their bins.
    assert np.array_equal(rows.X[:, columns], known_values)
    metric = RecordMetric()
    truth = metric.truth(case)
    blind = metric.blind(case, truth)
    assert ("told-vote" in blind) == (threat == "client")
    for claims in blind.values():
        assert sorted(map(tuple, claims[0].table.X[:, columns])) == sorted(map(tuple, known_values))
    assert SpecificityMetric().truth(case) is None
    best = max(metric.score(claims, truth)[0].value for claims in blind.values())
    assert metric.score([Records(rows)], truth)[0].value > best


def test_one_hot_columns_of_a_csv_file_stay_one_category(tmp_path):
    lines = [
        ",".join(str(int(v)) for v in (*x[:5], y)) for x, y in zip(ROWS.X, ROWS.y, strict=True)
    ]
    path = tmp_path / "hot.csv"
    path.write_text("\n".join(["a,b,c,d,e,y", *lines]))
    data = load_csv(path, "y")
    local_data = over_clients([data.table])
    run = trained("dp-forest[epsilon=5,trees=4,depth=3]", local_data, data.schema)
    view, _ = view_and_case_of(run, local_data, "public")
    rows = DraftDP(work=0.02).run(view, np.random.default_rng(0)).all(Records)[0].table
    assert (rows.X[:, :3].sum(axis=1) == 1).all()


def test_errors_are_computed_over_unknown_attributes():
    guess = Table(np.where(np.arange(8) == 3, 1 - ROWS.X, ROWS.X), ROWS.y)
    inlier = np.ones(60, dtype=bool)
    assert row_errors(guess, ROWS, inlier, [0, 1, 2, 4])["row_error"] == pytest.approx(0.25)
    assert row_errors(guess, ROWS, inlier, [3])["row_error"] == 0.0


def test_samples_are_matched_among_rows_with_equal_known_attributes():
    rng = np.random.default_rng(1)
    value = np.column_stack([np.arange(20) // 4, rng.integers(0, 2, (20, 6))]).astype(np.int16)
    samples = np.stack(
        [np.concatenate([k * 4 + rng.permutation(4) for k in range(5)]) for _ in range(6)]
    )
    agreed = consensus(
        value[samples], np.ones(7, np.uint8), np.array([5] + 6 * [2]), kind=value[:, 0]
    )
    assert np.array_equal(agreed.value[:, 0], value[:, 0])
    assert sorted(map(tuple, agreed.value)) == sorted(map(tuple, value))


def test_a_missing_row_has_the_known_attributes():
    variables = Variables.binary(4)
    forest = NoisyForest.of(variables, np.zeros((1, 1), int), np.zeros((1, 2, 2), int))
    companions = np.zeros((5, 5), dtype=np.int16)
    row, chance = Enumeration.of(forest).missing_row(
        Noise("geometric", 50.0), companions, known_values={2: 1}
    )
    assert row.tolist()[:4] == [0, 0, 1, 0]
    assert chance.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("public[attributes=6]", "attributes=6, and a row has 6, a one-hot group being one"),
        ("public[attributes=2,entries=2]", "give entries or attributes, not both"),
    ],
)
def test_contradictory_or_complete_knowledge_is_refused(forest_run, text, message):
    with pytest.raises(UsageError, match=message):
        _ = view_and_case_of(*forest_run, text)


def test_the_name_of_an_adversary_contains_its_knowledge():
    text, _ = adversary_named("client[attributes=2]", {"client": ("a client", "clients")})
    assert text == "a client (with 2 attributes)"
