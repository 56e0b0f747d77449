"""Detect tables whose labels are coded in another order than those of the training.

Text labels are coded in alphabetical order or by ``--positive``. The model may have been trained
with another coding, for example with benign as 1. The scores of an attack would then suggest that
the file reveals nothing. The totals of the classes in the model file reveal such a mistake.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.audit.audit import Audit
from fedtrees.audit.leaf_values import may_be_mean
from fedtrees.core.errors import DataError
from fedtrees.data.dataset import Dataset
from fedtrees.trees.boosted.forest import Forest


def check_labels(audit: Audit, tables: Sequence[Dataset]) -> None:
    """Reject labels that are coded in another order than the totals in the file show.

    The labels are accepted if the number of rows in the tables differs from the file's number, or
    if no other coding fits the totals better.

    Raises `DataError` with the coding that fits.
    """
    classes = tables[0].schema.classes if tables else ()
    if len(classes) < 2:
        return
    each = [np.bincount(t.table.y.astype(int), minlength=len(classes)) for t in tables]
    # Each table is also compared separately, because one of them may contain all training rows.
    for counts in (*each, np.sum(each, axis=0)):
        _check_counts(audit, classes, counts)


def _check_counts(audit: Audit, classes: Sequence[str], counts: NDArray[np.int64]) -> None:
    totals = _totals(audit, int(counts.sum()), len(classes))
    if totals is None or np.array_equal(totals, counts):
        return
    if not np.array_equal(np.sort(totals), np.sort(counts)):
        return
    name = audit.model.path.name
    shown = ", ".join(f"{n} of {c!r}" for c, n in zip(classes, counts, strict=True))
    trained = ", ".join(f"{n} rows of class {k}" for k, n in enumerate(totals))
    text = (
        f"{name} was trained on {trained}, and the tables have {shown}, coded in this order: the "
        "labels are coded in another order than those of the training, and no score would be "
        "right; "
    )
    if len(classes) == 2:
        raise DataError(f"{text}give --positive {classes[0]!r}")
    raise DataError(f"{text}give the labels as the numbers that it was trained on")


def _totals(audit: Audit, rows: int, classes: int) -> NDArray[np.int64] | None:
    """Return the number of training rows of each class, None if the file does not reveal it.

    The first trees count the rows, or the base score is the share of class 1.
    """
    if classes > 2:
        return _totals_of_classes(audit, rows, classes)
    if audit.rows.n == rows and audit.rows.n_pos is not None:
        return np.array([rows - audit.rows.n_pos, audit.rows.n_pos])
    share = audit.rows.share
    if share is None or not may_be_mean(share) or rows % share.denominator:
        return None
    positives = int(share * rows)
    return np.array([rows - positives, positives])


def _totals_of_classes(audit: Audit, rows: int, classes: int) -> NDArray[np.int64] | None:
    if not isinstance(audit.model.forest, Forest) or len(audit.trees) < classes:
        return None
    first = audit.trees[:classes]
    if any(t.output != k or not t.exact.all() or t.rows != rows for k, t in enumerate(first)):
        return None
    return np.array([int(t.n_pos.sum()) for t in first])
