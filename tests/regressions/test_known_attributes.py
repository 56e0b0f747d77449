"""A threat may tell attributes of all rows of others: to attacks, and to who sees nothing."""

import numpy as np
import pytest
from regression_runs import seen, trained

from fedtrees.attacks.forests.attack import DraftDP
from fedtrees.attacks.forests.likelihoods import Noise
from fedtrees.attacks.forests.posterior import consensus
from fedtrees.attacks.forests.solvers import Enumeration
from fedtrees.attacks.forests.structure import NoisyForest, Variables
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
def forest():
    held = over_clients([ROWS.take(np.arange(30)), ROWS.take(np.arange(30, 60))])
    return trained("dp-forest[epsilon=40,trees=10,depth=4,bins=8]", held, SCHEMA), held


@pytest.mark.long
@pytest.mark.parametrize("threat", ["public", "server", "client"])
def test_what_is_told_stays_and_the_blind_adversary_is_told_it_too(forest, threat):
    view, case = seen(*forest, f"{threat}[attributes=3]")
    columns, told = case.known_columns
    victims = case.victims_rows
    assert np.array_equal(victims.X[:, columns], told)
    assert sum(len({0, 1, 2} & {*columns}) == n for n in (0, 3)) == 1  # a group is told whole
    assert len(columns) in (3, 5)
    attack = DraftDP(work=0.2)
    assert attack.inapplicable(view) is None
    rows = attack.run(view, np.random.default_rng(0)).all(Records)[0].table
    assert np.array_equal(rows.X[:, columns], told)  # numbers too, which a forest tells by bins
    metric = RecordMetric()
    truth = metric.truth(case)
    blind = metric.blind(case, truth)
    assert ("told-vote" in blind) == (threat == "client")
    for claims in blind.values():
        assert sorted(map(tuple, claims[0].table.X[:, columns])) == sorted(map(tuple, told))
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
    held = over_clients([data.table])
    run = trained("dp-forest[epsilon=5,trees=4,depth=3]", held, data.schema)
    view, _ = seen(run, held, "public")
    rows = DraftDP(work=0.02).run(view, np.random.default_rng(0)).all(Records)[0].table
    assert (rows.X[:, :3].sum(axis=1) == 1).all()


def test_errors_are_of_what_was_not_told():
    guess = Table(np.where(np.arange(8) == 3, 1 - ROWS.X, ROWS.X), ROWS.y)
    inlier = np.ones(60, dtype=bool)
    assert row_errors(guess, ROWS, inlier, [0, 1, 2, 4])["row_error"] == pytest.approx(0.25)
    assert row_errors(guess, ROWS, inlier, [3])["row_error"] == 0.0


def test_samples_are_matched_among_rows_that_are_told_alike():
    rng = np.random.default_rng(1)
    value = np.column_stack([np.arange(20) // 4, rng.integers(0, 2, (20, 6))]).astype(np.int16)
    samples = np.stack(
        [np.concatenate([k * 4 + rng.permutation(4) for k in range(5)]) for _ in range(6)]
    )
    found = consensus(
        value[samples], np.ones(7, np.uint8), np.array([5] + 6 * [2]), kind=value[:, 0]
    )
    assert np.array_equal(found.value[:, 0], value[:, 0])
    assert sorted(map(tuple, found.value)) == sorted(map(tuple, value))


def test_a_missing_row_is_looked_for_among_those_that_are_told():
    variables = Variables.binary(4)
    forest = NoisyForest.of(variables, np.zeros((1, 1), int), np.zeros((1, 2, 2), int))
    companions = np.zeros((5, 5), dtype=np.int16)
    row, chance = Enumeration.of(forest).missing_row(
        Noise("geometric", 50.0), companions, known_values={2: 1}
    )
    assert row.tolist()[:4] == [0, 0, 1, 0]
    assert chance.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("public[attributes=6]", "attributes=6, and a row has 6, a one-hot group being one"),
        ("public[attributes=2,entries=2]", "give entries or attributes, not both"),
    ],
)
def test_nothing_is_left_to_guess_or_it_is_told_twice(forest, text, said):
    with pytest.raises(UsageError, match=said):
        _ = seen(*forest, text)


def test_an_adversary_is_named_with_what_it_was_told():
    text, _ = adversary_named("client[attributes=2]", {"client": ("a client", "clients")})
    assert text == "a client (with 2 attributes)"
