"""Trees that clients grow on their local data: exact counts, base scores of clients, linked
trees, and scores above the blind guess.
"""

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
from fedtrees.attacks.clients.client_trees import blocks_of, link
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
ONE_CHAIN = "timberstrike[chains=1,max_trees=1]"


def make_federation(classes=2, clients=3, rows=360):
    """Distribute a small table over clients."""
    X, y = load_iris(return_X_y=True) if classes == 3 else load_breast_cancer(return_X_y=True)
    X, y = X[:rows, :8], y[:rows]
    order = np.random.default_rng(3).permutation(len(y))
    features = tuple(Feature(f"x{k}") for k in range(X.shape[1]))
    schema = Schema(features, "y", tuple(map(str, range(classes))))
    return spread(
        prepare("small", schema, X[order], y[order]), Partition("iid"), client_names(clients), 0
    )


def train_and_view(federation_of_clients, protocol, principal="client-2", defense="none"):
    """Train; return the training and the view of one party."""
    spec = parse_grid(protocol)[0]
    composition = make_defense(parse_composed([defense])[0])
    training = train(
        register.make("protocol", spec),
        federation_of_clients.local_data,
        federation_of_clients.schema,
        defense=composition,
        seed=1,
    )
    return training, view_of(training, (principal,), federation_of_clients.local_data)


def run_attack(view, spec="timberstrike[chains=2]", seed=0):
    return register.make("attack", parse_grid(spec)[0]).run(view, np.random.default_rng(seed))


def share_of_exact_counts(federation_of_clients, training, view, spec=ONE_CHAIN):
    scores = leaf_scores(run_attack(view, spec), federation_of_clients, view.principals, training)
    return scores["leaf_counts_exact"]


@pytest.mark.long
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("principal", ["client-2", "server", "public"])
def test_first_counts_are_exact_if_hessians_are_shared(protocol, classes, principal):
    federation_of_clients = make_federation(classes)
    # Later positions in the cycle are tested in test_late_counts.
    turns = 1 if protocol == "flower-cyclic" else 6
    for depth in (3, 6):
        training, view = train_and_view(
            federation_of_clients, f"{protocol}[trees={turns},max_depth={depth}]", principal
        )
        assert share_of_exact_counts(federation_of_clients, training, view) == 1.0


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("defense", ["none", "split-only", "mask-sum-hessian"])
def test_a_released_model_is_separated_into_the_trees_of_each_client(protocol, defense):
    """An adversary with only the model separates the trees of the clients as another client
    does.
    """
    spec = f"{protocol}[trees=4,max_depth=2]"
    training, client_view = train_and_view(make_federation(), spec, defense=defense)
    released = blocks_of(view_of(training, ("public",), {}))
    shared = blocks_of(client_view)
    assert released.per_round == shared.per_round
    for released_block, shared_block in zip(released.blocks, shared.blocks, strict=True):
        assert (released_block.first_tree, released_block.round) == (
            shared_block.first_tree,
            shared_block.round,
        )
        assert shared_block.sender in (None, released_block.sender)
        for released_tree, shared_tree in zip(
            released_block.trees, shared_block.trees, strict=True
        ):
            np.testing.assert_array_equal(released_tree.threshold, shared_tree.threshold)
            np.testing.assert_allclose(released_tree.value, shared_tree.value, rtol=3e-7)
            if shared_tree.h is not None:
                np.testing.assert_allclose(released_tree.h, shared_tree.h, rtol=1e-5)
                np.testing.assert_allclose(released_tree.g, shared_tree.g, rtol=1e-5, atol=1e-5)


def test_a_model_with_missing_trees_is_not_separated_into_rounds():
    training, _ = train_and_view(make_federation(), "flower-bagging[trees=4,max_depth=2]")
    view = view_of(training, ("public",), {})
    ((model_item, model),) = [(item, item.message) for item in view.seen]
    nodes = int(model.sizes[:-1].sum())
    fields = {
        name: values[:nodes]
        for name, values in vars(model).items()
        if values is not None and len(values) > len(model.sizes)
    }
    shorter_model = replace(model, sizes=model.sizes[:-1], **fields)
    assert blocks_of(replace(view, seen=(replace(model_item, message=shorter_model),))) is None


@pytest.mark.parametrize("protocol", ["fedtree-hist", "nvflare-hist"])
def test_first_counts_are_exact_in_histogram_protocols_too(protocol):
    federation_of_clients = make_federation()
    for depth in (3, 6):
        training, view = train_and_view(
            federation_of_clients, f"{protocol}[trees=2,max_depth={depth}]"
        )
        assert share_of_exact_counts(federation_of_clients, training, view) == 1.0


@pytest.mark.parametrize("intercept", ["mean", "newton"])
def test_masked_hessians_are_recovered_from_weights_and_gains(intercept):
    federation_of_clients = make_federation()
    spec = f"flower-bagging[trees=3,max_depth=5,intercept={intercept}]"
    training, view = train_and_view(federation_of_clients, spec, defense="mask-sum-hessian")
    assert share_of_exact_counts(federation_of_clients, training, view) == 1.0
    open_view = train_and_view(federation_of_clients, spec)[1]
    for masked_block, open_block in zip(
        blocks_of(view).blocks, blocks_of(open_view).blocks, strict=True
    ):
        for recovered, original in zip(masked_block.trees, open_block.trees, strict=True):
            if len(original) > 1:
                np.testing.assert_allclose(recovered.h, original.h, rtol=2e-3)


def test_wrong_gains_give_no_hessians():
    federation_of_clients = make_federation()
    tree = train_and_view(federation_of_clients, "flower-bagging[trees=1,max_depth=3]")[
        0
    ].model.trees[0]
    params = register.make("protocol", parse_grid("flower-bagging")[0])
    weight = base_weights(tree, params)
    h, error = hessians_from_gains(tree, weight, tree.gain, 0.3, 1.0)
    assert (np.abs(h - tree.h[tree.leaves]) <= error).all()
    assert (error < 2e-3 * h).all()
    assert hessians_from_gains(tree, weight, -tree.gain, 0.3, 1.0) is None


@pytest.mark.parametrize("intercept", ["mean", "newton"])
@pytest.mark.parametrize("principal", ["client-1", "client-2"])
def test_leaf_values_reveal_the_base_score_and_counts_of_a_bagging_client(intercept, principal):
    federation_of_clients = make_federation()
    spec = f"flower-bagging[trees=2,max_depth=4,intercept={intercept}]"
    training, view = train_and_view(federation_of_clients, spec, principal, defense="split-only")
    true_scores = {
        block.sender: block.score
        for block in blocks_of(train_and_view(federation_of_clients, spec, "server")[1]).blocks[:3]
    }
    for victim in observe_clients(view):
        assert victim.evidence.observed.level == "values"
        assert victim.evidence.base_margin == start_margin(LOGISTIC, true_scores[victim.owner])[0]
    assert share_of_exact_counts(federation_of_clients, training, view) == 1.0


def test_wrong_leaf_values_fit_no_share_of_positives():
    tree = train_and_view(make_federation(), "flower-bagging[trees=1,max_depth=4]")[0].model.trees[
        0
    ]
    y = clients_of(make_federation())[0].y
    leaves = LeafValues.of(tree, 0.3, 1.0, 1.0, 240)
    shares = shares_of_values(leaves, 0.5, "mean")
    fraction = Fraction(int(y.sum()), len(y))
    assert [(shares.positives[0], shares.rows[0])] == [fraction.as_integer_ratio()]
    assert len(shares.rows) == 1
    noise = np.random.default_rng(0).normal(0, 1e-3, len(leaves.slope))
    assert shares_of_values(replace(leaves, slope=leaves.slope + noise), 0.5, "mean") is None


def test_leaf_values_with_known_base_scores_reveal_counts_under_split_only():
    """Local ensembles contain the base scores of all clients, so leaf values suffice for the
    counts.
    """
    federation_of_clients = make_federation()
    training, view = train_and_view(
        federation_of_clients, "local-ensembles[trees=2,max_depth=3]", defense="split-only"
    )
    assert all(victim.evidence.observed.level == "values" for victim in observe_clients(view))
    assert share_of_exact_counts(federation_of_clients, training, view) >= 0.7


def test_leaf_values_count_a_victim_with_fewer_rows_than_the_adversary():
    federation_of_clients = make_federation(clients=2)
    small, large = clients_of(federation_of_clients)
    federation_of_clients = replace(
        federation_of_clients, local_data=over_clients([small.take(np.arange(60)), large])
    )
    training, view = train_and_view(
        federation_of_clients, "local-ensembles[trees=1,max_depth=3]", "client-1", "split-only"
    )
    assert share_of_exact_counts(federation_of_clients, training, view) == 1.0


@pytest.mark.parametrize("protocol", ["flower-bagging", "local-ensembles"])
@pytest.mark.parametrize("decimals", [1, 3])
@pytest.mark.parametrize("clients", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_rounded_leaf_values_give_the_true_total_number_of_rows(protocol, decimals, clients):
    """Several numbers of rows fit each client, but the total is known."""
    federation_of_clients = make_federation(clients=clients)
    defense = f"split-only+leaf-rounding[decimals={decimals}]"
    _, view = train_and_view(
        federation_of_clients, f"{protocol}[trees=2,max_depth=3]", defense=defense
    )
    other_rows = sum(len(client) for client in clients_of(federation_of_clients)) - len(
        clients_of(federation_of_clients)[2]
    )
    assert sum(victim.evidence.row_counts.n_rows for victim in observe_clients(view)) == other_rows
    assert len(guessed.rows(run_attack(view, ONE_CHAIN))) == other_rows


def test_leaf_values_of_the_first_client_in_a_cycle_reveal_its_counts():
    """Only one client has added a tree, so its rows are fewer than all rows of other clients."""
    federation_of_clients = make_federation()
    training, view = train_and_view(
        federation_of_clients, "flower-cyclic[trees=1,max_depth=4]", defense="split-only"
    )
    assert len(observe_clients(view)) == 1
    assert share_of_exact_counts(federation_of_clients, training, view) == 1.0


@pytest.mark.parametrize("intercept", ["mean", "newton"])
def test_the_base_score_of_a_client_is_inferred_from_integer_counts(intercept):
    federation_of_clients = make_federation()
    spec = f"flower-bagging[trees=1,max_depth=4,intercept={intercept}]"
    server = blocks_of(train_and_view(federation_of_clients, spec, "server")[1])
    for i, block in enumerate(server.blocks):
        inferred = own_start(block.trees, LOGISTIC, 300, intercept)
        assert inferred.rows == len(clients_of(federation_of_clients)[i])
        np.testing.assert_array_equal(inferred.score, block.score)
    assert len({float(any_block.score[0]) for any_block in server.blocks}) > 1


def test_first_trees_start_from_the_base_score_of_the_client_and_others_from_the_model():
    federation_of_clients = make_federation()
    spec = "flower-bagging[trees=3,max_depth=4]"
    blocks = blocks_of(train_and_view(federation_of_clients, spec, "server")[1])
    for victim in observe_clients(train_and_view(federation_of_clients, spec)[1]):
        evidence, first_block = victim.evidence, victim.blocks[0]
        true_block = next(
            any_block
            for any_block in blocks.blocks
            if any_block.first_tree == first_block.first_tree
        )
        assert evidence.base_margin == start_margin(LOGISTIC, true_block.score)[0]
        if victim.owner == "client-0":
            assert evidence.restart is None
        else:
            position, shift = evidence.restart
            assert position == 1
            assert evidence.base_margin + shift[0] == start_margin(LOGISTIC, blocks.score)[0]
        foreign_trees = [
            tree
            for tree, is_foreign in zip(evidence.trees, evidence.foreign, strict=True)
            if is_foreign
        ]
        assert len(foreign_trees) == 6
        assert not evidence.foreign[0]


def test_base_scores_of_clients_are_inferred_for_several_classes():
    federation_of_clients = make_federation(3)
    server = blocks_of(
        train_and_view(federation_of_clients, "flower-bagging[trees=1,max_depth=4]", "server")[1]
    )
    for i, block in enumerate(server.blocks):
        inferred = own_start(block.trees, Softmax(3), 200)
        assert inferred.rows == len(clients_of(federation_of_clients)[i])
        np.testing.assert_allclose(inferred.score, block.score, atol=1e-6)


def test_no_number_of_rows_fits_noise():
    tree = train_and_view(make_federation(), "flower-bagging[trees=1,max_depth=4]")[0].model.trees[
        0
    ]
    noise = np.random.default_rng(0).normal(size=len(tree))
    assert own_start([replace(tree, g=tree.g + noise)], LOGISTIC, 300) is None


def test_a_client_recognises_its_trees_and_reconstructs_the_other_clients():
    federation_of_clients = make_federation()
    for arrival in ("client", "shuffled"):
        view = train_and_view(
            federation_of_clients, f"flower-bagging[trees=5,max_depth=3,arrival={arrival}]"
        )[1]
        blocks = blocks_of(view).blocks
        assert sum(block.sender == "client-2" for block in blocks) == 5
        guess = run_attack(view)
        assert len(guessed.rows(guess)) == len(victims_of_all(federation_of_clients, ("client-2",)))
        assert (guessed.owner(guess) is not None) == (arrival == "client")


def test_the_first_client_in_a_cycle_is_counted_and_others_are_estimated():
    federation_of_clients = make_federation()
    view = train_and_view(federation_of_clients, "flower-cyclic[trees=12,max_depth=3]")[1]
    victims = observe_clients(view)
    assert [victim.owner for victim in victims] == ["client-0", "client-1"]
    assert [victim.evidence.is_foreign(0) for victim in victims] == [False, True]
    guess = run_attack(view)
    assert {counts.tree for counts in guessed.counts(guess)} == {0, 1}
    assert 0 < guess.notes["late_leaves_certain"] <= guess.notes["late_leaves"]
    assert len(guessed.rows(guess)) == len(victims_of_all(federation_of_clients, ("client-2",)))
    late_labels = [
        label
        for label, owner in zip(guessed.rows(guess).y, guessed.owner(guess), strict=True)
        if owner == "client-1"
    ]
    assert abs(sum(late_labels) - clients_of(federation_of_clients)[1].y.sum()) <= 0.1 * len(
        clients_of(federation_of_clients)[1]
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rows_stay_in_the_first_leaves_of_their_client(protocol):
    federation_of_clients = make_federation()
    training, view = train_and_view(federation_of_clients, f"{protocol}[trees=9,max_depth=3]")
    guess = run_attack(view, "timberstrike[chains=1]")
    rows = guessed.rows(guess).X[np.array(guessed.owner(guess)) == "client-0"]
    y = guessed.rows(guess).y[np.array(guessed.owner(guess)) == "client-0"]
    tree, client_rows = training.model.trees[0], clients_of(federation_of_clients)[0]
    for label in (0, 1):
        guessed_counts = np.bincount(
            training.model.apply(rows[y == label])[:, 0], minlength=len(tree)
        )
        true_counts = np.bincount(
            training.model.apply(client_rows.X[client_rows.y == label])[:, 0], minlength=len(tree)
        )
        np.testing.assert_array_equal(guessed_counts, true_counts)


@pytest.mark.long
def test_trees_of_other_clients_improve_the_reconstruction():
    """Without them the margins are wrong, so the sums of later trees mislead the reconstruction."""
    X, y = structured(480)
    schema = Schema(tuple(Feature(f"x{k}") for k in range(6)), "y")
    federation_of_clients = spread(
        prepare("structured", schema, X, y), Partition("iid"), client_names(3), 0
    )
    view = train_and_view(federation_of_clients, "flower-bagging[trees=20,max_depth=3]")[1]
    truth = victims_of_all(federation_of_clients, ("client-2",))
    scores = []
    for victims in (
        observe_clients(view),
        [without_foreign_trees(victim) for victim in observe_clients(view)],
    ):
        options = register.make("attack", parse_grid("timberstrike[chains=3]")[0])
        arguments, rng = (view.rows, view.schema, options), np.random.default_rng(0)
        guess = reconstruct_each_client(
            victims,
            "statistics",
            lambda evidence, bound_arguments=arguments, bound_rng=rng: reconstruct(
                evidence, *bound_arguments, bound_rng
            ),
        )
        scores.append(accuracy(guessed.rows(guess), truth, schema))
    assert scores[0] > scores[1]


def without_foreign_trees(victim):
    """Return a victim whose evidence lacks the trees of other clients."""
    evidence = victim.evidence
    local_trees = [
        tree
        for tree, is_foreign in zip(evidence.trees, evidence.foreign, strict=True)
        if not is_foreign
    ]
    local_evidence = evidence.change(trees=tuple(local_trees), foreign=None, restart=None)
    return replace(victim, evidence=local_evidence)


@pytest.mark.long
def test_thresholds_link_trees_of_clients_if_sums_do_not():
    clients = 10
    federation_of_clients = spread(
        catalogue.load("stroke", data_dir()), Partition("iid"), client_names(clients), 0
    )
    rate = 0.3 / clients
    spec = f"flower-bagging[trees=12,max_depth=6,arrival=shuffled,learning_rate={rate:.4f}]"
    view = train_and_view(federation_of_clients, spec)[1]
    share_correct = {
        clues: share_linked(view, clients, clues) for clues in ("hessian", "sums", "all")
    }
    assert share_correct["all"] >= 0.95
    assert share_correct["hessian"] < 0.6


def share_linked(view, clients, clues, seed=1):
    """Return the share of blocks in the chain of the client whose block started it."""
    rounds, owners = {}, {}
    for block in blocks_of(view).blocks:
        place = len(owners.setdefault(block.round, []))
        order = Streams(seed).child("server").rng("arrival", block.round).permutation(clients)
        owners[block.round].append(int(order[place]))
        if block.sender is None:
            rounds.setdefault(block.round, []).append((block, int(order[place])))
    linked = link([[any_block for any_block, _ in blocks] for blocks in rounds.values()], clues)
    names = [owner for _, owner in rounds[0]]
    hits = [
        names[chain] == owner
        for blocks, chains in list(zip(rounds.values(), linked, strict=True))[1:]
        for (_, owner), chain in zip(blocks, chains, strict=True)
    ]
    return np.mean(hits)


def test_the_published_variant_uses_the_base_score_of_the_model_for_all_clients():
    federation_of_clients = make_federation()
    training, view = train_and_view(federation_of_clients, "flower-bagging[trees=4,max_depth=4]")
    spec = "timberstrike-published[max_trees=1,scope=victims"
    assert share_of_exact_counts(federation_of_clients, training, view, f"{spec}]") < 1.0
    assert (
        share_of_exact_counts(federation_of_clients, training, view, f"{spec},base_scores=own]")
        == 1.0
    )
    published = run_attack(view, "timberstrike-published[max_trees=1]")
    # The published tables score every record.
    assert {type(claim) for claim in published.claims} == {EveryRecord}


@pytest.mark.long
def test_same_seed_same_guess():
    view = train_and_view(make_federation(), "flower-bagging[trees=5,max_depth=3]")[1]
    first, second = (guessed.rows(run_attack(view, seed=2)) for _ in range(2))
    np.testing.assert_array_equal(first.X, second.X)


def test_options_name_the_wrong_value():
    with pytest.raises(UsageError, match="did you mean 'sums'"):
        register.make("attack", parse_grid("timberstrike[linkage_statistics=sum]")[0])
    with pytest.raises(UsageError, match="unknown base_scores 'mine'"):
        register.make("attack", parse_grid("timberstrike[base_scores=mine]")[0])
