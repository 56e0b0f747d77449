"""From evidence to certified counts, and to rows' boxes.

All rows are followed from tree to tree by solving leaves, in the newest tree and in older ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.basis import Basis
from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.counts import Counts
from fedtrees.attacks.evidence.sums import victim_sums
from fedtrees.attacks.lattice.candidates import Candidates
from fedtrees.attacks.lattice.contents import find_contents
from fedtrees.attacks.lattice.exact_sums import exact_sums, first_counts
from fedtrees.attacks.lattice.paths import Paths
from fedtrees.attacks.lattice.weights import fit_labels, fit_sums, grow
from fedtrees.core.guess import LeafCounts
from fedtrees.core.schema import Schema, Table

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

# Probabilities are kept this far from 0 and 1: what maximum entropy is sure of may be wrong where
# few rows are left. A leaf is tried with the first, then with the second.
LEAST = (1e-3, 0.05)
SPARE_BITS = 6  # a list is longer than half the entropy by so many bits
FIRST_BITS = 14  # lists are kept this short while that is enough
BEYOND = 8.0  # bits that entropy may exceed both lists by, for it is estimated
FEW_BITS = 16.0  # leaves less certain than this wait for what the surer ones say
MOST_PIECES = 12  # per row: beyond, paths multiply faster than leaves are solved
LAG = 25  # trees after which a leaf that is still open stays so


class Decoder:
    """Paths of all rows, and the leaves that are solved.

    `whole`: Paths. After the last tree up to which every leaf is known.
    `known`: list of bool array, shape (J,). Leaves whose contents are known, per tree.
    `count, positives`: list of int64 array, shape (J,). Rows, and rows with label 1, of known
    leaves.
    `doubt`: Sum over known leaves of the odds that other contents explain their sums.
    `left`: float. Entries of lists that may still be made.
    `stopped`: bool. Whether they ran out.
    """

    def __init__(
        self,
        evidence: Evidence,
        basis: Basis,
        target: list[Longs],
        first: Counts,
        list_bits: int,
        doubt: float,
        steps: int | None = None,
    ) -> None:
        """Start after the first tree; ``target`` is what `exact_sums` returns."""
        self.evidence, self.basis, self.target = evidence, basis, target
        self.list_bits, self.limit = list_bits, doubt
        self.left, self.stopped = math.inf if steps is None else steps, False
        self.paths = Paths.after_first(evidence.trees[0], evidence.base_margin, basis.grid, first)
        self.whole = self.paths.copy()
        self.known = [np.ones(len(first.n0), dtype=bool)]
        self.count, self.positives = [first.n0 + first.n1], [first.n1]
        self.doubt = 0.0
        self._failed: dict[tuple[int, int], tuple[float, int]] = {}

    def run(self) -> None:
        """Read trees until paths multiply out of hand, or all are read."""
        trees = self.evidence.trees
        rows = int(self.paths.size.sum())
        while self.paths.trees < len(trees) and rows and self._hopeful(rows) and not self.stopped:
            self._read(self.paths.trees)

    def _afford(self, steps: int) -> bool:
        """Take so many steps if there are as many left."""
        self.stopped |= steps > self.left
        self.left -= 0 if self.stopped else steps
        return not self.stopped

    def _hopeful(self, rows: int) -> bool:
        old = self.known[1 : max(self.paths.trees - LAG, 1)]
        return len(self.paths.slot) <= MOST_PIECES * rows and all(k.all() for k in old)

    def leaf_counts(self) -> tuple[LeafCounts, ...]:
        """Return the class counts of all known leaves."""
        out = []
        for t, known in enumerate(self.known):
            if known.any():
                n, n1 = self.count[t][known], self.positives[t][known]
                leaves = self.evidence.trees[t].leaves[known]
                out.append(LeafCounts(t, leaves, np.stack([n - n1, n1], axis=1)))
        return tuple(out)

    def open_bits(self) -> Floats:
        """Return the entropy (bits) of the leaves still open."""
        parts = [self.bits(t)[~known] for t, known in enumerate(self.known)]
        return np.concatenate(parts)

    def _read(self, t: int) -> None:
        """Read one more tree, and solve what can be solved now."""
        grow(self.paths, self.evidence, t, self.basis)
        J = len(self.target[t])
        self.known.append(np.zeros(J, dtype=bool))
        self.count.append(np.zeros(J, dtype=np.int64))
        self.positives.append(np.zeros(J, dtype=np.int64))
        for list_bits in sorted({min(FIRST_BITS, self.list_bits), self.list_bits}):
            while self._solve_some(list_bits) and not self.stopped:
                self._weigh()
        self.paths.merge_equal()
        if all(known.all() for known in self.known):
            self.whole = self.paths.copy()

    def _weigh(self) -> None:
        fit_labels(self.paths, self.known, self.count, self.positives)
        for t, known in enumerate(self.known):
            if not known.all():
                fit_sums(self.paths, t, self.basis.sums[t])

    def _solve_some(self, list_bits: int) -> int:
        """Try open leaves of all trees, the surest first; return how many were solved."""
        tasks = [
            (float(bits), t, int(j))
            for t, known in enumerate(self.known)
            if not known.all()
            for j, bits in enumerate(self.bits(t))
            if not known[j]
        ]
        solved = 0
        for bits, t, j in sorted(tasks):
            if bits > 2 * list_bits + BEYOND or (solved and bits > FEW_BITS):
                break
            state = (round(bits, 3), list_bits)
            if self._failed.get((t, j)) == state:
                continue
            if self.stopped:
                break
            self._failed[t, j] = state
            solved += self._solve(t, j, list_bits)
        return solved

    def bits(self, t: int) -> Floats:
        """Return about how uncertain each leaf of a tree is (bits), float64, shape (J,)."""
        paths, J = self.paths, len(self.known[t])
        margins, look = np.unique(paths.margin[:, t], return_inverse=True)
        key = (paths.slot * len(margins) + look.reshape(-1)) * J + paths.leaf[:, t]
        pair, part = np.unique(key, return_inverse=True)
        n = paths.size[pair // (J * len(margins))]
        q = np.clip(np.bincount(part.reshape(-1), paths.weight) / n, 0, 1)
        return np.bincount(pair % J, 0.5 * np.log2(1 + 12 * n * q * (1 - q)), J)

    def _solve(self, t: int, j: int, list_bits: int) -> bool:
        """Solve one leaf; returns whether its contents are beyond doubt."""
        target = self.target[t][j]
        candidates = Candidates.of(self.paths, t, j)
        for least in LEAST if len(candidates.slot) else ():
            choices, ways = candidates.choices(least)
            half = choices.bits().sum() / 2 + SPARE_BITS
            length = int(np.clip(half, 8, list_bits))
            if not self._afford(1 << length):
                break
            found = find_contents(
                choices, (int(target[0]), int(target[1])), candidates.rounding, length
            )
            if found is None or len(LEAST) * found.doubt > self.limit:
                continue
            inside = candidates.inside(ways, found.way)
            self.paths.confine(t, j, candidates.look, inside)
            self.known[t][j] = True
            self.count[t][j] = sum(part.rows for part in inside)
            self.positives[t][j] = found.positives
            self.doubt += len(LEAST) * found.doubt
            return True
        return False


@dataclass(frozen=True, eq=False)
class Decoded:
    """What is certain."""

    leaf_counts: tuple[LeafCounts, ...] = ()  # Of solved leaves
    paths: Paths | None = None  # Rows after the last tree up to which every leaf is solved
    # ``trees_certified``: all leaves are; ``trees_followed``: so are those of all trees before;
    # ``leaves_certified``, ``leaves_open`` and ``least_open_bits``: of the trees read;
    # ``rows_followed``: victims whose margin after the last tree read is certain;
    # ``false_expected``: sum of the odds against the leaves certified;
    # ``stopped_early``: 1 where the search ran out of steps, else 0
    notes: Mapping[str, float] = field(default_factory=lambda: {"trees_certified": 0.0})


def counted(evidence: Evidence, own: Table, doubt: float) -> Decoded:
    """Count the victims' rows in leaves of all trees by their hessians, which are 1.

    Where declared noise may have moved a count with odds above ``doubt`` (Chebyshev), and where
    small bins are left out, a leaf stays open.
    """
    found, open_leaves = [], 0
    for t, sums in enumerate(victim_sums(evidence, own, len(evidence.trees))):
        if sums.h is None or evidence.suppressed:
            continue
        sure = 4 * sums.var_h <= doubt
        n = np.maximum(np.rint(sums.h[sure]), 0).astype(np.int64)
        found.append(LeafCounts(t, evidence.trees[t].leaves[sure], n[:, None]))
        open_leaves += int((~sure).sum())
    certified = sum(len(c.leaf) for c in found)
    whole = sum(len(c.leaf) == len(evidence.trees[c.tree].leaves) for c in found)
    notes = {"trees_certified": whole, "leaves_certified": certified, "leaves_open": open_leaves}
    return Decoded(tuple(found), None, {k: float(v) for k, v in notes.items()})


def decode(
    evidence: Evidence,
    own: Table | None,
    schema: Schema,
    list_bits: int,
    doubt: float,
    basis: Basis | None = None,
    steps: int | None = None,
) -> Decoded:
    """Follow the victims' rows through all trees as far as exact sums tell.

    Own rows are in the sums. No leaf is believed with odds above ``doubt`` against its contents;
    ``list_bits`` as of `fedtrees.attacks.lattice.contents.find_contents`. The basis is worked out
    where it is not at hand. After so many ``steps`` the search stops early. Of rounds that are
    grown on some of the rows only the first is read: its counts are of the rows it was grown on.
    """
    own = Table.empty(schema) if own is None else own
    if evidence.share < 1:
        evidence, basis = evidence.rounds(1), None
    if not evidence.trees:
        return Decoded()
    basis = Basis.of(evidence, own, schema) if basis is None else basis
    target = exact_sums(evidence, own)
    if target is None:
        return Decoded()
    first = first_counts(target[0], evidence.base_margin)
    if first is None:
        return Decoded()
    decoder = Decoder(evidence, basis, target, first, list_bits, doubt, steps)
    decoder.run()
    open_bits = decoder.open_bits()
    notes = {
        "trees_certified": sum(bool(known.all()) for known in decoder.known),
        "trees_followed": decoder.whole.trees,
        "leaves_certified": sum(int(known.sum()) for known in decoder.known),
        "leaves_open": len(open_bits),
        "rows_followed": decoder.paths.sure_rows(),
        "trees_read": decoder.paths.trees,
        "false_expected": decoder.doubt,
        "stopped_early": decoder.stopped,
    }
    if len(open_bits):
        notes["least_open_bits"] = open_bits.min()
    return Decoded(decoder.leaf_counts(), decoder.whole, {k: float(v) for k, v in notes.items()})
