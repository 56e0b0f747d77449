"""`leaf-inversion`: the rows of batches off gradients of FedXGBllr's second phase."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import expit

from fedtrees.attacks.evidence.readable import no_trees
from fedtrees.attacks.second_phase.evidence import models_of, seen_batches, soft_trees
from fedtrees.attacks.second_phase.matching import Matching
from fedtrees.attacks.second_phase.routing import SoftTrees
from fedtrees.attacks.second_phase.search import Batch, search
from fedtrees.attacks.timberstrike.attack import TimberStrike
from fedtrees.core.attack import Attack
from fedtrees.core.errors import check_known, check_whole
from fedtrees.core.guess import BatchRows, Guess, Records
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.guessing.consensus import matched_consensus
from fedtrees.guessing.tolerance import Tolerance

#: What restarts begin with.
STARTS = ("trees", "own", "none")
#: Below this loss the batch explains its gradient, and nothing is rehearsed.
_EXPLAINED = 1e-3
#: So many times the loss of a rehearsal on signs is no failure of the search: there is noise.
_NOISY = 2.0
#: Draws behind a guess of known rows.
_SAMPLES = 20


@register.attack("leaf-inversion")
@dataclass(frozen=True, kw_only=True)
class LeafInversion(Attack):
    """Rows of a batch from a gradient of the network over trees' outputs, through their leaves.

    A row enters the network as its leaf in every tree. One vector of features per guessed row is
    sent softly through all trees, each split a logistic function that becomes a step, until the
    batch's gradient is the one that was seen; then move by move, gradients whitened. What leaks
    of a row is the box that its leaves share. Labels are counted off the output's bias. Of a single
    step of Adam (``sends=update,iterations=1``) little more than the gradient's signs is left: soft
    signs are matched, and label counts tried.

    Where the gradient is not explained the attack rehearses on a batch of known rows with as much
    noise, and submits such rows in place of found ones where those fared better.

    Parameters
    ----------
    batches : int
        How many gradients to invert, spread evenly over the run, the first one among them.
    restarts, steps : int
        Guessed batches at once, and steps of each of the three stages.
    most : int
        Gradients of more rows are left alone.
    starts : {"trees", "own", "none"}
        Known rows that half of the restarts begin with: what `timberstrike` makes of the first
        phase's trees, and own ones; own ones; none.
    """

    claims = (BatchRows,)

    batches: int = 3
    restarts: int = 12
    steps: int = 300
    most: int = 64
    starts: str = "trees"

    def __post_init__(self) -> None:
        for name in ("batches", "restarts", "steps", "most"):
            check_whole(name, getattr(self, name), 1)
        check_known("starts", self.starts, STARTS)

    def inapplicable(self, view: View) -> Reason | None:
        """Return that no gradient of a network over trees was seen, or only of too many rows."""
        models = models_of(view)
        if models is None:
            return Reason("no-tree-network")
        if len(view.schema.classes) != 2:
            return Reason("needs-classes", classes=2)
        p = view.parameters
        if p["sends"] == "update" and p["iterations"] > 1:
            return Reason("several-steps", steps=p["iterations"])
        sizes = [s.rows for s in seen_batches(view)]
        if not sizes:
            return Reason("no-single-step")
        if min(sizes) > self.most:
            return Reason("batch-too-large", rows=min(sizes), most=self.most)
        if (soft_trees(models, view).widths == 1).all():
            return Reason("no-tree-splits-rows")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Invert some of the gradients."""
        models = models_of(view)
        if models is None:
            return Guess.none(self.inapplicable(view) or Reason("no-tree-network"))
        trees, known = soft_trees(models, view), self.known(view, rng)
        seen = [s for s in seen_batches(view) if s.rows <= self.most]
        chosen = np.unique(np.linspace(0, len(seen) - 1, self.batches).round().astype(int))
        claims, notes = [], {"known_rows": float(len(known)), "likely_rows": 0.0}
        for k, at in enumerate(chosen):
            item = seen[at]
            matching = item.matching(models, view)
            found = self.inverted(matching, trees, known, item.rows, rng)
            notes[f"loss_{k}"] = found.loss
            if found.loss > _EXPLAINED and len(known) > 1:
                trial = self.rehearsed(matching, trees, known, found, view, rng)
                notes[f"rehearsed_{k}"], notes[f"likely_{k}"] = trial
                if trial[1] > trial[0]:
                    rows = likely(known, found.y, matching.changed, view, rng)
                    claims.append(BatchRows(item.owner, item.round, rows))
                    notes["likely_rows"] += 1
                    continue
            table = Table(values_in(trees, found.cells, known, view), found.y)
            claims.append(BatchRows(item.owner, item.round, table))
        why = self.inapplicable(view) or Reason("no-gradient")
        return Guess.of(claims, notes, otherwise=why)

    def known(self, view: View, rng: np.random.Generator) -> Table:
        """Return rows to begin with: own ones, else the population's, and rows from the trees."""
        likely = None if self.starts == "none" else view.prior_rows
        tables = [] if likely is None else [likely]
        if self.starts == "trees" and no_trees(view) is None:
            tables += [r.table for r in TimberStrike().run(view, rng).all(Records)]
        return Table.concat(tables) if tables else Table.empty(view.schema)

    def inverted(
        self,
        matching: Matching,
        trees: SoftTrees,
        known: Table,
        rows: int,
        rng: np.random.Generator,
    ) -> Batch:
        """Return the batch whose gradient is nearest."""
        R = self.restarts
        u = 0.3 * rng.standard_normal((R, rows, trees.d))
        Y = label_counts(matching, trees, u[0], rows, R)
        if matching.width is not None:
            matching = replace(matching, width=sizes(matching, trees, u, Y))
        for r in range(0, R if len(known) else 0, 2):
            u[r] = trees.middle(trees.cells_of(picked(known, Y[r], rng).X))
        return search(matching, trees, Y, u.astype(np.float32), self.steps, rng)

    def rehearsed(
        self,
        matching: Matching,
        trees: SoftTrees,
        known: Table,
        found: Batch,
        view: View,
        rng: np.random.Generator,
    ) -> tuple[float, float]:
        """Return the leaf accuracy of found and of known rows, on a batch of known ones.

        Its gradient gets as much noise as is declared, else as the one that was seen has left
        unexplained, and as few coordinates; signs get no noise, and what was found counts for
        nothing where much more of them is left unexplained.
        """
        batch = picked(known, found.y, rng)
        other = likely(known, found.y, matching.changed, view, rng)
        leaves, shown = trees.leaves(trees.cells_of(batch.X)), matching.shown
        gradient = matching.of(trees.outputs(leaves), batch.y)
        if matching.width is not None:
            gradient = gradient / (np.abs(gradient) + np.float32(1e-8))
        elif shown is not None:
            least = np.sort(np.abs(gradient))[-int(shown.sum())]
            shown = np.abs(gradient) >= least
            gradient = gradient * shown
        elif matching.noise or found.loss > 20 * _EXPLAINED:
            off = matching.of(trees.outputs(trees.leaves(found.cells)), found.y) - matching.target
            noise = np.float32(matching.noise or np.sqrt((off**2).mean()))
            gradient = gradient + noise * rng.standard_normal(gradient.shape)
        again = replace(matching, target=gradient.astype(np.float32), shown=shown)
        guess = self.inverted(again, trees, known, len(found.y), rng)
        alike = matching.width is None or found.loss < _NOISY * guess.loss
        return (
            leaf_accuracy(trees.leaves(guess.cells), leaves) if alike else 0.0,
            leaf_accuracy(trees.leaves(trees.cells_of(other.X)), leaves),
        )


def label_counts(
    matching: Matching, trees: SoftTrees, u: NDArray[np.floating], rows: int, restarts: int
) -> NDArray[np.int64]:
    """Return labels for every restart, int64, (R, B): as many ones as the bias says, or one off.

    The bias's gradient is the mean of p - y; the mean p is that of some rows at random. Its sign
    alone says whether ones are more than that: all such counts in turn.
    """
    V, _ = trees.soft(u.astype(np.float32), 0.5)
    p = expit(matching.network.outputs(matching.weights, V) + matching.start).mean()
    if matching.width is not None:
        every = np.arange(rows + 1)
        fits = every[(p * rows - every) * matching.target[-1] >= 0]
        counts = (fits if len(fits) else every)[np.arange(restarts) // 2 % max(len(fits), 1)]
    else:
        ones = round(float(rows * (p - matching.target[-1])))
        off = np.array([0, 0, 1, -1])[np.arange(restarts) // 2 % 4]
        counts = np.clip(ones + off, 0, rows)
    return (np.arange(rows) >= rows - counts[:, None]).astype(np.int64)


def sizes(
    matching: Matching, trees: SoftTrees, u: NDArray[np.floating], Y: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the root mean square of random batches' gradients, part by part, (parameters,)."""
    soft = (trees.soft(batch.astype(np.float32), 0.5)[0] for batch in u)
    squares = np.mean([matching.of(V, y) ** 2 for V, y in zip(soft, Y, strict=True)], axis=0)
    for part in matching.network.split(squares):
        part[...] = np.sqrt(part.mean()) + 1e-8
    return squares.astype(np.float32)


def picked(known: Table, labels: NDArray[np.int64], rng: np.random.Generator) -> Table:
    """Draw known rows of such labels, of any where none has it."""
    at = np.empty(len(labels), dtype=np.intp)
    for y in np.unique(labels):
        rows, places = np.flatnonzero(known.y == y), np.flatnonzero(labels == y)
        pool = rows if len(rows) else np.arange(len(known))
        at[places] = rng.choice(pool, len(places), replace=len(pool) < len(places))
    return Table(known.X[at], labels)


def likely(
    known: Table, labels: NDArray[np.int64], changed: bool, view: View, rng: np.random.Generator
) -> Table:
    """Return known rows of such labels: what most draws agree on.

    One draw alone where no defense `changed` the gradient: there the search failed, and is trusted.
    """
    drawn = [picked(known, labels, rng) for _ in range(_SAMPLES if changed else 1)]
    return matched_consensus(drawn, Tolerance.of(known, view.schema).width, groups=labels)


def values_in(
    trees: SoftTrees, cells: NDArray[np.int32], known: Table, view: View
) -> NDArray[np.float32]:
    """Return a value in the box that all leaves of a row share, float32, shape (n, d).

    The middle one of the known values in it, else the middle of the box; where a side is open and
    no range is declared, what is just inside the other.
    """
    first, last = trees.boxes(cells)
    X = np.zeros(cells.shape, dtype=np.float32)
    for f, edges in enumerate(trees.edges):
        least, most = (np.float32(ends[f]) for ends in view.schema.ranges)
        low = np.concatenate([[least], edges])[first[:, f]]
        high = np.concatenate([edges, [most]])[last[:, f]]
        open_low, open_high = first[:, f] == 0, last[:, f] == len(edges)
        values = np.sort(known.X[~np.isnan(known.X[:, f]), f])
        for i, (a, b) in enumerate(zip(low, high, strict=True)):
            begin = 0 if open_low[i] else np.searchsorted(values, a)
            end = len(values) if open_high[i] else np.searchsorted(values, b)
            if begin < end:
                X[i, f] = values[(begin + end) // 2]
            elif np.isfinite(a + b):
                middle = np.float32((a + b) / 2)
                X[i, f] = np.ceil(a) if view.schema.categorical[f] else middle
            elif np.isfinite(a):
                X[i, f] = a
            elif np.isfinite(b):
                X[i, f] = np.nextafter(b, np.float32(-np.inf))
    return X


def leaf_accuracy(guess: NDArray[np.int32], truth: NDArray[np.int32]) -> float:
    """Return the share of leaves that agree, rows matched for the most."""
    same = (guess[:, None] == truth).mean(axis=2)
    return float(same[linear_sum_assignment(-same)].mean())
