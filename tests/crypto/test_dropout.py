"""Training with clients that drop out: sums over the survivors, and errors that name the missing
clients.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from federations import sample_federation
from scipy.stats import nbinom

from fedtrees.core.composition import Composition
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import Computational
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import without_payload
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_grid, parse_one
from fedtrees.core.wire import encode
from fedtrees.crypto.masking import MaskedAggregation
from fedtrees.crypto.primitives import ExposureError, MissingPartyError, TooFewPartiesError
from fedtrees.defenses.masking import Masking
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.aggregation import MaskSurvivors
from fedtrees.messages.horizontal import Histogram
from fedtrees.messages.models import as_message
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

ALL = ("client-0", "client-1", "client-2", "client-3")
RUNS = {
    "boosted": "fedtree-hist[trees=4,max_depth=2,max_bin=6,early_stopping_rounds=3]",
    "all-reduce": "nvflare-hist[trees=4,max_depth=2,max_bin=6]",
    "forest": "forest-hist[trees=4,max_depth=2,max_bin=6]",
    "grid": "fedtree-hist[trees=3,max_depth=2,max_bin=6]",
}
KINDS = pytest.mark.parametrize("real", [True, False], ids=["real", "ideal"])


@dataclass(frozen=True)
class LossyMasking(Masking):
    """Masks over a network that loses the replies that a test chooses."""

    lost: object = None
    real: bool = True
    name = "masking"

    def secure_aggregation(self):
        aggregation = MaskedAggregation(
            self.threshold, ideal=not self.real, dropout=0.0, exposing=self.exposing
        )
        aggregation.loses = self.lost or aggregation.loses
        return aggregation


def train_federation(protocol, defense="", clients=4, federation=None, seed=1):
    tables, schema = federation or sample_federation(rows=96, clients=4)
    tables = tables[:clients]
    if isinstance(defense, str):
        grid = ["grid-cuts"] if protocol == "grid" else []
        defense = make_defense(parse_one("+".join([*grid, *filter(None, [defense])]) or "none"))
    protocol_object = register.make("protocol", parse_grid(RUNS.get(protocol, protocol))[0])
    local_data = over_clients(tables)
    return train(protocol_object, local_data, schema, defense=defense, seed=seed), local_data


def survivors_of_sums(training):
    """Return the survivors of each sum in the order of the transcript."""
    return [d.message.parties for d in training.transcript if isinstance(d.message, MaskSurvivors)]


@pytest.fixture(scope="module", params=RUNS)
def real_and_ideal(request):
    """Train one protocol with dropout, real and ideal, with a seed at which a client misses a
    tree.
    """
    text, modes = "masking[threshold=3,dropout=0.1,exposing=true,mode={}]", ("real", "ideal")
    for seed in range(1, 9):
        try:
            trainings = [
                train_federation(request.param, text.format(mode), seed=seed) for mode in modes
            ]
        except TooFewPartiesError:
            continue
        if len({*survivors_of_sums(trainings[0][0])}) > 1:
            return trainings[0][0], trainings[1][0], trainings[0][1]
    raise AssertionError("no seed with a dropout that can be borne")


def test_real_and_ideal_dropout_are_equal(real_and_ideal):
    real, ideal, local_data = real_and_ideal
    assert encode(as_message(real.model)) == encode(as_message(ideal.model))
    assert survivors_of_sums(real) == survivors_of_sums(ideal)
    assert real.transcript.traffic() == ideal.transcript.traffic()
    costs, ideal_costs = real.transcript.costs, ideal.transcript.costs
    assert costs.keys() == ideal_costs.keys()
    assert all(costs[name] == ideal_costs[name] for name in costs if "cpu" not in name)
    for party in ("server", *ALL):
        views = [view_of(training, (party,), local_data).seen for training in (real, ideal)]
        assert [encode(without_payload(item.message)) for item in views[0]] == [
            encode(without_payload(item.message)) for item in views[1]
        ]


def test_views_of_server_and_clients_contain_the_survivors(real_and_ideal):
    real, _, local_data = real_and_ideal
    expected = survivors_of_sums(real)
    for party in ("server", *ALL):
        messages = [item.message for item in view_of(real, (party,), local_data).seen]
        assert [
            message.parties for message in messages if isinstance(message, MaskSurvivors)
        ] == expected
    senders = []  # Senders of sealed values since the last sum.
    for delivery in real.transcript:
        if isinstance(delivery.message, MaskSurvivors):
            assert delivery.message.parties == ",".join(senders)
            senders = []
        elif delivery.sender in ALL and any(
            field.metadata.get("summed") for field in fields(delivery.message)
        ):
            senders.append(delivery.sender)


def test_all_sums_of_a_tree_are_over_the_same_clients(real_and_ideal):
    real, _, _ = real_and_ideal
    by_tree, last_survivors = {}, None
    for delivery in real.transcript:
        if isinstance(delivery.message, MaskSurvivors):
            last_survivors = delivery.message.parties
        elif delivery.receivers == (delivery.sender,) and hasattr(delivery.message, "tree"):
            by_tree.setdefault(delivery.message.series, set()).add(last_survivors)
    assert len(by_tree) >= 3
    assert {len(sets_of_tree) for sets_of_tree in by_tree.values()} == {1}


def test_exposed_sums_are_in_the_claim(real_and_ideal):
    real, _, _ = real_and_ideal
    claim, spent = real.defense.claims()[-1], real.defense.spent(real.transcript)[-1]
    assert isinstance(claim, Computational)
    assert claim.uncovered[-1] == "differing-survivors"
    assert spent.uncovered[-1] == "differing-survivors"


@KINDS
def test_a_client_that_is_always_missing_does_not_change_the_result(real):
    defense = LossyMasking(3, lost=lambda name, reply, wire: name == "client-3", real=real)
    cuts = make_defense(parse_one("public-cuts"))
    for protocol in ("boosted", "all-reduce", "forest"):
        without_client, _ = train_federation(protocol, cuts, clients=3)
        with_missing_client, _ = train_federation(protocol, Composition((*cuts.parts, defense)))
        assert {*survivors_of_sums(with_missing_client)} == {"client-0,client-1,client-2"}
        assert encode(as_message(with_missing_client.model)) == encode(
            as_message(without_client.model)
        )
        assert (
            "differing-survivors"
            not in with_missing_client.defense.spent(with_missing_client.transcript)[-1].uncovered
        )


@KINDS
@pytest.mark.parametrize("exposing", [False, True])
def test_a_dropout_within_a_tree_stops_the_run_with_the_name_of_the_client(real, exposing):
    def lost(name, reply, wire):
        is_below_root = isinstance(reply, Histogram) and reply.tree == 1 and reply.nodes[0] != 0
        return is_below_root and name == "client-1"

    losing = LossyMasking(3, exposing=exposing, lost=lost, real=real)
    with pytest.raises(MissingPartyError, match="client-1: in some sums of tree 1 and missing in"):
        train_federation("all-reduce", Composition((losing,)))


@KINDS
def test_too_few_survivors_stop_the_run_with_the_names_of_missing_clients(real):
    defense = LossyMasking(
        3, lost=lambda name, reply, wire: name in ("client-0", "client-2"), real=real
    )
    with pytest.raises(TooFewPartiesError, match=r"2 parties sent .*missing: client-0, client-2\."):
        train_federation("forest", Composition((defense,)))


@KINDS
def test_sums_that_differ_by_one_client_are_refused_unless_allowed(real):
    """Constant hessians count the same rows in every tree, so the difference belongs to one
    client.
    """

    def lost(name, reply, wire):
        return name == "client-2" and getattr(reply, "tree", 0) == 1

    tables, schema = sample_federation(rows=96, clients=4)
    numeric_federation = (
        [replace(table, y=table.X[:, 0].astype(float)) for table in tables],
        replace(schema, classes=()),
    )
    name = "fedtree-hist[trees=2,max_depth=1,max_bin=6]"
    with pytest.raises(ExposureError, match="would reveal the array of client-2"):
        train_federation(
            name,
            Composition((LossyMasking(3, lost=lost, real=real),)),
            federation=numeric_federation,
        )
    allowed = LossyMasking(3, exposing=True, lost=lost, real=real)
    allowed_training, local_data = train_federation(
        name, Composition((allowed,)), federation=numeric_federation
    )
    plain_training, _ = train_federation(name, federation=numeric_federation)
    sums = [
        message.sums
        for _, message in view_of(allowed_training, ("server",), local_data).messages(Histogram)
        if isinstance(message.sums, np.ndarray) and message.nodes[0] == 0
    ]
    (client_message,) = [
        delivery.message
        for delivery in plain_training.transcript
        if isinstance(delivery.message, Histogram)
        and delivery.sender == "client-2"
        and delivery.message.tree == 0
        and delivery.message.nodes[0] == 0
    ]
    assert client_message.sums[..., 1].any()
    assert np.array_equal((sums[0] - sums[1])[..., 1], client_message.sums[..., 1])


@KINDS
def test_clients_that_missed_a_sum_consider_it_later(real):
    """Sums over 0 and 1, 1 and 2, and 0 and 2 together reveal all three arrays, although each
    client is in only two sums.
    """

    def lost(name, reply, wire):
        return name == f"client-{(2, 0, 1)[getattr(reply, 'tree', 0)]}"

    with pytest.raises(
        ExposureError, match="would reveal the array of client-0, client-1, client-2"
    ):
        train_federation(
            "forest-hist[trees=3,max_depth=1,max_bin=6]",
            Composition((LossyMasking(2, lost=lost, real=real),)),
            clients=3,
        )


def test_a_dropout_rate_of_zero_equals_masking_without_dropout():
    texts = ("masking[mode=ideal]", "masking[mode=ideal,dropout=0.0]")
    default_training, zero_training = (train_federation("all-reduce", text)[0] for text in texts)
    assert [encode(delivery.message) for delivery in default_training.transcript] == [
        encode(delivery.message) for delivery in zero_training.transcript
    ]


@pytest.mark.parametrize("wrong", ["dropout=1.0", "dropout=-0.1", "dropout=yes", "exposing=2"])
def test_invalid_options_are_refused(wrong):
    with pytest.raises(UsageError, match="give"):
        train_federation("forest", f"masking[{wrong}]")


SHARED = {
    "dp-gbdt": ("dp-gbdt[noise=distributed,trees=2,max_depth=1]", ""),
    "dp-forest": ("dp-forest[noise=distributed,trees=2,depth=1,mechanism=geometric]", ""),
    "dp-grid-cuts": ("fedtree-hist[trees=1,max_depth=1]", "dp-grid-cuts[epsilon=1]+"),
}


@KINDS
@pytest.mark.parametrize("name", SHARED)
def test_sums_without_a_share_of_the_noise_are_not_decrypted(name, real):
    protocol, parts = SHARED[name]
    tables, schema = sample_federation(rows=96, clients=4)
    protocol_object = register.make("protocol", parse_grid(protocol)[0])
    other_defenses = make_defense(parse_one(parts.rstrip("+") or "none")).parts

    def trained(lost):
        defense = Composition((*other_defenses, LossyMasking(3, lost=lost, real=real)))
        return train(protocol_object, over_clients(tables), schema, defense=defense, seed=1)

    trained(lambda *_: False)
    replies = []

    def client_2_is_lost(name_of_client, reply, wire):
        replies.append(reply)
        return name_of_client == "client-2"

    with pytest.raises(TooFewPartiesError, match=r"3 of 4 .* calibrated for 4; missing: client-2"):
        trained(client_2_is_lost)
    # The run stopped at the first incomplete sum.
    assert len({type(reply) for reply in replies}) == 1


def test_noise_shares_are_calibrated_for_the_declared_survivors():
    tables, schema = sample_federation(rows=90, clients=5)
    protocol = register.make("protocol", parse_grid("fedtree-hist[trees=1,max_depth=1]")[0])

    def trained(survivors, *missing):
        cuts = make_defense(parse_one(f"dp-grid-cuts[epsilon=1,survivors={survivors}]")).parts
        masks = LossyMasking(3, lost=lambda name, *_: name in missing, real=False)
        training = train(
            protocol, over_clients(tables), schema, defense=Composition((*cuts, masks))
        )
        return str(replace(training.spent[1], coalition=0.0))

    expected = "pure-dp[epsilon=1,unit=cuts,trusted=clients,colluders=1]"
    assert trained(4) == trained(4, "client-1") == expected
    with pytest.raises(TooFewPartiesError, match=r"3 of 5 .* calibrated for 4; missing: client-1"):
        trained(4, "client-1", "client-3")
    with pytest.raises(UsageError, match="survivors=6 of 5 clients"):
        trained(6)
    with pytest.raises(UsageError, match="survivors=0: give a whole number"):
        trained(0)


@pytest.mark.parametrize(
    ("d", "rounds", "n_left", "exact"),
    [(8, 1, 3, 3.80), (20, 1, 3, 6.61), (8, 2, 3, 5.75), (8, 1, 5, 1.0)],
)
def test_the_epsilon_of_sums_without_all_shares(d, rounds, n_left, exact):
    """A row is in one cell of each feature and round. Five clients share noise of epsilon 1."""
    share = np.exp(nbinom.logpmf(np.arange(4096), n_left / 5, -np.expm1(-1 / (rounds * d))))
    # Noise of the remaining clients.
    noise = np.correlate(share, share, "full")[2048:-2048]
    largest_loss = np.abs(np.diff(np.log(noise))).max()
    assert rounds * d * largest_loss == pytest.approx(exact, abs=0.01)
