"""The decrypted sums of dp-gbdt: the clients to which they belong, and the noise that remains in
them.
"""

from dataclasses import replace

import numpy as np
import pytest
from federations import client_seat, sample_federation
from present import here
from scipy import stats

from fedtrees.attacks.clients.per_client import observe_clients
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.core.claims import LeafCounts, Records
from fedtrees.core.local_data import over_clients
from fedtrees.core.party import acting
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec, parse_composed, parse_grid
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.horizontal import LeafSums
from fedtrees.protocols.horizontal.dp_gbdt import LeafClient
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.boosted.histogram import from_fixed

PARTS, SCHEMA = sample_federation(rows=120)
QUICK = {"timberstrike": {"chains": 2}, "joint": {"chains": 2, "moves": 200}, "lattice": {}}


def train_dp_gbdt(options, defense="none", seed=1, trees=6):
    protocol = register.make(
        "protocol", parse_grid(f"dp-gbdt[max_depth=3,trees={trees},{options}]")[0]
    )
    composition = make_defense(parse_composed([defense])[0])
    return train(protocol, over_clients(PARTS), SCHEMA, defense=composition, seed=seed)


def view_by(training, *principals):
    return view_of(training, principals, over_clients(PARTS))


def client_answers(training, client):
    """Return the contribution of a client's rows to the leaves of every tree, in fixed-point
    units.
    """
    exact = replace(training.protocol, noise="central")
    party = LeafClient(client_seat(f"client-{client}", PARTS[client], SCHEMA), exact)
    messages_of_server = [
        delivery.message for delivery in training.transcript if delivery.sender == "server"
    ]
    with acting(party):
        replies = [
            party.answer(message)
            for message in messages_of_server
            if type(message) in LeafClient._handlers
        ]
    return [message.sums for message in replies if isinstance(message, LeafSums)]


def bits_of(training):
    return next(
        (delivery.message.g_bits, delivery.message.h_bits)
        for delivery in training.transcript
        if hasattr(delivery.message, "g_bits")
    )


def true_sums(training, clients):
    """Return the exact sums of some clients in the leaves of every tree."""
    units = np.sum([client_answers(training, client) for client in clients], axis=0)
    return [from_fixed(part, bits_of(training)) for part in units]


def sums_of(evidence):
    return [np.stack([tree.g, tree.h], axis=1)[tree.leaves] for tree in evidence.trees]


@pytest.mark.parametrize("principal", [("server",), ("server", "client-2")])
def test_a_server_that_adds_the_noise_sees_the_exact_sums_of_every_client(principal):
    training = train_dp_gbdt("epsilon=0.5")
    victims = observe_clients(view_by(training, *principal))
    assert [victim_of_server.owner for victim_of_server in victims] == [
        "client-0",
        "client-1",
        "client-2",
    ][: 4 - len(principal)]
    for k, victim in enumerate(victims):
        assert victim.evidence.distortion.noise is None
        assert victim.evidence.row_counts.n_rows == len(PARTS[k])
        assert not victim.evidence.observed.own_inside
        for seen_sums, expected in zip(
            sums_of(victim.evidence), true_sums(training, [k]), strict=True
        ):
            assert np.array_equal(seen_sums, expected)


@pytest.mark.parametrize("defense", here("defense", ["secure-sum", "masking"]))
def test_under_secure_summation_the_server_sees_the_exact_total(defense):
    training = train_dp_gbdt("epsilon=0.5", defense)
    view = view_by(training, "server")
    assert not observe_clients(view)
    evidence = read_boosting(view)
    assert evidence.distortion.noise is None
    for seen_sums, expected in zip(sums_of(evidence), true_sums(training, [0, 1, 2]), strict=True):
        assert np.array_equal(seen_sums, expected)


def test_a_client_subtracts_its_share_of_the_noise():
    scores = []
    for seed in range(8):
        training = train_dp_gbdt("epsilon=1,noise=distributed", seed=seed)
        evidence = read_boosting(view_by(training, "client-0"))
        assert not evidence.observed.own_inside
        assert evidence.row_counts.n_rows == len(PARTS[1]) + len(PARTS[2])
        public_evidence = read_boosting(view_by(training, "public"))
        assert evidence.distortion.noise[0].g == pytest.approx(
            2 / 3 * public_evidence.distortion.noise[0].g
        )
        scores += scores_of(training, evidence, [1, 2])
    assert_standard_normal(scores)


def scores_of(training, evidence, clients):
    """Return the noise of every leaf divided by its standard deviation."""
    scores = []
    for t, expected in enumerate(true_sums(training, clients)):
        noise, leaves = evidence.distortion.noise[t], evidence.trees[t].leaves
        deviation = np.sqrt(np.stack([noise.g, noise.h], axis=1)[leaves])
        scores.append((sums_of(evidence)[t] - expected) / deviation)
    return scores


def assert_standard_normal(scores):
    for part in np.concatenate(scores).T:
        assert 0.005 < stats.chi2.cdf((part**2).sum(), len(part)) < 0.995
        assert abs(part.mean()) * np.sqrt(len(part)) < 3


@pytest.mark.parametrize("principal", ["server", "public"])
def test_distributed_noise_has_the_variance_of_the_evidence(principal):
    scores = []
    for seed in range(8):
        training = train_dp_gbdt("epsilon=1,noise=distributed", seed=seed)
        evidence = read_boosting(view_by(training, principal))
        scores += scores_of(training, evidence, [0, 1, 2])
    assert_standard_normal(scores)


def run_attack(view, name, seed=0):
    attack = register.make("attack", Spec(name, QUICK[name]))
    assert attack.inapplicable(view) is None
    return attack.run(view, np.random.default_rng(seed))


def true_counts(training, clients=(0, 1, 2)):
    """Return the class counts of the first tree's leaves, int64 (J, 2)."""
    rows, tree = Table.concat([PARTS[client] for client in clients]), training.model.trees[0]
    leaf_of_row = np.searchsorted(tree.leaves, training.model.apply(rows.X)[:, 0])
    return np.bincount(2 * leaf_of_row + rows.y, minlength=2 * len(tree.leaves)).reshape(-1, 2)


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("defense", ["none", "secure-sum"])
def test_a_server_that_adds_the_noise_counts_all_leaves_at_every_epsilon(name, defense):
    training = train_dp_gbdt("epsilon=0.1", defense)
    guess = run_attack(view_by(training, "server"), name)
    first = next(claim for claim in guess.all(LeafCounts) if claim.tree == 0)
    assert np.array_equal(first.counts, true_counts(training))
    if name != "lattice":
        (records,) = guess.all(Records)
        assert len(records.table) == sum(map(len, PARTS))
        owners = [f"client-{k}" for k in range(3) for _ in range(len(PARTS[k]))]
        assert records.owner == (tuple(owners) if defense == "none" else None)


@pytest.mark.long
def test_rows_of_a_colluding_client_are_not_guessed():
    training = train_dp_gbdt("epsilon=0.1")
    guess = run_attack(view_by(training, "server", "client-1"), "timberstrike")
    first = next(claim for claim in guess.all(LeafCounts) if claim.tree == 0)
    assert np.array_equal(first.counts, true_counts(training, (0, 2)))
    (records,) = guess.all(Records)
    assert set(records.owner) == {"client-0", "client-2"}


def exact_share(epsilon, principal, name, seeds=range(3)):
    """Return the share of leaves whose counts an attack claims correctly, averaged over seeds."""
    shares = []
    for seed in seeds:
        training = train_dp_gbdt(f"epsilon={epsilon},noise=distributed", seed=seed, trees=4)
        guess = run_attack(view_by(training, principal), name, seed)
        claimed_counts = next(client.counts for client in guess.all(LeafCounts) if client.tree == 0)
        clients = [client for client in range(3) if f"client-{client}" != principal]
        shares.append((claimed_counts == true_counts(training, clients)).all(axis=1).mean())
    return np.mean(shares)


@pytest.mark.long
@pytest.mark.parametrize("principal", ["server", "client-0"])
@pytest.mark.parametrize("name", ["timberstrike", "joint"])
def test_counts_are_exact_under_weak_noise_only(principal, name):
    assert exact_share(1e6, principal, name) == 1
    # Empty leaves are recognised under every noise.
    assert exact_share(0.1, principal, name) < 0.8
