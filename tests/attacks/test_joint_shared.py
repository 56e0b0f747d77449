"""The joint attack on trees that clients grow alone: others' trees move margins and no more."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import guessed
import numpy as np
import pytest
from federations import clients_of, victims_of_all, view_in
from hypothesis import given, settings
from hypothesis import strategies as st
from timberstrike_world import structured

from fedtrees.attacks.clients.per_client import observe_clients
from fedtrees.attacks.counts.leaf_sums import victim_sums
from fedtrees.attacks.joint import reconstruct as reconstruction
from fedtrees.attacks.joint.attack import Joint
from fedtrees.attacks.joint.classes import Classes
from fedtrees.attacks.joint.log_posterior import accept, judge
from fedtrees.attacks.joint.posterior_problem import State, World
from fedtrees.attacks.joint.sampler import Proposal, draw_classes, sample
from fedtrees.attacks.reconstruction.boxes import Grid
from fedtrees.attacks.reconstruction.prior import make_prior, value_ranges
from fedtrees.core.local_data import client_names
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.data.dataset import prepare
from fedtrees.data.partition import Partition
from fedtrees.experiments.evaluate import make_defense
from fedtrees.experiments.federation import spread
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.routing import Routes

BAGGING = "flower-bagging[trees=6,max_depth=3]"
CYCLIC = "flower-cyclic[trees=18,max_depth=3]"
ENSEMBLES = "local-ensembles[trees=6,max_depth=3]"
PROTOCOLS = (BAGGING, CYCLIC, ENSEMBLES)
QUICK = Joint(chains=1, moves=300, samples=3)


@cache
def federation(loose=False):
    """Three clients; with features that say nothing about each other all there is is the trees'."""
    X, y = structured(210)
    if loose:
        rng = np.random.default_rng(1)
        X = rng.normal(size=(300, 6)).astype(np.float32)
        y = (X[:, 0] * X[:, 1] + X[:, 2] + 0.5 * rng.normal(size=300) > 0).astype(np.int64)
    schema = Schema(tuple(Feature(f"x{k}") for k in range(6)), "y", ("0", "1"))
    return spread(prepare("structured", schema, X, y), Partition("iid"), client_names(3), 0)


@cache
def run(spec, who="client-2", defense="none", loose=False):
    fed = federation(loose)
    made = make_defense(parse_composed([defense])[0])
    protocol = register.make("protocol", parse_grid(spec)[0])
    done = train(protocol, fed.local_data, fed.schema, defense=made, seed=1)
    return fed, view_of(done, (who,), fed.local_data)


class Victims:
    """One victim's trees and true rows as the sampler sees them."""

    def __init__(self, fed, view, victim):
        evidence, self.rows = victim.evidence, clients_of(fed)[int(victim.owner[-1])]
        self.grid = Grid.of(evidence.trees, len(fed.schema.features))
        ranges = value_ranges(fed.schema, view.rows, self.grid, None, "schema")
        self.prior = make_prior(fed.schema, view.rows, self.grid, *ranges)
        sums = victim_sums(evidence, view.rows, len(evidence.trees), evidence.observed.own_inside)
        self.world = World.of(evidence, sums, self.grid)
        self.cell = self.grid.cells(self.rows.X)

    def state(self, cell=None):
        box = np.zeros_like(self.cell), np.tile(self.grid.width, (len(self.cell), 1))
        prior = self.prior
        return State.of(
            self.world, self.cell if cell is None else cell, box, self.rows.y, prior.row_cells,
            prior.rows.y,
        )  # fmt: skip


@cache
def victims(spec, defense="none"):
    fed, view = run(spec, defense=defense)
    return [Victims(fed, view, v) for v in observe_clients(view)]


@pytest.mark.long
@pytest.mark.parametrize("spec", PROTOCOLS)
@pytest.mark.parametrize("defense", ["none", "mask-sum-hessian"])
def test_truth_leaves_no_residual_through_others_trees(spec, defense):
    for victim in victims(spec, defense):
        known = np.isfinite(victim.world.variance)
        assert np.abs(victim.state().residual[known]).max() < 2e-5
        assert victim.world.foreign.any() == (spec != ENSEMBLES)


@pytest.mark.long
@pytest.mark.parametrize("spec", [CYCLIC, ENSEMBLES])
def test_leaf_values_alone_agree_with_the_truth_too(spec):
    for victim in victims(spec, "split-only"):
        known = np.isfinite(victim.world.variance)
        assert not known[:, 1].any()
        assert np.abs(victim.state().residual[known]).max() < 2e-5


def test_others_trees_are_needed_for_that():
    victim = victims(BAGGING)[1]
    still = victim.world._replace(value=victim.world.value.copy())
    foreign_leaves = ~np.isfinite(victim.world.variance[:, 0])
    still.value[foreign_leaves] = 0.0
    state = victim.state()
    before = state.mean_square(victim.world)
    state.refresh(still)
    assert state.mean_square(victim.world) > 1e4 * before


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(
    spec=st.sampled_from([BAGGING, CYCLIC]),
    defense=st.sampled_from(["none", "split-only"]),
    which=st.sampled_from([0, 1]),
    seed=st.integers(0, 10**6),
    pair=st.booleans(),
)
def test_a_moves_gain_is_the_difference_of_energies(spec, defense, which, seed, pair):
    victim, rng = victims(spec, defense)[which], np.random.default_rng(seed)
    world, d = victim.world, victim.cell.shape[1]
    precision = world.precision(0.3)
    cell = np.stack([rng.permutation(column) for column in victim.cell.T], axis=1)
    state = victim.state(cell)
    rows = rng.choice(len(cell), 1 + pair, replace=False)
    changed = rng.choice(d, rng.integers(1, d + 1), replace=False)
    new_cell = cell[rows].copy()
    new_cell[:, changed] = rng.integers(victim.grid.width[changed], size=(len(rows), len(changed)))
    new = Proposal.empty(d, len(world.root))
    new.row[: len(rows)] = rows
    new.cell[: len(rows)], new.changed[: len(changed)] = new_cell, changed
    first, gain = judge(world, state, precision, new, len(rows), len(changed))
    moved = cell.copy()
    moved[rows] = new_cell
    after = victim.state(moved)
    wanted = state.energy(precision) - after.energy(precision)
    assert gain == pytest.approx(wanted, rel=1e-9, abs=1e-7)
    accept(world, state, new, len(rows), first)
    np.testing.assert_array_equal(state.leaf, after.leaf)
    np.testing.assert_allclose(state.residual, after.residual, atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("spec", PROTOCOLS)
def test_books_kept_move_by_move_agree_with_books_from_scratch(spec):
    for victim in victims(spec):
        state = victim.state()
        classes = Classes.of(victim.prior, 2, 5.0)
        draw_classes(state, classes, 1)
        moved = sample(victim.world, state, classes, victim.world.precision(1.0), 3000, 2)
        assert moved > 100
        again = victim.state(state.cell[: state.n])
        np.testing.assert_array_equal(again.leaf, state.leaf)
        np.testing.assert_allclose(again.residual, state.residual, atol=1e-9)


def attack(view, options=QUICK, seed=0):
    return options.run(view, np.random.default_rng(seed))


@pytest.mark.long
@pytest.mark.parametrize("spec", PROTOCOLS)
@pytest.mark.parametrize("who", ["client-2", "server"])
def test_chains_agree_with_the_sums_better_than_their_start(spec, who):
    fed, view = run(spec, who)
    left = []
    for seed in range(3):  # the last bit of one exponential sends a chain elsewhere
        still, moved = (
            attack(view, replace(QUICK, moves=m, sigma_end=0.05), seed) for m in (0, 300)
        )
        left.append(moved.notes["residual_rms"] / still.notes["residual_rms"])
    assert np.mean(left) < 0.7
    assert len(guessed.rows(moved)) == len(victims_of_all(fed, (who,)))
    assert set(guessed.owner(moved)) == {f"client-{k}" for k in range(3)} - {who}


@pytest.mark.long
@pytest.mark.parametrize("spec", PROTOCOLS)
def test_rows_of_the_first_leaves_stay_there(spec, monkeypatch):
    # of what it found, whatever it submits in the end
    monkeypatch.setattr(reconstruction, "vote_on_rows", lambda found, *_, **__: (found, {}))
    fed, view = run(spec)
    guess = attack(view)
    mine = np.array(guessed.owner(guess)) == "client-0"
    tree, held = observe_clients(view)[0].evidence.trees[0], clients_of(fed)[0]
    routes = Routes.of((tree,))
    for label in (0, 1):
        found, true = (
            np.bincount(routes.apply(X[y == label])[:, 0], minlength=len(tree))
            for X, y in (
                (guessed.rows(guess).X[mine], guessed.rows(guess).y[mine]),
                (held.X, held.y),
            )
        )
        np.testing.assert_array_equal(found, true)


@pytest.mark.long
@pytest.mark.parametrize("spec", PROTOCOLS)
def test_names_do_not_matter(spec):
    view = run(spec, "server")[1]
    names = {"client-0": "zoe", "client-1": "adam", "client-2": "mia"}
    other = replace(
        view,
        roles={names.get(n, n): r for n, r in view.roles.items()},
        seen=tuple(
            replace(
                s,
                sender=names.get(s.sender, s.sender),
                receivers=tuple(names.get(n, n) for n in s.receivers),
            )
            for s in view.seen
        ),
    )
    first, second = attack(view), attack(other)
    np.testing.assert_array_equal(guessed.rows(first).X, guessed.rows(second).X)
    assert tuple(names[o] for o in guessed.owner(first)) == guessed.owner(second)


@pytest.mark.long
def test_who_starts_on_others_trees_has_the_sizes_told_and_no_tree_solved():
    view = run(CYCLIC)[1]
    first, late = (v.evidence for v in observe_clients(view))
    guess = attack(view, replace(QUICK, chains=4))
    assert guess.notes["trees_solved"] == 1  # the first client's first tree
    owner = np.array(guessed.owner(guess))
    sizes = np.bincount(guessed.rows(guess).y[owner == "client-1"], minlength=2)
    assert first.row_counts.sizes is None
    # samples have them; their votes with draws of own rows turn a label here and there
    assert np.abs(sizes - late.row_counts.sizes).max() <= 0.1 * late.row_counts.sizes[0]


@pytest.mark.long
def test_using_values_alone_is_as_good_as_seeing_no_more():
    stripped, asked = (
        attack(run(ENSEMBLES, defense=defense)[1], replace(QUICK, max_level="values"))
        for defense in ("split-only", "none")
    )
    np.testing.assert_array_equal(guessed.rows(stripped).X, guessed.rows(asked).X)
    assert stripped.notes == asked.notes
    sums = attack(run(ENSEMBLES)[1])
    assert sums.notes["residual_rms"] != asked.notes["residual_rms"]


@pytest.mark.long
def test_own_trees_are_counted_not_others():
    """Of two victims with six trees each; others' trees after the last say nothing."""
    view = run(BAGGING)[1]
    assert attack(view).notes["trees_read"] == 2 * (6 + 5 * 2)
    assert attack(view, replace(QUICK, max_trees=2)).notes["trees_read"] == 2 * (2 + 2)
    assert attack(view, replace(QUICK, max_trees=0)).notes["trees_read"] == 0


@pytest.mark.long
def test_targets_of_three_classes_are_read():
    for spec in PROTOCOLS:
        view = view_in(spec, "client-1", classes=3)
        assert Joint().inapplicable(view) is None
        guess = Joint(steps=500).run(view, np.random.default_rng(0))
        assert set(np.unique(guessed.rows(guess).y)) <= {0, 1, 2}
        assert len(guessed.rows(guess))
