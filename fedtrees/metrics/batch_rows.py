"""Metric `batch-rows`: reconstruction of the rows of a training batch from its gradients."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.core.columns import Measure
from fedtrees.core.guess import BatchRows, Claim
from fedtrees.core.registry import register
from fedtrees.metrics.batches import Batches
from fedtrees.metrics.metric import Case, Metric, Score


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
                return f"it claimed rows of {strange[0]!r}, who holds none"
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
            cells, pair = agreement(claim.table.X, rows.X, truth.width)
            agree.append(cells)
            # With fewer guesses than rows, unmatched rows would get the confidence of guess 0.
            if claim.confidence is not None and len(claim.table) >= len(rows):
                cell_confidence = claim.confidence[pair]
                certain_cells.append(cells[cell_confidence >= np.median(cell_confidence)])
        blind: dict[str, list[NDArray[np.bool_]]] = {}
        for claim in claims:
            for name, guess in truth.blind(claim).items():
                cells, _ = agreement(guess.X, truth.rows(claim).X, truth.width)
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


def agreement(
    guess: NDArray[np.float32], truth: NDArray[np.float32], width: NDArray[np.float64]
) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """Match guessed with true rows so that as many cells as possible agree.

    Parameters
    ----------
    guess : float array, shape (m, d)
        Guessed rows. Only the first n are used.
    truth : float array, shape (n, d)
        True rows.
    width : float64 array, shape (d,)
        Largest accepted difference per feature.

    Returns
    -------
    cells : bool array, shape (n, d)
        Which cells of every true row agree. All are False in an unmatched row.
    pair : intp array, shape (n,)
        Guessed row of every true row, 0 for an unmatched row.
    """
    guess = guess[: len(truth)]
    a, b = truth[:, None].astype(np.float64), guess[None].astype(np.float64)
    with np.errstate(invalid="ignore"):
        same = (np.abs(a - b) <= width) | (np.isnan(a) & np.isnan(b))
    rows, columns = linear_sum_assignment(-same.sum(axis=2))
    cells, pair = np.zeros(truth.shape, dtype=bool), np.zeros(len(truth), dtype=np.intp)
    cells[rows], pair[rows] = same[rows, columns], columns
    return cells, pair


def _share(
    cells: Sequence[NDArray[np.bool_]], columns: slice | NDArray[np.bool_], exact: bool = False
) -> float:
    """Return the share of correct cells in some columns, or of rows correct in all of them."""
    joined = np.concatenate([c[:, columns] for c in cells])
    return float(joined.all(axis=1).mean() if exact else joined.mean())
