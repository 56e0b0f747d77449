"""From evidence and own rows to a guess: sequential starts, chains, consensus."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.basis import Basis
from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.boxes import (
    Boxes,
    boxes_after_first_tree,
    boxes_by_class,
    open_boxes,
    stacked,
)
from fedtrees.attacks.evidence.counts import Counts, first_gradient
from fedtrees.attacks.evidence.exhaustive import Tables, Training, likeliest, posterior
from fedtrees.attacks.evidence.fewer import share_of, with_fewer_rows
from fedtrees.attacks.evidence.leaf_posterior import most_probable_claims
from fedtrees.attacks.evidence.submission import JUDGES, Blind, Weight, own_rows_differ, submitted
from fedtrees.attacks.evidence.sums import LeafSums
from fedtrees.attacks.evidence.targets import Moments, narrowed, place_targets, with_targets
from fedtrees.attacks.evidence.values import first_counts, left_out
from fedtrees.attacks.joint.classes import Classes
from fedtrees.attacks.joint.sampler import draw_classes, sample
from fedtrees.attacks.joint.state import State
from fedtrees.attacks.joint.world import World
from fedtrees.attacks.lattice.decode import decode
from fedtrees.attacks.lattice.rows import rows_of
from fedtrees.attacks.timberstrike.numbers import reconstruct_numbers
from fedtrees.attacks.timberstrike.options import Options as TimberStrikeOptions
from fedtrees.attacks.timberstrike.points import nearest_told, points, told_rows
from fedtrees.attacks.timberstrike.reconstruct import reconstruct as timberstrike
from fedtrees.attacks.timberstrike.sequence import follow
from fedtrees.core.errors import UsageError
from fedtrees.core.guess import Guess, LeafCounts, Records
from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.consensus import matched_consensus

Ints = NDArray[np.int32]

START_TREES = 20  # the sequential start: rows go wrong in later trees more often than right
COOLING = 0.6  # share of the moves in which sigma falls
STEPS = 30  # values of sigma on the way
FEWEST_MOVES = 200  # per row: short of steps, one chain more is worth less than these
LIST_BITS, DOUBT = 18, 1e-3  # of the exact search, as `lattice` has them
HIDDEN = 0.25  # rows: a count read with a larger error is not always the nearest whole number
POINTS = 20  # draws per box where every row's box is known: their mode is guessed


@dataclass(frozen=True, kw_only=True)
class Options:
    """How long to search, and what for.

    Attributes
    ----------
    chains : int
        Independent chains, each from a sequential start of its own; their samples are merged.
    moves : int
        Proposals per victim's row and chain. A chain makes about 0.25 million per CPU second
        through 100 trees of depth 6.
    samples : int
        Samples per chain, spread over the last 40% of its moves.
    sigma_start, sigma_end : float
        Residual (in gradients) at which a leaf's sum weighs as much as the prior; falls
        geometrically over the first 60% of the moves. Declared noise adds to its square.
    classes : int
        Latent classes per label of the prior.
    base_weight : float
        Rows that a class's own-row marginal counts for (a0).
    exact : bool
        Where sums are exact, first follow the rows through the trees by solving leaves
        (`fedtrees.attacks.lattice`); chains keep to the trees that are solved, and do not run
        where all are. The class counts of solved leaves are returned, and ``trees_solved`` noted.
    max_trees : int or None
        Read at most this many trees; of clients' own trees, so many of each and all of others
        between them.
    steps : int or None
        Proposals of all chains together, and list entries of the exact search, that may be made
        (of clients' own trees: for each client); None for what the other options ask. With fewer
        there are fewer chains, and they cool faster.
    time_limit : float or None
        CPU seconds after which chains stop early, None for no limit. With a limit the guess
        depends on the machine's speed. The note ``stopped_early`` says whether either limit cut
        the search short.
    sketches : bool
        As in `fedtrees.attacks.timberstrike.options.Options`.
    """

    chains: int = 8
    moves: int = 2000
    samples: int = 10
    sigma_start: float = 2.0
    sigma_end: float = 0.2
    classes: int = 4
    base_weight: float = 10.0
    exact: bool = True
    max_trees: int | None = None
    steps: int | None = None
    time_limit: float | None = None
    sketches: bool = True

    def __post_init__(self) -> None:
        for name in ("chains", "samples", "classes"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} {getattr(self, name)} must be at least 1")
        if self.moves < 0:
            raise UsageError(f"moves {self.moves} must be at least 0")
        if not self.sigma_start >= self.sigma_end > 0:
            raise UsageError(
                f"sigma_start {self.sigma_start} must be at least sigma_end {self.sigma_end}, "
                "and both positive"
            )
        if not self.base_weight > 0:
            raise UsageError(f"base_weight {self.base_weight} must be positive")
        if self.max_trees is not None and self.max_trees < 0:
            raise UsageError(f"max_trees {self.max_trees} must be at least 0")
        if self.steps is not None and self.steps < 0:
            raise UsageError(f"steps {self.steps} must be at least 0")
        if self.time_limit is not None and not self.time_limit > 0:
            raise UsageError(f"time_limit {self.time_limit} must be positive (CPU seconds)")

    def within_steps(self, rows: int) -> Options:
        """Return the options with as many chains and moves as the steps allow for so many rows."""
        if self.steps is None or self.chains * self.moves * rows <= self.steps:
            return self
        chains = min(max(self.steps // (FEWEST_MOVES * rows), 1), self.chains)
        return replace(self, chains=chains, moves=self.steps // (chains * rows))


@dataclass(frozen=True, eq=False)
class _Known:
    """Rows after the trees whose leaves are known; chains keep to them."""

    boxes: Boxes  # Open where the first tree is foreign: then no tree is known
    block: NDArray[np.int64]  # int64 (n,): rows that nothing known tells apart share a number
    counts: tuple[LeafCounts, ...]
    solved: int  # Number of those trees
    notes: dict[str, float]
    share: float = 1.0  # of the victims' rows, these stand for all
    labels: bool = True  # Whether the labels are known, too
    # int64 (J,): of these rows, those in each leaf of the first tree, where that is known
    in_leaves: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class _Sample:
    """One state of a chain: cells of the rows, int32 (n, d), their labels and first leaves."""

    cell: Ints
    y: NDArray[np.int64]
    leaf: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class _Problem:
    """What all chains share."""

    evidence: Evidence
    schema: Schema
    options: Options
    basis: Basis
    world: World
    known: _Known


def reconstruct(
    evidence: Evidence,
    own: Table | None,
    schema: Schema,
    options: Options,
    rng: np.random.Generator,
    certain: Sequence[Counts] = (),
    told: Moments | None = None,
) -> Guess:
    """Reconstruct the victims' rows from the leaf sums or values of all trees.

    First exactly, as far as that goes (``options.exact``), then by Markov chains. Own rows are
    subtracted from every sum. They are also the prior, or the rows of `Evidence.population` if
    there are none. ``certain`` are the victims' counts in the
    first round's leaves, where what was done to sums leaves no doubt of them, and ``told`` is what
    else is known of numeric targets. Other parameters and
    the guess are those of `fedtrees.attacks.timberstrike.reconstruct`, which guesses where there is
    no tree, no split or no victim.
    """
    own = Table.empty(schema) if own is None else own
    evidence, numbers = _first(evidence, options.max_trees), evidence.targets is not None
    told = told or Moments()
    if not any(len(tree) > 1 for tree in evidence.trees):
        start = TimberStrikeOptions()
        if numbers:
            return reconstruct_numbers(evidence, own, schema, told, start, rng)
        return timberstrike(evidence, own, schema, start, rng)
    if numbers:
        evidence, own, schema = with_targets(evidence, own, schema, told)
    basis = Basis.of(evidence, own, schema)
    certain_rows = _known(evidence, own, schema, basis, options, certain)
    few, sums, _ = with_fewer_rows(evidence, basis.sums, (), certain_rows.share)
    world = World.of(few, sums, basis.grid)
    problem = _Problem(few, schema, options, replace(basis, sums=sums), world, certain_rows)
    problem = replace(problem, basis=basis.with_recipe(schema, rng, redraws_told=True))
    if certain_rows.solved == len(evidence.trees) > 1:
        records, notes = _inside_boxes(problem, rng)
        counts = certain_rows.counts
    else:
        records, counts, notes = _run_chains(problem, rng)
    if not certain:
        counts = tuple(most_probable_claims(evidence, basis.sums, len(own), counts))
    stopped = max(part.get("stopped_early", 0.0) for part in (notes, certain_rows.notes))
    notes |= certain_rows.notes | {
        "stopped_early": stopped,
        "trees_read": float(len(evidence.trees)),
        "trees_solved": float(certain_rows.solved),
    }
    guess = Guess((Records(records), *counts), notes)
    return narrowed(guess) if numbers else guess


def enumerated(trainings: Sequence[Training], max_trees: int | None) -> Guess | None:
    """Return the rows of the exact posterior, of several clients each grown alone together.

    None where there are too many tables to try.
    """
    tried, shares, read = 0, [], 0
    for training in trainings:
        schema, own_rows = training.schema, training.own
        evidence = _first(training.evidence, max_trees)
        if evidence.targets is not None or not evidence.trees:
            return None
        basis = Basis.of(evidence, own_rows, schema)
        tables = Tables.of(schema, _victims(evidence, basis, len(own_rows)), own_rows)
        if tables is None:
            return None
        with_histograms = replace(evidence, histograms=training.evidence.histograms)
        log_p = posterior(tables, replace(training, evidence=with_histograms), basis)
        tried, read = tried + len(log_p), read + len(evidence.trees)
        shares.append(tables.shares(log_p))
    rows, expected = likeliest(tables.types, shares)
    notes = {"tables_tried": float(tried), "expected_exact": expected, "trees_read": float(read)}
    return Guess((Records(rows),), notes)


def _victims(evidence: Evidence, basis: Basis, n_own: int) -> int:
    """Return how many rows are sought: told, or what the first tree's hessians add up to."""
    if evidence.n_rows is not None:
        return evidence.n_rows - n_own * evidence.own_inside
    if evidence.sizes is not None:
        return sum(evidence.sizes)
    h = basis.sums[0].h
    if h is None:
        return 0
    return round(float(h.sum()) / first_gradient(evidence)[1])


def _known(
    evidence: Evidence,
    own_rows: Table,
    schema: Schema,
    basis: Basis,
    options: Options,
    certain: Sequence[Counts],
) -> _Known:
    """Return where rows are beyond doubt: after the first tree, or further by exact sums."""
    if evidence.is_foreign(0):
        boxes = open_boxes(evidence.sizes or (0, 0), basis.grid, evidence)
        return _Known(boxes, boxes.history, (), 0, {})
    if evidence.outputs > 1:
        return _known_by_class(evidence, own_rows, basis, certain)
    numbers = evidence.targets is not None
    if numbers and basis.sums[0].h is None:  # no value says how many rows have it
        boxes = open_boxes(evidence.sizes or (0, 0), basis.grid, evidence)
        return _Known(boxes, boxes.history, (), 0, {})
    counts = certain[0] if certain else first_counts(evidence, basis.sums[0], len(own_rows), False)
    notes = {"first_tree_residual": counts.residual}
    rest = None
    share = 1.0 if evidence.share < 1 else share_of(int((counts.n0 + counts.n1).sum()))
    if evidence.share < 1:
        rest = left_out(evidence, [counts], basis.sums[0], len(own_rows), False)
    elif options.exact and share == 1 and not numbers:  # of many rows no search comes to an end
        decoded = decode(evidence, own_rows, schema, LIST_BITS, DOUBT, basis, options.steps)
        notes["stopped_early"] = decoded.notes.get("stopped_early", 0.0)
        if decoded.paths is not None:
            boxes, block = rows_of(decoded.paths, counts)
            return _Known(boxes, block, tuple(decoded.leaf_counts), decoded.paths.trees, notes)
    few, _, (of_them,) = with_fewer_rows(evidence, (), (counts,), share)
    if evidence.share == 1 and not certain and _uncertain(evidence, basis.sums[0]):
        sizes = int(of_them.n0.sum()), int(of_them.n1.sum())
        boxes = open_boxes(sizes, basis.grid, few)
        return _Known(boxes, np.zeros_like(boxes.history), (), 0, notes, share, labels=numbers)
    boxes = boxes_after_first_tree(few, basis.grid, of_them, rest)
    table = LeafCounts(0, evidence.trees[0].leaves, np.stack([counts.n0, counts.n1], axis=1))
    return _Known(boxes, boxes.history, (table,), 1, notes, share, in_leaves=of_them.n0)


def _uncertain(evidence: Evidence, sums: LeafSums) -> bool:
    """Tell whether noise hides the counts (of each class) of the first tree's leaves."""
    rows = np.sqrt(sums.var_h.max(initial=0.0)) / first_gradient(evidence)[1]
    classes = 0.0 if evidence.targets is not None else np.sqrt(sums.var_g.max(initial=0.0))
    return bool(max(rows, classes) > HIDDEN)


def _known_by_class(
    evidence: Evidence, own_rows: Table, basis: Basis, certain: Sequence[Counts]
) -> _Known:
    """Return where rows of several classes are: in the leaves of their own class's first tree."""
    first = range(evidence.outputs)
    counts = list(certain) or [
        first_counts(evidence, basis.sums[t], len(own_rows), False, t) for t in first
    ]
    share = share_of(int((counts[0].n0 + counts[0].n1).sum()))
    few, _, of_them = with_fewer_rows(evidence, (), counts, share)
    boxes = boxes_by_class(few, basis.grid, of_them)
    tables = tuple(
        LeafCounts(t, evidence.trees[t].leaves, np.stack([c.n0, c.n1], axis=1))
        for t, c in enumerate(counts)
    )
    notes = {"first_tree_residual": max(c.residual for c in counts)}
    return _Known(boxes, boxes.history, tables, 0, notes, share)


def _first(evidence: Evidence, n: int | None) -> Evidence:
    """Return the evidence of the first n trees (all) that are not foreign, without bins."""
    level = "statistics" if evidence.level == "histograms" else evidence.level
    n_trees = len(evidence.trees) - sum(evidence.foreign or ())
    return replace(evidence, level=level, histograms=None).rounds(
        n_trees if n is None else min(n, n_trees)
    )


def _run_chains(
    problem: _Problem, rng: np.random.Generator
) -> tuple[Table, tuple[LeafCounts, ...], dict[str, float]]:
    """Run the chains and merge all their samples; of counts that are not known, return medians."""
    certain_rows = problem.known
    if not len(certain_rows.block):
        return (
            _rows(problem, _Sample(certain_rows.boxes.lo, certain_rows.boxes.y), rng),
            certain_rows.counts,
            {},
        )
    options = problem.options.within_steps(len(certain_rows.block))
    deadline = np.inf if options.time_limit is None else time.process_time() + options.time_limit
    samples: list[_Sample] = []
    squares: list[float] = []
    for _ in range(options.chains):
        state, classes = _start(problem, rng)
        samples += _anneal(problem, options, state, classes, deadline, rng)
        squares.append(state.mean_square(problem.world))
        if time.process_time() > deadline:
            break
    tables = [_rows(problem, one, rng) for one in samples]
    tolerance = problem.basis.prior.tolerance(problem.schema)
    merged = matched_consensus(tables, tolerance, groups=certain_rows.block)
    records, choice = _submitted(problem, merged, tables, rng)
    notes = choice | {
        "chains_run": float(len(squares)),
        "residual_rms": float(np.sqrt(np.mean(squares))),
    }
    stopped = options != problem.options or time.process_time() > deadline
    notes["stopped_early"] = float(stopped)
    return records, certain_rows.counts or _likely_counts(problem, samples), notes


def _likely_counts(problem: _Problem, samples: Sequence[_Sample]) -> tuple[LeafCounts, ...]:
    """Return the median class counts of the first tree's leaves over samples.

    None where that tree is of others' rows, or of numbers and tells its values alone.
    """
    numbers = problem.evidence.targets is not None
    if problem.evidence.is_foreign(0) or (numbers and problem.basis.sums[0].h is None):
        return ()
    leaves = problem.evidence.trees[0].leaves
    each = [np.bincount(2 * s.leaf + s.y, minlength=2 * len(leaves)) for s in samples]
    counts = np.rint(np.median(each, axis=0) / problem.known.share).astype(np.int64)
    return (LeafCounts(0, leaves, counts.reshape(-1, 2)),)


def _inside_boxes(problem: _Problem, rng: np.random.Generator) -> tuple[Table, dict[str, float]]:
    """Return rows of known boxes: for every box the values that most draws from it agree on."""
    boxes = problem.known.boxes
    basis = problem.basis
    draws = POINTS + JUDGES
    parts = (stacked([boxes] * draws), basis.grid, basis.prior, problem.schema)
    drawn = points("auto", *parts, rng)
    tables = [drawn.take(part) for part in np.split(np.arange(len(drawn)), draws)]
    walls = np.column_stack([boxes.lo, boxes.hi, boxes.y])
    box = np.unique(walls, axis=0, return_inverse=True)[1].reshape(-1)
    rows = matched_consensus(tables[:POINTS], basis.prior.tolerance(problem.schema), groups=box)
    low, high = basis.grid.bounds(boxes.lo, boxes.hi)
    if basis.prior.told:
        records = Table(nearest_told(rows.X, low, high, basis.prior), rows.y)
    else:  # a draw from a narrow box can round to its open end
        top = np.nextafter(high, np.float32(-np.inf))
        records = Table(np.minimum(np.maximum(rows.X, low), top), rows.y)
    return _submitted(problem, records, tables, rng)


def _submitted(
    problem: _Problem, records: Table, tables: Sequence[Table], rng: np.random.Generator
) -> tuple[Table, dict[str, float]]:
    """Return what is submitted.

    If exact counts show that the rows of the prior are distributed differently from the victims',
    a guess from them gets no weight.
    """
    evidence, certain_rows, basis = problem.evidence, problem.known, problem.basis
    counts = [c.counts for c in certain_rows.counts[: evidence.outputs]]
    likely = [np.stack(s.prior_counts, axis=1) for s in basis.sums[: len(counts)]]
    strange = evidence.noise is None and own_rows_differ(counts, likely)
    weight = Weight.of(evidence, basis, len(records), certain_rows.share)
    weight = replace(weight, trust=weight.trust * _whole(problem))
    blind = Blind.of(basis, problem.schema, certain_rows.share, rng, strange=strange)
    rows, notes = submitted(records, tables, blind, weight, rng)
    return told_rows(rows, basis.prior), notes


def _whole(problem: _Problem) -> float:
    """Return the share of own rows that miss nothing: others' kind is followed as if it had all."""
    own_values = problem.basis.prior.own.X
    return float((~np.isnan(own_values).any(axis=1)).mean()) if len(own_values) else 1.0


def _start(problem: _Problem, rng: np.random.Generator) -> tuple[State, Classes]:
    """Follow the rows through the first trees, as TimberStrike does, and put them on the grid."""
    known_boxes, start = problem.known.boxes, _first(problem.evidence, START_TREES)
    grid, prior, sums = problem.basis.grid, problem.basis.prior, problem.basis.sums
    boxes = known_boxes.copy()
    if start.targets is not None:
        place_targets(boxes, start, sums[0], problem.known.in_leaves)
    follow(
        start, sums[: len(start.trees)], grid, prior, boxes,
        TimberStrikeOptions(), rng, problem.known.solved,
    )  # fmt: skip
    table = points("auto", boxes, grid, prior, problem.schema, rng)
    cell = np.clip(grid.cells(table.X), boxes.lo, boxes.hi - 1)
    state = State.of(
        problem.world, cell, (known_boxes.lo, known_boxes.hi), known_boxes.y,
        prior.own_cells, prior.own.y,
        known_boxes.codes, _inside(problem, boxes, rng), _may_be_anywhere(known_boxes),
    )  # fmt: skip
    classes = Classes.of(prior, problem.options.classes, problem.options.base_weight)
    draw_classes(state, classes, _seed(rng))
    return state, classes


def _may_be_anywhere(boxes: Boxes) -> NDArray[np.bool_] | None:
    return None if boxes.share is None else boxes.share > 0


def _inside(problem: _Problem, boxes: Boxes, rng: np.random.Generator) -> NDArray[np.bool_] | None:
    """Return in which trees each row is, bool (n, T): as it was followed, else by chance."""
    if boxes.share is None:
        return None
    T = len(problem.evidence.trees)
    inside: NDArray[np.bool_] = rng.random((len(boxes.y), T)) < boxes.share[:, None]
    grown = [t for t in range(T) if not problem.evidence.is_foreign(t)]
    for t, in_tree in zip(grown, boxes.inside, strict=False):
        inside[:, t] = in_tree
    return inside


def _anneal(
    problem: _Problem,
    options: Options,
    state: State,
    classes: Classes,
    deadline: float,
    rng: np.random.Generator,
) -> list[_Sample]:
    """Lower sigma step by step, then return samples at the last sigma."""
    world, targets = problem.world, problem.evidence.targets
    moves = options.moves * state.n
    # a fair coin's gradients have a standard deviation of 1/2
    unit = 1.0 if targets is None else 2 * max(targets.variance, 1e-12) ** 0.5

    def go(sigma: float, part: float) -> None:
        if time.process_time() < deadline:
            precision, labels = world.precision(sigma, unit), not problem.known.labels
            sample(world, state, classes, precision, int(part * moves), _seed(rng), labels)
            state.refresh(world)  # sums kept move by move drift by rounding

    for sigma in np.geomspace(options.sigma_start, options.sigma_end, STEPS):
        go(sigma, COOLING / STEPS)
    samples = []
    for _ in range(options.samples):
        go(options.sigma_end, (1 - COOLING) / options.samples)
        y = state.label[: state.n].astype(np.int64)
        samples.append(_Sample(state.cell[: state.n].copy(), y, state.leaf[:, 0].astype(np.int64)))
    return samples


def _rows(problem: _Problem, of: _Sample, rng: np.random.Generator) -> Table:
    """Return a row inside every row of cells, values missing as often as own rows make likely.

    A missing value goes where one of the row's cell does, so that sums do not tell them apart.
    """
    known_boxes, prior = problem.known.boxes, problem.basis.prior
    boxes = Boxes(of.cell, of.cell + 1, of.y, known_boxes.margin, known_boxes.history)
    table = points("auto", boxes, problem.basis.grid, prior, problem.schema, rng)
    odds = prior.missing[table.y]
    missing = rng.random(odds.shape) * (1 + odds) < odds
    return Table(np.where(missing, np.float32(np.nan), table.X), table.y)


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))
