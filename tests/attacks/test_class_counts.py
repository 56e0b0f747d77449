"""Rows from class histograms and from the leaves of plain forests."""

from __future__ import annotations

from collections import Counter

import numpy as np
from peeling_world import SERVER, Run, patients

from fedtrees.attacks.leaves.chain import State, advance, start
from fedtrees.attacks.leaves.forests import Boxes, sources_of
from fedtrees.attacks.peeling.attack import HistogramPeeling
from fedtrees.attacks.peeling.counted import counted_sources
from fedtrees.attacks.peeling.values import to_bins
from fedtrees.protocols.horizontal.forest_hist import ForestHist
from fedtrees.protocols.horizontal.local_forests import LocalForests

TABLE = patients(90)


def read(protocol):
    """Return how many rows are read right, how many are returned, and of how many."""
    run = Run(protocol, TABLE, principals=SERVER)
    cuts = counted_sources(run.view).cuts
    found = HistogramPeeling().run(run.view, np.random.default_rng(0)).claims[0]

    def rows(table):
        return Counter(map(tuple, np.column_stack([to_bins(cuts, table.X), table.y]).tolist()))

    return sum((rows(found.table) & rows(TABLE)).values()), len(found.table), len(TABLE)


def test_every_row_is_read_off_class_histograms_of_all_rows():
    right, returned, of = read(ForestHist(trees=15, max_bin=16, bootstrap=False))
    assert right == returned
    assert right >= 0.3 * of


def test_a_chain_finds_tables_as_likely_as_the_truth():
    run = Run(LocalForests(trees=10, max_depth=6), TABLE, principals=SERVER)
    source = sources_of(run.view)[0]
    boxes, rng = Boxes.of(source.trees, 8), np.random.default_rng(0)
    truth = run.clients[0]

    def likely(level, y):
        held = State.of(boxes, level.astype(np.int32), y, len(y)).held
        leaves = boxes.nodes[:, 0] < 0
        return (boxes.counts * np.log(np.maximum(held, 0.1)))[leaves].sum()

    codes = [
        np.searchsorted(t, x, side="right")
        for t, x in zip(boxes.thresholds, truth.X.T, strict=True)
    ]
    wanted = likely(np.stack(codes, axis=1), truth.y)
    state = State.of(boxes, start(boxes, truth.y, rng), truth.y, len(truth))
    before = likely(state.level, state.y)
    for beta in np.geomspace(0.05, 1.0, 10):
        advance(boxes, state, beta, 5000, rng.integers(0, 1 << 63, 1).astype(np.uint64))
    assert likely(state.level, state.y) > wanted - 0.2 * (wanted - before)
