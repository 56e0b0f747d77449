"""What the server of dp-gbdt opens: whose sums these are, and how much noise is left in them."""

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


def run(inside, defense="none", seed=1, trees=6):
    made = register.make("protocol", parse_grid(f"dp-gbdt[max_depth=3,trees={trees},{inside}]")[0])
    by = make_defense(parse_composed([defense])[0])
    return train(made, over_clients(PARTS), SCHEMA, defense=by, seed=seed)


def seen(done, *who):
    return view_of(done, who, over_clients(PARTS))


def answers(done, client):
    """Return what a client's rows bring to the leaves of every tree, in units."""
    exact = replace(done.protocol, noise="central")
    party = LeafClient(client_seat(f"client-{client}", PARTS[client], SCHEMA), exact)
    told = [d.message for d in done.transcript if d.sender == "server"]
    with acting(party):
        found = [party.answer(m) for m in told if type(m) in LeafClient._handlers]
    return [m.sums for m in found if isinstance(m, LeafSums)]


def bits_of(done):
    return next(
        (d.message.g_bits, d.message.h_bits)
        for d in done.transcript
        if hasattr(d.message, "g_bits")
    )


def true_sums(done, clients):
    """Return the exact sums of some clients in the leaves of every tree."""
    units = np.sum([answers(done, c) for c in clients], axis=0)
    return [from_fixed(part, bits_of(done)) for part in units]


def sums_of(evidence):
    return [np.stack([t.g, t.h], axis=1)[t.leaves] for t in evidence.trees]


@pytest.mark.parametrize("who", [("server",), ("server", "client-2")])
def test_a_server_that_adds_the_noise_reads_every_client_without_it(who):
    done = run("epsilon=0.5")
    victims = observe_clients(seen(done, *who))
    assert [v.owner for v in victims] == ["client-0", "client-1", "client-2"][: 4 - len(who)]
    for k, victim in enumerate(victims):
        assert victim.evidence.distortion.noise is None
        assert victim.evidence.row_counts.n_rows == len(PARTS[k])
        assert not victim.evidence.observed.own_inside
        for told, true in zip(sums_of(victim.evidence), true_sums(done, [k]), strict=True):
            assert np.array_equal(told, true)


@pytest.mark.parametrize("defense", here("defense", ["secure-sum", "masking"]))
def test_under_a_secure_sum_it_reads_all_clients_together(defense):
    done = run("epsilon=0.5", defense)
    view = seen(done, "server")
    assert not observe_clients(view)
    evidence = read_boosting(view)
    assert evidence.distortion.noise is None
    for told, true in zip(sums_of(evidence), true_sums(done, [0, 1, 2]), strict=True):
        assert np.array_equal(told, true)


def test_whoever_knows_a_share_of_the_noise_takes_it_off():
    scores = []
    for seed in range(8):
        done = run("epsilon=1,noise=distributed", seed=seed)
        evidence = read_boosting(seen(done, "client-0"))
        assert not evidence.observed.own_inside
        assert evidence.row_counts.n_rows == len(PARTS[1]) + len(PARTS[2])
        every = read_boosting(seen(done, "public"))
        assert evidence.distortion.noise[0].g == pytest.approx(2 / 3 * every.distortion.noise[0].g)
        scores += scores_of(done, evidence, [1, 2])
    check_standard_normal(scores)


def scores_of(done, evidence, clients):
    """Return the noise of every leaf in its standard deviations."""
    out = []
    for t, true in enumerate(true_sums(done, clients)):
        noise, leaves = evidence.distortion.noise[t], evidence.trees[t].leaves
        sd = np.sqrt(np.stack([noise.g, noise.h], axis=1)[leaves])
        out.append((sums_of(evidence)[t] - true) / sd)
    return out


def check_standard_normal(scores):
    for part in np.concatenate(scores).T:
        assert 0.005 < stats.chi2.cdf((part**2).sum(), len(part)) < 0.995
        assert abs(part.mean()) * np.sqrt(len(part)) < 3


@pytest.mark.parametrize("who", ["server", "public"])
def test_shared_noise_has_the_variance_that_evidence_says(who):
    scores = []
    for seed in range(8):
        done = run("epsilon=1,noise=distributed", seed=seed)
        evidence = read_boosting(seen(done, who))
        scores += scores_of(done, evidence, [0, 1, 2])
    check_standard_normal(scores)


def attacked(view, name, seed=0):
    made = register.make("attack", Spec(name, QUICK[name]))
    assert made.inapplicable(view) is None
    return made.run(view, np.random.default_rng(seed))


def true_counts(done, clients=(0, 1, 2)):
    """Return the class counts of the first tree's leaves, int64 (J, 2)."""
    rows, tree = Table.concat([PARTS[c] for c in clients]), done.model.trees[0]
    at = np.searchsorted(tree.leaves, done.model.apply(rows.X)[:, 0])
    return np.bincount(2 * at + rows.y, minlength=2 * len(tree.leaves)).reshape(-1, 2)


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("defense", ["none", "secure-sum"])
def test_whatever_epsilon_is_a_server_that_adds_the_noise_counts_all_leaves(name, defense):
    done = run("epsilon=0.1", defense)
    guess = attacked(seen(done, "server"), name)
    first = next(c for c in guess.all(LeafCounts) if c.tree == 0)
    assert np.array_equal(first.counts, true_counts(done))
    if name != "lattice":
        (records,) = guess.all(Records)
        assert len(records.table) == sum(map(len, PARTS))
        owners = [f"client-{k}" for k in range(3) for _ in range(len(PARTS[k]))]
        assert records.owner == (tuple(owners) if defense == "none" else None)


@pytest.mark.long
def test_of_a_client_that_colludes_no_row_is_sought():
    done = run("epsilon=0.1")
    guess = attacked(seen(done, "server", "client-1"), "timberstrike")
    first = next(c for c in guess.all(LeafCounts) if c.tree == 0)
    assert np.array_equal(first.counts, true_counts(done, (0, 2)))
    (records,) = guess.all(Records)
    assert set(records.owner) == {"client-0", "client-2"}


def exact_share(epsilon, who, name, seeds=range(3)):
    """Return the share of leaves whose counts an attack reads, the mean over seeds."""
    found = []
    for seed in seeds:
        done = run(f"epsilon={epsilon},noise=distributed", seed=seed, trees=4)
        guess = attacked(seen(done, who), name, seed)
        told = next(c.counts for c in guess.all(LeafCounts) if c.tree == 0)
        clients = [c for c in range(3) if f"client-{c}" != who]
        found.append((told == true_counts(done, clients)).all(axis=1).mean())
    return np.mean(found)


@pytest.mark.long
@pytest.mark.parametrize("who", ["server", "client-0"])
@pytest.mark.parametrize("name", ["timberstrike", "joint"])
def test_counts_are_read_as_far_as_the_noise_allows(who, name):
    assert exact_share(1e6, who, name) == 1
    assert exact_share(0.1, who, name) < 0.8  # empty leaves are no secret
