"""Trees that clients grow alone: exact counts, own starts, chains, and scores above the blind."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import guessed
import numpy as np
import pytest
from data_dir import data_dir
from federations import clients_of, leaf_scores, victims_of_all
from sklearn.datasets import load_breast_cancer, load_iris
from timberstrike_world import accuracy, structured

from fedtrees.attacks.clients.base_score import LeafValues, own_start, shares_of_values
from fedtrees.attacks.clients.client_trees import blocks_of
from fedtrees.attacks.clients.linkage import link
from fedtrees.attacks.clients.masked_hessians import hessians_from_gains
from fedtrees.attacks.clients.per_client import observe_clients, reconstruct_each_client
from fedtrees.attacks.timberstrike import reconstruct
from fedtrees.core.claims import EveryRecord
from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import client_names, over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.data import catalogue
from fedtrees.data.dataset import prepare
from fedtrees.data.partition import Partition
from fedtrees.experiments.evaluate import make_defense
from fedtrees.experiments.federation import spread
from fedtrees.messages.models import base_weights
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.boosted.losses import LOGISTIC, Softmax, start_margin

PROTOCOLS = ("flower-bagging", "flower-cyclic", "local-ensembles")
ONE = "timberstrike[chains=1,max_trees=1]"


def federation(classes=2, clients=3, rows=360):
    X, y = load_iris(return_X_y=True) if classes == 3 else load_breast_cancer(return_X_y=True)
    X, y = X[:rows, :8], y[:rows]
    order = np.random.default_rng(3).permutation(len(y))
    features = tuple(Feature(f"x{k}") for k in range(X.shape[1]))
    schema = Schema(features, "y", tuple(map(str, range(classes))))
    return spread(
        prepare("small", schema, X[order], y[order]), Partition("iid"), client_names(clients), 0
    )


def run(fed, protocol, who="client-2", defense="none"):
    spec = parse_grid(protocol)[0]
    made = make_defense(parse_composed([defense])[0])
    done = train(register.make("protocol", spec), fed.local_data, fed.schema, defense=made, seed=1)
    return done, view_of(done, (who,), fed.local_data)


def attack(view, spec="timberstrike[chains=2]", seed=0):
    return register.make("attack", parse_grid(spec)[0]).run(view, np.random.default_rng(seed))


def counts_exact(fed, done, view, spec=ONE):
    got = leaf_scores(attack(view, spec), fed, view.principals, done)
    return got["leaf_counts_exact"]


@pytest.mark.long
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("who", ["client-2", "server", "public"])
def test_first_counts_are_exact_wherever_hessians_are_shared(protocol, classes, who):
    fed = federation(classes)
    turns = 1 if protocol == "flower-cyclic" else 6  # later in the cycle: see test_late_counts
    for depth in (3, 6):
        done, view = run(fed, f"{protocol}[trees={turns},max_depth={depth}]", who)
        assert counts_exact(fed, done, view) == 1.0


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("defense", ["none", "split-only", "mask-sum-hessian"])
def test_a_released_model_is_read_as_the_trees_of_each_client(protocol, defense):
    """Whoever has the model alone learns of a client's trees what another client does."""
    spec = f"{protocol}[trees=4,max_depth=2]"
    done, seen = run(federation(), spec, defense=defense)
    released = blocks_of(view_of(done, ("public",), {}))
    shared = blocks_of(seen)
    assert released.per_round == shared.per_round
    for mine, told in zip(released.blocks, shared.blocks, strict=True):
        assert (mine.first_tree, mine.round) == (told.first_tree, told.round)
        assert told.sender in (None, mine.sender)
        for a, b in zip(mine.trees, told.trees, strict=True):
            np.testing.assert_array_equal(a.threshold, b.threshold)
            np.testing.assert_allclose(a.value, b.value, rtol=3e-7)
            if b.h is not None:
                np.testing.assert_allclose(a.h, b.h, rtol=1e-5)
                np.testing.assert_allclose(a.g, b.g, rtol=1e-5, atol=1e-5)


def test_a_model_that_lacks_some_answers_is_not_cut_into_rounds():
    done, _ = run(federation(), "flower-bagging[trees=4,max_depth=2]")
    view = view_of(done, ("public",), {})
    ((seen, model),) = [(item, item.message) for item in view.seen]
    nodes = int(model.sizes[:-1].sum())
    parts = {
        k: v[:nodes] for k, v in vars(model).items() if v is not None and len(v) > len(model.sizes)
    }
    few = replace(model, sizes=model.sizes[:-1], **parts)
    assert blocks_of(replace(view, seen=(replace(seen, message=few),))) is None


@pytest.mark.parametrize("protocol", ["fedtree-hist", "nvflare-hist"])
def test_first_counts_are_exact_in_histogram_protocols_too(protocol):
    fed = federation()
    for depth in (3, 6):
        done, view = run(fed, f"{protocol}[trees=2,max_depth={depth}]")
        assert counts_exact(fed, done, view) == 1.0


@pytest.mark.parametrize("intercept", ["mean", "newton"])
def test_masked_hessians_come_back_from_weights_and_gains(intercept):
    fed = federation()
    spec = f"flower-bagging[trees=3,max_depth=5,intercept={intercept}]"
    done, view = run(fed, spec, defense="mask-sum-hessian")
    assert counts_exact(fed, done, view) == 1.0
    open_view = run(fed, spec)[1]
    for hidden, shown in zip(blocks_of(view).blocks, blocks_of(open_view).blocks, strict=True):
        for a, b in zip(hidden.trees, shown.trees, strict=True):
            if len(b) > 1:
                np.testing.assert_allclose(a.h, b.h, rtol=2e-3)


def test_gains_that_are_off_give_no_hessians():
    fed = federation()
    tree = run(fed, "flower-bagging[trees=1,max_depth=3]")[0].model.trees[0]
    params = register.make("protocol", parse_grid("flower-bagging")[0])
    weight = base_weights(tree, params)
    h, error = hessians_from_gains(tree, weight, tree.gain, 0.3, 1.0)
    assert (np.abs(h - tree.h[tree.leaves]) <= error).all()
    assert (error < 2e-3 * h).all()
    assert hessians_from_gains(tree, weight, -tree.gain, 0.3, 1.0) is None


@pytest.mark.parametrize("intercept", ["mean", "newton"])
@pytest.mark.parametrize("who", ["client-1", "client-2"])
def test_leaf_values_alone_give_a_bagging_clients_base_score_and_counts(intercept, who):
    fed = federation()
    spec = f"flower-bagging[trees=2,max_depth=4,intercept={intercept}]"
    done, view = run(fed, spec, who, defense="split-only")
    told = {b.sender: b.score for b in blocks_of(run(fed, spec, "server")[1]).blocks[:3]}
    for victim in observe_clients(view):
        assert victim.evidence.observed.level == "values"
        assert victim.evidence.base_margin == start_margin(LOGISTIC, told[victim.owner])[0]
    assert counts_exact(fed, done, view) == 1.0


def test_no_share_of_positives_explains_values_that_are_off():
    tree = run(federation(), "flower-bagging[trees=1,max_depth=4]")[0].model.trees[0]
    y = clients_of(federation())[0].y
    leaves = LeafValues.of(tree, 0.3, 1.0, 1.0, 240)
    found = shares_of_values(leaves, 0.5, "mean")
    fraction = Fraction(int(y.sum()), len(y))
    assert [(found.positives[0], found.rows[0])] == [fraction.as_integer_ratio()]
    assert len(found.rows) == 1
    noise = np.random.default_rng(0).normal(0, 1e-3, len(leaves.slope))
    assert shares_of_values(replace(leaves, slope=leaves.slope + noise), 0.5, "mean") is None


def test_split_only_leaves_values_and_known_base_scores_still_count():
    """Everybody's base score comes with local ensembles: the leaf values alone give the counts."""
    fed = federation()
    done, view = run(fed, "local-ensembles[trees=2,max_depth=3]", defense="split-only")
    assert all(v.evidence.observed.level == "values" for v in observe_clients(view))
    assert counts_exact(fed, done, view) >= 0.7


def test_leaf_values_count_a_victim_with_fewer_rows_than_the_adversary():
    fed = federation(clients=2)
    small, large = clients_of(fed)
    fed = replace(fed, local_data=over_clients([small.take(np.arange(60)), large]))
    done, view = run(fed, "local-ensembles[trees=1,max_depth=3]", "client-1", "split-only")
    assert counts_exact(fed, done, view) == 1.0


@pytest.mark.parametrize("protocol", ["flower-bagging", "local-ensembles"])
@pytest.mark.parametrize("decimals", [1, 3])
@pytest.mark.parametrize("clients", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_rounded_leaf_values_leave_as_many_rows_as_there_are(protocol, decimals, clients):
    """Whichever numbers of rows fit each client, all together are known."""
    fed = federation(clients=clients)
    defense = f"split-only+leaf-rounding[decimals={decimals}]"
    _, view = run(fed, f"{protocol}[trees=2,max_depth=3]", defense=defense)
    rest = sum(len(c) for c in clients_of(fed)) - len(clients_of(fed)[2])
    assert sum(v.evidence.row_counts.n_rows for v in observe_clients(view)) == rest
    assert len(guessed.rows(attack(view, ONE))) == rest


def test_leaf_values_of_the_first_in_the_cycle_count_though_others_are_unseen():
    """One turn: its rows are not all rows that the adversary does not hold."""
    fed = federation()
    done, view = run(fed, "flower-cyclic[trees=1,max_depth=4]", defense="split-only")
    assert len(observe_clients(view)) == 1
    assert counts_exact(fed, done, view) == 1.0


@pytest.mark.parametrize("intercept", ["mean", "newton"])
def test_a_clients_own_base_score_follows_from_whole_numbers(intercept):
    fed = federation()
    spec = f"flower-bagging[trees=1,max_depth=4,intercept={intercept}]"
    server = blocks_of(run(fed, spec, "server")[1])
    for i, block in enumerate(server.blocks):
        found = own_start(block.trees, LOGISTIC, 300, intercept)
        assert found.rows == len(clients_of(fed)[i])
        np.testing.assert_array_equal(found.score, block.score)
    assert len({float(b.score[0]) for b in server.blocks}) > 1


def test_first_trees_start_from_the_clients_own_base_later_ones_from_the_models():
    fed = federation()
    spec = "flower-bagging[trees=3,max_depth=4]"
    blocks = blocks_of(run(fed, spec, "server")[1])
    for victim in observe_clients(run(fed, spec)[1]):
        evidence, own = victim.evidence, victim.blocks[0]
        told = next(b for b in blocks.blocks if b.first_tree == own.first_tree)
        assert evidence.base_margin == start_margin(LOGISTIC, told.score)[0]
        if victim.owner == "client-0":
            assert evidence.restart is None
        else:
            at, shift = evidence.restart
            assert at == 1
            assert evidence.base_margin + shift[0] == start_margin(LOGISTIC, blocks.score)[0]
        others = [t for t, other in zip(evidence.trees, evidence.foreign, strict=True) if other]
        assert len(others) == 6
        assert not evidence.foreign[0]


def test_own_base_scores_of_several_classes():
    fed = federation(3)
    server = blocks_of(run(fed, "flower-bagging[trees=1,max_depth=4]", "server")[1])
    for i, block in enumerate(server.blocks):
        found = own_start(block.trees, Softmax(3), 200)
        assert found.rows == len(clients_of(fed)[i])
        np.testing.assert_allclose(found.score, block.score, atol=1e-6)


def test_no_number_of_rows_fits_noise():
    tree = run(federation(), "flower-bagging[trees=1,max_depth=4]")[0].model.trees[0]
    noise = np.random.default_rng(0).normal(size=len(tree))
    assert own_start([replace(tree, g=tree.g + noise)], LOGISTIC, 300) is None


def test_a_client_knows_its_own_trees_and_reconstructs_the_others():
    fed = federation()
    for arrival in ("client", "shuffled"):
        view = run(fed, f"flower-bagging[trees=5,max_depth=3,arrival={arrival}]")[1]
        blocks = blocks_of(view).blocks
        assert sum(b.sender == "client-2" for b in blocks) == 5
        guess = attack(view)
        assert len(guessed.rows(guess)) == len(victims_of_all(fed, ("client-2",)))
        assert (guessed.owner(guess) is not None) == (arrival == "client")


def test_the_first_in_the_cycle_is_counted_and_others_are_estimated():
    fed = federation()
    view = run(fed, "flower-cyclic[trees=12,max_depth=3]")[1]
    victims = observe_clients(view)
    assert [v.owner for v in victims] == ["client-0", "client-1"]
    assert [v.evidence.is_foreign(0) for v in victims] == [False, True]
    guess = attack(view)
    assert {c.tree for c in guessed.counts(guess)} == {0, 1}
    assert 0 < guess.notes["late_leaves_certain"] <= guess.notes["late_leaves"]
    assert len(guessed.rows(guess)) == len(victims_of_all(fed, ("client-2",)))
    late = [
        r
        for r, o in zip(guessed.rows(guess).y, guessed.owner(guess), strict=True)
        if o == "client-1"
    ]
    assert abs(sum(late) - clients_of(fed)[1].y.sum()) <= 0.1 * len(clients_of(fed)[1])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rows_stay_in_the_first_leaves_of_their_client(protocol):
    fed = federation()
    done, view = run(fed, f"{protocol}[trees=9,max_depth=3]")
    guess = attack(view, "timberstrike[chains=1]")
    rows = guessed.rows(guess).X[np.array(guessed.owner(guess)) == "client-0"]
    y = guessed.rows(guess).y[np.array(guessed.owner(guess)) == "client-0"]
    tree, held = done.model.trees[0], clients_of(fed)[0]
    for label in (0, 1):
        found = np.bincount(done.model.apply(rows[y == label])[:, 0], minlength=len(tree))
        truth = np.bincount(done.model.apply(held.X[held.y == label])[:, 0], minlength=len(tree))
        np.testing.assert_array_equal(found, truth)


@pytest.mark.long
def test_other_clients_trees_matter():
    """Without them the margins are wrong, and the sums of later trees pull rows astray."""
    X, y = structured(480)
    schema = Schema(tuple(Feature(f"x{k}") for k in range(6)), "y")
    fed = spread(prepare("structured", schema, X, y), Partition("iid"), client_names(3), 0)
    view = run(fed, "flower-bagging[trees=20,max_depth=3]")[1]
    truth = victims_of_all(fed, ("client-2",))
    scores = []
    for victims in (observe_clients(view), [_alone(v) for v in observe_clients(view)]):
        options = register.make("attack", parse_grid("timberstrike[chains=3]")[0])
        parts, rng = (view.rows, view.schema, options), np.random.default_rng(0)
        guess = reconstruct_each_client(
            victims, "statistics", lambda e, p=parts, r=rng: reconstruct(e, *p, r)
        )
        scores.append(accuracy(guessed.rows(guess), truth, schema))
    assert scores[0] > scores[1]


def _alone(victim):
    e = victim.evidence
    mine = [t for t, other in zip(e.trees, e.foreign, strict=True) if not other]
    bare = e.change(trees=tuple(mine), foreign=None, restart=None)
    return replace(victim, evidence=bare)


@pytest.mark.long
def test_thresholds_tell_clients_apart_where_sums_do_not():
    clients = 10
    fed = spread(catalogue.load("stroke", data_dir()), Partition("iid"), client_names(clients), 0)
    rate = 0.3 / clients
    spec = f"flower-bagging[trees=12,max_depth=6,arrival=shuffled,learning_rate={rate:.4f}]"
    view = run(fed, spec)[1]
    right = {clues: share_linked(view, clients, clues) for clues in ("hessian", "sums", "all")}
    assert right["all"] >= 0.95
    assert right["hessian"] < 0.6


def share_linked(view, clients, clues, seed=1):
    """Share of blocks in the chain of the client whose block started it."""
    rounds, owners = {}, {}
    for block in blocks_of(view).blocks:
        place = len(owners.setdefault(block.round, []))
        order = Streams(seed).child("server").rng("arrival", block.round).permutation(clients)
        owners[block.round].append(int(order[place]))
        if block.sender is None:
            rounds.setdefault(block.round, []).append((block, int(order[place])))
    linked = link([[b for b, _ in blocks] for blocks in rounds.values()], clues)
    names = [owner for _, owner in rounds[0]]
    hits = [
        names[chain] == owner
        for blocks, chains in list(zip(rounds.values(), linked, strict=True))[1:]
        for (_, owner), chain in zip(blocks, chains, strict=True)
    ]
    return np.mean(hits)


def test_the_published_variant_takes_the_models_base_score_for_everyones():
    fed = federation()
    done, view = run(fed, "flower-bagging[trees=4,max_depth=4]")
    spec = "timberstrike-published[max_trees=1,scope=victims"
    assert counts_exact(fed, done, view, f"{spec}]") < 1.0
    assert counts_exact(fed, done, view, f"{spec},base_scores=own]") == 1.0
    published = attack(view, "timberstrike-published[max_trees=1]")
    assert {type(claim) for claim in published.claims} == {EveryRecord}  # as their tables have it


@pytest.mark.long
def test_same_seed_same_guess():
    view = run(federation(), "flower-bagging[trees=5,max_depth=3]")[1]
    first, second = (guessed.rows(attack(view, seed=2)) for _ in range(2))
    np.testing.assert_array_equal(first.X, second.X)


def test_options_name_the_wrong_value():
    with pytest.raises(UsageError, match="did you mean 'sums'"):
        register.make("attack", parse_grid("timberstrike[linkage_statistics=sum]")[0])
    with pytest.raises(UsageError, match="unknown base_scores 'mine'"):
        register.make("attack", parse_grid("timberstrike[base_scores=mine]")[0])
