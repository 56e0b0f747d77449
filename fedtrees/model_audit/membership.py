"""Membership inference against a model file: does it distinguish training rows from other rows?

The auditor has the training rows and rows from the same population that were not used for training
(the reserve). The module runs the membership attacks `lira`, `rmia` and shared thresholds on the
model. It also runs the structural disclosure checks that research environments apply before a model
is released. These checks are those of `sacroml` 2.0 (Ritchie et al. 2023) and need the training
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.membership.base import shared_thresholds, together
from fedtrees.attacks.membership.references import (
    REFERENCES,
    boosted_trainer,
    forest_logits,
    lira,
    ratio_weights,
    references,
    rmia,
)
from fedtrees.core.errors import DataError
from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams
from fedtrees.metrics.membership import FEW, FEWER, AtFew, at_few, auc, blind_scores, error_of
from fedtrees.model_audit.audit import Audit
from fedtrees.model_audit.rows import Columns, read_rows
from fedtrees.model_audit.tables import check_labels
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.params import TreeParams

#: Smallest group that statistical disclosure control considers large enough to hide a person.
LEAST_ROWS = 10
_KS_LEVEL = 0.05
#: Decimals to which probabilities are compared, about the precision of float32 sums of leaves.
_ALIKE = 6


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes
    ----------
    name : str
        Name of the check.
    passed : bool or None
        None if the file does not contain the necessary information.
    value : float
        The measured figure.
    rule : str
        The condition for passing, in words.
    """

    name: str
    passed: bool | None
    value: float
    rule: str


def depth_of(tree: Tree) -> int:
    """Return the number of splits on the longest path of a tree."""
    depth = np.zeros(len(tree), dtype=np.int64)
    for node in np.flatnonzero(tree.feature >= 0):  # parents come before their children
        depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
    return int(depth.max())


def parameters_of(forest: Forest) -> int:
    """Return the number of parameters of a model: 2 per split, K - 1 per leaf and 1 per tree.

    A leaf of boosted trees has one output for any K. The definition is that of `sacroml` 2.0.
    """
    splits = sum(int((t.feature >= 0).sum()) for t in forest.trees)
    leaves = sum(len(t.leaves) for t in forest.trees)
    return 2 * splits + max(forest.objective.n_outputs - 1, 1) * leaves + len(forest.trees)


def groups_of(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the group of each row, int64, shape (n,). Rows of a group have equal probabilities."""
    _, at = np.unique(np.round(_classes(scores), _ALIKE), axis=0, return_inverse=True)
    return np.asarray(at.ravel(), dtype=np.int64)


def _classes(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one column of probabilities per class, float64, shape (n, K)."""
    return scores if scores.ndim == 2 else np.column_stack([1 - scores, scores])


def checks(
    forest: Forest, train: Table, reserve: Table, min_child_weight: float | None = None
) -> list[Check]:
    """Run the checks of a boosted model on its training rows.

    The definitions are those of `sacroml` (Ritchie et al. 2023). They group the training rows by
    equal probabilities. For multiclass models, the number of parameters follows the definition of
    `sacroml`, from which its code differs.

    Parameters
    ----------
    forest : Forest
        The model.
    train : Table
        Its n training rows.
    reserve : Table
        Rows from the same population that were not used for training.
    min_child_weight : float, optional
        Value of the training. The file does not contain it.

    Returns
    -------
    checks : list of Check
    """
    from scipy.stats import ks_2samp

    scores = forest.predict(train.X)
    at = groups_of(scores)
    size, p = np.bincount(at)[at], np.round(_classes(scores), _ALIKE)
    inside = p * size[:, None]
    free = len(train) - parameters_of(forest)
    ks = ks_2samp(losses(forest, train), losses(forest, reserve)).pvalue
    small = ((inside > 0) & (inside < LEAST_ROWS)).any(axis=1)
    return [
        Check("residual degrees of freedom", free >= LEAST_ROWS, free,
              f"rows minus parameters, {LEAST_ROWS} or more"),
        Check("smallest group of equal probabilities", bool(size.min() >= LEAST_ROWS),
              int(size.min()), f"{LEAST_ROWS} rows or more"),
        Check("rows of which a class is excluded", not (p == 0).any(),
              int((p == 0).any(axis=1).sum()), "no probability of 0"),
        Check("rows in a small group of a class", not small.any(), int(small.sum()),
              f"probability times group: 0, or {LEAST_ROWS} or more"),
        _settings(forest, min_child_weight),
        Check("losses of training and other rows", bool(ks >= _KS_LEVEL), float(ks),
              f"Kolmogorov-Smirnov p of {_KS_LEVEL} or more"),
    ]  # fmt: skip


def _settings(forest: Forest, min_child_weight: float | None) -> Check:
    """Check the training parameters against those of models that were found risky.

    The thresholds are the rules of `sacroml` for XGBoost.
    """
    trees = len(forest.trees) // forest.objective.n_outputs
    depth = max(map(depth_of, forest.trees), default=0)
    name, rule = (
        "depth, trees and min_child_weight",
        "outside of the ranges that were measured to be risky",
    )
    if depth <= 3.5 or trees <= 3.5:
        return Check(name, True, depth, rule)
    risky = 1.5 if trees <= 12.5 else 3.0 if trees <= 62.5 else 6.0
    passed = None if min_child_weight is None else min_child_weight > risky
    return Check(name, passed, depth, f"{rule}: min_child_weight above {risky:g}")


def losses(forest: Forest, table: Table) -> NDArray[np.float64]:
    """Return the log loss of every row in nats, float64, shape (n,)."""
    p = _classes(forest.predict(table.X))[np.arange(len(table)), table.y]
    return np.asarray(-np.log(np.clip(p, 1e-12, 1)), dtype=np.float64)


MOST_ROWS = 20_000  # of both files together. Each reference model is trained on half of them


@dataclass(frozen=True)
class TestResult:
    """Result of one membership test.

    Attributes
    ----------
    test : str
        Name of the test.
    auc : float
        Probability that a random training row scores higher than a random row of the reserve.
    few, fewer : AtFew
        True positive rates at false positive rates of 1% and 0.1%.
    error : float
        Standard error of ``few.tpr``.
    """

    test: str
    auc: float
    few: AtFew
    error: float
    fewer: AtFew


@dataclass(frozen=True, eq=False)
class MembershipResult:
    """Results of the checks and membership tests of one model file.

    Attributes
    ----------
    checks : tuple of Check
        Structural checks.
    tests : tuple of TestResult
        The combination of all tests first, and last a classifier of the rows that never saw the
        model.
    above : float64 array, shape (n,)
        For each training row, the share of the reserve that looks at least as much like a member.
    group : int64 array, shape (n,)
        For each training row, the number of training rows with the same predicted probabilities,
        including the row.
    """

    checks: tuple[Check, ...]
    tests: tuple[TestResult, ...]
    above: NDArray[np.float64]
    group: NDArray[np.int64]

    def to_json(self) -> dict[str, Any]:
        """Return the findings as plain JSON types, with the rows in the order of their file."""
        rows = zip(self.above.tolist(), self.group.tolist(), strict=True)
        return {
            "checks": [asdict(c) for c in self.checks],
            "tests": [asdict(t) for t in self.tests],
            "rows": [{"others_above": a, "group": g} for a, g in rows],
        }

    def lines(self) -> list[str]:
        """Return the findings as sentences."""
        lines = [f"{_MARK[c.passed]} {c.name}: {c.value:g} ({c.rule})" for c in self.checks]
        for t in self.tests:
            f = t.few
            lines.append(
                f"{t.test}: finds {f.tpr:.1%} ±{t.error:.1%} of the training rows at {f.allowed} "
                f"of {f.n_nonmembers} other rows (chance {f.null:.1%}, p {f.chance:.2g}); "
                f"{t.fewer.tpr:.1%} at {t.fewer.allowed}; AUC {t.auc:.3f}"
            )
        return lines


_MARK = {True: "ok  ", False: "FAIL", None: "?   "}


def measure_membership(
    audit: Audit, data: str, reserve: str, columns: Columns, seed: int = 0,
    min_child_weight: float | None = None,
) -> tuple[MembershipResult, Sequence[str]]:  # fmt: skip
    """Test whether a boosted classification model reveals the membership of its training rows.

    Parameters
    ----------
    audit : Audit
        Audit of the model file.
    data : str
        CSV file of the training rows.
    reserve : str
        CSV file of rows from the same population that were not used for training.
    columns : Columns
        Meaning of the columns of both files.
    seed : int
        Seed of the reference models.
    min_child_weight : float, optional
        Value of the training. The file does not contain it.

    Returns
    -------
    result : MembershipResult
    notes : sequence of str
        Notes on columns that the model does not use.

    Raises
    ------
    DataError
        If the model is not a boosted model of classes, or if a file is too large or cannot be read.
    """
    forest = audit.model.served
    if not isinstance(forest, Forest) or forest.objective.name == "reg:squarederror":
        raise DataError(f"{audit.model.path.name}: membership is for boosted models of classes")
    (training, outside), notes = read_rows(audit.model, [data, reserve], columns)
    check_labels(audit, [training])
    train, rest = training.table, outside.table
    if len(train) + len(rest) > MOST_ROWS:
        raise DataError(f"{data} and {reserve} have more than {MOST_ROWS} rows; give a part")
    rows, member = Table.concat([train, rest]), np.arange(len(train) + len(rest)) < len(train)
    params, streams = _params(audit, forest, min_child_weight), Streams(seed).child("membership")
    # The reference models of the attacks are trained on random halves of both tables together.
    trainer = boosted_trainer(params, forest.objective, None)
    refs = references(rows, None, trainer, REFERENCES, streams.rng("references"))
    logit = forest_logits(forest, rows)
    scores = {"thresholds": shared_thresholds(rows.X, forest.trees),
              "lira": lira(logit, refs), "rmia": rmia(logit, refs)}  # fmt: skip
    first, without_model = together(scores, ratio_weights(refs)), blind_scores(rows, member)
    scores = {"together": first, **scores, "rows alone": without_model}
    rng = streams.rng("errors")
    tests = tuple(
        TestResult(name, auc(s, member), at_few(s, member, FEW), error_of(s, member, FEW, rng),
                   at_few(s, member, FEWER))
        for name, s in scores.items()
    )  # fmt: skip
    # `below` counts the rows of the reserve whose score is smaller than that of a training row.
    at = groups_of(forest.predict(train.X))
    below = np.searchsorted(np.sort(first[~member]), first[member], side="left")
    done = checks(forest, train, rest, min_child_weight)
    return MembershipResult(tuple(done), tests, 1 - below / len(rest), np.bincount(at)[at]), notes


def _params(audit: Audit, forest: Forest, min_child_weight: float | None) -> TreeParams:
    """Return the likely training parameters: those that the file shows, else XGBoost's defaults."""
    s, default = audit.settings, TreeParams()
    return TreeParams(
        trees=max(len(forest.trees) // forest.objective.n_outputs, 1),
        max_depth=max(1, *map(depth_of, forest.trees)),
        learning_rate=default.learning_rate if s is None else min(s.learning_rate, 1.0),
        reg_lambda=default.reg_lambda if s is None else s.reg_lambda,
        min_child_weight=default.min_child_weight if min_child_weight is None else min_child_weight,
    )
