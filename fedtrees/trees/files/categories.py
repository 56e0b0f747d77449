"""Categories in model files: their names, and trees over the values of a user's table.

Protocols train on codes 0, 1, ... of categories (`fedtrees.core.schema.Feature`). A user predicts
with the table, which contains numbers or text. Before a model is written, its trees are therefore
rewritten: columns of numbers get thresholds in the units of the table, and columns of text are
split by sets of categories whose names are written into the file. XGBoost since 3.1 codes the
``category`` columns of a data frame by these names (``cats``) and refuses unknown ones. Earlier
versions ignore the names and take the codes of the data frame.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Feature
from fedtrees.trees.binning import MOST_BINS
from fedtrees.trees.boosted.forest import Forest, Tree

#: Names of the categories of a column, in the order of their codes.
Names = Sequence[str] | Sequence[int]

_INT64 = 15  # code of the type of 64-bit integers in XGBoost's files
#: Text in lower case that pandas reads as booleans, and XGBoost as 0 and 1.
BOOLEANS = {"false": 0.0, "true": 1.0}
# Versions from 3.1 to the one before this count the characters of a name in place of its bytes.
_FIRST_WITH_BYTES = (3, 4)


def with_table_values(
    forest: Forest, features: Sequence[Feature]
) -> tuple[Forest, dict[int, Names]]:
    """Convert a forest over codes of categories to one over the values of the user's table.

    Categories whose names are numbers or booleans become these numbers: a threshold on the codes of
    a column with the categories 10, 20 and 50 becomes a threshold on 10, 20 and 50. Text is split
    by sets of categories, which are coded in alphabetical order, as in pandas.

    Parameters
    ----------
    forest : Forest
        The forest, over codes.
    features : sequence of Feature
        Columns on which the forest was trained.

    Returns
    -------
    forest : Forest
    names : dict of int to names
        Names of the categories, by the position of each column that is split by sets.

    Raises
    ------
    DataError
        If two names of a column are the same number (``01`` and ``1``), or if a column of numbers
        is split by sets of categories that XGBoost cannot store.
    """
    names: dict[int, Names] = {}
    for k, feature in enumerate(features):
        if not feature.categories:
            continue
        numbers = category_numbers(feature)
        if numbers is None:
            order = sorted(range(len(feature.categories)), key=feature.categories.__getitem__)
            names[k] = [feature.categories[code] for code in order]
            forest = _split_by_sets(forest, k, np.argsort(order))
        elif not _has_sets(forest, k):
            forest = _with_thresholds(forest, k, numbers)
        else:
            codes = _codes_of_numbers(feature, numbers)
            names[k] = range(int(codes.max()) + 1)
            forest = _split_by_sets(forest, k, codes)
    return forest, names


def check_features(features: Sequence[Feature], by_sets: bool) -> None:
    """Refuse, before the training, columns whose values no model file could contain.

    Parameters
    ----------
    features : sequence of Feature
        The columns.
    by_sets : bool
        Whether the training splits categorical columns by sets of categories.

    Raises
    ------
    DataError
        As in `with_table_values`.
    """
    for feature in features:
        numbers = category_numbers(feature) if feature.categories else None
        if numbers is not None and by_sets:
            _codes_of_numbers(feature, numbers)


def with_category_names(
    forest: Forest, categories: Mapping[int, Sequence[Any]]
) -> tuple[Forest, dict[int, Names]]:
    """Convert a forest over the codes of a data frame to one that splits by sets of categories.

    In contrast to `with_table_values`, the columns have the dtype ``category`` of pandas, so that
    their codes are those of the data frame.

    Parameters
    ----------
    forest : Forest
        The forest, over codes.
    categories : mapping of int to sequence
        Categories of the ``category`` columns of a data frame, in the order of their codes.
        Integers stay numbers, because XGBoost compares them with those of another data frame.
    """
    names: dict[int, Names] = {}
    for k, values in categories.items():
        integers = all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in values)
        names[k] = [int(v) for v in values] if integers else [str(v) for v in values]
        forest = _split_by_sets(forest, k, np.arange(len(values)))
    return forest, names


def category_numbers(feature: Feature) -> NDArray[np.float32] | None:
    """Return the numbers that are the categories of a column, None if a category is text.

    Raises
    ------
    DataError
        If they do not increase with the codes as float32, for example because two names are the
        same number.
    """
    names = [name.strip().casefold() for name in feature.categories]
    try:
        values = [BOOLEANS[name] if name in BOOLEANS else float(name) for name in names]
    except ValueError:
        return None
    if not all(map(math.isfinite, values)):
        return None
    numbers = np.array(values, dtype=np.float32)
    if not (np.diff(numbers) > 0).all():
        at = int(np.argmin(np.diff(numbers) > 0))
        raise DataError(
            f"categories {feature.categories[at]!r} and {feature.categories[at + 1]!r} of column "
            f"{feature.name!r} are no increasing float32 numbers, as which XGBoost reads them from "
            "the table: a model file cannot distinguish them; drop the column, or spell its values "
            "as text (for example with a letter in front)"
        )
    return numbers


def _codes_of_numbers(feature: Feature, numbers: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return the numbers as codes, so that raw columns of numbers need no recoding.

    Raises
    ------
    DataError
        If a number is not an integer from 0 to `MOST_BINS`.
    """
    codes = numbers.astype(np.int64)
    if (codes != numbers).any() or codes[0] < 0 or codes[-1] > MOST_BINS:
        raise DataError(
            f"column {feature.name!r} contains numbers and is split by sets of categories "
            f"(enable_categorical), which XGBoost stores for whole numbers from 0 to {MOST_BINS} "
            f"only, not for {feature.categories[0]!r} to {feature.categories[-1]!r}; train "
            "without enable_categorical, or spell its values as text"
        )
    return codes.astype(np.intp)


def _has_sets(forest: Forest, column: int) -> bool:
    """Return whether a column is split by a set of categories."""
    return any((np.isnan(t.threshold) & (t.feature == column)).any() for t in forest.trees)


def _with_thresholds(forest: Forest, column: int, numbers: NDArray[np.float32]) -> Forest:
    """Return the forest with thresholds on the codes of a column replaced by its numbers.

    A code of at least the threshold goes right, and so does the number of that code. Above the last
    code only missing values go right.
    """

    def rewritten(tree: Tree) -> Tree:
        at = np.flatnonzero(tree.feature == column)
        threshold = tree.threshold.copy()
        threshold[at] = _numbers_for(threshold[at], numbers)
        return replace(tree, threshold=threshold)

    return replace(forest, trees=tuple(map(rewritten, forest.trees)))


def _numbers_for(
    thresholds: NDArray[np.float32], numbers: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the number of the first code that is not below each threshold."""
    # A number above all categories, for thresholds above the last code.
    beyond = np.float32(2) * np.abs(numbers[-1]) + np.float32(1)
    values = np.append(numbers, beyond).astype(np.float32)
    return values[np.clip(np.ceil(thresholds), 0, len(numbers)).astype(np.intp)]


def table_thresholds(
    feature: NDArray[np.int32], threshold: NDArray[np.float32], features: Sequence[Feature]
) -> NDArray[np.float32]:
    """Return thresholds in the units of the table for columns of numbers.

    Text columns use codes.

    Parameters
    ----------
    feature, threshold : arrays of the same shape
        Splits. A negative feature marks a leaf.
    features : sequence of Feature
        Columns on which the trees were trained.

    Raises
    ------
    DataError
        As in `with_table_values`.
    """
    out = threshold.copy()
    for k, column in enumerate(features):
        numbers = category_numbers(column) if column.categories else None
        if numbers is not None:
            out[feature == k] = _numbers_for(threshold[feature == k], numbers)
    return out


def _split_by_sets(forest: Forest, column: int, codes: NDArray[np.intp]) -> Forest:
    """Return the forest with every split on a column converted to a set of categories.

    `codes` is an int array, shape (K,): the new code of each old one.
    """
    # The code of no category, because XGBoost does not accept an empty set.
    beyond = int(codes.max()) + 1

    def rewritten(tree: Tree) -> Tree:
        at = np.flatnonzero(tree.feature == column)
        if not len(at):
            return tree
        old = np.zeros((len(tree), 0), dtype=bool) if tree.categories is None else tree.categories
        sets = np.zeros((len(tree), max(old.shape[1], beyond + 1)), dtype=bool)
        sets[:, : old.shape[1]] = old
        sets[at] = False
        for node in at.tolist():
            cut = tree.threshold[node]
            if np.isnan(cut):
                chosen = np.flatnonzero(old[node])
                right = codes[chosen[chosen < len(codes)]]
            else:
                # A threshold sends all codes that are not below it to the right.
                right = codes[int(np.clip(np.ceil(cut), 0, len(codes))) :]
            sets[node, right if len(right) else [beyond]] = True
        threshold = tree.threshold.copy()
        threshold[at] = np.nan
        return replace(tree, threshold=threshold, categories=sets)

    return replace(forest, trees=tuple(map(rewritten, forest.trees)))


def sets_to_thresholds(forest: Forest, categories: Mapping[int, Names]) -> Forest | None:
    """Return a forest with a threshold in place of every set of the last categories of a column.

    For example, of the categories 0 to 3 the set {2, 3} consists of all codes of at least 2. None
    if there is another set, or if a column has no names of categories.
    """
    trees = []
    for tree in forest.trees:
        threshold = tree.threshold.copy()
        for node in np.flatnonzero(np.isnan(threshold)).tolist():
            size = len(categories.get(int(tree.feature[node]), ()))
            chosen = np.zeros(size, dtype=bool)
            listed = np.zeros(0, bool) if tree.categories is None else tree.categories[node][:size]
            chosen[: len(listed)] = listed
            first = size - int(chosen.sum())
            if not size or not chosen[first:].all():
                return None
            threshold[node] = first
        trees.append(replace(tree, threshold=threshold, categories=None))
    return replace(forest, trees=tuple(trees))


def write_categories(names: Mapping[int, Names], width: int) -> dict[str, Any]:
    """Return the entry ``cats`` of a model in the format of XGBoost 3.1 and later.

    Text is a list of UTF-8 bytes (int8) with the offset of each name.

    Parameters
    ----------
    names : mapping of int to names
        Names of the categories by column.
    width : int
        Number of columns of the table.
    """
    columns: list[dict[str, Any]] = []
    ends, order = [0], []
    for k in range(width):
        of_column = names.get(k, ())
        ends.append(ends[-1] + len(of_column))
        if len(of_column) and not isinstance(of_column[0], str):
            columns.append({"type": _INT64, "values": list(of_column)})
            order += sorted(range(len(of_column)), key=of_column.__getitem__)
            continue
        texts = [str(name).encode() for name in of_column]
        values = np.frombuffer(b"".join(texts), dtype=np.int8).tolist()
        offsets = np.cumsum([0, *map(len, texts)]).tolist() if texts else []
        columns.append({"offsets": offsets, "values": values})
        order += sorted(range(len(texts)), key=texts.__getitem__)
    return {"enc": columns, "feature_segments": ends, "sorted_idx": order}


def read_categories(
    booster: Mapping[str, Any], version: Sequence[int]
) -> dict[int, tuple[str, ...] | tuple[int, ...]]:
    """Return the names of the categories by column, in the order of their codes.

    Parameters
    ----------
    booster : mapping
        The entry ``gradient_booster.model`` of a model.
    version : sequence of int
        Version of XGBoost in the file. Versions 3.1 to 3.3 divide text that is not ASCII at wrong
        positions and cut off its end.

    Raises
    ------
    DataError
        If the entry is not in the format of XGBoost.
    """
    try:
        listed = (booster.get("cats") or {}).get("enc")
        columns = enumerate([] if listed is None else listed)
        by_bytes = not (3, 1) <= tuple(version[:2]) < _FIRST_WITH_BYTES
        names = {k: _read_names(column, by_bytes) for k, column in columns}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"not a complete XGBoost model: cats ({error})") from error
    return {k: of_column for k, of_column in names.items() if of_column}


def _read_names(column: Mapping[str, Any], by_bytes: bool) -> tuple[str, ...] | tuple[int, ...]:
    """Return the names of the categories of one column."""
    values = np.asarray(column["values"], dtype=np.int64)
    if "offsets" not in column:
        return tuple(values.tolist())
    text = (values % 256).astype(np.uint8).tobytes()
    ends = np.asarray(column["offsets"], dtype=np.int64).tolist()
    pairs = list(pairwise(ends))
    if by_bytes or text.isascii():
        return tuple(text[a:b].decode("utf-8", errors="replace") for a, b in pairs)
    characters = text.decode("utf-8", errors="ignore")
    return tuple(characters[a:b] for a, b in pairs)
