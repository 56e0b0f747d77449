"""Utility scores of a model on test rows, which are used for nothing else."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError

Scores = Callable[[NDArray[Any], NDArray[Any]], dict[str, float | None]]


def scores_of(task: str) -> Scores:
    """Return the score function of a task: `regression_scores` for "number", else for classes."""
    return regression_scores if task == "number" else utility_scores


def utility_scores(y: NDArray[Any], probability: NDArray[Any]) -> dict[str, float | None]:
    """Score predicted probabilities on test rows.

    Parameters
    ----------
    y : int array, shape (n,)
        Class codes 0, 1, ...
    probability : float array, shape (n,) or (n, K)
        Probability of class 1, or of every class.

    Returns
    -------
    scores : dict of str to float or None
        ``auc`` (for K > 2 the mean over one-vs-rest classes; None if `y` lacks a class), ``f1``
        (mean over the classes that are present or predicted), ``accuracy``, and ``log_loss`` (in
        nats, with probabilities clipped at the machine epsilon).

    Raises
    ------
    DataError
        If there are no rows, the shapes differ, or a probability is NaN or outside [0, 1].
    """
    from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

    y, p = np.asarray(y), np.asarray(probability, dtype=np.float64)
    if len(y) == 0:
        raise DataError("no test rows to score the model on")
    if p.ndim == 1:
        p = np.column_stack([1 - p, p])
    if p.shape[0] != len(y):
        raise DataError(f"{len(y)} labels but probabilities of shape {np.shape(probability)}")
    if not ((p >= -1e-9) & (p <= 1 + 1e-9)).all():
        raise DataError("probabilities must lie in [0, 1]; pass probabilities, not log-odds")
    # A binary probability of exactly 0.5 predicts class 0.
    predicted = p.argmax(axis=1) if p.shape[1] > 2 else (p[:, 1] > 0.5).astype(int)
    present = np.unique(y)
    auc = None
    # The AUC is undefined for a class without rows.
    if len(present) == p.shape[1]:
        auc = float(
            roc_auc_score(y, p[:, 1])
            if p.shape[1] == 2
            else roc_auc_score(y, p, multi_class="ovr", average="macro")
        )
    chosen = np.clip(p[np.arange(len(y)), y.astype(int)], np.finfo(np.float64).eps, 1.0)
    return {
        "auc": auc,
        "f1": float(f1_score(y, predicted, average="macro", zero_division=0.0)),
        "accuracy": float(accuracy_score(y, predicted)),
        "log_loss": float(-np.log(chosen).mean()),
    }


def regression_scores(y: NDArray[Any], predicted: NDArray[Any]) -> dict[str, float | None]:
    """Return ``r2`` (None for a constant target) and ``rmse`` (in units of the target).

    `y` and `predicted` are float arrays of shape (n,). `DataError` is raised if there are no rows
    or the shapes differ.
    """
    y, predicted = np.asarray(y, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if y.shape != predicted.shape or len(y) == 0:
        raise DataError(f"targets of shape {y.shape} but predictions of shape {predicted.shape}")
    error, spread = float(((y - predicted) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
    return {"r2": 1 - error / spread if spread > 0 else None, "rmse": (error / len(y)) ** 0.5}
