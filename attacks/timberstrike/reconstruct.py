"""The attack: from evidence and own rows to a guess about the other clients' rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedtrees.attacks.timberstrike.consensus import chains_for, merge, tolerances
from fedtrees.attacks.timberstrike.counts import (
    NOISE_FLOOR,
    Counts,
    counts_from_sums,
    first_gradient,
    share_out,
)
from fedtrees.attacks.timberstrike.evidence import AUTO_TREES, Evidence, Options
from fedtrees.attacks.timberstrike.grid import Grid
from fedtrees.attacks.timberstrike.histograms import rows_from_histograms
from fedtrees.attacks.timberstrike.points import points
from fedtrees.attacks.timberstrike.prior import Prior, make_prior, value_ranges
from fedtrees.attacks.timberstrike.sequence import boxes_after_first_tree, follow, open_boxes
from fedtrees.attacks.timberstrike.sums import LeafSums, victim_sums
from fedtrees.attacks.timberstrike.values import counts_from_values
from fedtrees.core.guess import Guess, LeafCounts
from fedtrees.core.schema import Schema, Table


def reconstruct(
    evidence: Evidence,
    own: Table | None,
    schema: Schema,
    options: Options,
    rng: np.random.Generator,
) -> Guess:
    """Reconstruct the rows behind a boosted forest (TimberStrike, Di Gennaro et al. 2025).

    Parameters
    ----------
    evidence : Evidence
        What was seen of the training.
    own : Table or None
        The adversary's own training rows; their part is subtracted from every statistic, and
        they serve as prior knowledge unless ``options.use_prior`` is False.
    schema : Schema
    options : Options
    rng : numpy.random.Generator
        The only source of randomness.

    Returns
    -------
    Guess
        Records of the victims (of all clients with ``scope="union"``), first-tree counts of the
        victims, and diagnostics.
    """
    d = len(schema.features)
    if own is None:
        own = Table(np.zeros((0, d), dtype=np.float32), np.zeros(0, dtype=np.int64))
    bin_by_bin = _reads_bins(evidence, options)
    wanted = options.max_trees
    if wanted is None:
        wanted = len(evidence.trees) if bin_by_bin else AUTO_TREES
    evidence = _first_trees(evidence, min(wanted, len(evidence.trees)))
    n_trees = len(evidence.trees)
    grid = Grid.of(evidence.trees, d)
    low, high = value_ranges(schema, own, grid, evidence.cuts, options.ranges)
    known = own if options.use_prior else own.take(np.zeros(0, dtype=np.intp))
    prior = make_prior(schema, known, grid, low, high)
    whole = options.scope == "union"
    sums = victim_sums(evidence, own, min(n_trees, 1) if bin_by_bin else n_trees, not whole)
    notes: dict[str, float] = {"trees_read": float(n_trees)}
    if n_trees == 0:
        boxes = open_boxes(*_without_trees(evidence, own, whole), grid, evidence.base_margin)
        return Guess(points(options.points, boxes, grid, prior, schema, rng), (), notes)
    counts = first_counts(evidence, sums[0], len(own), whole)
    if bin_by_bin:
        read = rows_from_histograms(
            evidence, own, prior, schema, options, int((counts.n0 + counts.n1).sum()), rng
        )
        if read is None:
            sums_only = replace(evidence, level="statistics", histograms=None)
            return reconstruct(sums_only, own, schema, options, rng)
        records, more = read
    else:
        records, more = _follow_chains(evidence, sums, grid, prior, counts, schema, options, rng)
    notes |= more | {"first_tree_residual": counts.residual}
    own_part = (sums[0].own_n0, sums[0].own_n1) if whole else (0, 0)
    leaf_counts = LeafCounts(
        0,
        evidence.trees[0].leaves,
        np.maximum(counts.n0 - own_part[0], 0),
        np.maximum(counts.n1 - own_part[1], 0),
    )
    return Guess(records, (leaf_counts,), notes)


def _first_trees(evidence: Evidence, n: int) -> Evidence:
    return replace(
        evidence,
        trees=evidence.trees[:n],
        histograms=None if evidence.histograms is None else evidence.histograms[:n],
        noise=None if evidence.noise is None else evidence.noise[:n],
    )


def first_counts(evidence: Evidence, sums: LeafSums, n_own: int, whole: bool) -> Counts:
    """Return the first tree's counts by the best means the evidence allows."""
    p, h = first_gradient(evidence.base_margin, evidence.constant_hessian)
    if sums.g is not None:
        n = evidence.n_rows
        n_victims = None if n is None else max(n if whole else n - n_own, 0)
        return counts_from_sums(sums, p, h, n_victims)
    counts = counts_from_values(evidence, sums, p, h)
    if whole:
        return Counts(counts.n0 + sums.own_n0, counts.n1 + sums.own_n1, counts.residual)
    return counts


def _without_trees(evidence: Evidence, own: Table, whole: bool) -> tuple[int, int]:
    """Return class counts from the declared N and the base score alone."""
    total = 0 if evidence.n_rows is None else evidence.n_rows - (0 if whole else len(own))
    p = 1.0 / (1.0 + np.exp(-float(evidence.base_margin)))
    if p == 0.5 and len(own):
        p = float(own.y.mean())
    n0, n1 = share_out(np.array([1 - p, p]), max(total, 0))
    return int(n0), int(n1)


def _reads_bins(evidence: Evidence, options: Options) -> bool:
    """Tell whether exact histograms can be read bin by bin."""
    if evidence.level != "histograms" or options.random_leaf or evidence.constant_hessian:
        return False
    worst = max((max(n.cell_g, n.cell_h) for n in evidence.noise or ()), default=0.0)
    return worst <= NOISE_FLOOR


def _follow_chains(
    evidence: Evidence,
    sums: list[LeafSums],
    grid: Grid,
    prior: Prior,
    counts: Counts,
    schema: Schema,
    options: Options,
    rng: np.random.Generator,
) -> tuple[Table, dict[str, float]]:
    """Follow the rows through the trees, once per chain, and merge the chains."""
    tables, notes = [], {}
    wanted = options.chains or chains_for(int((counts.n0 + counts.n1).sum()))
    for _ in range(wanted):
        boxes = boxes_after_first_tree(evidence, grid, counts)
        block = boxes.history.copy()
        follow(evidence, sums, grid, prior, boxes, options, rng)
        tables.append(points(options.points, boxes, grid, prior, schema, rng))
    if boxes.residual:
        notes = {
            "residual_second_tree": boxes.residual[0],
            "residual_last_tree": boxes.residual[-1],
        }
    return merge(tables, block, tolerances(prior, schema)), notes
