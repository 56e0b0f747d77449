"""The joint attack on trees that clients grow on local data: trees of other clients only move
the margins.
"""

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
from fedtrees.attacks.joint.log_posterior import Classes, accept, judge
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
def make_federation(unrelated=False):
    """Return three clients. With `loose`, the features are unrelated, so all information comes
    from the trees.
    """
    X, y = structured(210)
    if unrelated:
        rng = np.random.default_rng(1)
        X = rng.normal(size=(300, 6)).astype(np.float32)
        y = (X[:, 0] * X[:, 1] + X[:, 2] + 0.5 * rng.normal(size=300) > 0).astype(np.int64)
    schema = Schema(tuple(Feature(f"x{k}") for k in range(6)), "y", ("0", "1"))
    return spread(prepare("structured", schema, X, y), Partition("iid"), client_names(3), 0)


@cache
def train_and_view(spec, principal="client-2", defense="none", unrelated=False):
    federation_of_clients = make_federation(unrelated)
    composition = make_defense(parse_composed([defense])[0])
    protocol = register.make("protocol", parse_grid(spec)[0])
    training = train(
        protocol,
        federation_of_clients.local_data,
        federation_of_clients.schema,
        defense=composition,
        seed=1,
    )
    return federation_of_clients, view_of(training, (principal,), federation_of_clients.local_data)


class SamplerVictim:
    """The trees and true rows of one victim as the sampler sees them."""

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
def sampler_victims(spec, defense="none"):
    federation_of_clients, view = train_and_view(spec, defense=defense)
    return [SamplerVictim(federation_of_clients, view, v) for v in observe_clients(view)]


@pytest.mark.long
@pytest.mark.parametrize("spec", PROTOCOLS)
@pytest.mark.parametrize("defense", ["none", "mask-sum-hessian"])
def test_the_true_rows_have_no_residual_with_trees_of_other_clients(spec, defense):
    for victim in sampler_victims(spec, defense):
        is_known = np.isfinite(victim.world.variance)
        assert np.abs(victim.state().residual[is_known]).max() < 2e-5
        assert victim.world.foreign.any() == (spec != ENSEMBLES)


@pytest.mark.long
@pytest.mark.parametrize("spec", [CYCLIC, ENSEMBLES])
def test_the_true_rows_have_no_residual_for_leaf_values(spec):
    for victim in sampler_victims(spec, "split-only"):
        is_known = np.isfinite(victim.world.variance)
        assert not is_known[:, 1].any()
        assert np.abs(victim.state().residual[is_known]).max() < 2e-5


def test_without_trees_of_other_clients_the_true_rows_have_a_residual():
    victim = sampler_victims(BAGGING)[1]
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
    victim_index=st.sampled_from([0, 1]),
    seed=st.integers(0, 10**6),
    pair=st.booleans(),
)
def test_a_moves_gain_is_the_difference_of_energies(spec, defense, victim_index, seed, pair):
    victim, rng = sampler_victims(spec, defense)[victim_index], np.random.default_rng(seed)
    world, d = victim.world, victim.cell.shape[1]
    precision = world.precision(0.3)
    cell = np.stack([rng.permutation(column) for column in victim.cell.T], axis=1)
    state = victim.state(cell)
    rows = rng.choice(len(cell), 1 + pair, replace=False)
    changed = rng.choice(d, rng.integers(1, d + 1), replace=False)
    new_cell = cell[rows].copy()
    new_cell[:, changed] = rng.integers(victim.grid.width[changed], size=(len(rows), len(changed)))
    proposal = Proposal.empty(d, len(world.root))
    proposal.row[: len(rows)] = rows
    proposal.cell[: len(rows)], proposal.changed[: len(changed)] = new_cell, changed
    first, gain = judge(world, state, precision, proposal, len(rows), len(changed))
    moved_cells = cell.copy()
    moved_cells[rows] = new_cell
    after = victim.state(moved_cells)
    expected = state.energy(precision) - after.energy(precision)
    assert gain == pytest.approx(expected, rel=1e-9, abs=1e-7)
    accept(world, state, proposal, len(rows), first)
    np.testing.assert_array_equal(state.leaf, after.leaf)
    np.testing.assert_allclose(state.residual, after.residual, atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("spec", PROTOCOLS)
def test_incremental_state_equals_recomputed_state(spec):
    for victim in sampler_victims(spec):
        state = victim.state()
        classes = Classes.of(victim.prior, 2, 5.0)
        draw_classes(state, classes, 1)
        n_moves = sample(victim.world, state, classes, victim.world.precision(1.0), 3000, 2)
        assert n_moves > 100
        recomputed = victim.state(state.cell[: state.n])
        np.testing.assert_array_equal(recomputed.leaf, state.leaf)
        np.testing.assert_allclose(recomputed.residual, state.residual, atol=1e-9)


def run_attack(view, options=QUICK, seed=0):
    return options.run(view, np.random.default_rng(seed))


@pytest.mark.long
@pytest.mark.parametrize("spec", PROTOCOLS)
@pytest.mark.parametrize("principal", ["client-2", "server"])
def test_chains_lower_the_residual(spec, principal):
    federation_of_clients, view = train_and_view(spec, principal)
    ratios = []
    # The last bit of an exponential may change the path of a chain.
    for seed in range(3):
        start, finished = (
            run_attack(view, replace(QUICK, moves=moves, sigma_end=0.05), seed)
            for moves in (0, 300)
        )
        ratios.append(finished.notes["residual_rms"] / start.notes["residual_rms"])
    assert np.mean(ratios) < 0.7
    assert len(guessed.rows(finished)) == len(victims_of_all(federation_of_clients, (principal,)))
    assert set(guessed.owner(finished)) == {f"client-{k}" for k in range(3)} - {principal}


@pytest.mark.long
@pytest.mark.parametrize("spec", PROTOCOLS)
def test_rows_stay_in_the_first_leaves(spec, monkeypatch):
    # Check the reconstruction, independent of the choice between it and a blind guess.
    monkeypatch.setattr(
        reconstruction, "vote_on_rows", lambda reconstructed, *_, **__: (reconstructed, {})
    )
    federation_of_clients, view = train_and_view(spec)
    guess = run_attack(view)
    is_owner = np.array(guessed.owner(guess)) == "client-0"
    tree, client_rows = (
        observe_clients(view)[0].evidence.trees[0],
        clients_of(federation_of_clients)[0],
    )
    routes = Routes.of((tree,))
    for label in (0, 1):
        guessed_counts, true_counts = (
            np.bincount(routes.apply(X[y == label])[:, 0], minlength=len(tree))
            for X, y in (
                (guessed.rows(guess).X[is_owner], guessed.rows(guess).y[is_owner]),
                (client_rows.X, client_rows.y),
            )
        )
        np.testing.assert_array_equal(guessed_counts, true_counts)


@pytest.mark.long
@pytest.mark.parametrize("spec", PROTOCOLS)
def test_names_of_clients_do_not_matter(spec):
    view = train_and_view(spec, "server")[1]
    names = {"client-0": "zoe", "client-1": "adam", "client-2": "mia"}
    renamed_view = replace(
        view,
        roles={names.get(name, name): role for name, role in view.roles.items()},
        seen=tuple(
            replace(
                item,
                sender=names.get(item.sender, item.sender),
                receivers=tuple(names.get(name, name) for name in item.receivers),
            )
            for item in view.seen
        ),
    )
    first, second = run_attack(view), run_attack(renamed_view)
    np.testing.assert_array_equal(guessed.rows(first).X, guessed.rows(second).X)
    assert tuple(names[owner] for owner in guessed.owner(first)) == guessed.owner(second)


@pytest.mark.long
def test_a_later_client_has_estimated_sizes_and_no_decoded_tree():
    view = train_and_view(CYCLIC)[1]
    first, late = (victim.evidence for victim in observe_clients(view))
    guess = run_attack(view, replace(QUICK, chains=4))
    # Only the first tree of the first client is decoded.
    assert guess.notes["trees_solved"] == 1
    owner = np.array(guessed.owner(guess))
    sizes = np.bincount(guessed.rows(guess).y[owner == "client-1"], minlength=2)
    assert first.row_counts.sizes is None
    # Samples have these sizes, but votes with draws of local rows may change some labels.
    assert np.abs(sizes - late.row_counts.sizes).max() <= 0.1 * late.row_counts.sizes[0]


@pytest.mark.long
def test_ignoring_statistics_equals_a_model_without_statistics():
    stripped, restricted = (
        run_attack(
            train_and_view(ENSEMBLES, defense=defense)[1], replace(QUICK, max_level="values")
        )
        for defense in ("split-only", "none")
    )
    np.testing.assert_array_equal(guessed.rows(stripped).X, guessed.rows(restricted).X)
    assert stripped.notes == restricted.notes
    sums = run_attack(train_and_view(ENSEMBLES)[1])
    assert sums.notes["residual_rms"] != restricted.notes["residual_rms"]


@pytest.mark.long
def test_only_trees_up_to_the_last_local_tree_are_counted():
    """Two victims have six trees each. Trees of other clients after the last local tree carry no
    information.
    """
    view = train_and_view(BAGGING)[1]
    assert run_attack(view).notes["trees_read"] == 2 * (6 + 5 * 2)
    assert run_attack(view, replace(QUICK, max_trees=2)).notes["trees_read"] == 2 * (2 + 2)
    assert run_attack(view, replace(QUICK, max_trees=0)).notes["trees_read"] == 0


@pytest.mark.long
def test_the_attack_guesses_labels_of_three_classes():
    for spec in PROTOCOLS:
        view = view_in(spec, "client-1", classes=3)
        assert Joint().inapplicable(view) is None
        guess = Joint(steps=500).run(view, np.random.default_rng(0))
        assert set(np.unique(guessed.rows(guess).y)) <= {0, 1, 2}
        assert len(guessed.rows(guess))
