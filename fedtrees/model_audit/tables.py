"""The tables of an audit as text, for the terminal and for the report.

Two facts are easily overlooked. Since version 3.1, XGBoost writes the names of
all categories of the training table into the model file, including categories that only one person
has. The audit lists these names. A leaf that only some categories can reach bounds the number of
rows that have the remaining categories.

The module also detects tables whose labels are coded in another order than those of the training.
Text labels are coded in alphabetical order or by ``--positive``. The model may have been trained
with another coding, for example with benign as 1. The scores of an attack would then suggest that
the file reveals nothing. The totals of the classes in the model file reveal such a mistake.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, many
from fedtrees.core.results import measure
from fedtrees.data.dataset import Dataset
from fedtrees.model_audit.attack import AttackResult
from fedtrees.model_audit.audit import Audit
from fedtrees.model_audit.exposure import SMALL, UNKNOWN, TreeExposure
from fedtrees.model_audit.leaf_value_counts import may_be_mean
from fedtrees.model_audit.model import ModelFile
from fedtrees.report.wording import number
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.forest.random_forest import ClassTree

SHOWN = 12  # number of lines of the long tables


@dataclass(frozen=True)
class ReportTable:
    """A table as text.

    `numeric` columns are aligned to the right, and `prose` columns need the most width.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    note: str = ""
    prose: frozenset[int] = frozenset()


def headline(audit: Audit) -> str:
    """Return one line with the name, the format and the size of the model."""
    model = audit.model
    trees, columns = len(audit.trees), len(model.categorical)
    return f"{model.path.name}: {model.format}, {many(trees, 'tree')}, {many(columns, 'column')}"


def settings_text(audit: Audit) -> str:
    """Return eta, lambda and their source, in words."""
    s = audit.settings
    if s is None:
        return "do not follow from the file"
    text = f"eta {s.learning_rate:g}, lambda {s.reg_lambda:g}, "
    if s.source == "inferred" and s.equations:
        return text + (
            f"inferred: {s.equations} equations between the statistics agree with them to "
            f"{s.worst:.1f} float32 roundings"
        )
    if s.source == "inferred":
        return text + "inferred where not given: no other usual choice explains every leaf"
    return text + ("stated in the file" if s.source == "file" else "as given")


def fields_table(audit: Audit) -> ReportTable:
    """Return the table of the statistics in the file."""
    lines = []
    for f in audit.fields:
        state = f"masked (all {f.value:g})" if f.value is not None else f.state
        gives = f.reveals if f.state == "present" else ""
        lines.append((f.name, state, "needed" if f.needed else "not needed", gives))
    columns = ("field", "state", "for prediction", "what it reveals")
    return ReportTable("Contents of the file", columns, tuple(lines), prose=frozenset({3}))


def trees_table(audit: Audit, limit: int = SHOWN) -> ReportTable:
    """Return the table of the trees, those with certain counts first, at most `limit` of them."""
    columns = ("tree", "source", "base score", "leaves", "rows known", "labels known", "small",
               "one label", "smallest leaf", "how")  # fmt: skip
    order = sorted(audit.trees, key=lambda t: (not t.counted.any(), t.at))
    left = len(order) - limit
    note = f"and {left} more trees; --format json has them all" if left > 0 else ""
    lines = tuple(_tree_line(audit, t) for t in order[:limit])
    numeric = frozenset(range(2, 9)) | {0}
    return ReportTable("Exposure per tree", columns, lines, numeric, note, prose=frozenset({9}))


def _tree_line(audit: Audit, t: TreeExposure) -> tuple[str, ...]:
    return (
        str(t.index),
        t.source or "",
        "" if t.base_score is None else f"{t.base_score:.4g}",
        str(len(t.leaf)),
        *(str(int(mask.sum())) for mask in (t.counted, t.exact, t.small, t.one_label)),
        "".join(_rows_text(t, j, audit.rows.total) for j in _smallest_leaf(t)),
        t.how,
    )


def _rows_text(t: TreeExposure, j: int, rows: int | None) -> str:
    if t.n[j] != UNKNOWN:
        return str(t.n[j])
    least = max(int(t.at_least[j]), 1)
    return f"{least} to {t.at_most[j]}" if rows is None or t.at_most[j] <= rows else f"≥ {least}"


def leaves_table(audit: Audit, limit: int = SHOWN) -> ReportTable:
    """Return the table of the most exposed leaves and the conditions that lead to them.

    Leaves with one label come first, because they reveal the label of every row in them.
    """
    columns = ("tree", "leaf", "rows", "positive", "who")
    lines = tuple(_leaf_line(audit, t, j) for t, j in exposed_leaves(audit, limit))
    numeric = frozenset({0, 1, 2, 3})
    return ReportTable("Most exposed leaves", columns, lines, numeric, prose=frozenset({4}))


def _leaf_line(audit: Audit, t: TreeExposure, j: int) -> tuple[str, ...]:
    persons = conditions(audit.model, t.at, int(t.leaf[j]))
    labels = str(t.n_pos[j]) if t.exact[j] else "?"
    place = t.index, audit.model.number_of(t.at, int(t.leaf[j]))
    return (*map(str, place), _rows_text(t, j, audit.rows.total), labels, persons)


def attack_table(a: AttackResult) -> ReportTable:
    """Return the table of the scores of an attack next to the blind baseline."""
    lines = []
    for s in a.scores:
        gain = "–" if s.advantage is None else number(s.advantage, 3, signed=True)
        lines.append((measure(s.metric).name, number(s.score), number(s.blind), gain))
    title = (
        f"{a.name} on {many(a.trees, 'tree')}, by {a.threat}: {many(a.known_rows, 'own row')}, "
        f"{many(a.targets, 'row')} sought"
    )
    note = "advantage: 0 is no more than guessing without the model, 1 is everything"
    if 0 < a.rebuilt < a.targets:
        were = "row was" if a.rebuilt == 1 else "rows were"
        note += (
            f"; {a.rebuilt} {were} rebuilt, and the remaining ones are guesses without the model"
        )
    columns = ("metric", "attack", "blind", "advantage")
    return ReportTable(title, columns, tuple(lines), frozenset({1, 2, 3}), note)


def conditions(model: ModelFile, at: int, leaf: int) -> str:
    """Return the conditions of a leaf in words, for example ``Glucose ≥ 166, 23 ≤ Age < 29``.

    Parameters
    ----------
    model : ModelFile
        The model.
    at : int
        Position of the tree in the forest.
    leaf : int
        Node number of the leaf.

    Returns
    -------
    text : str
        ``every row`` if the tree has no split.
    """
    tree = model.forest.trees[at]
    low: dict[int, float] = {}
    high: dict[int, float] = {}
    sets: list[str] = []
    hidden = model.hidden[at] if model.hidden else np.zeros(len(tree), dtype=bool)
    # Thresholds of one column are combined to one interval, sets of categories are listed one by
    # one.
    for node, left in path_of(tree, leaf):
        f, cut = int(tree.feature[node]), float(tree.threshold[node])
        if hidden[node]:
            sets.append(f"{model.name_of(f)} {'below' if left else 'above'} a hidden threshold")
        elif math.isnan(cut) and isinstance(tree, Tree):
            assert tree.categories is not None
            codes = np.flatnonzero(tree.categories[node]).tolist()
            chosen = [category_of(model, f, code) for code in codes[:6]]
            shown = ", ".join(chosen) + (", ..." if len(codes) > 6 else "")
            sets.append(f"{model.name_of(f)} {'not in' if left else 'in'} {{{shown}}}")
        elif left:
            high[f] = min(high.get(f, math.inf), cut)
        else:
            low[f] = max(low.get(f, -math.inf), cut)
    texts = []
    for f in dict.fromkeys([*low, *high]):
        name = model.name_of(f)
        if f in low and f in high:
            texts.append(f"{low[f]:g} ≤ {name} < {high[f]:g}")
        else:
            texts.append(f"{name} ≥ {low[f]:g}" if f in low else f"{name} < {high[f]:g}")
    return ", ".join([*texts, *sets]) or "every row"


def category_of(model: ModelFile, feature: int, code: int) -> str:
    """Return the name of a category, or its code if the file does not contain the name."""
    names = model.categories.get(feature, ())
    text = str(names[code]) if code < len(names) else str(code)
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def path_of(tree: Tree | ClassTree, leaf: int) -> Iterator[tuple[int, bool]]:
    """Yield the nodes from a leaf up to the root, with whether the path goes left there."""
    inner = np.flatnonzero(tree.feature >= 0)
    sides = ((tree.left, True), (tree.right, False))
    # A tree stores the children of a node, and the path upwards needs the parents.
    parent = {int(side[k]): (int(k), left) for side, left in sides for k in inner}
    node = leaf
    while node in parent:
        node, left = parent[node]
        yield node, left


def exposed_leaves(audit: Audit, limit: int) -> list[tuple[TreeExposure, int]]:
    """Return leaves as (tree, position): first those with one label, then those with few rows."""
    leaves = [(t, j) for t in audit.trees for j in _most_exposed(t, limit)]
    leaves.sort(
        key=lambda x: (not x[0].one_label[x[1]], x[0].at_most[x[1]], x[0].n[x[1]] == UNKNOWN)
    )
    return leaves[:limit]


def _smallest_leaf(t: TreeExposure) -> list[int]:
    """Return the position of the leaf with the smallest upper bound, empty without bounds."""
    bounded = np.flatnonzero(t.at_most != UNKNOWN)
    return [int(bounded[np.argmin(t.at_most[bounded])])] if len(bounded) else []


def _most_exposed(t: TreeExposure, limit: int) -> list[int]:
    """Return the positions of at most `limit` leaves, those with one label first, then by rows."""
    bounded = np.flatnonzero(t.at_most != UNKNOWN)
    order = np.lexsort((t.at_most[bounded], ~t.one_label[bounded]))
    return list(bounded[order][:limit].tolist())


_LISTED = 6  # number of names that one sentence lists


def names_text(model: ModelFile) -> str:
    """Return the columns with their first categories: ``city: Berlin, Köln``."""
    columns = []
    for k, names in sorted(model.categories.items()):
        shown = [category_of(model, k, code) for code in range(min(len(names), _LISTED))]
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        columns.append(f"{model.name_of(k)}: {', '.join(shown)}{more}")
    return "; ".join(columns)


def names_lines(audit: Audit) -> list[str]:
    """Return sentences on the category names in the file, and on those that few rows have."""
    model = audit.model
    if not model.categories:
        return []
    total = sum(map(len, model.categories.values()))
    lines = [
        f"The file names {many(total, 'category', 'categories')} of "
        f"{many(len(model.categories), 'column')} ({names_text(model)}). A category of a "
        "single row reveals a value of this person."
    ]
    sure = " under these conditions" if audit.assumes else ""
    rare = sorted((n, k, code) for (k, code), n in rows_by_category(audit).items() if n < SMALL)
    if rare:
        shown = [
            f"{model.name_of(k)} {category_of(model, k, code)} ({n} at most)"
            for n, k, code in rare[:_LISTED]
        ]
        more = f" and {len(rare) - _LISTED} more" if len(rare) > _LISTED else ""
        lines.append(
            f"Fewer than {SMALL} rows on which a tree was grown have "
            f"{', '.join(shown)}{more}{sure}."
        )
    return lines


def rows_by_category(audit: Audit) -> dict[tuple[int, int], int]:
    """Return an upper bound on the rows that have each named category, by column and code.

    In a tree whose leaves are all counted, the rows of a category are in the leaves that the
    category can reach, so that the sum of these leaves is a bound. The result is the smallest bound
    over these trees. It counts rows that the tree saw, which can be a part of the table. Columns on
    which no such tree splits are missing from the result.
    """
    out: dict[tuple[int, int], int] = {}
    for exposure in audit.trees:
        tree = audit.model.forest.trees[exposure.at]
        if not isinstance(tree, Tree) or not exposure.counted.all():
            continue
        for k, names in audit.model.categories.items():
            if not (tree.feature == k).any():
                continue
            # A matrix of leaves and categories. Its product with the rows per leaf is the number of
            # rows that can have each category.
            reached = np.array([_reaching(tree, leaf, k, len(names)) for leaf in exposure.leaf])
            rows = exposure.n @ reached
            for code, bound in enumerate(rows.tolist()):
                out[k, code] = min(bound, out.get((k, code), bound))
    return out


def _reaching(tree: Tree, leaf: int, column: int, width: int) -> NDArray[np.int64]:
    """Return 1 for each code of a column that can reach a leaf, else 0, int64, shape (width,)."""
    allowed = np.ones(width, dtype=bool)
    for goes_right in _sets_above(tree, leaf, column, width):
        allowed &= goes_right
    return allowed.astype(np.int64)


def _sets_above(tree: Tree, leaf: int, column: int, width: int) -> Iterator[NDArray[np.bool_]]:
    """Yield, for each split on `column` above a leaf, the codes that go towards the leaf.

    Each item has dtype bool and shape (width,).
    """
    codes = np.arange(width, dtype=np.float32)
    for node, left in path_of(tree, leaf):
        if tree.feature[node] != column:
            continue
        if np.isnan(tree.threshold[node]) and tree.categories is not None:
            # The split lists the categories that go right. Codes beyond the list go left.
            chosen = np.zeros(width, dtype=bool)
            listed = tree.categories[node][:width]
            chosen[: len(listed)] = listed
        else:
            chosen = codes >= tree.threshold[node]
        yield ~chosen if left else chosen


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
