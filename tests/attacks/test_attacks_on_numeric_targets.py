"""Numeric targets: what is guessed blindly, and what trees of squared error tell."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from fedtrees.attacks.clients.client_trees import blocks_of
from fedtrees.attacks.clients.per_client import observe_clients
from fedtrees.attacks.exact_decoding.attack import Lattice
from fedtrees.attacks.joint.attack import Joint
from fedtrees.attacks.joint.classes import Classes
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


def rows(n, seed=0):
    """Rows whose target is a sum of their features, and noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    return Table(X, 10 * X[:, 0] + 5 * X[:, 1] + rng.normal(size=n) + 100)


@cache
def view(protocol, who, defense="none", n=90):
    """What a party saw of a small training on numeric targets, and the other clients' rows."""
    held = over_clients([rows(n).take(part) for part in np.array_split(np.arange(n), 3)])
    made = register.make("protocol", parse_grid(protocol)[0])
    by = make_defense(parse_composed([defense])[0])
    seen = view_of(train(made, held, SCHEMA, defense=by, seed=1), (who,), held)
    return seen, Table.concat([h.table for name, h in held.items() if name != who])


def test_bins_that_are_not_sent_do_not_blow_up_boosting():
    held = over_clients([rows(300).take(part) for part in np.array_split(np.arange(300), 3)])
    made = register.make("protocol", parse_grid("fedtree-hist[trees=30,max_depth=3]")[0])
    defense = make_defense(parse_composed(["min-bin[k=3]"])[0])
    trained = train(made, held, SCHEMA, defense=defense, seed=1)
    fresh = rows(200, seed=9)
    off = trained.predict(fresh.X) - fresh.y
    assert np.abs(off).max() < 2 * np.ptp(fresh.y)  # 17 times, if the rest is on one side


@pytest.mark.long
def test_targets_are_compared_by_features_alone():
    truth = rows(40)
    got = score_records(truth, truth, SCHEMA)
    assert (got.target_error, got.ra, got.exact_rows) == (0, 1, 1)
    half = np.ptp(truth.y) / 2
    off = score_records(Table(truth.X, truth.y + half), truth, SCHEMA)
    assert off.target_error == pytest.approx(0.5, abs=1e-6)
    assert off.per_feature["y"] < 0.7  # where features decide, targets may still be near others'


@pytest.mark.long
def test_a_blind_guess_has_own_rows_targets_or_those_of_a_range():
    own, rng = rows(30), np.random.default_rng(1)
    for guess in blind_guesses(own, SCHEMA, 20, rng, draws=2).values():
        assert guess.y.dtype == np.float64
        assert own.y.min() - 1e-3 <= guess.y.min() <= guess.y.max() <= own.y.max() + 1e-3
    guess = blind_guesses(None, SCHEMA, 200, rng, target=(90.0, 110.0), draws=2)["uniform"]
    assert 90 <= guess.y.min() < 92 < 108 < guess.y.max() <= 110
    assert guess.X.shape == (200, 4)


def test_cells_of_targets_have_the_mean_that_sums_tell():
    own = rows(60).y
    for mean in (own.mean() - 8, own.mean() + 5):
        found = targets_of(Moments(mean, own.std()), own, 1000)
        assert found.sizes.sum() == 1000
        assert found.sizes @ found.values / 1000 == pytest.approx(mean, abs=0.1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("protocol", "who", "defense", "gain"),
    [
        ("fedtree-hist[trees=5,max_depth=3]", "server", "none", 0.4),
        ("fedtree-hist[trees=5,max_depth=3]", "client-0", "split-only", -0.05),
        ("nvflare-hist[trees=5,max_depth=3]", "client-0", "none", 0.2),
    ],
)
def test_timberstrike_reads_trees_of_squared_error(protocol, who, defense, gain):
    seen, victims = view(protocol, who, defense)
    attack = TimberStrike(chains=3)
    assert attack.inapplicable(seen) is None
    guess = attack.run(seen, np.random.default_rng(0)).claims[0].table
    assert len(guess) == len(victims)
    target = None if seen.rows else (victims.y.mean() - 15, victims.y.mean() + 15)
    rng = np.random.default_rng(2)
    blind = blind_guesses(seen.rows, SCHEMA, len(victims), rng, target=target, draws=5)
    line = max(score_records(g, victims, SCHEMA).ra for g in blind.values())
    assert score_records(guess, victims, SCHEMA).ra > line + gain


@pytest.mark.long
@pytest.mark.parametrize(
    ("protocol", "who", "defense", "near"),
    [
        ("fedtree-hist", "server", "none", 1e-3),
        ("nvflare-hist", "client-0", "none", 1e-3),
        ("nvflare-hist", "client-0", "hist-rounding[step=0.001]", 0.05),
    ],
)
def test_rows_are_read_off_bins_of_squared_error(protocol, who, defense, near):
    seen, victims = view(f"{protocol}[trees=5,max_depth=3]", who, defense)
    (claim,) = HistogramPeeling().run(seen, np.random.default_rng(0)).claims
    assert len(claim.table) > 0.4 * len(victims)
    off = np.abs(claim.table.y[:, None] - victims.y)
    at = off.argmin(axis=1)
    assert off.min(axis=1).max() < near  # each target is some victim's
    width = Tolerance.of(victims, SCHEMA).width[:-1]
    right = (np.abs(claim.table.X - victims.X[at]) <= width).mean()
    assert right > 0.9
    owners = None if claim.owner is None else {*claim.owner}
    assert owners == ({"client-0", "client-1", "client-2"} if who == "server" else None)


def test_reasons_say_what_numeric_targets_leave_unread():
    seen, _ = view("fedtree-hist[trees=2,max_depth=2]", "server", "min-bin")
    assert HistogramPeeling().inapplicable(seen).code == "numbers-off"
    assert TimberStrike().inapplicable(seen) is None
    seen, _ = view("flower-bagging[trees=2,max_depth=2]", "server")
    assert Lattice().inapplicable(seen).code == "trees-of-one"
    data = KnownFacts(SCHEMA, 90, scored=lambda kind: False)
    reasons = {
        a: check_attacks([Spec(a)], data)[0].code
        for a in ("joint", "label-mixture", "timberstrike")
    }
    assert reasons == {"joint": "fits", "label-mixture": "numeric-target", "timberstrike": "fits"}


@pytest.mark.long
@pytest.mark.parametrize("level", ["statistics", "values"])
def test_chains_keep_their_books_of_targets(level):
    seen, victims = view("fedtree-hist[trees=4,max_depth=3,max_bin=8]", "client-0")
    whole, own, schema = with_targets(read_boosting(seen, level), seen.rows, SCHEMA, Moments())
    values = np.unique(victims.y)  # a cell for every target, so that the truth meets all sums
    edges = values[1:].astype(np.float32)
    whole = replace(whole, targets=Targets(edges, values, np.ones(len(values), dtype=np.int64)))
    basis = ReconstructionContext.of(whole, own, schema)
    world = World.of(whole, basis.sums, basis.grid)
    cell = basis.grid.cells(wide(victims).X)

    def state(cell):
        box = np.zeros_like(cell), np.tile(basis.grid.width, (len(cell), 1)).astype(np.int32)
        label, prior = np.zeros(len(cell), dtype=np.int64), basis.prior
        return State.of(world, cell, box, label, prior.row_cells, prior.rows.y)

    now, known = state(cell), np.isfinite(world.variance)
    assert np.abs(now.residual[known]).max() < 1e-3
    classes = Classes.of(basis.prior, 2, 5.0)
    draw_classes(now, classes, 0)
    assert sample(world, now, classes, world.precision(1.0, 10.0), 5000, 1) > 0
    moved = now.cell[: now.n]
    again = state(moved)
    assert (moved != cell)[:, -1].any()
    assert (moved != cell)[:, :-1].any()
    np.testing.assert_allclose(again.p, now.p, atol=1e-9)
    np.testing.assert_allclose(again.residual, now.residual, atol=1e-8)


@pytest.mark.parametrize(
    ("defense", "counted"),
    [("none", 1), ("split-only", 0), ("laplace-hist[epsilon=1]", 0), ("min-bin", 0)],
)
def test_hessians_of_1_count_the_rows_of_all_leaves(defense, counted):
    seen, victims = view("fedtree-hist[trees=4,max_depth=3]", "client-0", defense)
    claims = Lattice().run(seen, np.random.default_rng(0)).claims
    trees = read_boosting(seen).trees
    at = Routes.of(trees).apply(victims.X)
    assert all(len(claim.leaf) for claim in claims)
    for claim in claims:
        rows = [(at[:, claim.tree] == leaf).sum() for leaf in claim.leaf]
        np.testing.assert_array_equal(claim.counts[:, 0], rows)
    leaves = sum(len(tree.leaves) for tree in trees)
    assert sum(len(claim.leaf) for claim in claims) == counted * leaves


SHARED = [
    ("flower-bagging[trees=3,max_depth=3]", "server"),
    ("flower-bagging[trees=3,max_depth=3]", "client-2"),
    ("flower-cyclic[trees=6,max_depth=3]", "client-2"),
    ("local-ensembles[trees=3,max_depth=3]", "client-2"),
]


@pytest.mark.parametrize(("protocol", "who"), SHARED)
def test_shared_trees_tell_how_many_rows_a_client_has_and_their_mean(protocol, who):
    seen, _ = view(protocol, who)
    victims = observe_clients(seen)
    assert len(victims) == (3 if who == "server" else 2)
    own = Table.empty(SCHEMA) if seen.rows is None else seen.rows
    truth = [rows(90).y[30 * k : 30 * k + 30].mean() for k in range(len(victims))]
    for victim in victims:
        found, _, _ = with_targets(victim.evidence, own, SCHEMA, Moments())
        assert found.row_counts.sizes == (30, 0)
    means = [moments_of(victim.evidence, own, Moments()).mean for victim in victims]
    near = 1e-3 if who == "server" else 0.8  # means are 1.8 apart
    np.testing.assert_allclose(sorted(means), sorted(truth), atol=near)


@pytest.mark.long
@pytest.mark.parametrize(("protocol", "who"), SHARED)
@pytest.mark.parametrize("attack", [TimberStrike(chains=2), Joint(chains=1, moves=100)])
def test_shared_trees_of_squared_error_are_read(attack, protocol, who):
    seen, victims = view(protocol, who)
    assert attack.inapplicable(seen) is None
    guess = attack.run(seen, np.random.default_rng(0))
    trees = {b.first_tree + i: t for b in blocks_of(seen).blocks for i, t in enumerate(b.trees)}
    found = guess.first(Records).table
    assert len(found) == len(victims)
    assert abs(found.y.mean() - victims.y.mean()) < 4
    for claim in guess.all(LeafCounts):
        at = Routes.of([trees[claim.tree]]).apply(rows(90).X)
        counts = [
            [(at[30 * k : 30 * k + 30, 0] == leaf).sum() for leaf in claim.leaf] for k in range(3)
        ]
        assert claim.counts[:, 0].tolist() in counts
    assert guess.all(LeafCounts)


@pytest.mark.long
def test_leaf_values_alone_count_no_rows():
    seen, victims = view("flower-cyclic[trees=6,max_depth=3]", "server", "split-only")
    guess = Joint(chains=1, moves=30).run(seen, np.random.default_rng(0))
    assert len(guess.first(Records).table) == len(victims)
    assert not guess.all(LeafCounts)


def scores_of_members(protocol, who, others=lambda victims: rows(len(victims), seed=5)):
    """Return the scores of the victims' rows and of others by every test, and which are whose."""
    seen, victims = view(protocol, who)
    seen = replace(seen, candidates=Table.concat([victims, others(victims)]))
    claims = MembershipInference(models=8).run(seen, np.random.default_rng(0)).claims
    return {c.test: c.score for c in claims}, np.arange(2 * len(victims)) < len(victims)


def test_a_bin_with_one_row_tells_its_target():
    protocol = "nvflare-hist[trees=3,max_depth=3]"
    found, member = scores_of_members(protocol, "client-0", lambda v: replace(v, y=v.y + 5))
    assert (found["path"][member] == 0).all()
    assert (found["path"][~member] < 0).mean() > 0.9


def test_models_err_less_on_numbers_that_they_were_trained_on():
    found, member = scores_of_members("fedtree-hist[trees=15,max_depth=5]", "public")
    assert auc(found["lira"], member) > 0.7
    assert auc(found["rmia"], member) > 0.7
