"""Rounds grown on some of the rows: which of them is one more thing to guess."""

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
from fedtrees.attacks.joint.classes import Classes
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


def federation(table, clients=3, codes=0):
    """Spread a table, whose last column has codes, over clients."""
    plain = [Feature(f"x{k}") for k in range(table.X.shape[1] - bool(codes))]
    names = tuple(f"k{c:03d}" for c in range(codes))
    coded = [Feature("c", "categorical", categories=names)] if codes else []
    schema = Schema((*plain, *coded), "y")
    parts = [table.take(np.arange(k, len(table), clients)) for k in range(clients)]
    held = over_clients(parts)
    return Federation(Dataset("made", schema, table), held, table, None)


def trained(made, protocol, who, seed=0):
    """Train with the seed that `leaf_scores` takes; return that and what a party saw."""
    protocol = register.make("protocol", parse_grid(protocol)[0])
    training = train(protocol, made.local_data, made.schema, seed=seed)
    return training, view_of(training, (who,), made.local_data)


def numbers(seed=0, n=240):
    X, y = structured(n, seed)
    return Table(X, y)


OTHERS = ("client-0", "client-2")  # who is attacked
SETTINGS = ["subsample=0.7", "early_stopping_rounds=20", "subsample=0.5,early_stopping_rounds=20"]


@pytest.fixture(scope="module", params=SETTINGS)
def run(request):
    made = federation(numbers())
    params = f"trees=6,max_depth=3,{request.param}"
    return made, *trained(made, f"fedtree-hist[{params}]", "client-1")


def sums_in(training, made, name, t):
    """Sums of g and h per leaf over the rows of one client that a tree was grown on."""
    table, tree = made.local_data[name].table, training.model.trees[t]
    there = training.protocol.training_rows(len(table), Streams(0).child(name), t)
    start = training.model.first(t) if t else None
    margin = start.margin(table.X) if start else np.full(len(table), training.model.base_margin[0])
    gh = logistic_gradients(margin.astype(np.float32), table.y)[there]
    node = Routes.of([tree]).apply(table.X[there])[:, 0]
    return np.stack([np.bincount(node, part, len(tree))[tree.leaves] for part in gh.T], axis=1)


def test_own_part_is_read_from_what_was_sent(run):
    made, training, view = run
    evidence = read_boosting(view)
    for t in range(len(training.model.trees)):
        mine = sums_in(training, made, "client-1", t)
        np.testing.assert_allclose(evidence.observed.own_sums[t], mine, atol=1e-6)
    victims = victim_sums(evidence, view.rows, 1)[0]
    others = sum(sums_in(training, made, name, 0) for name in OTHERS)
    np.testing.assert_allclose(np.stack([victims.g, victims.h], axis=1), others, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("attack", [TimberStrike(chains=1), Joint(chains=1, moves=50), Lattice()])
def test_counts_are_of_the_rows_the_first_round_used(run, attack):
    made, training, view = run
    assert attack.inapplicable(view) is None
    guess = attack.run(view, np.random.default_rng(0))
    scores = leaf_scores(guess, made, ("client-1",), training)
    assert scores["leaf_counts_right"] == scores["leaf_counts_exact"] == 1
    first = guess.first(LeafCounts).counts.sum()
    victims = sum(len(made.local_data[name]) for name in OTHERS)
    assert first < victims
    if not isinstance(attack, Lattice):  # who is in no leaf is guessed all the same
        assert len(guess.first(Records).table) == victims


def test_no_certain_count_is_wrong_whatever_the_parameters():
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
        inline = ",".join(f"{k}={v}" for k, v in params.items())
        made = federation(numbers(seed, 150))
        who = str(rng.choice(["client-1", "server", "public"]))
        training, view = trained(made, f"fedtree-hist[{inline}]", who)
        guess = Lattice().run(view, np.random.default_rng(0))
        scores = leaf_scores(guess, made, (who,), training)
        assert scores["leaf_counts_right"] == scores["leaf_counts_exact"] == 1, inline


def test_absence_is_one_more_way():
    r = ReachableLeaves(
        np.array([0, 2, 3, 5]), np.array([0, 1, 1, 0, 1], np.int32), np.log([1, 3, 2, 1, 1])
    )
    x = np.arange(10.0).reshape(5, 2)
    out, y = with_absence(r, x, np.array([0.8, 1.0, 0.0]), 2)
    assert out.offsets.tolist() == [0, 3, 4, 5]
    assert out.leaf.tolist() == [0, 1, 2, 1, 2]
    np.testing.assert_allclose(np.exp(out.log_prior), [0.2, 0.6, 0.2, 1.0, 1.0])
    assert y.tolist() == [[0, 1], [2, 3], [0, 0], [4, 5], [0, 0]]


def sampler(view, made, training, seed):
    """The true state of a sampled run, as the sampler sees it."""
    evidence = read_boosting(view, "statistics")
    basis = ReconstructionContext.of(evidence, view.rows, view.schema)
    victims = Table.concat([made.local_data[n].table for n in OTHERS])
    inside = np.concatenate(
        [
            np.stack(
                [
                    training.protocol.training_rows(len(made.local_data[n]), Streams(0).child(n), t)
                    for t in range(len(evidence.trees))
                ],
                axis=1,
            )
            for n in OTHERS
        ]
    )
    known = World.of(evidence, basis.sums, basis.grid)
    cell, n = basis.grid.cells(victims.X), len(victims)
    box = np.zeros_like(cell), np.tile(basis.grid.width, (n, 1))
    own = basis.prior.row_cells, basis.prior.rows.y

    def state(cell=cell, inside=inside):
        return State.of(known, cell, box, victims.y, *own, None, inside, np.ones(n, dtype=bool))

    classes = Classes.of(basis.prior, 2, 5.0)
    start = state()
    draw_classes(start, classes, seed)
    return known, state, start, classes


@pytest.mark.long
@pytest.mark.parametrize("codes", [0, 5])
def test_energies_with_randomness_are_those_from_scratch(codes):
    table = numbers(3, 120)
    if codes:
        code = np.digitize(table.X[:, 0], [-1, 0, 0.5, 1])
        table = Table(np.column_stack([table.X[:, 1:3], code]).astype(np.float32), table.y)
    made = federation(table, codes=codes)
    params = f"trees=6,max_depth=3,subsample=0.6,enable_categorical={str(bool(codes)).lower()}"
    training, view = trained(made, f"fedtree-hist[{params}]", "client-1")
    known, state_of, state, classes = sampler(view, made, training, 1)
    assert (len(known.sets) > 0) == bool(codes)
    assert np.abs(state.residual[np.isfinite(known.variance)]).max() < 1e-5
    before, first = state.inside.copy(), state.inside[:, 0].copy()
    precision = known.precision(0.5)
    assert sample(known, state, classes, precision, 5000, 1) > 0
    again = state_of(state.cell[: state.n], state.inside.copy())
    np.testing.assert_array_equal(again.leaf, state.leaf)
    np.testing.assert_allclose(again.p, state.p, atol=1e-12)
    np.testing.assert_allclose(again.residual, state.residual, atol=1e-10)
    assert again.energy(precision) == pytest.approx(state.energy(precision), rel=1e-9)
    assert (state.inside != before).any()
    np.testing.assert_array_equal(state.inside[:, 0], first)  # the first tree's counts are known


@pytest.mark.long
def test_randomness_come_as_often_as_the_share_says_where_sums_say_nothing():
    made = federation(numbers(4, 90))
    training, view = trained(made, "fedtree-hist[trees=4,max_depth=2,subsample=0.7]", "client-1")
    known, _, state, classes = sampler(view, made, training, 1)
    nothing = np.zeros_like(known.target)
    seen = []
    for seed in range(40):
        sample(known, state, classes, nothing, 600, seed)
        seen.append(state.inside[:, 1:].mean())
    assert np.mean(seen[5:]) == pytest.approx(0.7, abs=0.03)


@pytest.mark.long
def test_peeled_rows_of_sampled_rounds_are_right():
    returned, wrong = 0, 0
    for seed in range(10):
        run = misleading_run(seed, subsample=(0.3, 0.5, 0.8)[seed % 3])
        bad = run.wrong(run.attack())
        returned, wrong = returned + len(bad), wrong + int(bad.sum())
    assert returned > 50
    assert wrong == 0


def test_peeling_reads_most_rows_where_some_are_held_out():
    run = misleading_run(3, early_stopping_rounds=20, validation_fraction=0.3)
    assert not run.wrong(run.attack())[guessed.confidence(run.attack()) >= 0.99].any()


@pytest.mark.long
def test_sampled_rounds_are_read(monkeypatch):
    """What is found, whatever is submitted, is better than rows like one's own."""
    found_in = sys.modules["fedtrees.attacks.timberstrike.reconstruct"]  # a function hides its name
    monkeypatch.setattr(found_in, "vote_on_rows", lambda found, *_, **__: (found, {}))
    pima, gains = catalogue.load("pima", data_dir()), []
    for seed in range(2):
        made = spread(pima, Partition("iid"), client_names(5), seed)
        params = "trees=20,max_depth=6,subsample=0.8"
        _, view = trained(made, f"fedtree-hist[{params}]", "client-1", seed)
        victims = Table.concat([h.table for n, h in made.local_data.items() if n != "client-1"])
        rng = np.random.default_rng(seed)
        blind = view.rows.take(rng.integers(0, len(view.rows), len(victims)))
        guess = TimberStrike().run(view, rng).first(Records).table
        gains.append(accuracy(guess, victims, view.schema) - accuracy(blind, victims, view.schema))
    assert np.mean(gains) > 0.02


@pytest.mark.parametrize("level", ["statistics", "values"])
def test_an_l1_penalty_is_part_of_the_equations(level):
    X, y = structured(240, 2)
    w = world(X, y, 60, trees=3, reg_alpha=0.5)
    evidence = w.evidence(level, reg_alpha=0.5)
    basis = ReconstructionContext.of(evidence, w.local_rows, w.schema)
    known = World.of(evidence, basis.sums, basis.grid)
    cell = basis.grid.cells(w.victims.X)
    box = np.zeros_like(cell), np.tile(basis.grid.width, (len(cell), 1))
    own = basis.prior.row_cells[:0], basis.prior.rows.y[:0]
    state = State.of(known, cell, box, w.victims.y, *own)
    told = np.isfinite(known.variance) & (known.variance < 1e-9)
    assert told.any()
    assert np.abs(state.residual[told]).max() < 1e-4
    without = World.of(evidence.change(reg_alpha=0.0), basis.sums, basis.grid)
    if level == "values":
        assert np.abs(without.target - known.target).max() == pytest.approx(0.5)
