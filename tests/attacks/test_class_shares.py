"""Property inference: the share of a class at one client, where its own sums cross."""

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


def held(classes=2):
    """Return three clients of 40 rows with different shares of the classes."""
    rng, tables = np.random.default_rng(0), []
    for k in range(3):
        chance = np.roll([0.7, 0.2, 0.1], k) if classes == 3 else SHARES[k]
        y = np.repeat(np.arange(classes), np.rint(40 * np.array(chance)).astype(int))
        tables.append(Table((rng.normal(size=(40, 3)) + y[:, None]).astype(np.float32), y))
    names = tuple("abc"[:classes])
    features = tuple(Feature(n, low=-4, high=6, complete=True) for n in "uvw")
    schema = Schema(features, "y", classes=names)
    return over_clients(tables), schema


def blind_error(case):
    """Return the error of the best guess without a transcript."""
    metric = ClassSharesMetric()
    truth = metric.truth(case)
    return metric.line(case, truth, {})["class_error"]


def errors(protocol, who, defense="none", classes=2, seed=1, unseen=()):
    """Return the error of an attack and of a blind adversary; None, where it does not apply."""
    local_data, schema = held(classes)
    made = register.make("protocol", parse_grid(protocol)[0])
    run = train(made, local_data, schema, defense=make_defense(parse_one(defense)), seed=seed)
    metric = ClassSharesMetric()
    case = Case(local_data, dict(run.transcript.roles), (who,), schema, Streams(0), who)
    truth, view = metric.truth(case), view_of(run, (who,), local_data)
    blind = blind_error(case)
    reason = ClassShareInference().inapplicable(view)
    if reason is not None:
        return reason.code, blind
    view = replace(view, seen=tuple(s for s in view.seen if not isinstance(s.message, unseen)))
    guess = ClassShareInference().run(view, np.random.default_rng(0))
    assert metric.refuses(guess.claims, case) is None
    return metric.score(guess.claims, truth)[0].value, blind


@pytest.mark.parametrize("classes", [2, 3])
def test_no_share_that_is_claimed_of_all_clients_is_less_wrong_than_the_blind_one(classes):
    local_data, schema = held(classes)
    metric, roles = ClassSharesMetric(), dict.fromkeys(local_data, "client")
    case = Case(local_data, {**roles, "server": "server"}, ("server",), schema, Streams(0))
    truth = metric.truth(case)
    blind = metric.blind(case, truth)
    least = metric.score(blind["median"], truth)[0].value
    drawn = np.random.default_rng(0).dirichlet(np.ones(classes), 200)
    others = ([ClassShares(name, share) for name in truth.counts] for share in drawn)
    assert least <= min(metric.score(c, truth)[0].value for c in others) + 1e-9
    if classes == 2:
        assert least < 0.9 * metric.score(blind["pooled"], truth)[0].value


HISTOGRAMS = ("fedtree-hist[trees=1]", "nvflare-hist[trees=1]")
BAGGED = ("flower-bagging[trees=3]", "local-ensembles[trees=3]")


@pytest.mark.parametrize(
    ("protocol", "who"),
    [*((p, "server") for p in here("protocol", [*HISTOGRAMS, *BAGGED])),
     *((p, "client-1") for p in here("protocol", BAGGED))],
)  # fmt: skip
def test_a_clients_own_sums_tell_its_classes(protocol, who):
    found, blind = errors(protocol, who)
    assert found < 1e-6
    assert blind > 0.2


PEERS = ("xgboost-ring[trees=1]", "xgboost-ring[trees=1,base_score=0.3]", "lightgbm-data[trees=1]")


@pytest.mark.parametrize("protocol", here("protocol", PEERS))
def test_peers_that_announce_their_class_counts_are_read_exactly(protocol):
    found, blind = errors(protocol, "client-1")
    assert found < 1e-6
    assert blind > 0.2


@pytest.mark.parametrize("protocol", here("protocol", ["fedtree-hist[trees=1]"]))
def test_several_classes_are_told_and_sums_over_clients_tell_none(protocol):
    found, blind = errors(protocol, "server", classes=3)
    assert found < 1e-6 < blind
    assert errors(protocol, "server", "secure-sum")[0] == "no-client-sums"
    together, blind = errors(protocol, "client-0")  # two others: their sums are known together
    assert together < 0.8 * blind


def two_clients(skewed=(0.2, 0.7)):
    """Return two clients of 100 rows with different shares of the classes."""
    rng, tables = np.random.default_rng(1), []
    for share in skewed:
        y = (np.arange(100) < 100 * share).astype(np.int64)
        tables.append(Table((rng.normal(size=(100, 3)) + y[:, None]).astype(np.float32), y))
    features = tuple(Feature(n, low=-4, high=6, complete=True) for n in "uvw")
    return over_clients(tables), Schema(features, "y", classes=("a", "b"))


def test_the_blind_adversary_of_one_victim_guesses_its_own_share_and_not_the_truth():
    local_data, schema = two_clients()
    roles = {**dict.fromkeys(local_data, "client"), "server": "server"}
    case = Case(local_data, roles, ("client-0",), schema, Streams(0), "client-0")
    assert blind_error(case) == pytest.approx(0.2)  # even shares; own ones are off by .5
    alike, schema = two_clients((0.2, 0.25))
    case = Case(alike, roles, ("client-0",), schema, Streams(0), "client-0")
    assert blind_error(case) == pytest.approx(0.05)  # own shares


def test_nothing_that_is_claimed_of_one_victim_scores_as_the_truth():
    local_data, schema = two_clients()
    roles = dict.fromkeys(local_data, "client")
    case = Case(local_data, roles, ("client-0",), schema, Streams(0), "client-0")
    metric = ClassSharesMetric()
    (empty,) = metric.score([], metric.truth(case))
    assert empty.value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("protocol", "defense", "room"),
    [*((p, "secure-sum", 0.02) for p in here("protocol", ["fedtree-hist[trees=3]"])),
     *((p, "none", 0.1) for p in here("protocol", [
         "dp-gbdt[trees=20,max_depth=3,epsilon=8,noise=distributed]"]))],
)  # fmt: skip
def test_sums_over_two_clients_tell_one_of_them_the_classes_of_the_other(protocol, defense, room):
    local_data, schema = two_clients()
    metric, found = ClassSharesMetric(), []
    for seed in range(4):
        made = register.make("protocol", parse_grid(protocol)[0])
        by = make_defense(parse_one(defense))
        run = train(made, local_data, schema, defense=by, seed=seed)
        roles = dict(run.transcript.roles)
        case = Case(local_data, roles, ("client-0",), schema, Streams(0), "client-0")
        view = view_of(run, ("client-0",), local_data)
        assert ClassShareInference().inapplicable(view) is None
        guess = ClassShareInference().run(view, np.random.default_rng(0))
        found.append(metric.score(guess.claims, metric.truth(case))[0].value)
    assert np.mean(found) < room  # own shares: .5; equal ones: .2


@pytest.mark.parametrize("protocol", here("protocol", ["local-forests[trees=9,max_depth=2]"]))
def test_a_pooled_forest_belongs_to_no_single_client(protocol):
    assert errors(protocol, "client-0")[0] == "no-client-sums"
    assert errors(protocol, "public")[0] == "no-client-sums"


DRAWING = ("forest-hist[trees=20,max_depth=1]", "local-forests[trees=60,max_depth=2]")


@pytest.mark.parametrize("protocol", here("protocol", DRAWING))
def test_drawn_rows_of_forests_tell_classes_nearly(protocol):
    assert errors(protocol, "server")[0] < 0.05  # sd of 800 draws of one client: .018


@pytest.mark.parametrize("protocol", here("protocol", ["fedtree-hist[trees=1]"]))
def test_clipped_and_noisy_sums_are_read_as_such(protocol):
    noisy, _ = errors(protocol, "server", "laplace-hist[epsilon=8,clip=0.3]")
    assert noisy < 0.03  # read as if nothing were clipped: .16


@pytest.mark.parametrize("protocol", here("protocol", ["fedtree-hist[trees=1,max_bin=4]"]))
def test_columns_tell_the_same_sums_with_other_noise(protocol):
    noise, every, one = "laplace-hist[epsilon=0.5]", [], []
    for seed in range(12):
        every.append(errors(protocol, "server", noise, seed=seed)[0])
        one.append(errors(protocol, "server", noise, seed=seed, unseen=CutPoints)[0])
    assert np.mean(every) < 0.9 * np.mean(one)


def test_noisy_counts_add_up_to_what_all_have_and_none_is_below_0():
    found = {"a": np.array([12.0, 36.0]), "b": np.array([38.0, -9.0]), "c": np.array([25.0, 20.0])}
    made = reconcile_counts(found, np.array([60.0, 40.0]))
    assert {n: c.tolist() for n, c in made.items()} == {"a": [7, 28], "b": [33, 0], "c": [20, 12]}


@pytest.mark.parametrize("protocol", here("protocol", ["fedtree-hist[trees=1,max_bin=4]"]))
def test_what_all_have_together_takes_noise_away(protocol):
    noise, every, alone = "laplace-hist[epsilon=0.5]", [], []
    for seed in range(12):
        every.append(errors(protocol, "server", noise, seed=seed)[0])
        alone.append(errors(protocol, "server", noise, seed=seed, unseen=LabelSums)[0])
    assert np.mean(every) < 0.95 * np.mean(alone)


def test_who_is_not_claimed_counts_as_blind_and_nobody_twice():
    local_data, schema = held()
    metric = ClassSharesMetric()
    roles = dict.fromkeys(local_data, "client")
    case = Case(local_data, roles, ("client-2",), schema, Streams(0), "client-2")
    truth = metric.truth(case)
    assert {n: c.tolist() for n, c in truth.counts.items()} == {
        "client-0": [4, 36],
        "client-1": [24, 16],
    }
    (blind,) = metric.score([], truth)
    assert blind.value == pytest.approx(0.45)  # own rows: 32 of 40, against .1 and .6
    (half,) = metric.score([ClassShares("client-0", np.array([0.1, 0.9]))], truth)
    assert half.value == pytest.approx(0.1)
    even = np.array([0.5, 0.5])
    assert "twice" in metric.refuses([ClassShares("client-0", even)] * 2, case)
    assert "no victim" in metric.refuses([ClassShares("client-2", even)], case)
    with pytest.raises(ProtocolError, match="add up to 1"):
        ClassShares("client-0", np.array([0.5, 0.6]))
