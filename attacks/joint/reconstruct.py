"""Joint reconstruction from the evidence of a view: sequential start, annealing, consensus.

Every chain starts from the result of TimberStrike, lowers the tolerance of the sums step by step
(simulated annealing), and returns samples at the last tolerance. A matched consensus merges the
samples of all chains. Before that, if sums are exact, `fedtrees.attacks.exact_decoding` determines
the leaves of the rows in as many trees as possible. The chains then keep to these leaves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.leaf_posterior import most_probable_claims
from fedtrees.attacks.counts.leaf_sums import Counts, LeafSums, initial_gradient
from fedtrees.attacks.counts.leaf_values import first_counts, left_out
from fedtrees.attacks.exact_decoding.decode import decode
from fedtrees.attacks.exact_decoding.path_hypotheses import rows_of
from fedtrees.attacks.joint.log_posterior import Classes
from fedtrees.attacks.joint.posterior_problem import State, World
from fedtrees.attacks.joint.sampler import draw_classes, sample
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.reconstruction.boxes import (
    FeatureBoxes,
    boxes_after_first_tree,
    boxes_by_class,
    open_boxes,
    stack_boxes,
)
from fedtrees.attacks.reconstruction.context import ReconstructionContext, share_of, with_fewer_rows
from fedtrees.attacks.reconstruction.ensemble_vote import (
    JUDGES,
    BlindEnsemble,
    EvidenceWeight,
    own_rows_differ,
    vote_on_rows,
)
from fedtrees.attacks.reconstruction.exact_posterior import Tables, Training, likeliest, posterior
from fedtrees.attacks.reconstruction.targets import (
    Moments,
    narrow_targets,
    place_targets,
    with_targets,
)
from fedtrees.attacks.timberstrike.options import Options as TimberStrikeOptions
from fedtrees.attacks.timberstrike.reconstruct import reconstruct as timberstrike
from fedtrees.attacks.timberstrike.regression_rows import reconstruct_numbers
from fedtrees.attacks.timberstrike.sample_from_boxes import (
    nearest_known_values,
    points,
    rows_with_known_values,
)
from fedtrees.attacks.timberstrike.sequential_assignment import assign_rows_tree_by_tree
from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.core.claims import Guess, LeafCounts, Records
from fedtrees.core.errors import UsageError, check_positive, check_whole
from fedtrees.core.schema import Schema, Table

Ints = NDArray[np.int32]

START_TREES = 20  # trees of the sequential start, which assigns most rows wrongly in later trees
COOLING = 0.6  # share of the moves during which sigma falls
STEPS = 30  # number of values of sigma during annealing
FEWEST_MOVES = 200  # per row and chain: with less, fewer chains are better than shorter ones
LIST_BITS, DOUBT = 18, 1e-3  # options of the exact search, equal to those of `lattice`
HIDDEN = 0.25  # rows: a count with a larger standard deviation cannot be rounded reliably
POINTS = 20  # draws per box if the boxes of all rows are known, of which the mode is guessed


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the joint reconstruction: length of the chains, prior, and limits.

    Attributes
    ----------
    chains : int
        Number of independent chains, each from a separate sequential start. Their samples are
        merged.
    moves : int
        Proposals per victim's row and chain. A chain makes about 0.25 million proposals per CPU
        second through 100 trees of depth 6.
    samples : int
        Samples per chain, spread over the last 40% of its moves.
    sigma_start, sigma_end : float
        Standard deviation that is allowed for the sum of a leaf, in units of the gradient. It falls
        geometrically over the first 60% of the moves. The declared variance of noise is added to
        its square.
    classes : int
        Number of latent classes per label in the prior.
    base_weight : float
        Weight of the marginal of local rows in a latent class, in rows (a0).
    exact : bool
        If sums are exact, first determine the leaves of the rows by an exact search
        (`fedtrees.attacks.exact_decoding`). Chains keep to the trees that are solved, and do not
        run if all are. The class counts of solved leaves are claimed, and the diagnostic
        ``trees_solved`` is their number of trees.
    max_trees : int or None
        Number of trees to use at most. If clients share local trees, this many of each victim, and
        all trees of other clients between them.
    steps : int or None
        Limit on the proposals of all chains together, and on the list entries of the exact search
        (per client if clients share local trees). None: no limit. With a lower limit there are
        fewer chains, and they cool faster.
    time_limit : float or None
        CPU seconds after which chains stop, None for no limit. With a limit the guess depends on
        the speed of the machine. The diagnostic ``stopped_early`` is 1 if either limit shortened
        the search.
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
        least = {"chains": 1, "samples": 1, "classes": 1, "moves": 0, "max_trees": 0, "steps": 0}
        for name, smallest in least.items():
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), smallest)
        if not self.sigma_start >= self.sigma_end > 0:
            raise UsageError(
                f"sigma_start {self.sigma_start} must be at least sigma_end {self.sigma_end}, "
                "and both positive"
            )
        check_positive("base_weight", self.base_weight)
        if self.time_limit is not None:
            check_positive("time_limit", self.time_limit)

    def within_steps(self, rows: int) -> Options:
        """Return options whose chains and moves respect `steps` for the given number of rows.

        Examples
        --------
        >>> few = Options(steps=100_000).within_steps(100)
        >>> few.chains, few.moves
        (5, 200)
        """
        if self.steps is None or self.chains * self.moves * rows <= self.steps:
            return self
        chains = min(max(self.steps // (FEWEST_MOVES * rows), 1), self.chains)
        return replace(self, chains=chains, moves=self.steps // (chains * rows))


@dataclass(frozen=True, eq=False)
class _Constraints:
    """Constraints on the rows that are certain before the chains start.

    Attributes
    ----------
    boxes : FeatureBoxes
        Boxes after the solved trees. Unconstrained if no tree is solved.
    block : int64 array, shape (n,)
        Rows that these constraints do not distinguish have the same number.
    counts : tuple of LeafCounts
        Class counts of the leaves of solved trees.
    solved : int
        Number of first trees in which the leaf of every row is certain.
    notes : dict of str to float
        Diagnostics of the attack.
    share : float
        Share of the victims' rows that is reconstructed (below 1 for large tables).
    labels : bool
        Whether the labels are certain.
    in_leaves : int64 array, shape (J,), or None
        Number of rows in each leaf of the first tree, None if it is uncertain.
    """

    boxes: FeatureBoxes
    block: NDArray[np.int64]
    counts: tuple[LeafCounts, ...]
    solved: int
    notes: dict[str, float]
    share: float = 1.0
    labels: bool = True
    in_leaves: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class _Sample:
    """One state of a chain: cells of the rows, int32 (n, d), their labels and first leaves."""

    cell: Ints
    y: NDArray[np.int64]
    leaf: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class _Problem:
    """Data that all chains share."""

    evidence: BoostingObservations
    schema: Schema
    options: Options
    basis: ReconstructionContext
    world: World
    constraints: _Constraints


def reconstruct(
    evidence: BoostingObservations,
    adversary_rows: Table | None,
    schema: Schema,
    options: Options,
    rng: np.random.Generator,
    certain: Sequence[Counts] = (),
    announced_moments: Moments | None = None,
) -> Guess:
    """Reconstruct the victims' rows from the leaf sums or values of all trees.

    An exact search determines the leaves of as many trees as possible (``options.exact``). Markov
    chains do the rest. If no tree has a split, TimberStrike makes the guess.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees and statistics from the view. Histograms are not used.
    adversary_rows : Table or None
        Local training rows of the adversary. They are subtracted from every sum, and are the prior.
        If there are none, the rows of `BoostingObservations.population` are the prior.
    schema : Schema
        Types of the columns.
    options : Options
        Options of the search.
    rng : numpy.random.Generator
        The only source of randomness.
    certain : sequence of Counts
        Victims' counts in the leaves of the first round, if they can be recovered in spite of noise
        or rounding. Empty: they are computed from the sums.
    announced_moments : Moments or None
        Mean and standard deviation of numeric targets, as far as messages announce them.

    Returns
    -------
    guess : Guess
        `Records` and `LeafCounts` of the victims, with diagnostics.
    """
    local_rows = Table.empty(schema) if adversary_rows is None else adversary_rows
    evidence, numbers = _first(evidence, options.max_trees), evidence.targets is not None
    moments = announced_moments or Moments()
    if not any(len(tree) > 1 for tree in evidence.trees):
        start = TimberStrikeOptions()
        if numbers:
            return reconstruct_numbers(evidence, local_rows, schema, moments, start, rng)
        return timberstrike(evidence, local_rows, schema, start, rng)
    if numbers:
        evidence, local_rows, schema = with_targets(evidence, local_rows, schema, moments)
    basis = ReconstructionContext.of(evidence, local_rows, schema)
    certain_rows = _certain_constraints(evidence, local_rows, schema, basis, options, certain)
    few, sums, _ = with_fewer_rows(evidence, basis.sums, (), certain_rows.share)
    world = World.of(few, sums, basis.grid)
    problem = _Problem(few, schema, options, replace(basis, sums=sums), world, certain_rows)
    problem = replace(problem, basis=basis.with_recipe(schema, rng, redraws_sketches=True))
    if certain_rows.solved == len(evidence.trees) > 1:
        records, notes = _inside_boxes(problem, rng)
        counts = certain_rows.counts
    else:
        records, counts, notes = _run_chains(problem, rng)
    if not certain:
        counts = tuple(most_probable_claims(evidence, basis.sums, len(local_rows), counts))
    stopped = max(part.get("stopped_early", 0.0) for part in (notes, certain_rows.notes))
    notes |= certain_rows.notes | {
        "stopped_early": stopped,
        "trees_read": float(len(evidence.trees)),
        "trees_solved": float(certain_rows.solved),
    }
    guess = Guess((Records(records), *counts), notes)
    return narrow_targets(guess) if numbers else guess


def enumerate_tables(trainings: Sequence[Training], max_trees: int | None) -> Guess | None:
    """Return the rows that are most probable under the exact posterior over all possible tables.

    Parameters
    ----------
    trainings : sequence of Training
        Evidence about the rows of each client, or of all clients together.
    max_trees : int or None
        Number of trees to use at most.

    Returns
    -------
    Guess or None
        None if there are too many possible tables, no trees, or numeric targets.
    """
    tried, shares, n_trees_read = 0, [], 0
    for training in trainings:
        schema, own_rows = training.schema, training.local_rows
        evidence = _first(training.evidence, max_trees)
        if evidence.targets is not None or not evidence.trees:
            return None
        basis = ReconstructionContext.of(evidence, own_rows, schema)
        tables = Tables.of(schema, _victims(evidence, basis, len(own_rows)), own_rows)
        if tables is None:
            return None
        with_histograms = evidence.change(histograms=training.evidence.observed.histograms)
        log_p = posterior(tables, replace(training, evidence=with_histograms), basis)
        tried, n_trees_read = tried + len(log_p), n_trees_read + len(evidence.trees)
        shares.append(tables.shares(log_p))
    rows, expected = likeliest(tables.types, shares)
    notes = {
        "tables_tried": float(tried),
        "expected_exact": expected,
        "trees_read": float(n_trees_read),
    }
    return Guess((Records(rows),), notes)


def _victims(evidence: BoostingObservations, basis: ReconstructionContext, n_own: int) -> int:
    """Return the number of the victims' rows.

    It is declared, or follows from the hessian sum of the first tree, or is 0 if neither is
    visible.
    """
    if evidence.row_counts.n_rows is not None:
        return evidence.row_counts.n_rows - n_own * evidence.observed.own_inside
    if evidence.row_counts.sizes is not None:
        return sum(evidence.row_counts.sizes)
    h = basis.sums[0].h
    if h is None:
        return 0
    return round(float(h.sum()) / initial_gradient(evidence)[1])


def _certain_constraints(
    evidence: BoostingObservations,
    own_rows: Table,
    schema: Schema,
    basis: ReconstructionContext,
    options: Options,
    certain: Sequence[Counts],
) -> _Constraints:
    """Return the constraints on the rows that are certain.

    These are the leaves of the first tree, or of more trees if the exact search solves them. There
    are none if the first tree is foreign or if noise hides its counts.
    """
    if evidence.is_foreign(0):
        boxes = open_boxes(evidence.row_counts.sizes or (0, 0), basis.grid, evidence)
        return _Constraints(boxes, boxes.history, (), 0, {})
    if evidence.outputs > 1:
        return _known_by_class(evidence, own_rows, basis, certain)
    numbers = evidence.targets is not None
    if numbers and basis.sums[0].h is None:  # leaf values do not determine counts
        boxes = open_boxes(evidence.row_counts.sizes or (0, 0), basis.grid, evidence)
        return _Constraints(boxes, boxes.history, (), 0, {})
    counts = certain[0] if certain else first_counts(evidence, basis.sums[0], len(own_rows), False)
    notes = {"first_tree_residual": counts.residual}
    rest = None
    share = 1.0 if evidence.share < 1 else share_of(int((counts.n0 + counts.n1).sum()))
    if evidence.share < 1:
        rest = left_out(evidence, [counts], basis.sums[0], len(own_rows), False)
    elif options.exact and share == 1 and not numbers:  # the search is too long for many rows
        decoded = decode(evidence, own_rows, schema, LIST_BITS, DOUBT, basis, options.steps)
        notes["stopped_early"] = decoded.notes.get("stopped_early", 0.0)
        if decoded.paths is not None:
            boxes, block = rows_of(decoded.paths, counts)
            return _Constraints(
                boxes, block, tuple(decoded.leaf_counts), decoded.paths.trees, notes
            )
    few, _, (of_them,) = with_fewer_rows(evidence, (), (counts,), share)
    if evidence.share == 1 and not certain and _uncertain(evidence, basis.sums[0]):
        sizes = int(of_them.n0.sum()), int(of_them.n1.sum())
        boxes = open_boxes(sizes, basis.grid, few)
        return _Constraints(
            boxes, np.zeros_like(boxes.history), (), 0, notes, share, labels=numbers
        )
    boxes = boxes_after_first_tree(few, basis.grid, of_them, rest)
    table = LeafCounts(0, evidence.trees[0].leaves, np.stack([counts.n0, counts.n1], axis=1))
    return _Constraints(boxes, boxes.history, (table,), 1, notes, share, in_leaves=of_them.n0)


def _uncertain(evidence: BoostingObservations, sums: LeafSums) -> bool:
    """Return whether noise hides the class counts of the leaves of the first tree."""
    rows = np.sqrt(sums.var_h.max(initial=0.0)) / initial_gradient(evidence)[1]
    classes = 0.0 if evidence.targets is not None else np.sqrt(sums.var_g.max(initial=0.0))
    return bool(max(rows, classes) > HIDDEN)


def _known_by_class(
    evidence: BoostingObservations,
    own_rows: Table,
    basis: ReconstructionContext,
    certain: Sequence[Counts],
) -> _Constraints:
    """Return the constraints for more than two classes: the leaves of the first tree per class."""
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
    return _Constraints(boxes, boxes.history, tables, 0, notes, share)


def _first(evidence: BoostingObservations, n: int | None) -> BoostingObservations:
    """Return the evidence of the first n trees that are not foreign (None: all), without bins."""
    n_trees = len(evidence.trees) - sum(evidence.foreign or ())
    return evidence.at_most("statistics").rounds(n_trees if n is None else min(n, n_trees))


def _run_chains(
    problem: _Problem, rng: np.random.Generator
) -> tuple[Table, tuple[LeafCounts, ...], dict[str, float]]:
    """Run the chains and merge all their samples.

    Also return the class counts of the first tree: the certain ones, or medians over the samples.
    """
    certain_rows = problem.constraints
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
    records, choice = _vote(problem, merged, tables, rng)
    notes = choice | {
        "chains_run": float(len(squares)),
        "residual_rms": float(np.sqrt(np.mean(squares))),
    }
    stopped = options != problem.options or time.process_time() > deadline
    notes["stopped_early"] = float(stopped)
    return records, certain_rows.counts or _likely_counts(problem, samples), notes


def _likely_counts(problem: _Problem, samples: Sequence[_Sample]) -> tuple[LeafCounts, ...]:
    """Return the median class counts of the leaves of the first tree over all samples.

    Empty if the first tree is foreign, or if targets are numeric and only leaf values are visible.
    """
    numbers = problem.evidence.targets is not None
    if problem.evidence.is_foreign(0) or (numbers and problem.basis.sums[0].h is None):
        return ()
    leaves = problem.evidence.trees[0].leaves
    each = [np.bincount(2 * s.leaf + s.y, minlength=2 * len(leaves)) for s in samples]
    counts = np.rint(np.median(each, axis=0) / problem.constraints.share).astype(np.int64)
    return (LeafCounts(0, leaves, counts.reshape(-1, 2)),)


def _inside_boxes(problem: _Problem, rng: np.random.Generator) -> tuple[Table, dict[str, float]]:
    """Return rows for known boxes: for every box, the consensus of draws from it."""
    boxes = problem.constraints.boxes
    basis = problem.basis
    draws = POINTS + JUDGES
    parts = (stack_boxes([boxes] * draws), basis.grid, basis.prior, problem.schema)
    drawn = points("auto", *parts, rng)
    tables = [drawn.take(part) for part in np.split(np.arange(len(drawn)), draws)]
    walls = np.column_stack([boxes.lo, boxes.hi, boxes.y])
    box = np.unique(walls, axis=0, return_inverse=True)[1].reshape(-1)
    rows = matched_consensus(tables[:POINTS], basis.prior.tolerance(problem.schema), groups=box)
    low, high = basis.grid.bounds(boxes.lo, boxes.hi)
    if basis.prior.from_sketches:
        records = Table(nearest_known_values(rows.X, low, high, basis.prior), rows.y)
    else:  # a draw from a narrow box can be rounded to its open end
        top = np.nextafter(high, np.float32(-np.inf))
        records = Table(np.minimum(np.maximum(rows.X, low), top), rows.y)
    return _vote(problem, records, tables, rng)


def _vote(
    problem: _Problem, records: Table, tables: Sequence[Table], rng: np.random.Generator
) -> tuple[Table, dict[str, float]]:
    """Weigh the reconstruction against draws from the prior.

    If exact counts show that the rows of the prior are distributed differently from the victims',
    draws from the prior get no weight.
    """
    evidence, certain_rows, basis = problem.evidence, problem.constraints, problem.basis
    counts = [c.counts for c in certain_rows.counts[: evidence.outputs]]
    likely = [np.stack(s.prior_counts, axis=1) for s in basis.sums[: len(counts)]]
    rows_differ = evidence.distortion.noise is None and own_rows_differ(counts, likely)
    weight = EvidenceWeight.of(evidence, basis, len(records), certain_rows.share)
    weight = replace(weight, trust=weight.trust * _share_of_complete_rows(problem))
    blind = BlindEnsemble.of(
        basis, problem.schema, certain_rows.share, rng, rows_differ=rows_differ
    )
    rows, notes = vote_on_rows(records, tables, blind, weight, rng)
    return rows_with_known_values(rows, basis.prior), notes


def _share_of_complete_rows(problem: _Problem) -> float:
    """Return the share of complete rows in the prior, 1 if it is empty.

    Chains treat all rows as complete. The reconstruction is trusted in proportion to this share.
    """
    own_values = problem.basis.prior.rows.X
    return float((~np.isnan(own_values).any(axis=1)).mean()) if len(own_values) else 1.0


def _start(problem: _Problem, rng: np.random.Generator) -> tuple[State, Classes]:
    """Return the initial state of a chain: the result of TimberStrike after the first trees."""
    known_boxes, start = problem.constraints.boxes, _first(problem.evidence, START_TREES)
    grid, prior, sums = problem.basis.grid, problem.basis.prior, problem.basis.sums
    boxes = known_boxes.copy()
    if start.targets is not None:
        place_targets(boxes, start, sums[0], problem.constraints.in_leaves)
    assign_rows_tree_by_tree(
        start, sums[: len(start.trees)], grid, prior, boxes,
        TimberStrikeOptions(), rng, problem.constraints.solved,
    )  # fmt: skip
    table = points("auto", boxes, grid, prior, problem.schema, rng)
    cell = np.clip(grid.cells(table.X), boxes.lo, boxes.hi - 1)
    state = State.of(
        problem.world, cell, (known_boxes.lo, known_boxes.hi), known_boxes.y,
        prior.row_cells, prior.rows.y,
        known_boxes.codes, _inside(problem, boxes, rng), _may_be_anywhere(known_boxes),
    )  # fmt: skip
    classes = Classes.of(prior, problem.options.classes, problem.options.base_weight)
    draw_classes(state, classes, _seed(rng))
    return state, classes


def _may_be_anywhere(boxes: FeatureBoxes) -> NDArray[np.bool_] | None:
    return None if boxes.participation is None else boxes.participation > 0


def _inside(
    problem: _Problem, boxes: FeatureBoxes, rng: np.random.Generator
) -> NDArray[np.bool_] | None:
    """Return in which trees each row takes part, bool, shape (n, T), None if in all.

    For the trees of the sequential start this is its result. For later trees it is drawn at random.
    """
    if boxes.participation is None:
        return None
    T = len(problem.evidence.trees)
    inside: NDArray[np.bool_] = rng.random((len(boxes.y), T)) < boxes.participation[:, None]
    grown = [t for t in range(T) if not problem.evidence.is_foreign(t)]
    for t, in_tree in zip(grown, boxes.participants, strict=False):
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
    """Lower sigma step by step, and return samples at the last sigma."""
    world, targets = problem.world, problem.evidence.targets
    moves = options.moves * state.n
    # Gradients of a balanced binary label have a standard deviation of 1/2, in the unit 1.
    unit = 1.0 if targets is None else 2 * max(targets.variance, 1e-12) ** 0.5

    def go(sigma: float, part: float) -> None:
        if time.process_time() < deadline:
            precision, labels = world.precision(sigma, unit), not problem.constraints.labels
            sample(world, state, classes, precision, int(part * moves), _seed(rng), labels)
            state.refresh(world)  # incremental updates accumulate rounding errors

    for sigma in np.geomspace(options.sigma_start, options.sigma_end, STEPS):
        go(sigma, COOLING / STEPS)
    samples = []
    for _ in range(options.samples):
        go(options.sigma_end, (1 - COOLING) / options.samples)
        y = state.label[: state.n].astype(np.int64)
        samples.append(_Sample(state.cell[: state.n].copy(), y, state.leaf[:, 0].astype(np.int64)))
    return samples


def _rows(problem: _Problem, of: _Sample, rng: np.random.Generator) -> Table:
    """Return rows inside the cells of a sample.

    Values are missing with the odds of the prior. The chain treats a missing value like a value of
    some cell, because it takes the same path in all trees and the sums do not distinguish them.
    """
    known_boxes, prior = problem.constraints.boxes, problem.basis.prior
    boxes = FeatureBoxes(of.cell, of.cell + 1, of.y, known_boxes.margin, known_boxes.history)
    table = points("auto", boxes, problem.basis.grid, prior, problem.schema, rng)
    odds = prior.missing[table.y]
    missing = rng.random(odds.shape) * (1 + odds) < odds
    return Table(np.where(missing, np.float32(np.nan), table.X), table.y)


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))
