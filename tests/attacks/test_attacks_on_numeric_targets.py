"""Numeric targets: the blind guesses, and the information in trees of squared error."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from fedtrees.attacks.clients.client_trees import blocks_of
from fedtrees.attacks.clients.per_client import observe_clients
from fedtrees.attacks.exact_decoding.attack import Lattice
from fedtrees.attacks.joint.attack import Joint
from fedtrees.attacks.joint.log_posterior import Classes
from fedtrees.attacks.joint.posterior_problem import State, World
from fedtrees.attacks.joint.sampler import draw_classes, sample
from fedtrees.attacks.membership.attack import MembershipInference
from fedtrees.attacks.observations.boosting import Targets
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.peeling.attack import HistogramPeeling
from fedtrees.attacks.reconstruction.context import ReconstructionContext
from fedtrees.attacks.reconstruction.targets import Moments, moments_of, targets_of, with_targets
from fedtrees.attacks.timberstrike.attack import TimberStrike
from fedtrees.blind_baselines.guesses import blind_guesses
from fedtrees.blind_baselines.rows import Tolerance, wide
from fedtrees.core.claims import LeafCounts, Records
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec, parse_composed, parse_grid
from fedtrees.experiments.evaluate import make_defense
from fedtrees.metrics.membership import auc
from fedtrees.metrics.records import score_records
from fedtrees.protocols.compatibility import KnownFacts, check_attacks
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.routing import Routes

SCHEMA = Schema(
    tuple(Feature(f"x{k}", low=-5, high=5, complete=True) for k in range(4)), "y", classes=()
)


def regression_rows(n, seed=0):
    """Return rows whose target is a linear function of two features plus noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    return Table(X, 10 * X[:, 0] + 5 * X[:, 1] + rng.normal(size=n) + 100)


@cache
def view_and_victims(protocol, principal, defense="none", n=90):
    """Train on numeric targets; return the view of one party, and the rows of the other clients."""
    local_data = over_clients(
        [regression_rows(n).take(part) for part in np.array_split(np.arange(n), 3)]
    )
    training_protocol = register.make("protocol", parse_grid(protocol)[0])
    composition = make_defense(parse_composed([defense])[0])
    adversary_view = view_of(
        train(training_protocol, local_data, SCHEMA, defense=composition, seed=1),
        (principal,),
        local_data,
    )
    return adversary_view, Table.concat(
        [party.table for name, party in local_data.items() if name != principal]
    )


def test_suppressed_bins_do_not_make_boosting_diverge():
    local_data = over_clients(
        [regression_rows(300).take(part) for part in np.array_split(np.arange(300), 3)]
    )
    protocol = register.make("protocol", parse_grid("fedtree-hist[trees=30,max_depth=3]")[0])
    defense = make_defense(parse_composed(["min-bin[k=3]"])[0])
    trained = train(protocol, local_data, SCHEMA, defense=defense, seed=1)
    test_rows = regression_rows(200, seed=9)
    errors = trained.predict(test_rows.X) - test_rows.y
    # The errors would be 17 times as large if suppressed rows were put on one side.
    assert np.abs(errors).max() < 2 * np.ptp(test_rows.y)


@pytest.mark.long
def test_guessed_rows_are_matched_by_features_before_targets_are_compared():
    truth = regression_rows(40)
    scores = score_records(truth, truth, SCHEMA)
    assert (scores.target_error, scores.ra, scores.exact_rows) == (0, 1, 1)
    half = np.ptp(truth.y) / 2
    shifted_scores = score_records(Table(truth.X, truth.y + half), truth, SCHEMA)
    assert shifted_scores.target_error == pytest.approx(0.5, abs=1e-6)
    # Rows are matched by features, so shifted targets may still be close to those of other rows.
    assert shifted_scores.per_feature["y"] < 0.7


@pytest.mark.long
def test_blind_targets_come_from_local_rows_or_a_declared_range():
    local_rows, rng = regression_rows(30), np.random.default_rng(1)
    for guess in blind_guesses(local_rows, SCHEMA, 20, rng, draws=2).values():
        assert guess.y.dtype == np.float64
        assert (
            local_rows.y.min() - 1e-3 <= guess.y.min() <= guess.y.max() <= local_rows.y.max() + 1e-3
        )
    guess = blind_guesses(None, SCHEMA, 200, rng, target=(90.0, 110.0), draws=2)["uniform"]
    assert 90 <= guess.y.min() < 92 < 108 < guess.y.max() <= 110
    assert guess.X.shape == (200, 4)


def test_target_cells_have_the_observed_mean():
    local_targets = regression_rows(60).y
    for mean in (local_targets.mean() - 8, local_targets.mean() + 5):
        target_cells = targets_of(Moments(mean, local_targets.std()), local_targets, 1000)
        assert target_cells.sizes.sum() == 1000
        assert target_cells.sizes @ target_cells.values / 1000 == pytest.approx(mean, abs=0.1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("protocol", "principal", "defense", "gain"),
    [
        ("fedtree-hist[trees=5,max_depth=3]", "server", "none", 0.4),
        ("fedtree-hist[trees=5,max_depth=3]", "client-0", "split-only", -0.05),
        ("nvflare-hist[trees=5,max_depth=3]", "client-0", "none", 0.2),
    ],
)
def test_timberstrike_reads_trees_of_squared_error(protocol, principal, defense, gain):
    adversary_view, victims = view_and_victims(protocol, principal, defense)
    attack = TimberStrike(chains=3)
    assert attack.inapplicable(adversary_view) is None
    guess = attack.run(adversary_view, np.random.default_rng(0)).claims[0].table
    assert len(guess) == len(victims)
    target = None if adversary_view.rows else (victims.y.mean() - 15, victims.y.mean() + 15)
    rng = np.random.default_rng(2)
    blind_tables = blind_guesses(
        adversary_view.rows, SCHEMA, len(victims), rng, target=target, draws=5
    )
    best_blind_score = max(
        score_records(blind_table, victims, SCHEMA).ra for blind_table in blind_tables.values()
    )
    assert score_records(guess, victims, SCHEMA).ra > best_blind_score + gain


@pytest.mark.long
@pytest.mark.parametrize(
    ("protocol", "principal", "defense", "tolerance"),
    [
        ("fedtree-hist", "server", "none", 1e-3),
        ("nvflare-hist", "client-0", "none", 1e-3),
        ("nvflare-hist", "client-0", "hist-rounding[step=0.001]", 0.05),
    ],
)
def test_peeling_reads_rows_from_bins_of_squared_error(protocol, principal, defense, tolerance):
    adversary_view, victims = view_and_victims(
        f"{protocol}[trees=5,max_depth=3]", principal, defense
    )
    (claim,) = HistogramPeeling().run(adversary_view, np.random.default_rng(0)).claims
    assert len(claim.table) > 0.4 * len(victims)
    distance = np.abs(claim.table.y[:, None] - victims.y)
    nearest = distance.argmin(axis=1)
    assert distance.min(axis=1).max() < tolerance  # Each claimed target is the target of a victim.
    width = Tolerance.of(victims, SCHEMA).width[:-1]
    accuracy = (np.abs(claim.table.X - victims.X[nearest]) <= width).mean()
    assert accuracy > 0.9
    owners = None if claim.owner is None else {*claim.owner}
    assert owners == ({"client-0", "client-1", "client-2"} if principal == "server" else None)


def test_inapplicable_attacks_give_reasons_for_numeric_targets():
    adversary_view, _ = view_and_victims("fedtree-hist[trees=2,max_depth=2]", "server", "min-bin")
    assert HistogramPeeling().inapplicable(adversary_view).code == "numbers-off"
    assert TimberStrike().inapplicable(adversary_view) is None
    adversary_view, _ = view_and_victims("flower-bagging[trees=2,max_depth=2]", "server")
    assert Lattice().inapplicable(adversary_view).code == "trees-of-one"
    data = KnownFacts(SCHEMA, 90, scored=lambda kind: False)
    reasons = {
        attack: check_attacks([Spec(attack)], data)[0].code
        for attack in ("joint", "label-mixture", "timberstrike")
    }
    assert reasons == {"joint": "fits", "label-mixture": "numeric-target", "timberstrike": "fits"}


@pytest.mark.long
@pytest.mark.parametrize("level", ["statistics", "values"])
def test_incremental_residuals_equal_recomputed_residuals_of_targets(level):
    adversary_view, victims = view_and_victims(
        "fedtree-hist[trees=4,max_depth=3,max_bin=8]", "client-0"
    )
    evidence, local_rows, schema = with_targets(
        read_boosting(adversary_view, level), adversary_view.rows, SCHEMA, Moments()
    )
    # Every target has its own cell, so that the true rows satisfy all sums.
    values = np.unique(victims.y)
    edges = values[1:].astype(np.float32)
    evidence = replace(
        evidence, targets=Targets(edges, values, np.ones(len(values), dtype=np.int64))
    )
    context = ReconstructionContext.of(evidence, local_rows, schema)
    world = World.of(evidence, context.sums, context.grid)
    cell = context.grid.cells(wide(victims).X)

    def state(cell):
        box = np.zeros_like(cell), np.tile(context.grid.width, (len(cell), 1)).astype(np.int32)
        label, prior = np.zeros(len(cell), dtype=np.int64), context.prior
        return State.of(world, cell, box, label, prior.row_cells, prior.rows.y)

    current, is_known = state(cell), np.isfinite(world.variance)
    assert np.abs(current.residual[is_known]).max() < 1e-3
    classes = Classes.of(context.prior, 2, 5.0)
    draw_classes(current, classes, 0)
    assert sample(world, current, classes, world.precision(1.0, 10.0), 5000, 1) > 0
    moved_cells = current.cell[: current.n]
    recomputed = state(moved_cells)
    assert (moved_cells != cell)[:, -1].any()
    assert (moved_cells != cell)[:, :-1].any()
    np.testing.assert_allclose(recomputed.p, current.p, atol=1e-9)
    np.testing.assert_allclose(recomputed.residual, current.residual, atol=1e-8)


@pytest.mark.parametrize(
    ("defense", "expects_counts"),
    [("none", 1), ("split-only", 0), ("laplace-hist[epsilon=1]", 0), ("min-bin", 0)],
)
def test_hessians_of_1_count_the_rows_of_all_leaves(defense, expects_counts):
    adversary_view, victims = view_and_victims(
        "fedtree-hist[trees=4,max_depth=3]", "client-0", defense
    )
    claims = Lattice().run(adversary_view, np.random.default_rng(0)).claims
    trees = read_boosting(adversary_view).trees
    leaf_of_row = Routes.of(trees).apply(victims.X)
    assert all(len(claim.leaf) for claim in claims)
    for claim in claims:
        rows = [(leaf_of_row[:, claim.tree] == leaf).sum() for leaf in claim.leaf]
        np.testing.assert_array_equal(claim.counts[:, 0], rows)
    leaves = sum(len(tree.leaves) for tree in trees)
    assert sum(len(claim.leaf) for claim in claims) == expects_counts * leaves


SHARED = [
    ("flower-bagging[trees=3,max_depth=3]", "server"),
    ("flower-bagging[trees=3,max_depth=3]", "client-2"),
    ("flower-cyclic[trees=6,max_depth=3]", "client-2"),
    ("local-ensembles[trees=3,max_depth=3]", "client-2"),
]


@pytest.mark.parametrize(("protocol", "principal"), SHARED)
def test_shared_trees_reveal_the_rows_of_a_client_and_their_mean_target(protocol, principal):
    adversary_view, _ = view_and_victims(protocol, principal)
    victims = observe_clients(adversary_view)
    assert len(victims) == (3 if principal == "server" else 2)
    local_rows = Table.empty(SCHEMA) if adversary_view.rows is None else adversary_view.rows
    truth = [regression_rows(90).y[30 * k : 30 * k + 30].mean() for k in range(len(victims))]
    for victim in victims:
        evidence, _, _ = with_targets(victim.evidence, local_rows, SCHEMA, Moments())
        assert evidence.row_counts.sizes == (30, 0)
    means = [moments_of(victim.evidence, local_rows, Moments()).mean for victim in victims]
    tolerance = 1e-3 if principal == "server" else 0.8  # The means of the clients are 1.8 apart.
    np.testing.assert_allclose(sorted(means), sorted(truth), atol=tolerance)


@pytest.mark.long
@pytest.mark.parametrize(("protocol", "principal"), SHARED)
@pytest.mark.parametrize("attack", [TimberStrike(chains=2), Joint(chains=1, moves=100)])
def test_shared_trees_of_squared_error_are_read(attack, protocol, principal):
    adversary_view, victims = view_and_victims(protocol, principal)
    assert attack.inapplicable(adversary_view) is None
    guess = attack.run(adversary_view, np.random.default_rng(0))
    trees = {
        block.first_tree + index: tree
        for block in blocks_of(adversary_view).blocks
        for index, tree in enumerate(block.trees)
    }
    guessed_rows = guess.first(Records).table
    assert len(guessed_rows) == len(victims)
    assert abs(guessed_rows.y.mean() - victims.y.mean()) < 4
    for claim in guess.all(LeafCounts):
        leaf_of_row = Routes.of([trees[claim.tree]]).apply(regression_rows(90).X)
        counts = [
            [(leaf_of_row[30 * k : 30 * k + 30, 0] == leaf).sum() for leaf in claim.leaf]
            for k in range(3)
        ]
        assert claim.counts[:, 0].tolist() in counts
    assert guess.all(LeafCounts)


@pytest.mark.long
def test_leaf_values_without_statistics_count_no_rows():
    adversary_view, victims = view_and_victims(
        "flower-cyclic[trees=6,max_depth=3]", "server", "split-only"
    )
    guess = Joint(chains=1, moves=30).run(adversary_view, np.random.default_rng(0))
    assert len(guess.first(Records).table) == len(victims)
    assert not guess.all(LeafCounts)


def scores_of_members(
    protocol, principal, draw_others=lambda victims: regression_rows(len(victims), seed=5)
):
    """Return the scores of the victims' rows and of other rows by test, and the mask of members."""
    adversary_view, victims = view_and_victims(protocol, principal)
    adversary_view = replace(
        adversary_view, candidates=Table.concat([victims, draw_others(victims)])
    )
    claims = MembershipInference(models=8).run(adversary_view, np.random.default_rng(0)).claims
    return {claim.test: claim.score for claim in claims}, np.arange(2 * len(victims)) < len(victims)


def test_sums_of_bins_reveal_the_target_of_a_member():
    protocol = "nvflare-hist[trees=3,max_depth=3]"
    scores, member = scores_of_members(
        protocol, "client-0", lambda victims: replace(victims, y=victims.y + 5)
    )
    assert (scores["posterior"][~member] < scores["posterior"][member].min()).mean() > 0.9


def test_models_have_smaller_errors_on_their_training_targets():
    scores, member = scores_of_members("fedtree-hist[trees=15,max_depth=5]", "public")
    assert auc(scores["lira"], member) > 0.7
    assert auc(scores["rmia"], member) > 0.7
