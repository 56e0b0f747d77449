"""The sampler keeps its books, and visits states as often as their probability says."""

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
from fedtrees.attacks.joint.classes import CLASS_WEIGHT, Classes, draw_class
from fedtrees.attacks.joint.posterior_problem import State, World
from fedtrees.attacks.joint.sampler import draw_classes, sample
from fedtrees.attacks.reconstruction.boxes import Grid
from fedtrees.attacks.reconstruction.prior import make_prior, value_ranges


class Setting:
    """A trained forest as the sampler sees it, and the victims' true cells."""

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


def small(seed, n=60, trees=6, depth=3, missing=0.0):
    X, y = structured(n, seed)
    rng = np.random.default_rng(seed)
    X[rng.random(X.shape) < missing] = np.nan
    w = world(X, y, n // 3, seed=seed, trees=trees, max_depth=depth, max_bin=8)
    known = replace(w.victims, X=np.nan_to_num(w.victims.X))  # the attack guesses no missing value
    return replace(w, victims=known)


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    level=st.sampled_from(["statistics", "values"]),
    sigma=st.sampled_from([0.05, 0.5, 5.0]),
    missing=st.sampled_from([0.0, 0.2]),
    labels=st.booleans(),
)
def test_books_kept_move_by_move_agree_with_books_from_scratch(seed, level, sigma, missing, labels):
    setting = Setting(small(seed % 50, missing=missing), level)
    state = setting.state()
    classes = setting.classes(state, seed=seed)
    precision = setting.world.precision(sigma)
    assert sample(setting.world, state, classes, precision, 3000, seed, labels) > 0
    setting.label = state.label[: state.n]
    again = setting.state(state.cell[: state.n])
    np.testing.assert_array_equal(again.leaf, state.leaf)
    np.testing.assert_allclose(again.p, state.p, atol=1e-12)
    np.testing.assert_allclose(again.residual, state.residual, atol=1e-10)
    assert again.energy(precision) == pytest.approx(state.energy(precision), rel=1e-9)
    recount = Classes.of(setting.prior, 2, 5.0)
    recount.add(state.cell, state.component)
    for name in ("count", "present", "size"):
        np.testing.assert_array_equal(getattr(recount, name), getattr(classes, name))
    np.testing.assert_array_equal(state.cell[state.n :], setting.prior.row_cells)


@pytest.mark.long
def test_truth_leaves_no_residual():
    for level in ("statistics", "values"):
        setting = Setting(small(3), level)
        known = np.isfinite(setting.world.variance)
        assert np.abs(setting.state().residual[known]).max() < 1e-5


def of_classes(seed, classes=4, trees=4):
    X, _ = structured(80, seed)
    z = X[:, 0] + np.random.default_rng(seed).normal(size=80)
    y = np.digitize(z, np.quantile(z, np.arange(1, classes) / classes))
    return world(X, y, 25, seed=seed, classes=classes, trees=trees, max_depth=2, max_bin=8)


@pytest.mark.long
@pytest.mark.parametrize("level", ["statistics", "values"])
def test_of_several_classes_truth_leaves_no_residual_and_books_agree(level):
    setting = Setting(of_classes(3), level)
    assert setting.world.outputs == 4
    state, known = setting.state(), np.isfinite(setting.world.variance)
    assert np.abs(state.residual[known]).max() < 1e-4
    rounds = state.p.reshape(state.n, -1, 4)
    np.testing.assert_allclose(rounds.sum(axis=2), 1)
    classes, precision = setting.classes(state), setting.world.precision(3.0)
    assert classes.base.shape[0] == 4
    assert sample(setting.world, state, classes, precision, 5000, 1) > 0
    again = setting.state(state.cell[: state.n])
    assert (again.cell != setting.state().cell).any()
    np.testing.assert_array_equal(again.leaf, state.leaf)
    np.testing.assert_allclose(again.p, state.p, atol=1e-12)
    np.testing.assert_allclose(again.residual, state.residual, atol=1e-10)


def test_a_constant_hessian_counts_rows():
    w = small(3, trees=1)
    setting = Setting(w, "statistics", constant_hessian=True)
    rows = setting.state().residual[:, 1] + setting.world.target[:, 1]
    leaf = w.forest.apply(w.victims.X)[:, 0]
    np.testing.assert_array_equal(rows, [(leaf == j).sum() for j in w.forest.trees[0].leaves])


@pytest.mark.long
def test_boxes_are_never_left():
    setting = Setting(small(7), "statistics")
    box = np.maximum(setting.cell - 1, 0), np.minimum(setting.cell + 2, setting.grid.width)
    state = setting.state(box=tuple(b.astype(np.int32) for b in box))
    sample(setting.world, state, setting.classes(state), setting.world.precision(9.0), 20000, 1)
    cell = state.cell[: state.n]
    assert (cell != setting.cell).any()
    assert (cell >= state.lo).all()
    assert (cell < state.hi).all()
    for found, first in zip((state.lo, state.hi), box, strict=True):  # boxes travel, whole
        np.testing.assert_array_equal(np.sort(found, axis=0), np.sort(first, axis=0))


def agreement(setting, state):
    """Share of the victims' cells that are right under the best matching of rows."""
    same = (state.cell[: state.n, None] == setting.cell[None]).mean(axis=2)
    return same[linear_sum_assignment(-same)].mean()


@pytest.mark.long
def test_from_the_truth_a_cold_chain_stays_there():
    setting = Setting(small(11, n=90, trees=20, depth=4), "statistics")
    state = setting.state()
    classes = setting.classes(state)
    sample(setting.world, state, classes, setting.world.precision(0.005), 100_000, 2)
    assert agreement(setting, state) > 0.9  # rows may trade places
    assert np.sqrt(state.mean_square(setting.world)) < 0.01


@pytest.mark.long
@pytest.mark.parametrize("labels", [False, True])
def test_states_are_visited_as_often_as_their_probability_says(labels):
    """Two victims of unlike labels, two own rows: every state enumerated, classes summed out."""
    w = small(5, n=40, trees=3, depth=2)
    two = np.array([np.flatnonzero(w.victims.y == c)[0] for c in (0, 1)])
    w = replace(w, victims=w.victims.take(two))
    setting = Setting(w, "statistics")
    own = [np.flatnonzero(w.local_rows.y == c)[0] for c in (0, 1)]
    setting.prior = replace(
        setting.prior,
        rows=w.local_rows.take(np.array(own)),
        row_cells=np.ascontiguousarray(setting.prior.row_cells[own]),
    )
    target = State.of(
        setting.world._replace(target=np.zeros_like(setting.world.target)),
        setting.cell, setting.open, setting.label, setting.prior.row_cells[:0],
        setting.prior.rows.y[:0],
    ).residual  # fmt: skip
    setting.world = setting.world._replace(target=target)
    wide = np.argsort(-setting.grid.width)[
        : 1 if labels else 2
    ]  # the other features stay what they are
    lo, hi = setting.cell.copy(), setting.cell + 1
    lo[:, wide], hi[:, wide] = 0, np.minimum(setting.grid.width[wide], 4)
    cell = np.clip(setting.cell, lo, hi - 1).astype(np.int32)
    precision = setting.world.precision(1.0)
    truth = _enumerate(setting, cell, wide, hi, precision, labels)
    state = setting.state(cell, (lo.astype(np.int32), hi.astype(np.int32)))
    classes = setting.classes(state, weight=2.0)
    seen = Counter()
    for turn in range(15_000):
        sample(setting.world, state, classes, precision, 60, turn, labels)
        seen[(*state.cell[:2, wide].reshape(-1), *state.label[:2])] += 1
    found = np.array([seen[k] for k in truth]) / seen.total()
    expected = np.array(list(truth.values()))
    assert seen.keys() <= truth.keys()
    assert 0.5 * np.abs(found - expected).sum() < 0.04
    assert expected.max() < 0.5  # otherwise visiting the one likely state would do


def _enumerate(setting, cell, wide, hi, precision, labels):
    """Return the probability of every pair of rows, by brute force over cells and classes.

    The share of labels has a uniform prior where they are drawn, too.
    """
    out, given = {}, setting.label
    places = product(*(range(hi[i, f]) for i in range(2) for f in wide))
    told = product(range(2), repeat=2) if labels else [tuple(given.tolist())]
    for cells, label in product(places, list(told)):
        setting.label = np.array(label)
        state = setting.state(_with(cell, wide, cells))
        ones = state.label.sum()
        energy = state.energy(precision)
        total = 0.0
        for kinds in product(range(2), repeat=4):
            classes = Classes.of(setting.prior, 2, 2.0)
            component = (2 * state.label + np.array(kinds)).astype(np.int32)
            classes.add(state.cell, component)
            total += np.exp(log_probability(classes))
        share = beta(ones + 1, len(state.label) - ones + 1)
        out[*cells, *label] = total * share * np.exp(-energy)
    setting.label = given
    norm = sum(out.values())
    return {k: v / norm for k, v in out.items()}


def log_probability(classes):
    """Return the log probability (nats) of classes and cells given labels."""
    K, total = len(classes.size) // 2, 0.0
    for c in (0, 1):
        rows = slice(c * K, (c + 1) * K)
        total -= gammaln(classes.size[rows].sum() + CLASS_WEIGHT * K)
        total += gammaln(classes.size[rows] + CLASS_WEIGHT).sum()
        total += (gammaln(classes.weight) - gammaln(classes.present[rows] + classes.weight)).sum()
        base = np.where(classes.base[c] > 0, classes.base[c], 1.0)  # cells a feature has not
        total += (gammaln(classes.count[rows] + base) - gammaln(base)).sum()
    return total + 2 * (gammaln(CLASS_WEIGHT * K) - K * gammaln(CLASS_WEIGHT))


def _with(cell, wide, cells):
    out = cell.copy()
    out[:, wide] = np.array(cells).reshape(2, -1)
    return out


@pytest.mark.long
def test_hundreds_of_features_do_not_vanish():
    """A class that fits a row far better is drawn though both probabilities are below 1e-300."""
    d, rng = 1300, np.random.default_rng(0)
    X = rng.normal(size=(40, d)).astype(np.float32)
    y = np.arange(40) % 2
    setting = Setting(world(X, y, 20, trees=2), "statistics")
    kind = np.arange(40) % 4 // 2  # two kinds of rows per label, told by the first 100 features
    wide = rng.integers(0, 2, (40, d)).astype(np.int32)
    wide[:, :100] = kind[:, None]
    prior = replace(setting.prior, cumulative=np.tile(np.arange(3.0), (2, d, 1)))
    classes = Classes.of(prior, 2, 1.0)
    component = (2 * y + kind).astype(np.int32)
    classes.add(wide, component)
    scratch = np.empty(2)
    for i in range(4):
        drawn = draw_class(classes, wide, i, y[i], scratch, 0.5)
        assert drawn == component[i]
