"""Certified counts are right, on every table; where nothing is certain, nothing is returned."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import guessed
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timberstrike_world import structured, world

from fedtrees.attacks.exact_decoding.attack import Lattice
from fedtrees.attacks.exact_decoding.decode import decode
from fedtrees.attacks.exact_decoding.integer_sums import (
    base_margin_of,
    certain_counts,
    exact_sums,
    first_counts,
)
from fedtrees.attacks.exact_decoding.path_hypotheses import rows_of
from fedtrees.attacks.observations.boosting import SumVariance
from fedtrees.attacks.reconstruction.boxes import Grid
from fedtrees.core.composition import Composition
from fedtrees.core.deterministic_channels import Rounding
from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.defenses.laplace import LaplaceHistogram
from fedtrees.defenses.rounding import HistogramRounding
from fedtrees.defenses.suppression import SplitOnly
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist, NVFlareHist
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of


def certify(w, evidence=None, list_bits=16, doubt=1e-3):
    return decode(evidence or w.evidence(), w.local_rows, w.schema, list_bits, doubt)


def wrong_leaves(w, leaf_counts):
    """Certified leaves whose class counts are not the victims'."""
    nodes = w.forest.apply(w.victims.X)
    wrong = []
    for counts in leaf_counts:
        for j, told in zip(counts.leaf, counts.counts, strict=True):
            y = w.victims.y[nodes[:, counts.tree] == j]
            if told.tolist() != np.bincount(y, minlength=2).tolist():
                wrong.append((counts.tree, int(j)))
    return wrong


def margins(w, X, trees):
    margin = np.full(len(X), w.forest.base_margin[0], dtype=np.float32)
    for tree, nodes in zip(w.forest.trees[:trees], w.forest.apply(X).T, strict=False):
        margin += tree.value[nodes]
    return margin


@pytest.fixture(scope="module")
def loose():
    """Features that say little about each other."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(220, 6))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.5 * rng.normal(size=220) > 0
    return world(X, y.astype(np.int64), 50, trees=12, max_depth=5)


@pytest.mark.long
def test_all_rows_are_followed_through_all_trees(loose):
    found = certify(loose)
    assert found.notes["trees_followed"] == found.notes["trees_certified"] == 12
    assert found.notes["rows_followed"] == len(loose.victims)
    assert found.notes["leaves_certified"] == sum(len(t.leaves) for t in loose.forest.trees)
    assert wrong_leaves(loose, found.leaf_counts) == []


@pytest.mark.long
def test_steps_end_the_search_early_and_what_is_certified_is_still_true(loose):
    assert certify(loose).notes["stopped_early"] == 0
    counts = []
    for steps in (0, 20_000, 10**9):
        found = decode(loose.evidence(), loose.local_rows, loose.schema, 16, 1e-3, steps=steps)
        assert wrong_leaves(loose, found.leaf_counts) == []
        assert found.notes["stopped_early"] == (steps < 10**9)
        counts.append(found.notes["leaves_certified"])
    assert counts[0] < counts[1] < counts[2] == certify(loose).notes["leaves_certified"]


@pytest.mark.long
def test_rows_go_where_they_claim(loose):
    """A point of every box is routed to the margin the row was followed to."""
    w = loose
    found = certify(w)
    first = first_counts(exact_sums(w.evidence(), w.local_rows)[0], w.forest.base_margin[0])
    boxes, _ = rows_of(found.paths, first)
    low, high = Grid.of(w.forest.trees, w.local_rows.X.shape[1]).bounds(boxes.lo, boxes.hi)
    X = np.where(np.isfinite(low), low, np.nextafter(high, np.float32(-np.inf)))
    X = np.where(np.isfinite(X), X, 0)
    np.testing.assert_array_equal(margins(w, X, 12), boxes.margin)
    assert Counter(boxes.margin.tolist()) == Counter(margins(w, w.victims.X, 12).tolist())
    np.testing.assert_array_equal(np.bincount(boxes.y), np.bincount(w.victims.y))


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(20, 160),
    own=st.floats(0, 0.9),
    depth=st.integers(1, 5),
    levels=st.sampled_from([2, 4, 30]),
    list_bits=st.integers(4, 14),
)
def test_what_is_certified_is_true(seed, rows, own, depth, levels, list_bits):
    """Coarse features make rows alike; short lists make leaves hard; nothing false may come."""
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(rows, 4)) * levels / 4)
    y = (X[:, 0] + X[:, 1] * X[:, 2] / levels + rng.normal(size=rows) > 0).astype(np.int64)
    y[:2] = 0, 1
    w = world(X, y, int(own * rows), trees=6, max_depth=depth, seed=seed)
    found = certify(w, list_bits=list_bits)
    assert wrong_leaves(w, found.leaf_counts) == []
    assert found.notes["trees_certified"] >= 1


@pytest.mark.long
def test_the_order_of_rows_does_not_matter():
    X, y = structured(150)
    order = np.random.default_rng(0).permutation(150)
    other = np.concatenate([order[:40], np.random.default_rng(1).permutation(order[40:])])
    first, second = (certify(world(X, y, 40, order=o)) for o in (order, other))
    assert first.notes == second.notes
    assert first.leaf_counts
    for a, b in zip(first.leaf_counts, second.leaf_counts, strict=True):
        for name in ("leaf", "counts"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.long
def test_missing_values_certify_nothing_false():
    """Rows without a value go where no box says; their leaves stay open or come out right."""
    X, y = structured(150)
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    w = world(X, y, 40, trees=6)
    found = certify(w)
    assert wrong_leaves(w, found.leaf_counts) == []
    assert found.notes["trees_certified"] >= 1


def disturbed(w, step):
    """Sums rounded to multiples of a step."""
    trees = tuple(
        replace(t, g=np.round(t.g / step) * step, h=np.round(t.h / step) * step)
        for t in w.forest.trees
    )
    return w.evidence(trees=trees)


def test_leaf_values_alone_certify_counts_of_the_first_tree():
    certain, leaves = 0, 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        rows = int(rng.integers(8, 160))
        X, y = np.round(rng.normal(size=(rows, 3)) * 2), rng.random(rows) < 0.4
        shape = {"trees": 1, "max_depth": 3, "learning_rate": (0.1, 0.3, 1.0)[seed % 3]}
        w = world(X, y.astype(np.int64), int(rng.uniform(0, 0.9) * rows), seed=seed, **shape)
        values = w.evidence("values")
        found = [c for c in [certain_counts(values, w.local_rows)] if c is not None]
        assert wrong_leaves(w, found) == []
        certain, leaves = (
            certain + sum(len(c.leaf) for c in found),
            leaves + len(values.trees[0].leaves),
        )
        coarse = certain_counts(values.change(rounding=Rounding(0.1)), w.local_rows)
        assert wrong_leaves(w, [] if coarse is None else [coarse]) == []
        for off in ({"n_rows": None}, {"hides_small_bins": True}, {"level": "statistics"}):
            assert certain_counts(values.change(**off), w.local_rows) is None
    assert certain > 0.9 * leaves


def test_sums_that_are_not_exact_certify_nothing(loose):
    noise = tuple(SumVariance(np.ones(len(t)), np.ones(len(t))) for t in loose.forest.trees)
    rounded = disturbed(loose, 2.0**-20), disturbed(loose, 1e-5)
    others = (
        loose.evidence("values"),
        loose.evidence(noise=noise),
        loose.evidence(constant_hessian=True),
        loose.evidence(base_margin=np.float32(0.3)),
        loose.evidence(trees=()),
    )
    for evidence in (*rounded, *others):
        found = certify(loose, evidence)
        assert found.leaf_counts == ()
        assert found.notes["trees_certified"] == 0


@pytest.mark.long
def test_one_wrong_sum_ends_it_there(loose):
    trees = list(loose.forest.trees)
    h = trees[5].h.copy()
    h[trees[5].leaves[0]] += 2.0**-30
    trees[5] = replace(trees[5], h=h)
    found = certify(loose, loose.evidence(trees=tuple(trees)))
    assert found.notes["trees_followed"] == 5
    assert found.notes["leaves_open"] > 0
    assert wrong_leaves(loose, found.leaf_counts) == []


@pytest.mark.long
def test_odd_tables():
    X, y = structured(90)
    unsplit = certify(world(X, y, 30, trees=3, max_depth=3, min_child_weight=1e6))
    assert unsplit.notes["trees_certified"] == 3
    single = world(X, y, 89, trees=3)
    assert certify(single).notes["rows_followed"] == 1
    assert certify(world(X, y, 90, trees=3)).notes["rows_followed"] == 0
    same = world(np.ones((60, 2)), np.arange(60) % 2, 20, trees=3)
    assert wrong_leaves(same, certify(same).leaf_counts) == []
    nobody = world(X, y, 0, trees=3)
    assert wrong_leaves(nobody, certify(nobody).leaf_counts) == []
    assert decode(nobody.evidence(), None, nobody.schema, 16, 1e-3).notes["trees_certified"] >= 1


@pytest.mark.parametrize("score", [0.5, None])
def test_the_start_follows_from_the_first_tree(score):
    X, y = structured(150)
    w = world(X, y, 40, base_score=score)
    assert base_margin_of(w.evidence()) == w.forest.base_margin[0]
    assert base_margin_of(w.evidence("values")) is None
    assert base_margin_of(disturbed(w, 0.003)) is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("list_bits", 3),
        ("list_bits", 30),
        ("doubt", 0.0),
        ("max_trees", -1),
        ("steps", -1),
        ("base_score", "?"),
    ],
)
def test_options_are_checked(option, value):
    with pytest.raises(UsageError, match=rf"{option}\W.*{re.escape(str(value))}"):
        Lattice(**{option: value})


@pytest.mark.long
@pytest.mark.parametrize("protocol", [FedTreeHist, NVFlareHist])
def test_what_a_client_and_a_server_see(protocol):
    """From messages: exact sums are followed; fine rounding leaves the first tree certain."""
    X, y = structured(120)
    schema = Schema(tuple(Feature(f"x{k}") for k in range(X.shape[1])), "y")
    clients = [Table(X[k::3], y[k::3]) for k in range(3)]
    for defense, certified in (
        (None, 3),
        (HistogramRounding(0.001), 1),
        (LaplaceHistogram(1.0), 0),
        *([] if protocol is NVFlareHist else [(SplitOnly(), 1)]),  # whose splits have no values
    ):
        composed = Composition(() if defense is None else (defense,))
        run = train(protocol(trees=3, max_depth=3), over_clients(clients), schema, defense=composed)
        alone = isinstance(defense, SplitOnly)
        for threat, rows in (("client-0", 80), *([] if alone else [("server", 120)])):
            guess = Lattice().run(
                view_of(run, (threat,), over_clients(clients)), np.random.default_rng(0)
            )
            assert guess.notes["trees_certified"] == certified
            assert certified != 3 or guess.notes["rows_followed"] == rows
            told = guessed.counts(guess)
            assert len(told) >= certified
            if certified == 1:
                assert told[0].leaf.tolist() == run.model.trees[0].leaves.tolist()
                assert told[0].n0.sum() + told[0].n1.sum() == rows
