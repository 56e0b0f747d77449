"""Attack `leaf-inversion`: reconstruct the rows of batches from gradients of FedXGBllr.

The second phase of FedXGBllr trains a network on the outputs of all clients' trees. The adversary
sees a client's gradient of this network, and searches for rows with the same gradient. `matching`
collects the trees and the gradients from the view, makes the trees differentiable and computes the
loss, and `search` minimises the loss. `KnownRows` contains rows that the adversary
has, or that other attacks reconstructed from the trees. They are starts of the search, an
alternative guess, and values of the cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import expit

from fedtrees.attacks.gradients.attack import spread_evenly
from fedtrees.attacks.observations.applicability import no_trees
from fedtrees.attacks.timberstrike.attack import TimberStrike
from fedtrees.attacks.tree_network_inversion.matching import (
    Matching,
    SoftTrees,
    models_of,
    seen_batches,
    soft_trees,
)
from fedtrees.attacks.tree_network_inversion.search import Batch, search
from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.blind_baselines.rows import Tolerance
from fedtrees.core.attack import Attack
from fedtrees.core.claims import BatchRows, Guess, Records
from fedtrees.core.errors import check_known, check_whole
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.view import View

#: Number of draws from which a guess of known rows is combined.
_SAMPLES = 20


@dataclass(frozen=True, eq=False)
class KnownRows:
    """Local or prior rows of the adversary, and rows that were inferred from the trees.

    Attributes
    ----------
    table : Table
        The rows. It may be empty.
    schema : Schema
        Columns and declared ranges.
    """

    table: Table
    schema: Schema

    def __len__(self) -> int:
        return len(self.table)

    def draw(self, labels: NDArray[np.int64], rng: np.random.Generator) -> Table:
        """Draw rows with the given labels. A label without known rows gets any row."""
        positions = np.empty(len(labels), dtype=np.intp)
        for y in np.unique(labels):
            rows, places = np.flatnonzero(self.table.y == y), np.flatnonzero(labels == y)
            pool = rows if len(rows) else np.arange(len(self))
            positions[places] = rng.choice(pool, len(places), replace=len(pool) < len(places))
        return Table(self.table.X[positions], labels)

    def likely(self, labels: NDArray[np.int64], changed: bool, rng: np.random.Generator) -> Table:
        """Return rows with the given labels, as the consensus of several draws.

        If no defense changed the gradient, a single draw is used.
        """
        drawn = [self.draw(labels, rng) for _ in range(_SAMPLES if changed else 1)]
        return matched_consensus(drawn, Tolerance.of(self.table, self.schema).width, groups=labels)

    def values_in(self, trees: SoftTrees, cells: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return a value in the intersection of each row's leaves, float32, shape (n, d).

        It is the median of the known values in it. Without such values it is the middle of the
        interval, or the value next to the finite end if the interval is unbounded.

        Parameters
        ----------
        trees : SoftTrees
            Trees of all clients.
        cells : int32 array, shape (n, d)
            Interval of each value between adjacent thresholds.
        """
        first, last = trees.boxes(cells)
        X = np.zeros(cells.shape, dtype=np.float32)
        for f, edges in enumerate(trees.edges):
            lower_end, upper_end = (np.float32(ends[f]) for ends in self.schema.ranges)
            low = np.concatenate([[lower_end], edges])[first[:, f]]
            high = np.concatenate([edges, [upper_end]])[last[:, f]]
            open_low, open_high = first[:, f] == 0, last[:, f] == len(edges)
            values = np.sort(self.table.X[~np.isnan(self.table.X[:, f]), f])
            for i, (a, b) in enumerate(zip(low, high, strict=True)):
                start = 0 if open_low[i] else np.searchsorted(values, a)
                end = len(values) if open_high[i] else np.searchsorted(values, b)
                if start < end:
                    X[i, f] = values[(start + end) // 2]
                elif np.isfinite(a + b):
                    middle = np.float32((a + b) / 2)
                    X[i, f] = np.ceil(a) if self.schema.categorical[f] else middle
                elif np.isfinite(a):
                    X[i, f] = a
                elif np.isfinite(b):
                    X[i, f] = np.nextafter(b, np.float32(-np.inf))
        return X


#: Sources of known rows with which half of the restarts begin.
STARTS = ("trees", "own", "none")
#: Below this loss, the batch explains its gradient and no rehearsal is needed.
_EXPLAINED = 1e-3
#: A search on signs counts as successful up to this multiple of the loss of a rehearsal.
_NOISY = 2.0


@register.attack("leaf-inversion")
@dataclass(frozen=True, kw_only=True)
class LeafInversion(Attack):
    """Reconstruct the rows of a batch from a gradient of the network over the trees' outputs.

    A row enters the network as its leaf in every tree. The attack assigns one feature vector to
    each guessed row and sends it through all trees with soft splits: each split is a logistic
    function whose slope increases until it is a step. Gradient descent adapts the feature vectors
    until the gradient of the batch is the observed one. A discrete search with whitened gradients
    then improves the batch. The gradient determines the intersection of a row's leaves, which is a
    box in feature space. The number of positive labels follows from the gradient of the output
    bias.

    A single step of Adam (``sends=update,iterations=1``) retains little more than the signs of the
    gradient. The attack then matches soft signs and tries several label counts.

    If no batch explains the gradient, the attack rehearses on a batch of known rows with the same
    amount of noise. It claims known rows instead of the reconstructed ones if they scored better in
    the rehearsal.

    Parameters
    ----------
    batches : int
        Number of gradients to invert, spread evenly over the run and including the first one.
    restarts, steps : int
        Number of batches that are optimised in parallel, and steps in each of the three stages.
    max_rows : int
        Largest number of rows of a batch. Gradients of larger batches are skipped.
    starts : {"trees", "own", "none"}
        Known rows with which half of the restarts begin. ``"trees"``: local rows, and the
        reconstruction of `timberstrike` from the trees of the first phase. ``"own"``: local rows.
        ``"none"``: no rows.
    """

    claims = (BatchRows,)

    batches: int = 3
    restarts: int = 12
    steps: int = 300
    max_rows: int = 64
    starts: str = "trees"

    def __post_init__(self) -> None:
        for name in ("batches", "restarts", "steps", "max_rows"):
            check_whole(name, getattr(self, name), 1)
        check_known("starts", self.starts, STARTS)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why no suitable gradient of a network over trees was seen, None if one was."""
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
        if min(sizes) > self.max_rows:
            return Reason("batch-too-large", rows=min(sizes), most=self.max_rows)
        # Trees without splits send all rows to the same leaf.
        if (soft_trees(models, view).widths == 1).all():
            return Reason("no-tree-splits-rows")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Invert some of the observed gradients.

        Diagnostics per batch k: ``loss_k`` is the remaining loss, ``rehearsed_k`` and ``likely_k``
        are the leaf accuracies of the search and of known rows in the rehearsal.
        """
        models = models_of(view)
        if models is None:
            return Guess.none(self.inapplicable(view) or Reason("no-tree-network"))
        known_rows = self.collect_known_rows(view, rng)
        seen = [s for s in seen_batches(view) if s.rows <= self.max_rows]
        claims, notes = [], {"known_rows": float(len(known_rows)), "likely_rows": 0.0}
        for k, item in enumerate(spread_evenly(seen, self.batches)):
            matching = item.matching(models, view)
            batch = self.invert_gradient(matching, known_rows, item.rows, rng)
            notes[f"loss_{k}"] = batch.loss
            table = None
            if batch.loss > _EXPLAINED and len(known_rows) > 1:
                trial = self.rehearse(matching, known_rows, batch, rng)
                notes[f"rehearsed_{k}"], notes[f"likely_{k}"] = trial
                # Known rows scored better than the search in the rehearsal.
                if trial[1] > trial[0]:
                    table = known_rows.likely(batch.y, matching.changed, rng)
                    notes["likely_rows"] += 1
            if table is None:
                table = Table(known_rows.values_in(matching.trees, batch.cells), batch.y)
            claims.append(BatchRows(item.owner, item.round, table))
        why = self.inapplicable(view) or Reason("no-gradient")
        return Guess.of(claims, notes, otherwise=why)

    def collect_known_rows(self, view: View, rng: np.random.Generator) -> KnownRows:
        """Return the rows to start from: local or prior rows, and rows inferred from the trees."""
        prior_rows = None if self.starts == "none" else view.prior_rows
        tables = [Table.empty(view.schema)] if prior_rows is None else [prior_rows]
        if self.starts == "trees" and no_trees(view) is None:
            tables += [r.table for r in TimberStrike().run(view, rng).all(Records)]
        return KnownRows(Table.concat(tables), view.schema)

    def invert_gradient(
        self, matching: Matching, known_rows: KnownRows, rows: int, rng: np.random.Generator
    ) -> Batch:
        """Return the batch whose gradient is nearest to the observed one.

        Parameters
        ----------
        matching : Matching
            Loss of a batch.
        known_rows : KnownRows
            Rows with which every second restart begins.
        rows : int
            Number of rows in the batch.
        rng : numpy.random.Generator
            Draws initial feature vectors.
        """
        R, trees = self.restarts, matching.trees
        u = 0.3 * rng.standard_normal((R, rows, trees.d))
        Y = label_counts(matching, u[0], rows, R)
        if matching.width is not None:
            matching = replace(matching, width=sizes(matching, u, Y))
        # Every second restart begins at known rows.
        for r in range(0, R if len(known_rows) else 0, 2):
            u[r] = trees.middle(trees.cells_of(known_rows.draw(Y[r], rng).X))
        return search(matching, Y, u.astype(np.float32), self.steps, rng)

    def rehearse(
        self,
        matching: Matching,
        known_rows: KnownRows,
        inverted_batch: Batch,
        rng: np.random.Generator,
    ) -> tuple[float, float]:
        """Return the leaf accuracies of the search and of known rows, in a rehearsal on known rows.

        The rehearsed gradient gets the declared amount of noise. If none is declared, it gets as
        much noise as the search has left unexplained. It is also sparsified like the observed
        gradient. Signs get no noise. In that case, the accuracy of the search counts as 0 if its
        loss is more than twice the loss in the rehearsal.

        Parameters
        ----------
        matching : Matching
            Loss of the observed batch.
        known_rows : KnownRows
            Rows from which the rehearsed batch is drawn.
        inverted_batch : Batch
            Result of the search on the observed gradient.
        rng : numpy.random.Generator
            Draws rows and noise.
        """
        trees, shown, labels = matching.trees, matching.shown, inverted_batch.y
        batch = known_rows.draw(labels, rng)
        alternative = known_rows.likely(labels, matching.changed, rng)
        cells = trees.cells_of(batch.X)
        gradient = matching.of_cells(cells, batch.y)
        if matching.width is not None:
            gradient = gradient / (np.abs(gradient) + np.float32(1e-8))
        elif shown is not None:
            # Keep as many of the largest coordinates as the defense sent.
            least = np.sort(np.abs(gradient))[-int(shown.sum())]
            shown = np.abs(gradient) >= least
            gradient = gradient * shown
        elif matching.noise or inverted_batch.loss > 20 * _EXPLAINED:
            # Without declared noise, the unexplained part of the observed gradient is treated as
            # noise.
            residual = matching.of_cells(inverted_batch.cells, labels) - matching.target
            noise = np.float32(matching.noise or np.sqrt((residual**2).mean()))
            gradient = gradient + noise * rng.standard_normal(gradient.shape)
        rehearsal = replace(matching, target=gradient.astype(np.float32), shown=shown)
        guess = self.invert_gradient(rehearsal, known_rows, len(labels), rng)
        comparable = matching.width is None or inverted_batch.loss < _NOISY * guess.loss
        leaves = trees.leaves(cells)
        return (
            leaf_accuracy(trees.leaves(guess.cells), leaves) if comparable else 0.0,
            leaf_accuracy(trees.leaves(trees.cells_of(alternative.X)), leaves),
        )


def label_counts(
    matching: Matching, u: NDArray[np.floating], rows: int, restarts: int
) -> NDArray[np.int64]:
    """Return labels for every restart, int64, (R, B): the number of ones follows from the bias.

    The gradient of the bias is the mean of p - y. The mean of p is estimated on random rows, so
    that counts that differ by one are also tried. If only the sign of the gradient is known, all
    counts that agree with it are tried in turn.

    Parameters
    ----------
    matching : Matching
        Observed gradient and network.
    u : float array, shape (B, d)
        Coordinates of random rows.
    rows : int
        Number of rows in the batch, B.
    restarts : int
        Number of restarts, R.
    """
    V, _ = matching.trees.soft(u.astype(np.float32), 0.5)
    p = expit(matching.network.outputs(matching.weights, V) + matching.start).mean()
    if matching.width is not None:
        candidates = np.arange(rows + 1)
        consistent = candidates[(p * rows - candidates) * matching.target[-1] >= 0]
        counts = (consistent if len(consistent) else candidates)[
            np.arange(restarts) // 2 % max(len(consistent), 1)
        ]
    else:
        ones = round(float(rows * (p - matching.target[-1])))
        deviation = np.array([0, 0, 1, -1])[np.arange(restarts) // 2 % 4]
        counts = np.clip(ones + deviation, 0, rows)
    return (np.arange(rows) >= rows - counts[:, None]).astype(np.int64)


def sizes(matching: Matching, u: NDArray[np.floating], Y: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the root mean square of random batches' gradients by layer, float32, (parameters,).

    Parameters
    ----------
    matching : Matching
        The network.
    u : float array, shape (R, B, d)
        Coordinates of random rows.
    Y : int64 array, shape (R, B)
        Labels.
    """
    soft = (matching.trees.soft(batch.astype(np.float32), 0.5)[0] for batch in u)
    squares = np.mean([matching.of(V, y) ** 2 for V, y in zip(soft, Y, strict=True)], axis=0)
    for part in matching.network.split(squares):
        part[...] = np.sqrt(part.mean()) + 1e-8
    return squares.astype(np.float32)


def leaf_accuracy(guess: NDArray[np.int32], truth: NDArray[np.int32]) -> float:
    """Return the share of correct leaves, under the matching of rows that maximises it."""
    same = (guess[:, None] == truth).mean(axis=2)
    return float(same[linear_sum_assignment(-same)].mean())
