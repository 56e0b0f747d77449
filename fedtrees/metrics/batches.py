"""Metrics `batch-rows` and `batch-leaves`: reconstruction of training batches from gradients.

The truth is the batches of rows that the rounds of training used. `batch-leaves` applies if a
neural network is trained on the outputs of trees. The server receives gradients of a batch and
reconstructs the rows of the batch. The network receives only the leaves of a row, so that an attack
can at best determine these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.blind_baselines.matching import match_cells
from fedtrees.blind_baselines.rows import Tolerance
from fedtrees.core.claims import BatchRows, Claim
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.results import Measure
from fedtrees.core.schema import Table
from fedtrees.metrics.metric import Case, Metric, Score

# Blind batches are enlarged in steps of this many rows, so that fewer sizes must be computed.
_BATCH_STEP = 8
# Cache of blind guesses by the local data of the first party, because they do not depend on attack
# and defense.
_blind_cache: WeakKeyDictionary[LocalData, dict[tuple[Any, ...], dict[str, Table]]] = (
    WeakKeyDictionary()
)


@dataclass(frozen=True, eq=False)
class Batches:
    """Rows of every party that the rounds of a training used."""

    case: Case

    @cached_property
    def width(self) -> NDArray[np.float64]:
        """Accepted differences per feature, float64 (d,), from all training rows of all parties."""
        everyone = Table.concat([local_data.table for local_data in self.case.local_data.values()])
        return Tolerance.of(everyone, self.case.schema).width[:-1]

    def rows(self, claim: BatchRows) -> Table:
        """Return the true rows of the claimed round and parties."""
        return Table.concat([self.case.rows_in(name, claim.round) for name in claim.owner])

    def blind(self, claim: BatchRows) -> dict[str, Table]:
        """Return blind guesses of the batch, by name. They are the same for every round.

        They have as many rows as the claim. If the batch is larger, the number is increased in
        steps of eight rows until it reaches the size of the batch.
        """
        n_claimed = len(claim.table)
        n = max(
            n_claimed + -(-(len(self.rows(claim)) - n_claimed) // _BATCH_STEP) * _BATCH_STEP,
            n_claimed,
        )
        cached = _blind_cache.setdefault(next(iter(self.case.local_data.values())), {})
        # The stream depends only on the size. Equal sizes in different rounds share one guess.
        rng = self.case.streams.child("blind", self.case.threat).rng("batch", n)
        key = (self.case.principals, n, str(rng.bit_generator.state))
        if key not in cached:
            cached[key] = self.case.blind_rows(n, rng)
        return cached[key]


@register.metric("batch-leaves")
class BatchLeavesMetric(Metric[Batches]):
    """Share of leaves in which guessed and true rows of a batch agree, over all trees.

    Guessed and true rows are matched so that as many leaves as possible agree. ``batch_leaves`` is
    the share of agreeing leaves, over all rows and trees. ``row_leaves`` is the share of true rows
    that agree with their guess in the leaves of all trees. The blind baseline is the best blind
    guess of `batch-rows`, applied to the same trees.
    """

    of: ClassVar[type[Claim]] = BatchRows
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("batch_leaves", "leaves of a batch", "share of leaves", slot="guess",
                head="leaves of a batch guessed", severity=110,
                phrase="infer {} of the leaves that a batch reaches"),
        Measure("row_leaves", "rows of a batch right in every leaf", "share of rows"),
    )  # fmt: skip

    def truth(self, case: Case) -> Batches | None:
        """Return the batches of the training.

        None if the model has no trees, the target is numeric, a party has incomplete rows, or the
        protocol does not record which rows a round used.
        """
        if not getattr(case.model, "trees", ()) or case.grown_on is None:
            return None
        complete = all(h.covers(case.schema) for h in case.local_data.values())
        return Batches(case) if case.schema.classes and complete else None

    def score(self, claims: Sequence[BatchRows], truth: Batches) -> list[Score]:
        """Score all batches, leaf by leaf."""
        apply = truth.case.model.apply
        shares: list[NDArray[np.float64]] = []
        blind: dict[str, list[NDArray[np.float64]]] = {}
        for claim in claims:
            leaves = apply(truth.rows(claim).X)
            shares.append(shared(apply(claim.table.X), leaves))
            for name, guess in truth.blind(claim).items():
                blind.setdefault(name, []).append(shared(apply(guess.X), leaves))
        # The same blind guess is used for all batches, so that the baseline is the best guess over
        # all batches and not the best one of every batch.
        lines = [np.concatenate(parts) for parts in blind.values()]
        right = np.concatenate(shares)
        return [
            Score("batch_leaves", float(right.mean()), blind=float(max(x.mean() for x in lines))),
            Score(
                "row_leaves",
                float((right == 1).mean()),
                blind=float(max((x == 1).mean() for x in lines)),
            ),
        ]


def shared(guess: NDArray[np.int32], truth: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the share of leaves in which every true row agrees with its guess, shape (n,).

    `guess`, shape (m, T), and `truth`, shape (n, T), are the leaves of the rows in T trees. Only
    the first n guesses are used. An unmatched true row has the share 0.
    """
    same = (guess[: len(truth), None] == truth).mean(axis=2)
    rows, columns = linear_sum_assignment(-same)
    out = np.zeros(len(truth))
    out[columns] = same[rows, columns]
    return out


@register.metric("batch-rows")
class BatchRowsMetric(Metric[Batches]):
    """Reconstruction accuracy of the rows of training batches (Vero et al. 2023, Eq. 7).

    Guessed rows are matched with the true rows of their batch so that as many cells as possible
    agree. Categories agree if they are equal, and numbers if they differ by at most 0.319 standard
    deviations of all training rows. Labels are not scored. ``batch_ra`` is the share of cells that
    agree, over all claimed batches, and ``batch_exact`` the share of rows that agree in all cells.
    The blind baseline is the best guess of an adversary that knows the schema and the local rows
    of the principals.
    """

    of: ClassVar[type[Claim]] = BatchRows
    main: ClassVar[tuple[str, ...]] = ("batch_ra", "batch_exact")
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("batch_ra", "reconstruction accuracy of a batch", "share of cells", slot="guess",
                short="RA of a batch", head="cells of a batch guessed", severity=100,
                phrase="guess {} of the values of a batch right"),
        Measure("batch_exact", "exact rows of a batch", "share of rows", klass="person",
                slot="rows", head="rows of a batch reconstructed", severity=90,
                phrase="reconstruct {} of the rows of a batch"),
        Measure("batch_ra_of", "reconstruction accuracy of a batch, one kind of columns",
                "share of cells", part="kind"),
        Measure("batch_ra_sure", "reconstruction accuracy of the surer half of cells",
                "share of cells"),
        Measure("batches", "batches that were scored", "batches", None, "meta"),
    )  # fmt: skip
    prominence: ClassVar[int] = 1

    def truth(self, case: Case) -> Batches | None:
        """Return the batches of the training.

        None if the target is numeric, a party has incomplete rows, or the protocol does not record
        which rows a round used.
        """
        complete = all(h.covers(case.schema) for h in case.local_data.values())
        if not case.schema.classes or not complete or case.grown_on is None:
            return None
        return Batches(case)

    def refuses(self, claims: Sequence[BatchRows], case: Case) -> str | None:
        """Refuse rows of parties without data, other columns, and batches claimed twice."""
        seen: set[tuple[int, str]] = set()
        for claim in claims:
            strange = sorted({*claim.owner} - {*case.local_data})
            if strange:
                return f"it claimed rows of {strange[0]!r}, which has none"
            if claim.table.X.shape[1] != len(case.schema.features):
                return f"it guessed {claim.table.X.shape[1]} columns"
            for key in ((claim.round, name) for name in claim.owner):
                if key in seen:
                    return f"it claimed the rows of {key[1]!r} in round {key[0]} twice"
                seen.add(key)
        return None

    def score(self, claims: Sequence[BatchRows], truth: Batches) -> list[Score]:
        """Score all cells of all claimed batches together."""
        coded = truth.case.schema.categorical
        agree, certain_cells = [], []
        for claim in claims:
            rows = truth.rows(claim)
            cells, pair = match_cells(claim.table.X, rows.X, truth.width)
            agree.append(cells)
            # With fewer guesses than rows, unmatched rows would get the confidence of guess 0.
            if claim.confidence is not None and len(claim.table) >= len(rows):
                cell_confidence = claim.confidence[pair]
                certain_cells.append(cells[cell_confidence >= np.median(cell_confidence)])
        blind: dict[str, list[NDArray[np.bool_]]] = {}
        for claim in claims:
            for name, guess in truth.blind(claim).items():
                cells, _ = match_cells(guess.X, truth.rows(claim).X, truth.width)
                blind.setdefault(name, []).append(cells)

        def line(columns: slice | NDArray[np.bool_], exact: bool = False) -> float:
            return max(_share(cells, columns, exact) for cells in blind.values())

        all_columns = slice(None)
        scores = [
            Score("batch_ra", _share(agree, all_columns), blind=line(all_columns)),
            Score("batch_exact", _share(agree, all_columns, True), blind=line(all_columns, True)),
            Score("batches", float(len(claims))),
        ]
        for name, columns in (("categorical", coded), ("continuous", ~coded)):
            if columns.any():
                scores.append(Score("batch_ra_of", _share(agree, columns), line(columns), name))
        if certain_cells:
            scores.append(Score("batch_ra_sure", float(np.concatenate(certain_cells).mean())))
        return scores


def _share(
    cells: Sequence[NDArray[np.bool_]], columns: slice | NDArray[np.bool_], exact: bool = False
) -> float:
    """Return the share of correct cells in some columns, or of rows correct in all of them."""
    joined = np.concatenate([c[:, columns] for c in cells])
    return float(joined.all(axis=1).mean() if exact else joined.mean())
