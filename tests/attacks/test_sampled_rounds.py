"""Rounds that are grown on a sample of the rows. The attacks also have to infer which rows were
used.
"""

from __future__ import annotations

import sys

import guessed
import numpy as np
import pytest
from data_dir import data_dir
from federations import leaf_scores
from peeling_world import misleading_run
from timberstrike_world import accuracy, structured, world

from fedtrees.attacks.counts.leaf_sums import victim_sums
from fedtrees.attacks.exact_decoding.attack import Lattice
from fedtrees.attacks.joint.attack import Joint
from fedtrees.attacks.joint.log_posterior import Classes
from fedtrees.attacks.joint.posterior_problem import State, World
from fedtrees.attacks.joint.sampler import draw_classes, sample
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.reconstruction.context import ReconstructionContext
from fedtrees.attacks.reconstruction.prior import ReachableLeaves
from fedtrees.attacks.timberstrike.attack import TimberStrike
from fedtrees.attacks.timberstrike.sequential_assignment import with_absence
from fedtrees.core.claims import LeafCounts, Records
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_grid
from fedtrees.core.streams import Streams
from fedtrees.data import catalogue
from fedtrees.data.dataset import Dataset
from fedtrees.data.partition import Partition
from fedtrees.experiments.federation import Federation, spread
from fedtrees.protocols.base import client_names
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.boosted.losses import logistic_gradients
from fedtrees.trees.routing import Routes


def make_federation(table, clients=3, codes=0):
    """Distribute the rows of a table over clients. With `codes`, the last column is categorical."""
    plain = [Feature(f"x{k}") for k in range(table.X.shape[1] - bool(codes))]
    names = tuple(f"k{code:03d}" for code in range(codes))
    coded = [Feature("c", "categorical", categories=names)] if codes else []
    schema = Schema((*plain, *coded), "y")
    parts = [table.take(np.arange(k, len(table), clients)) for k in range(clients)]
    local_data = over_clients(parts)
    return Federation(Dataset("made", schema, table), local_data, table, None)


def train_and_view(small_federation, protocol, principal, seed=0):
    """Train with the seed that `leaf_scores` uses; return the training and the view of one
    party.
    """
    protocol = register.make("protocol", parse_grid(protocol)[0])
    training = train(protocol, small_federation.local_data, small_federation.schema, seed=seed)
    return training, view_of(training, (principal,), small_federation.local_data)


def numeric_table(seed=0, n=240):
    """Return a table of numeric features."""
    X, y = structured(n, seed)
    return Table(X, y)


OTHERS = ("client-0", "client-2")  # The clients that are attacked.
SETTINGS = ["subsample=0.7", "early_stopping_rounds=20", "subsample=0.5,early_stopping_rounds=20"]


@pytest.fixture(scope="module", params=SETTINGS)
def sampled_run(request):
    small_federation = make_federation(numeric_table())
    params = f"trees=6,max_depth=3,{request.param}"
    return small_federation, *train_and_view(
        small_federation, f"fedtree-hist[{params}]", "client-1"
    )


def client_leaf_sums(training, small_federation, name, tree_number):
    """Return the sums of g and h per leaf over the sampled rows of one client."""
    table, tree = small_federation.local_data[name].table, training.model.trees[tree_number]
    used = training.protocol.training_rows(len(table), Streams(0).child(name), tree_number)
    earlier_trees = training.model.first(tree_number) if tree_number else None
    margin = (
        earlier_trees.margin(table.X)
        if earlier_trees
        else np.full(len(table), training.model.base_margin[0])
    )
    gh = logistic_gradients(margin.astype(np.float32), table.y)[used]
    node = Routes.of([tree]).apply(table.X[used])[:, 0]
    return np.stack([np.bincount(node, part, len(tree))[tree.leaves] for part in gh.T], axis=1)


def test_the_local_part_of_sums_is_computed_from_sent_messages(sampled_run):
    small_federation, training, view = sampled_run
    evidence = read_boosting(view)
    for tree_number in range(len(training.model.trees)):
        local_sums = client_leaf_sums(training, small_federation, "client-1", tree_number)
        np.testing.assert_allclose(evidence.observed.own_sums[tree_number], local_sums, atol=1e-6)
    victims = victim_sums(evidence, view.rows, 1)[0]
    other_sums = sum(client_leaf_sums(training, small_federation, name, 0) for name in OTHERS)
    np.testing.assert_allclose(np.stack([victims.g, victims.h], axis=1), other_sums, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("attack", [TimberStrike(chains=1), Joint(chains=1, moves=50), Lattice()])
def test_counts_of_the_first_tree_are_those_of_its_sampled_rows(sampled_run, attack):
    small_federation, training, view = sampled_run
    assert attack.inapplicable(view) is None
    guess = attack.run(view, np.random.default_rng(0))
    scores = leaf_scores(guess, small_federation, ("client-1",), training)
    assert scores["leaf_counts_right"] == scores["leaf_counts_exact"] == 1
    first = guess.first(LeafCounts).counts.sum()
    victims = sum(len(small_federation.local_data[name]) for name in OTHERS)
    assert first < victims
    # Rows that are in no leaf of the first tree are guessed, too.
    if not isinstance(attack, Lattice):
        assert len(guess.first(Records).table) == victims


def test_certain_counts_are_correct_for_random_parameters():
    rng = np.random.default_rng(7)
    for seed in range(12):
        params = {
            "trees": 3,
            "max_depth": int(rng.integers(1, 5)),
            "subsample": float(rng.choice([1.0, 0.9, 0.4])),
            "reg_alpha": float(rng.choice([0.0, 0.5])),
            "reg_lambda": float(rng.choice([0.0, 1.0])),
            "grow_policy": str(rng.choice(["depthwise", "lossguide"])),
            "colsample_bynode": float(rng.choice([1.0, 0.6])),
            "early_stopping_rounds": int(rng.choice([0, 9])),
        }
        spec_options = ",".join(f"{key}={value}" for key, value in params.items())
        small_federation = make_federation(numeric_table(seed, 150))
        principal = str(rng.choice(["client-1", "server", "public"]))
        training, view = train_and_view(
            small_federation, f"fedtree-hist[{spec_options}]", principal
        )
        guess = Lattice().run(view, np.random.default_rng(0))
        scores = leaf_scores(guess, small_federation, (principal,), training)
        assert scores["leaf_counts_right"] == scores["leaf_counts_exact"] == 1, spec_options


def test_with_absence_adds_one_alternative_per_row():
    reachable = ReachableLeaves(
        np.array([0, 2, 3, 5]), np.array([0, 1, 1, 0, 1], np.int32), np.log([1, 3, 2, 1, 1])
    )
    values = np.arange(10.0).reshape(5, 2)
    with_absent, y = with_absence(reachable, values, np.array([0.8, 1.0, 0.0]), 2)
    assert with_absent.offsets.tolist() == [0, 3, 4, 5]
    assert with_absent.leaf.tolist() == [0, 1, 2, 1, 2]
    np.testing.assert_allclose(np.exp(with_absent.log_prior), [0.2, 0.6, 0.2, 1.0, 1.0])
    assert y.tolist() == [[0, 1], [2, 3], [0, 0], [4, 5], [0, 0]]


def sampler_inputs(view, small_federation, training, seed):
    """Return the posterior problem, the true state of a sampled run, and the classes of rows."""
    evidence = read_boosting(view, "statistics")
    context = ReconstructionContext.of(evidence, view.rows, view.schema)
    victims = Table.concat([small_federation.local_data[name].table for name in OTHERS])
    used = np.concatenate(
        [
            np.stack(
                [
                    training.protocol.training_rows(
                        len(small_federation.local_data[name]), Streams(0).child(name), t
                    )
                    for t in range(len(evidence.trees))
                ],
                axis=1,
            )
            for name in OTHERS
        ]
    )
    problem = World.of(evidence, context.sums, context.grid)
    cell, n_rows = context.grid.cells(victims.X), len(victims)
    box = np.zeros_like(cell), np.tile(context.grid.width, (n_rows, 1))
    local_rows = context.prior.row_cells, context.prior.rows.y

    def state(cell=cell, used=used):
        return State.of(
            problem, cell, box, victims.y, *local_rows, None, used, np.ones(n_rows, dtype=bool)
        )

    classes = Classes.of(context.prior, 2, 5.0)
    start = state()
    draw_classes(start, classes, seed)
    return problem, state, start, classes


@pytest.mark.long
@pytest.mark.parametrize("codes", [0, 5])
def test_incremental_energies_equal_recomputed_energies(codes):
    table = numeric_table(3, 120)
    if codes:
        code = np.digitize(table.X[:, 0], [-1, 0, 0.5, 1])
        table = Table(np.column_stack([table.X[:, 1:3], code]).astype(np.float32), table.y)
    small_federation = make_federation(table, codes=codes)
    params = f"trees=6,max_depth=3,subsample=0.6,enable_categorical={str(bool(codes)).lower()}"
    training, view = train_and_view(small_federation, f"fedtree-hist[{params}]", "client-1")
    problem, state_of, state, classes = sampler_inputs(view, small_federation, training, 1)
    assert (len(problem.sets) > 0) == bool(codes)
    assert np.abs(state.residual[np.isfinite(problem.variance)]).max() < 1e-5
    before, first = state.inside.copy(), state.inside[:, 0].copy()
    precision = problem.precision(0.5)
    assert sample(problem, state, classes, precision, 5000, 1) > 0
    recomputed = state_of(state.cell[: state.n], state.inside.copy())
    np.testing.assert_array_equal(recomputed.leaf, state.leaf)
    np.testing.assert_allclose(recomputed.p, state.p, atol=1e-12)
    np.testing.assert_allclose(recomputed.residual, state.residual, atol=1e-10)
    assert recomputed.energy(precision) == pytest.approx(state.energy(precision), rel=1e-9)
    assert (state.inside != before).any()
    # The counts of the first tree are fixed.
    np.testing.assert_array_equal(state.inside[:, 0], first)


@pytest.mark.long
def test_without_information_rows_are_sampled_at_the_configured_rate():
    small_federation = make_federation(numeric_table(4, 90))
    training, view = train_and_view(
        small_federation, "fedtree-hist[trees=4,max_depth=2,subsample=0.7]", "client-1"
    )
    problem, _, state, classes = sampler_inputs(view, small_federation, training, 1)
    no_precision = np.zeros_like(problem.target)
    sampled_shares = []
    for seed in range(40):
        sample(problem, state, classes, no_precision, 600, seed)
        sampled_shares.append(state.inside[:, 1:].mean())
    assert np.mean(sampled_shares[5:]) == pytest.approx(0.7, abs=0.03)


@pytest.mark.long
def test_peeled_rows_of_sampled_rounds_are_right():
    n_returned, n_wrong = 0, 0
    for seed in range(10):
        run = misleading_run(seed, subsample=(0.3, 0.5, 0.8)[seed % 3])
        is_wrong = run.wrong(run.attack())
        n_returned, n_wrong = n_returned + len(is_wrong), n_wrong + int(is_wrong.sum())
    assert n_returned > 50
    assert n_wrong == 0


def test_confident_peeled_rows_are_correct_with_a_validation_part():
    run = misleading_run(3, early_stopping_rounds=20, validation_fraction=0.3)
    assert not run.wrong(run.attack())[guessed.confidence(run.attack()) >= 0.99].any()


@pytest.mark.long
def test_reconstruction_from_sampled_rounds_beats_local_rows(monkeypatch):
    """The reconstruction, before the choice between it and a blind guess, beats resampled local
    rows.
    """
    # A function has the same name as the module, so an import would return the function.
    module = sys.modules["fedtrees.attacks.timberstrike.reconstruct"]
    monkeypatch.setattr(
        module, "vote_on_rows", lambda reconstruction, *_, **__: (reconstruction, {})
    )
    pima, gains = catalogue.load("pima", data_dir()), []
    for seed in range(2):
        small_federation = spread(pima, Partition("iid"), client_names(5), seed)
        params = "trees=20,max_depth=6,subsample=0.8"
        _, view = train_and_view(small_federation, f"fedtree-hist[{params}]", "client-1", seed)
        victims = Table.concat(
            [
                party.table
                for name, party in small_federation.local_data.items()
                if name != "client-1"
            ]
        )
        rng = np.random.default_rng(seed)
        blind = view.rows.take(rng.integers(0, len(view.rows), len(victims)))
        guess = TimberStrike().run(view, rng).first(Records).table
        gains.append(accuracy(guess, victims, view.schema) - accuracy(blind, victims, view.schema))
    assert np.mean(gains) > 0.02


@pytest.mark.parametrize("level", ["statistics", "values"])
def test_an_l1_penalty_is_part_of_the_equations(level):
    X, y = structured(240, 2)
    small_world = world(X, y, 60, trees=3, reg_alpha=0.5)
    evidence = small_world.evidence(level, reg_alpha=0.5)
    context = ReconstructionContext.of(evidence, small_world.local_rows, small_world.schema)
    problem = World.of(evidence, context.sums, context.grid)
    cell = context.grid.cells(small_world.victims.X)
    box = np.zeros_like(cell), np.tile(context.grid.width, (len(cell), 1))
    no_local_rows = context.prior.row_cells[:0], context.prior.rows.y[:0]
    state = State.of(problem, cell, box, small_world.victims.y, *no_local_rows)
    is_exact = np.isfinite(problem.variance) & (problem.variance < 1e-9)
    assert is_exact.any()
    assert np.abs(state.residual[is_exact]).max() < 1e-4
    without_penalty = World.of(evidence.change(reg_alpha=0.0), context.sums, context.grid)
    if level == "values":
        assert np.abs(without_penalty.target - problem.target).max() == pytest.approx(0.5)
