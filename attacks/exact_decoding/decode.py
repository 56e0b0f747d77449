"""Solve leaves tree by tree, from the evidence of a view to certified counts and boxes of rows.

After each new tree, the decoder tries all open leaves, the most certain ones first. A solved leaf
excludes paths of its rows, which makes other leaves of the same and of earlier trees easier.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.leaf_sums import Counts, victim_sums
from fedtrees.attacks.exact_decoding.integer_sums import exact_sums, first_counts
from fedtrees.attacks.exact_decoding.leaf_subset_sum import Candidates, find_contents
from fedtrees.attacks.exact_decoding.path_hypotheses import (
    PathHypotheses,
    fit_labels,
    fit_sums,
    grow,
)
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.reconstruction.context import ReconstructionContext
from fedtrees.core.claims import LeafCounts
from fedtrees.core.schema import Schema, Table

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

# Probabilities are kept at this distance from 0 and 1, because probabilities from maximum entropy
# are overconfident if few rows remain. Each leaf is tried with the first, then with the second.
LEAST = (1e-3, 0.05)
SPARE_BITS = 6  # bits by which a list is longer than half of the entropy
FIRST_BITS = 14  # length of the lists that are tried first
BEYOND = 8.0  # bits by which the estimated entropy may exceed the length of both lists
FEW_BITS = 16.0  # leaves with more entropy are tried only if no other leaf was solved
MOST_PIECES = 12  # pieces per row, beyond which the paths multiply faster than leaves are solved
LAG = 25  # trees after which an open leaf ends the search


class Decoder:
    """PathHypotheses of all rows, and the solved leaves.

    Attributes
    ----------
    complete_paths : PathHypotheses
        PathHypotheses after the last tree up to which every leaf is solved.
    solved : list of bool array, shape (J,)
        Solved leaves, per tree.
    count, positives : list of int64 array, shape (J,)
        Rows, and rows with label 1, in solved leaves.
    doubt : float
        Sum of the odds against the contents of all solved leaves.
    left : float
        List entries that may still be created.
    stopped : bool
        Whether this limit was reached.
    """

    def __init__(
        self,
        evidence: BoostingObservations,
        basis: ReconstructionContext,
        target: list[Longs],
        first: Counts,
        list_bits: int,
        doubt: float,
        steps: int | None = None,
    ) -> None:
        """Start after the first tree, whose counts are ``first``.

        ``target`` is the result of `exact_sums`. Other parameters are those of `decode`.
        """
        self.evidence, self.basis, self.target = evidence, basis, target
        self.list_bits, self.limit = list_bits, doubt
        self.left, self.stopped = math.inf if steps is None else steps, False
        self.paths = PathHypotheses.after_first(
            evidence.trees[0], evidence.base_margin, basis.grid, first
        )
        self.complete_paths = self.paths.copy()
        self.solved = [np.ones(len(first.n0), dtype=bool)]
        self.count, self.positives = [first.n0 + first.n1], [first.n1]
        self.doubt = 0.0
        self._failed: dict[tuple[int, int], tuple[float, int]] = {}

    def run(self) -> None:
        """Solve tree by tree until all are processed, paths multiply, or the limit is reached."""
        trees = self.evidence.trees
        rows = int(self.paths.size.sum())
        while self.paths.trees < len(trees) and rows and self._hopeful(rows) and not self.stopped:
            self._read(self.paths.trees)

    def _afford(self, steps: int) -> bool:
        """Subtract list entries from the limit. Return False if not enough are left."""
        self.stopped |= steps > self.left
        self.left -= 0 if self.stopped else steps
        return not self.stopped

    def _hopeful(self, rows: int) -> bool:
        old = self.solved[1 : max(self.paths.trees - LAG, 1)]
        return len(self.paths.slot) <= MOST_PIECES * rows and all(k.all() for k in old)

    def leaf_counts(self) -> tuple[LeafCounts, ...]:
        """Return the class counts of all solved leaves."""
        out = []
        for t, solved in enumerate(self.solved):
            if solved.any():
                n, n1 = self.count[t][solved], self.positives[t][solved]
                leaves = self.evidence.trees[t].leaves[solved]
                out.append(LeafCounts(t, leaves, np.stack([n - n1, n1], axis=1)))
        return tuple(out)

    def open_bits(self) -> Floats:
        """Return the entropy (bits) of the open leaves."""
        parts = [self.bits(t)[~solved] for t, solved in enumerate(self.solved)]
        return np.concatenate(parts)

    def _read(self, t: int) -> None:
        """Extend the paths by one tree, and solve leaves until no more can be solved."""
        grow(self.paths, self.evidence, t, self.basis)
        J = len(self.target[t])
        self.solved.append(np.zeros(J, dtype=bool))
        self.count.append(np.zeros(J, dtype=np.int64))
        self.positives.append(np.zeros(J, dtype=np.int64))
        for list_bits in sorted({min(FIRST_BITS, self.list_bits), self.list_bits}):
            while self._solve_some(list_bits) and not self.stopped:
                self._weigh()
        self.paths.merge_equal()
        if all(solved.all() for solved in self.solved):
            self.complete_paths = self.paths.copy()

    def _weigh(self) -> None:
        fit_labels(self.paths, self.solved, self.count, self.positives)
        for t, solved in enumerate(self.solved):
            if not solved.all():
                fit_sums(self.paths, t, self.basis.sums[t])

    def _solve_some(self, list_bits: int) -> int:
        """Try open leaves of all trees in order of entropy. Return the number of solved ones."""
        tasks = [
            (float(bits), t, int(j))
            for t, is_solved in enumerate(self.solved)
            if not is_solved.all()
            for j, bits in enumerate(self.bits(t))
            if not is_solved[j]
        ]
        solved = 0
        for bits, t, j in sorted(tasks):
            if bits > 2 * list_bits + BEYOND or (solved and bits > FEW_BITS):
                break
            # A leaf is tried again only if its entropy has changed, or with longer lists.
            state = (round(bits, 3), list_bits)
            if self._failed.get((t, j)) == state:
                continue
            if self.stopped:
                break
            self._failed[t, j] = state
            solved += self._solve(t, j, list_bits)
        return solved

    def bits(self, t: int) -> Floats:
        """Estimate the entropy of the contents of each leaf of a tree (bits), shape (J,).

        The entropy of a binomial count is approximated by that of a normal distribution.
        """
        paths, J = self.paths, len(self.solved[t])
        margins, look = np.unique(paths.margin[:, t], return_inverse=True)
        key = (paths.slot * len(margins) + look.reshape(-1)) * J + paths.leaf[:, t]
        pair, part = np.unique(key, return_inverse=True)
        n = paths.size[pair // (J * len(margins))]
        q = np.clip(np.bincount(part.reshape(-1), paths.weight) / n, 0, 1)
        bits = np.bincount(pair % J, 0.5 * np.log2(1 + 12 * n * q * (1 - q)), J)
        return np.asarray(bits, dtype=np.float64)

    def _solve(self, t: int, j: int, list_bits: int) -> bool:
        """Try to solve one leaf. Return whether the odds against its contents are small enough.

        The odds are multiplied by the number of tries per leaf, as in a Bonferroni correction.
        """
        target = self.target[t][j]
        candidates = Candidates.of(self.paths, t, j)
        for least in LEAST if len(candidates.slot) else ():
            choices, ways = candidates.choices(least)
            half = choices.bits().sum() / 2 + SPARE_BITS
            length = int(np.clip(half, 8, list_bits))
            if not self._afford(1 << length):
                break
            contents = find_contents(
                choices, (int(target[0]), int(target[1])), candidates.rounding, length
            )
            if contents is None or len(LEAST) * contents.doubt > self.limit:
                continue
            inside = candidates.inside(ways, contents.way)
            self.paths.confine(t, j, candidates.look, inside)
            self.solved[t][j] = True
            self.count[t][j] = sum(part.rows for part in inside)
            self.positives[t][j] = contents.positives
            self.doubt += len(LEAST) * contents.doubt
            return True
        return False


@dataclass(frozen=True, eq=False)
class Decoded:
    """Certain facts about the rows.

    Attributes
    ----------
    leaf_counts : tuple of LeafCounts
        Class counts of solved leaves.
    paths : PathHypotheses or None
        Rows after the last tree up to which every leaf is solved. None if the search did not run.
    notes : mapping of str to float
        Diagnostics. ``trees_certified`` is the number of trees with all leaves solved, and
        ``trees_followed`` the number of first trees without an open leaf. ``leaves_certified``,
        ``leaves_open`` and ``least_open_bits`` describe the leaves of the ``trees_read`` processed
        trees. ``rows_followed`` is the number of victims whose margin after these trees is certain.
        ``false_expected`` is the sum of the odds against all certified leaves. ``stopped_early`` is
        1 if the search reached its limit.
    """

    leaf_counts: tuple[LeafCounts, ...] = ()
    paths: PathHypotheses | None = None
    notes: Mapping[str, float] = field(default_factory=lambda: {"trees_certified": 0.0})


def count_by_hessians(evidence: BoostingObservations, local_rows: Table, doubt: float) -> Decoded:
    """Count the victims' rows in the leaves of all trees by their hessians, which are 1.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees with numeric targets.
    local_rows : Table
        Local data of the adversary, subtracted from the sums.
    doubt : float
        A leaf stays open if declared noise changes its rounded count with a probability above this
        bound (Chebyshev's inequality).

    Returns
    -------
    Decoded
        Without counts of trees whose sums are not visible, or if small bins are suppressed.
    """
    leaf_counts, open_leaves = [], 0
    for t, sums in enumerate(victim_sums(evidence, local_rows, len(evidence.trees))):
        if sums.h is None or evidence.distortion.hides_small_bins:
            continue
        sure = 4 * sums.var_h <= doubt
        n = np.maximum(np.rint(sums.h[sure]), 0).astype(np.int64)
        leaf_counts.append(LeafCounts(t, evidence.trees[t].leaves[sure], n[:, None]))
        open_leaves += int((~sure).sum())
    certified = sum(len(c.leaf) for c in leaf_counts)
    n_complete = sum(len(c.leaf) == len(evidence.trees[c.tree].leaves) for c in leaf_counts)
    notes = {
        "trees_certified": n_complete,
        "leaves_certified": certified,
        "leaves_open": open_leaves,
    }
    return Decoded(tuple(leaf_counts), None, {k: float(v) for k, v in notes.items()})


def decode(
    evidence: BoostingObservations,
    adversary_rows: Table | None,
    schema: Schema,
    list_bits: int,
    doubt: float,
    basis: ReconstructionContext | None = None,
    steps: int | None = None,
) -> Decoded:
    """Follow the victims' rows through the trees as far as exact sums determine their leaves.

    If rounds use samples of the rows, only the first round is decoded. Its counts refer to the rows
    that it was grown on.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees with exact sums, of two classes.
    adversary_rows : Table or None
        Local data of the adversary, subtracted from the sums that contain it.
    schema : Schema
        Types of the columns.
    list_bits : int
        Size of the lists, see `fedtrees.attacks.exact_decoding.leaf_subset_sum.find_contents`.
    doubt : float
        Largest odds against the contents of a leaf that counts as solved.
    basis : ReconstructionContext or None
        Prior and sums on the grid. None: computed from the evidence.
    steps : int or None
        Limit on the list entries, None for no limit.

    Returns
    -------
    Decoded
        Empty if the sums are not visible or not exact.
    """
    local_rows = Table.empty(schema) if adversary_rows is None else adversary_rows
    if evidence.share < 1:
        evidence, basis = evidence.rounds(1), None
    if not evidence.trees:
        return Decoded()
    basis = ReconstructionContext.of(evidence, local_rows, schema) if basis is None else basis
    target = exact_sums(evidence, local_rows)
    if target is None:
        return Decoded()
    first = first_counts(target[0], evidence.base_margin)
    if first is None:
        return Decoded()
    decoder = Decoder(evidence, basis, target, first, list_bits, doubt, steps)
    decoder.run()
    open_bits = decoder.open_bits()
    notes = {
        "trees_certified": sum(bool(solved.all()) for solved in decoder.solved),
        "trees_followed": decoder.complete_paths.trees,
        "leaves_certified": sum(int(solved.sum()) for solved in decoder.solved),
        "leaves_open": len(open_bits),
        "rows_followed": decoder.paths.sure_rows(),
        "trees_read": decoder.paths.trees,
        "false_expected": decoder.doubt,
        "stopped_early": decoder.stopped,
    }
    if len(open_bits):
        notes["least_open_bits"] = open_bits.min()
    return Decoded(
        decoder.leaf_counts(), decoder.complete_paths, {k: float(v) for k, v in notes.items()}
    )
