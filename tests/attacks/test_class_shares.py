"""Property inference: the share of a class at one client, from sums that the client sends."""

from dataclasses import replace

import numpy as np
import pytest
from present import here

from fedtrees.attacks.attributes.class_shares import ClassShareInference, reconcile_counts
from fedtrees.core.claims import ClassShares
from fedtrees.core.errors import ProtocolError
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_grid, parse_one
from fedtrees.core.streams import Streams
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.horizontal import CutPoints, LabelSums
from fedtrees.metrics.labels import ClassSharesMetric
from fedtrees.metrics.metric import Case
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

SHARES = ((0.1, 0.9), (0.6, 0.4), (0.8, 0.2))


def skewed_clients(classes=2):
    """Return three clients of 40 rows with different shares of the classes."""
    rng, tables = np.random.default_rng(0), []
    for k in range(3):
        shares = np.roll([0.7, 0.2, 0.1], k) if classes == 3 else SHARES[k]
        y = np.repeat(np.arange(classes), np.rint(40 * np.array(shares)).astype(int))
        tables.append(Table((rng.normal(size=(40, 3)) + y[:, None]).astype(np.float32), y))
    names = tuple("abc"[:classes])
    features = tuple(Feature(name, low=-4, high=6, complete=True) for name in "uvw")
    schema = Schema(features, "y", classes=names)
    return over_clients(tables), schema


def blind_error(case):
    """Return the error of the best guess without a transcript."""
    metric = ClassSharesMetric()
    truth = metric.truth(case)
    return metric.line(case, truth, {})["class_error"]


def attack_and_blind_error(
    protocol, principal, defense="none", classes=2, seed=1, hidden_messages=()
):
    """Return the errors of the attack and of the blind guess. If the attack does not apply,
    return its reason code instead of its error.
    """
    local_data, schema = skewed_clients(classes)
    trained_protocol = register.make("protocol", parse_grid(protocol)[0])
    run = train(
        trained_protocol, local_data, schema, defense=make_defense(parse_one(defense)), seed=seed
    )
    metric = ClassSharesMetric()
    case = Case(local_data, dict(run.transcript.roles), (principal,), schema, Streams(0), principal)
    truth, view = metric.truth(case), view_of(run, (principal,), local_data)
    blind = blind_error(case)
    reason = ClassShareInference().inapplicable(view)
    if reason is not None:
        return reason.code, blind
    view = replace(
        view,
        seen=tuple(item for item in view.seen if not isinstance(item.message, hidden_messages)),
    )
    guess = ClassShareInference().run(view, np.random.default_rng(0))
    assert metric.refuses(guess.claims, case) is None
    return metric.score(guess.claims, truth)[0].value, blind


@pytest.mark.parametrize("classes", [2, 3])
def test_the_median_guess_has_the_smallest_error_of_all_constant_claims(classes):
    local_data, schema = skewed_clients(classes)
    metric, roles = ClassSharesMetric(), dict.fromkeys(local_data, "client")
    case = Case(local_data, {**roles, "server": "server"}, ("server",), schema, Streams(0))
    truth = metric.truth(case)
    blind = metric.blind(case, truth)
    median_error = metric.score(blind["median"], truth)[0].value
    random_shares = np.random.default_rng(0).dirichlet(np.ones(classes), 200)
    random_claims = ([ClassShares(name, share) for name in truth.counts] for share in random_shares)
    assert (
        median_error <= min(metric.score(claims, truth)[0].value for claims in random_claims) + 1e-9
    )
    if classes == 2:
        assert median_error < 0.9 * metric.score(blind["pooled"], truth)[0].value


HISTOGRAMS = ("fedtree-hist[trees=1]", "nvflare-hist[trees=1]")
BAGGED = ("flower-bagging[trees=3]", "local-ensembles[trees=3]")


@pytest.mark.parametrize(
    ("protocol", "principal"),
    [*((p, "server") for p in here("protocol", [*HISTOGRAMS, *BAGGED])),
     *((p, "client-1") for p in here("protocol", BAGGED))],
)  # fmt: skip
def test_the_sums_of_a_client_reveal_its_classes(protocol, principal):
    error, blind = attack_and_blind_error(protocol, principal)
    assert error < 1e-6
    assert blind > 0.2


PEERS = ("xgboost-ring[trees=1]", "xgboost-ring[trees=1,base_score=0.3]", "lightgbm-data[trees=1]")


@pytest.mark.parametrize("protocol", here("protocol", PEERS))
def test_announced_class_counts_of_peers_are_read_exactly(protocol):
    error, blind = attack_and_blind_error(protocol, "client-1")
    assert error < 1e-6
    assert blind > 0.2


@pytest.mark.parametrize("protocol", here("protocol", ["fedtree-hist[trees=1]"]))
def test_sums_of_a_client_reveal_several_classes_and_secure_sums_reveal_none(protocol):
    error, blind = attack_and_blind_error(protocol, "server", classes=3)
    assert error < 1e-6 < blind
    assert attack_and_blind_error(protocol, "server", "secure-sum")[0] == "no-client-sums"
    # The sums of the two other clients are known only together.
    error_of_joint_sum, blind = attack_and_blind_error(protocol, "client-0")
    assert error_of_joint_sum < 0.8 * blind


def two_clients(skewed=(0.2, 0.7)):
    """Return two clients of 100 rows with different shares of the classes."""
    rng, tables = np.random.default_rng(1), []
    for share in skewed:
        y = (np.arange(100) < 100 * share).astype(np.int64)
        tables.append(Table((rng.normal(size=(100, 3)) + y[:, None]).astype(np.float32), y))
    features = tuple(Feature(name, low=-4, high=6, complete=True) for name in "uvw")
    return over_clients(tables), Schema(features, "y", classes=("a", "b"))


def test_the_blind_adversary_guesses_local_or_even_shares_for_one_victim():
    local_data, schema = two_clients()
    roles = {**dict.fromkeys(local_data, "client"), "server": "server"}
    case = Case(local_data, roles, ("client-0",), schema, Streams(0), "client-0")
    # The blind guess is even shares, because the local shares are off by 0.5.
    assert blind_error(case) == pytest.approx(0.2)
    similar_clients, schema = two_clients((0.2, 0.25))
    case = Case(similar_clients, roles, ("client-0",), schema, Streams(0), "client-0")
    # The blind guess is the local shares.
    assert blind_error(case) == pytest.approx(0.05)


def test_an_empty_claim_about_one_victim_has_the_error_of_its_true_share():
    local_data, schema = two_clients()
    roles = dict.fromkeys(local_data, "client")
    case = Case(local_data, roles, ("client-0",), schema, Streams(0), "client-0")
    metric = ClassSharesMetric()
    (empty,) = metric.score([], metric.truth(case))
    assert empty.value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("protocol", "defense", "largest_error"),
    [*((p, "secure-sum", 0.02) for p in here("protocol", ["fedtree-hist[trees=3]"])),
     *((p, "none", 0.1) for p in here("protocol", [
         "dp-gbdt[trees=20,max_depth=3,epsilon=8,noise=distributed]"]))],
)  # fmt: skip
def test_a_sum_over_two_clients_reveals_the_classes_of_the_other_client(
    protocol, defense, largest_error
):
    local_data, schema = two_clients()
    metric, client_errors = ClassSharesMetric(), []
    for seed in range(4):
        trained_protocol = register.make("protocol", parse_grid(protocol)[0])
        composition = make_defense(parse_one(defense))
        run = train(trained_protocol, local_data, schema, defense=composition, seed=seed)
        roles = dict(run.transcript.roles)
        case = Case(local_data, roles, ("client-0",), schema, Streams(0), "client-0")
        view = view_of(run, ("client-0",), local_data)
        assert ClassShareInference().inapplicable(view) is None
        guess = ClassShareInference().run(view, np.random.default_rng(0))
        client_errors.append(metric.score(guess.claims, metric.truth(case))[0].value)
    # The error of the local shares is 0.5, that of even shares 0.2.
    assert np.mean(client_errors) < largest_error


@pytest.mark.parametrize("protocol", here("protocol", ["local-forests[trees=9,max_depth=2]"]))
def test_a_pooled_forest_reveals_no_class_share_of_a_client(protocol):
    assert attack_and_blind_error(protocol, "client-0")[0] == "no-client-sums"
    assert attack_and_blind_error(protocol, "public")[0] == "no-client-sums"


SAMPLING = ("forest-hist[trees=20,max_depth=1]", "local-forests[trees=60,max_depth=2]")


@pytest.mark.parametrize("protocol", here("protocol", SAMPLING))
def test_bootstrap_samples_of_forests_reveal_approximate_classes(protocol):
    # The standard deviation of 800 draws of one client is 0.018.
    assert attack_and_blind_error(protocol, "server")[0] < 0.05


@pytest.mark.parametrize("protocol", here("protocol", ["fedtree-hist[trees=1]"]))
def test_clipping_and_noise_are_considered(protocol):
    error, _ = attack_and_blind_error(protocol, "server", "laplace-hist[epsilon=8,clip=0.3]")
    assert error < 0.03  # The error is 0.16 if clipping is ignored.


@pytest.mark.parametrize("protocol", here("protocol", ["fedtree-hist[trees=1,max_bin=4]"]))
def test_averaging_over_columns_reduces_the_noise(protocol):
    noise, with_all_columns, with_label_sums = "laplace-hist[epsilon=0.5]", [], []
    for seed in range(12):
        with_all_columns.append(attack_and_blind_error(protocol, "server", noise, seed=seed)[0])
        with_label_sums.append(
            attack_and_blind_error(protocol, "server", noise, seed=seed, hidden_messages=CutPoints)[
                0
            ]
        )
    assert np.mean(with_all_columns) < 0.9 * np.mean(with_label_sums)


def test_reconciled_counts_have_the_known_total_and_are_not_negative():
    noisy_counts = {
        "a": np.array([12.0, 36.0]),
        "b": np.array([38.0, -9.0]),
        "c": np.array([25.0, 20.0]),
    }
    reconciled = reconcile_counts(noisy_counts, np.array([60.0, 40.0]))
    assert {name: counts.tolist() for name, counts in reconciled.items()} == {
        "a": [7, 28],
        "b": [33, 0],
        "c": [20, 12],
    }


@pytest.mark.parametrize("protocol", here("protocol", ["fedtree-hist[trees=1,max_bin=4]"]))
def test_the_known_total_of_all_clients_reduces_the_noise(protocol):
    noise, with_total, without_total = "laplace-hist[epsilon=0.5]", [], []
    for seed in range(12):
        with_total.append(attack_and_blind_error(protocol, "server", noise, seed=seed)[0])
        without_total.append(
            attack_and_blind_error(protocol, "server", noise, seed=seed, hidden_messages=LabelSums)[
                0
            ]
        )
    assert np.mean(with_total) < 0.95 * np.mean(without_total)


def test_missing_claims_score_as_blind_and_duplicate_claims_are_refused():
    local_data, schema = skewed_clients()
    metric = ClassSharesMetric()
    roles = dict.fromkeys(local_data, "client")
    case = Case(local_data, roles, ("client-2",), schema, Streams(0), "client-2")
    truth = metric.truth(case)
    assert {name: counts.tolist() for name, counts in truth.counts.items()} == {
        "client-0": [4, 36],
        "client-1": [24, 16],
    }
    (blind,) = metric.score([], truth)
    # The local share of 32 of 40 rows is compared with 0.1 and 0.6.
    assert blind.value == pytest.approx(0.45)
    (half,) = metric.score([ClassShares("client-0", np.array([0.1, 0.9]))], truth)
    assert half.value == pytest.approx(0.1)
    even = np.array([0.5, 0.5])
    assert "twice" in metric.refuses([ClassShares("client-0", even)] * 2, case)
    assert "no victim" in metric.refuses([ClassShares("client-2", even)], case)
    with pytest.raises(ProtocolError, match="add up to 1"):
        ClassShares("client-0", np.array([0.5, 0.6]))
