"""Certified leaf counts are correct on every table. Without exact sums no counts are returned."""

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


def decode_view(small_world, evidence=None, list_bits=16, doubt=1e-3):
    """Decode the victims' paths and leaf counts from exact sums."""
    return decode(
        evidence or small_world.evidence(),
        small_world.local_rows,
        small_world.schema,
        list_bits,
        doubt,
    )


def wrong_leaves(small_world, leaf_counts):
    """Return the certified leaves whose class counts differ from the victims'."""
    nodes = small_world.forest.apply(small_world.victims.X)
    wrong = []
    for counts in leaf_counts:
        for leaf, claimed in zip(counts.leaf, counts.counts, strict=True):
            y = small_world.victims.y[nodes[:, counts.tree] == leaf]
            if claimed.tolist() != np.bincount(y, minlength=2).tolist():
                wrong.append((counts.tree, int(leaf)))
    return wrong


def margins_after(small_world, X, trees):
    """Return the margins of rows after the first `trees` trees."""
    margin = np.full(len(X), small_world.forest.base_margin[0], dtype=np.float32)
    for tree, nodes in zip(
        small_world.forest.trees[:trees], small_world.forest.apply(X).T, strict=False
    ):
        margin += tree.value[nodes]
    return margin


@pytest.fixture(scope="module")
def unrelated_features():
    """Return a world whose features reveal little about each other."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(220, 6))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.5 * rng.normal(size=220) > 0
    return world(X, y.astype(np.int64), 50, trees=12, max_depth=5)


@pytest.mark.long
def test_all_rows_are_followed_through_all_trees(unrelated_features):
    decoding = decode_view(unrelated_features)
    assert decoding.notes["trees_followed"] == decoding.notes["trees_certified"] == 12
    assert decoding.notes["rows_followed"] == len(unrelated_features.victims)
    assert decoding.notes["leaves_certified"] == sum(
        len(t.leaves) for t in unrelated_features.forest.trees
    )
    assert wrong_leaves(unrelated_features, decoding.leaf_counts) == []


@pytest.mark.long
def test_a_step_limit_ends_the_search_early_without_wrong_counts(unrelated_features):
    assert decode_view(unrelated_features).notes["stopped_early"] == 0
    certified = []
    for steps in (0, 20_000, 10**9):
        decoding = decode(
            unrelated_features.evidence(),
            unrelated_features.local_rows,
            unrelated_features.schema,
            16,
            1e-3,
            steps=steps,
        )
        assert wrong_leaves(unrelated_features, decoding.leaf_counts) == []
        assert decoding.notes["stopped_early"] == (steps < 10**9)
        certified.append(decoding.notes["leaves_certified"])
    assert (
        certified[0]
        < certified[1]
        < certified[2]
        == decode_view(unrelated_features).notes["leaves_certified"]
    )


@pytest.mark.long
def test_boxes_of_rows_reach_the_margins_of_their_paths(unrelated_features):
    """A point of every box has the margin to which the row was followed."""
    small_world = unrelated_features
    decoding = decode_view(small_world)
    first = first_counts(
        exact_sums(small_world.evidence(), small_world.local_rows)[0],
        small_world.forest.base_margin[0],
    )
    boxes, _ = rows_of(decoding.paths, first)
    low, high = Grid.of(small_world.forest.trees, small_world.local_rows.X.shape[1]).bounds(
        boxes.lo, boxes.hi
    )
    X = np.where(np.isfinite(low), low, np.nextafter(high, np.float32(-np.inf)))
    X = np.where(np.isfinite(X), X, 0)
    np.testing.assert_array_equal(margins_after(small_world, X, 12), boxes.margin)
    assert Counter(boxes.margin.tolist()) == Counter(
        margins_after(small_world, small_world.victims.X, 12).tolist()
    )
    np.testing.assert_array_equal(np.bincount(boxes.y), np.bincount(small_world.victims.y))


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(20, 160),
    local_share=st.floats(0, 0.9),
    depth=st.integers(1, 5),
    levels=st.sampled_from([2, 4, 30]),
    list_bits=st.integers(4, 14),
)
def test_certified_counts_are_never_wrong(seed, rows, local_share, depth, levels, list_bits):
    """Coarse features make rows alike, and short lists make leaves hard to decode."""
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(rows, 4)) * levels / 4)
    y = (X[:, 0] + X[:, 1] * X[:, 2] / levels + rng.normal(size=rows) > 0).astype(np.int64)
    y[:2] = 0, 1
    small_world = world(X, y, int(local_share * rows), trees=6, max_depth=depth, seed=seed)
    decoding = decode_view(small_world, list_bits=list_bits)
    assert wrong_leaves(small_world, decoding.leaf_counts) == []
    assert decoding.notes["trees_certified"] >= 1


@pytest.mark.long
def test_the_order_of_rows_does_not_matter():
    X, y = structured(150)
    order = np.random.default_rng(0).permutation(150)
    other = np.concatenate([order[:40], np.random.default_rng(1).permutation(order[40:])])
    first, second = (decode_view(world(X, y, 40, order=row_order)) for row_order in (order, other))
    assert first.notes == second.notes
    assert first.leaf_counts
    for one, another in zip(first.leaf_counts, second.leaf_counts, strict=True):
        for name in ("leaf", "counts"):
            np.testing.assert_array_equal(getattr(one, name), getattr(another, name))


@pytest.mark.long
def test_missing_values_give_no_wrong_counts():
    """Rows with missing values leave their boxes. Their leaves are not certified, or certified
    correctly.
    """
    X, y = structured(150)
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    small_world = world(X, y, 40, trees=6)
    decoding = decode_view(small_world)
    assert wrong_leaves(small_world, decoding.leaf_counts) == []
    assert decoding.notes["trees_certified"] >= 1


def with_rounded_sums(small_world, step):
    """Return observations whose sums are rounded to multiples of a step."""
    trees = tuple(
        replace(tree, g=np.round(tree.g / step) * step, h=np.round(tree.h / step) * step)
        for tree in small_world.forest.trees
    )
    return small_world.evidence(trees=trees)


def test_leaf_values_certify_counts_of_the_first_tree():
    certain, leaves = 0, 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        rows = int(rng.integers(8, 160))
        X, y = np.round(rng.normal(size=(rows, 3)) * 2), rng.random(rows) < 0.4
        shape = {"trees": 1, "max_depth": 3, "learning_rate": (0.1, 0.3, 1.0)[seed % 3]}
        small_world = world(
            X, y.astype(np.int64), int(rng.uniform(0, 0.9) * rows), seed=seed, **shape
        )
        values = small_world.evidence("values")
        certified_trees = [
            counts
            for counts in [certain_counts(values, small_world.local_rows)]
            if counts is not None
        ]
        assert wrong_leaves(small_world, certified_trees) == []
        certain, leaves = (
            certain + sum(len(counts.leaf) for counts in certified_trees),
            leaves + len(values.trees[0].leaves),
        )
        coarse = certain_counts(values.change(rounding=Rounding(0.1)), small_world.local_rows)
        assert wrong_leaves(small_world, [] if coarse is None else [coarse]) == []
        for change in ({"n_rows": None}, {"hides_small_bins": True}, {"level": "statistics"}):
            assert certain_counts(values.change(**change), small_world.local_rows) is None
    assert certain > 0.9 * leaves


def test_inexact_sums_certify_no_counts(unrelated_features):
    noise = tuple(
        SumVariance(np.ones(len(tree)), np.ones(len(tree)))
        for tree in unrelated_features.forest.trees
    )
    rounded = (
        with_rounded_sums(unrelated_features, 2.0**-20),
        with_rounded_sums(unrelated_features, 1e-5),
    )
    other_evidence = (
        unrelated_features.evidence("values"),
        unrelated_features.evidence(noise=noise),
        unrelated_features.evidence(constant_hessian=True),
        unrelated_features.evidence(base_margin=np.float32(0.3)),
        unrelated_features.evidence(trees=()),
    )
    for evidence in (*rounded, *other_evidence):
        decoding = decode_view(unrelated_features, evidence)
        assert decoding.leaf_counts == ()
        assert decoding.notes["trees_certified"] == 0


@pytest.mark.long
def test_one_wrong_sum_ends_the_decoding_at_its_tree(unrelated_features):
    trees = list(unrelated_features.forest.trees)
    h = trees[5].h.copy()
    h[trees[5].leaves[0]] += 2.0**-30
    trees[5] = replace(trees[5], h=h)
    decoding = decode_view(unrelated_features, unrelated_features.evidence(trees=tuple(trees)))
    assert decoding.notes["trees_followed"] == 5
    assert decoding.notes["leaves_open"] > 0
    assert wrong_leaves(unrelated_features, decoding.leaf_counts) == []


@pytest.mark.long
def test_degenerate_tables_are_decoded():
    X, y = structured(90)
    unsplit = decode_view(world(X, y, 30, trees=3, max_depth=3, min_child_weight=1e6))
    assert unsplit.notes["trees_certified"] == 3
    one_victim = world(X, y, 89, trees=3)
    assert decode_view(one_victim).notes["rows_followed"] == 1
    assert decode_view(world(X, y, 90, trees=3)).notes["rows_followed"] == 0
    identical_rows = world(np.ones((60, 2)), np.arange(60) % 2, 20, trees=3)
    assert wrong_leaves(identical_rows, decode_view(identical_rows).leaf_counts) == []
    no_local_rows = world(X, y, 0, trees=3)
    assert wrong_leaves(no_local_rows, decode_view(no_local_rows).leaf_counts) == []
    assert (
        decode(no_local_rows.evidence(), None, no_local_rows.schema, 16, 1e-3).notes[
            "trees_certified"
        ]
        >= 1
    )


@pytest.mark.parametrize("score", [0.5, None])
def test_the_base_margin_is_inferred_from_the_first_tree(score):
    X, y = structured(150)
    small_world = world(X, y, 40, base_score=score)
    assert base_margin_of(small_world.evidence()) == small_world.forest.base_margin[0]
    assert base_margin_of(small_world.evidence("values")) is None
    assert base_margin_of(with_rounded_sums(small_world, 0.003)) is None


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
def test_client_and_server_certify_the_expected_trees(protocol):
    """Exact sums are followed through all trees. With fine rounding only the first tree is
    certain.
    """
    X, y = structured(120)
    schema = Schema(tuple(Feature(f"x{k}") for k in range(X.shape[1])), "y")
    clients = [Table(X[k::3], y[k::3]) for k in range(3)]
    for defense, certified in (
        (None, 3),
        (HistogramRounding(0.001), 1),
        (LaplaceHistogram(1.0), 0),
        # The splits of this protocol contain no leaf values.
        *([] if protocol is NVFlareHist else [(SplitOnly(), 1)]),
    ):
        composed = Composition(() if defense is None else (defense,))
        run = train(protocol(trees=3, max_depth=3), over_clients(clients), schema, defense=composed)
        only_client = isinstance(defense, SplitOnly)
        for attacker, rows in (("client-0", 80), *([] if only_client else [("server", 120)])):
            guess = Lattice().run(
                view_of(run, (attacker,), over_clients(clients)), np.random.default_rng(0)
            )
            assert guess.notes["trees_certified"] == certified
            assert certified != 3 or guess.notes["rows_followed"] == rows
            claimed_counts = guessed.counts(guess)
            assert len(claimed_counts) >= certified
            if certified == 1:
                assert claimed_counts[0].leaf.tolist() == run.model.trees[0].leaves.tolist()
                assert claimed_counts[0].n0.sum() + claimed_counts[0].n1.sum() == rows
