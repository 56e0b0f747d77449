"""dp-forest: the released counts, their receivers, and the claimed and spent epsilon."""

import math

import numpy as np
import pytest
from present import here
from scipy import stats

from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.guarantee import PureDP, join, parse
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import Sealed
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.core.wire import decode, encode
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.forests import LeafClassCounts, PrivateForest
from fedtrees.messages.models import as_message
from fedtrees.privacy.mechanisms import log_probabilities, noise_log_pmf
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

RANDOMNESS = np.random.default_rng(0)
X = RANDOMNESS.integers(0, 2, (90, 6)).astype(np.float32)
ROWS = Table(X, X[:, 0].astype(int) ^ (RANDOMNESS.random(90) < 0.1))
BITS = tuple(Feature(n, "categorical", categories=("0", "1")) for n in "abcdef")
SCHEMA = Schema(BITS, "y")


def protocol(options="epsilon=2"):
    return register.make("protocol", parse_grid(f"dp-forest[depth=3,trees=6,{options}]")[0])


def grown(options="epsilon=2", defense="none", clients=3, seed=1, rows=ROWS):
    local_data = over_clients(
        [rows.take(part) for part in np.array_split(np.arange(len(rows)), clients)]
    )
    defense_object = make_defense(parse_composed([defense])[0])
    return train(
        protocol(options), local_data, SCHEMA, defense=defense_object, seed=seed
    ), local_data


@pytest.fixture(scope="module")
def exact():
    return grown("epsilon=inf")[0].model


@pytest.mark.parametrize("noise", ["central", "distributed"])
@pytest.mark.parametrize(
    "defense",
    here(
        "defense", ["none", "secure-sum", "masking", "masking[mode=ideal]", "paillier[mode=ideal]"]
    ),
)
def test_infinite_epsilon_is_the_exact_forest(exact, noise, defense):
    training, _ = grown(f"epsilon=inf,noise={noise}", defense, clients=2)
    assert np.array_equal(training.model.counts, exact.counts)
    counted = exact.splits.count(ROWS.X, ROWS.y, 2)
    assert np.array_equal(exact.counts, counted)
    assert (counted.sum(axis=(1, 2)) == len(ROWS)).all()
    assert exact.rows == len(ROWS)
    assert not training.transcript.events


@pytest.mark.parametrize(
    ("options", "pmf"),
    [
        ("noise=central", "geometric"),
        ("noise=distributed", "geometric"),
        ("mechanism=published", "published"),
    ],
)
def test_released_counts_carry_the_declared_noise(exact, options, pmf):
    noise = np.concatenate([_noise(options, seed) for seed in range(12)])
    values = np.arange(-3, 4)
    expected = np.exp(noise_log_pmf(pmf, 1.0, values))
    if options == "noise=distributed":  # three shares, of which two make up the noise
        expected = np.exp(log_probabilities(1.0, 3 / 2)[abs(values)])
    observed = [(noise == value).sum() for value in values]
    table = (
        [*observed, len(noise) - sum(observed)],
        len(noise) * np.append(expected, 1 - expected.sum()),
    )
    assert stats.chisquare(*table).pvalue > 1e-3


def _noise(options, seed):
    model = grown(f"epsilon=6,{options}", seed=seed)[0].model
    return (model.counts - model.splits.count(ROWS.X, ROWS.y, 2)).reshape(-1)


def test_split_tests_do_not_depend_on_rows():
    forest, smaller_forest = grown()[0].model, grown(rows=ROWS.take(np.arange(40)))[0].model
    assert np.array_equal(forest.splits.feature, smaller_forest.splits.feature)
    assert np.array_equal(forest.splits.threshold, smaller_forest.splits.threshold)


@pytest.mark.parametrize("options", ["epsilon=2", "epsilon=inf"])
def test_majority_labels_are_one_per_leaf(exact, options):
    counts = grown(f"{options},mechanism=majority")[0].model.counts
    assert (counts.sum(axis=2) == 1).all()
    if options == "epsilon=inf":
        decided = exact.counts[..., 0] != exact.counts[..., 1]
        assert np.array_equal(counts.argmax(2)[decided], exact.counts.argmax(2)[decided])


@pytest.mark.parametrize(
    ("options", "spent"),
    [
        ("epsilon=2", 2),
        ("epsilon=2,noise=distributed", 2),
        ("epsilon=2,mechanism=majority", 2),
        ("epsilon=2,mechanism=published", 2 + 6 * math.log(2)),
    ],
)
def test_claimed_and_spent_epsilon(options, spent):
    training, _ = grown(options, "secure-sum")
    claim, spent_guarantee = training.claims[0], training.spent[0]
    assert claim.epsilon == 2
    assert spent_guarantee.epsilon == pytest.approx(spent)
    assert (spent_guarantee.unit, spent_guarantee.unprotected) == ("record", ("rows",))
    assert spent_guarantee.trusted == ("clients" if "distributed" in options else "server",)
    assert type(parse(join(training.spent))[0]) is PureDP


def test_exact_counts_claim_nothing_and_noised_rows_are_protected():
    assert join(grown("epsilon=inf")[0].spent) == "none"
    training, _ = grown("rows=noised")
    assert training.model.rows == 0
    assert training.spent[0].unprotected == ()


def messages_with_sender(view, kind):
    """Return the senders and messages of one type in a view."""
    return [(item.sender, m) for item, m in view.messages(kind)]


def test_clients_and_public_do_not_see_the_counts_of_single_clients(exact):
    central, local_data = grown()
    assert len(messages_with_sender(view_of(central, ["server"], local_data), LeafClassCounts)) == 3
    sums, local_data = grown("noise=distributed")
    (sender, total), *rest = messages_with_sender(
        view_of(sums, ["server"], local_data), LeafClassCounts
    )
    assert (sender, rest) == ("server", [])
    assert np.array_equal(total.counts, sums.model.counts)
    for name in ("client-1", "public"):
        view = view_of(sums, [name], local_data)
        assert [type(message) for item, message in view.messages(PrivateForest)]
        assert all(item == name for item, _ in messages_with_sender(view, LeafClassCounts))
    closed = [
        delivery.message.counts for delivery in sums.transcript if delivery.sender == "client-0"
    ]
    assert all(isinstance(sealed_counts, Sealed) for sealed_counts in closed)


def test_a_released_forest_is_unchanged_by_encoding_and_decoding(exact):
    decoded = decode(encode(as_message(exact))).model()
    assert np.array_equal(decoded.counts, exact.counts)
    assert np.array_equal(decoded.predict(X), exact.predict(X))
    assert np.mean((exact.predict(X) > 0.5) == ROWS.y) > 0.75


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("epsilon=0", "epsilon=0: give a number > 0"),
        ("epsilon=nan", "epsilon=nan: give a number > 0"),
        ("depth=17", "depth=17: give a whole number from 1 to 16"),
        ("trees=0", "trees=0: give a whole number from 1"),
        ("trees=5000,depth=12", "at most 4194304 are counted"),
        ("mechanism=laplace", "unknown mechanism 'laplace'"),
        ("noise=local", "unknown noise 'local'"),
        ("rows=secret", "unknown rows 'secret'"),
        ("noise=distributed,mechanism=published", "published is no sum of shares"),
    ],
)
def test_invalid_parameters_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        register.make("protocol", parse_grid(f"dp-forest[{options}]")[0])


def test_small_and_odd_federations(exact):
    single_row = ROWS.take(np.array([0]))
    forest = grown("epsilon=inf", clients=1, rows=single_row)[0].model
    assert (forest.counts.sum(axis=(1, 2)) == 1).all()
    weighted = Table(ROWS.X, ROWS.y, np.ones(90, np.float32))
    with pytest.raises(DataError, match="take no sample weights"):
        grown(rows=weighted)
    with pytest.raises(DataError, match=r"declare (them|ranges) in the schema"):
        train(protocol(), over_clients([ROWS]), Schema(tuple(map(Feature, "abcdef")), "y"))
