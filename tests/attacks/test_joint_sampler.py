"""The sampler updates its state correctly, and visits states with their posterior probability."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.special import beta, gammaln
from timberstrike_world import structured, world

from fedtrees.attacks.counts.leaf_sums import victim_sums
from fedtrees.attacks.joint.log_posterior import CLASS_WEIGHT, Classes, draw_class
from fedtrees.attacks.joint.posterior_problem import State, World
from fedtrees.attacks.joint.sampler import draw_classes, sample
from fedtrees.attacks.reconstruction.boxes import Grid
from fedtrees.attacks.reconstruction.prior import make_prior, value_ranges


class Setting:
    """A trained forest as the sampler sees it, with the victims' true cells."""

    def __init__(self, w, level, constant_hessian=False):
        evidence = w.evidence(level, constant_hessian=constant_hessian)
        d = len(w.schema.features)
        self.grid = Grid.of(evidence.trees, d)
        low, high = value_ranges(w.schema, w.local_rows, self.grid, None, "schema")
        self.prior = make_prior(w.schema, w.local_rows, self.grid, low, high)
        sums = victim_sums(evidence, w.local_rows, len(evidence.trees))
        self.world = World.of(evidence, sums, self.grid)
        self.cell, self.label = self.grid.cells(w.victims.X), w.victims.y
        n = len(self.label)
        self.open = np.zeros((n, d), dtype=np.int32), np.tile(self.grid.width, (n, 1))

    def state(self, cell=None, box=None):
        cell = self.cell if cell is None else cell
        box = self.open if box is None else box
        return State.of(self.world, cell, box, self.label, self.prior.row_cells, self.prior.rows.y)

    def classes(self, state, k=2, weight=5.0, seed=0):
        classes = Classes.of(self.prior, k, weight)
        draw_classes(state, classes, seed)
        return classes


def binary_world(seed, n=60, trees=6, depth=3, missing=0.0):
    X, y = structured(n, seed)
    rng = np.random.default_rng(seed)
    X[rng.random(X.shape) < missing] = np.nan
    small_world = world(X, y, n // 3, seed=seed, trees=trees, max_depth=depth, max_bin=8)
    # The attack guesses no missing values.
    victims = replace(small_world.victims, X=np.nan_to_num(small_world.victims.X))
    return replace(small_world, victims=victims)


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    level=st.sampled_from(["statistics", "values"]),
    sigma=st.sampled_from([0.05, 0.5, 5.0]),
    missing=st.sampled_from([0.0, 0.2]),
    labels=st.booleans(),
)
def test_incremental_state_equals_recomputed_state(seed, level, sigma, missing, labels):
    setting = Setting(binary_world(seed % 50, missing=missing), level)
    state = setting.state()
    classes = setting.classes(state, seed=seed)
    precision = setting.world.precision(sigma)
    assert sample(setting.world, state, classes, precision, 3000, seed, labels) > 0
    setting.label = state.label[: state.n]
    recomputed = setting.state(state.cell[: state.n])
    np.testing.assert_array_equal(recomputed.leaf, state.leaf)
    np.testing.assert_allclose(recomputed.p, state.p, atol=1e-12)
    np.testing.assert_allclose(recomputed.residual, state.residual, atol=1e-10)
    assert recomputed.energy(precision) == pytest.approx(state.energy(precision), rel=1e-9)
    recomputed_classes = Classes.of(setting.prior, 2, 5.0)
    recomputed_classes.add(state.cell, state.component)
    for name in ("count", "present", "size"):
        np.testing.assert_array_equal(getattr(recomputed_classes, name), getattr(classes, name))
    np.testing.assert_array_equal(state.cell[state.n :], setting.prior.row_cells)


@pytest.mark.long
def test_the_true_rows_have_no_residual():
    for level in ("statistics", "values"):
        setting = Setting(binary_world(3), level)
        is_known = np.isfinite(setting.world.variance)
        assert np.abs(setting.state().residual[is_known]).max() < 1e-5


def multiclass_world(seed, classes=4, trees=4):
    X, _ = structured(80, seed)
    score = X[:, 0] + np.random.default_rng(seed).normal(size=80)
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    return world(X, y, 25, seed=seed, classes=classes, trees=trees, max_depth=2, max_bin=8)


@pytest.mark.long
@pytest.mark.parametrize("level", ["statistics", "values"])
def test_incremental_state_equals_recomputed_state_for_several_classes(level):
    setting = Setting(multiclass_world(3), level)
    assert setting.world.outputs == 4
    state, is_known = setting.state(), np.isfinite(setting.world.variance)
    assert np.abs(state.residual[is_known]).max() < 1e-4
    rounds = state.p.reshape(state.n, -1, 4)
    np.testing.assert_allclose(rounds.sum(axis=2), 1)
    classes, precision = setting.classes(state), setting.world.precision(3.0)
    assert classes.base.shape[0] == 4
    assert sample(setting.world, state, classes, precision, 5000, 1) > 0
    recomputed = setting.state(state.cell[: state.n])
    assert (recomputed.cell != setting.state().cell).any()
    np.testing.assert_array_equal(recomputed.leaf, state.leaf)
    np.testing.assert_allclose(recomputed.p, state.p, atol=1e-12)
    np.testing.assert_allclose(recomputed.residual, state.residual, atol=1e-10)


def test_a_constant_hessian_counts_rows():
    small_world = binary_world(3, trees=1)
    setting = Setting(small_world, "statistics", constant_hessian=True)
    rows = setting.state().residual[:, 1] + setting.world.target[:, 1]
    leaf = small_world.forest.apply(small_world.victims.X)[:, 0]
    np.testing.assert_array_equal(
        rows, [(leaf == leaf_id).sum() for leaf_id in small_world.forest.trees[0].leaves]
    )


@pytest.mark.long
def test_rows_never_leave_their_boxes():
    setting = Setting(binary_world(7), "statistics")
    box = np.maximum(setting.cell - 1, 0), np.minimum(setting.cell + 2, setting.grid.width)
    state = setting.state(box=tuple(bounds.astype(np.int32) for bounds in box))
    sample(setting.world, state, setting.classes(state), setting.world.precision(9.0), 20000, 1)
    cell = state.cell[: state.n]
    assert (cell != setting.cell).any()
    assert (cell >= state.lo).all()
    assert (cell < state.hi).all()
    # Boxes are exchanged between rows as a whole.
    for current_bounds, initial_bounds in zip((state.lo, state.hi), box, strict=True):
        np.testing.assert_array_equal(
            np.sort(current_bounds, axis=0), np.sort(initial_bounds, axis=0)
        )


def agreement(setting, state):
    """Return the share of the victims' cells that are correct under the best matching of rows."""
    equal_shares = (state.cell[: state.n, None] == setting.cell[None]).mean(axis=2)
    return equal_shares[linear_sum_assignment(-equal_shares)].mean()


@pytest.mark.long
def test_a_cold_chain_that_starts_at_the_true_rows_stays_there():
    setting = Setting(binary_world(11, n=90, trees=20, depth=4), "statistics")
    state = setting.state()
    classes = setting.classes(state)
    sample(setting.world, state, classes, setting.world.precision(0.005), 100_000, 2)
    assert agreement(setting, state) > 0.9  # Rows may exchange their places.
    assert np.sqrt(state.mean_square(setting.world)) < 0.01


@pytest.mark.long
@pytest.mark.parametrize("labels", [False, True])
def test_states_are_sampled_with_their_posterior_probability(labels):
    """Two victims of different labels and two local rows: enumerate every state, summed over the
    classes.
    """
    small_world = binary_world(5, n=40, trees=3, depth=2)
    victim_rows = np.array([np.flatnonzero(small_world.victims.y == label)[0] for label in (0, 1)])
    small_world = replace(small_world, victims=small_world.victims.take(victim_rows))
    setting = Setting(small_world, "statistics")
    local_rows = [np.flatnonzero(small_world.local_rows.y == label)[0] for label in (0, 1)]
    setting.prior = replace(
        setting.prior,
        rows=small_world.local_rows.take(np.array(local_rows)),
        row_cells=np.ascontiguousarray(setting.prior.row_cells[local_rows]),
    )
    target = State.of(
        setting.world._replace(target=np.zeros_like(setting.world.target)),
        setting.cell, setting.open, setting.label, setting.prior.row_cells[:0],
        setting.prior.rows.y[:0],
    ).residual  # fmt: skip
    setting.world = setting.world._replace(target=target)
    free_features = np.argsort(-setting.grid.width)[
        : 1 if labels else 2
    ]  # The other features keep their values.
    lo, hi = setting.cell.copy(), setting.cell + 1
    lo[:, free_features], hi[:, free_features] = 0, np.minimum(setting.grid.width[free_features], 4)
    cell = np.clip(setting.cell, lo, hi - 1).astype(np.int32)
    precision = setting.world.precision(1.0)
    truth = enumerate_states(setting, cell, free_features, hi, precision, labels)
    state = setting.state(cell, (lo.astype(np.int32), hi.astype(np.int32)))
    classes = setting.classes(state, weight=2.0)
    visits = Counter()
    for seed in range(15_000):
        sample(setting.world, state, classes, precision, 60, seed, labels)
        visits[(*state.cell[:2, free_features].reshape(-1), *state.label[:2])] += 1
    frequencies = np.array([visits[key] for key in truth]) / visits.total()
    expected = np.array(list(truth.values()))
    assert visits.keys() <= truth.keys()
    assert 0.5 * np.abs(frequencies - expected).sum() < 0.04
    # Otherwise a chain that stays in the most likely state would pass.
    assert expected.max() < 0.5


def enumerate_states(setting, cell, free_features, hi, precision, labels):
    """Return the probability of every pair of rows, by brute force over cells and classes.

    If labels are sampled, too, their share has a uniform prior.
    """
    probabilities, given_labels = {}, setting.label
    all_cells = product(*(range(hi[row, feature]) for row in range(2) for feature in free_features))
    label_pairs = product(range(2), repeat=2) if labels else [tuple(given_labels.tolist())]
    for cells, label in product(all_cells, list(label_pairs)):
        setting.label = np.array(label)
        state = setting.state(with_cells(cell, free_features, cells))
        n_positive = state.label.sum()
        energy = state.energy(precision)
        total = 0.0
        for components in product(range(2), repeat=4):
            classes = Classes.of(setting.prior, 2, 2.0)
            component = (2 * state.label + np.array(components)).astype(np.int32)
            classes.add(state.cell, component)
            total += np.exp(log_probability(classes))
        share = beta(n_positive + 1, len(state.label) - n_positive + 1)
        probabilities[*cells, *label] = total * share * np.exp(-energy)
    setting.label = given_labels
    norm = sum(probabilities.values())
    return {key: value / norm for key, value in probabilities.items()}


def log_probability(classes):
    """Return the log probability (nats) of classes and cells given labels."""
    K, total = len(classes.size) // 2, 0.0
    for c in (0, 1):
        rows = slice(c * K, (c + 1) * K)
        total -= gammaln(classes.size[rows].sum() + CLASS_WEIGHT * K)
        total += gammaln(classes.size[rows] + CLASS_WEIGHT).sum()
        total += (gammaln(classes.weight) - gammaln(classes.present[rows] + classes.weight)).sum()
        # A feature may lack some cells.
        base = np.where(classes.base[c] > 0, classes.base[c], 1.0)
        total += (gammaln(classes.count[rows] + base) - gammaln(base)).sum()
    return total + 2 * (gammaln(CLASS_WEIGHT * K) - K * gammaln(CLASS_WEIGHT))


def with_cells(cell, free_features, cells):
    copied = cell.copy()
    copied[:, free_features] = np.array(cells).reshape(2, -1)
    return copied


@pytest.mark.long
def test_probabilities_of_hundreds_of_features_do_not_underflow():
    """A class that fits a row far better is drawn, although both probabilities are below 1e-300."""
    d, rng = 1300, np.random.default_rng(0)
    X = rng.normal(size=(40, d)).astype(np.float32)
    y = np.arange(40) % 2
    setting = Setting(world(X, y, 20, trees=2), "statistics")
    # The first 100 features distinguish two kinds of rows per label.
    row_kind = np.arange(40) % 4 // 2
    cells = rng.integers(0, 2, (40, d)).astype(np.int32)
    cells[:, :100] = row_kind[:, None]
    prior = replace(setting.prior, cumulative=np.tile(np.arange(3.0), (2, d, 1)))
    classes = Classes.of(prior, 2, 1.0)
    component = (2 * y + row_kind).astype(np.int32)
    classes.add(cells, component)
    scratch = np.empty(2)
    for i in range(4):
        component_drawn = draw_class(classes, cells, i, y[i], scratch, 0.5)
        assert component_drawn == component[i]
