"""Trees over the values of a user's table, and the names of categories in XGBoost's model files.

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

_INT64 = 15  # XGBoost's number of the type of whole numbers
#: Text that pandas reads as booleans, and XGBoost as 0 and 1; in lower case.
BOOLEANS = {"false": 0.0, "true": 1.0}
# XGBoost before this version counts the characters of a name where it should count bytes.
_COUNTS_BYTES = (3, 4)


def in_table_values(forest: Forest, features: Sequence[Feature]) -> tuple[Forest, dict[int, Names]]:
    """Return a forest over the values of the table, and the names of its categories by column.

    Categories whose names are numbers or booleans become these numbers. Text keeps codes, in
    alphabetical order, as pandas codes it.

    Raises `DataError` if two names of a column are one number (``01`` and ``1``), or a column of
    numbers is split by sets of categories that XGBoost cannot store.

    `features`: of the columns on which the forest was trained.
    """
    names: dict[int, Names] = {}
    for k, feature in enumerate(features):
        if not feature.categories:
            continue
        numbers = numbers_of(feature)
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

    Raises `DataError` as `in_table_values`.

    `by_sets`: whether the training splits categorical columns by sets of categories.
    """
    for feature in features:
        numbers = numbers_of(feature) if feature.categories else None
        if numbers is not None and by_sets:
            _codes_of_numbers(feature, numbers)


def by_names(
    forest: Forest, categories: Mapping[int, Sequence[Any]]
) -> tuple[Forest, dict[int, Names]]:
    """Return a forest that splits categorical columns by sets, and their names by column.

    `categories`: of the ``category`` columns of a data frame, in the order of their codes. Whole
    numbers stay numbers, as XGBoost compares them with those of another data frame.
    """
    names: dict[int, Names] = {}
    for k, values in categories.items():
        integers = all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in values)
        names[k] = [int(v) for v in values] if integers else [str(v) for v in values]
        forest = _split_by_sets(forest, k, np.arange(len(values)))
    return forest, names


def numbers_of(feature: Feature) -> NDArray[np.float32] | None:
    """Return the numbers that the categories of a column are, None where one is text.

    Raises `DataError` if they do not increase with the codes as float32, for example because two
    names are one number.
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
            "the table: a model file cannot tell them apart; drop the column, or spell its values "
            "as text (for example with a letter in front)"
        )
    return numbers


def _codes_of_numbers(feature: Feature, numbers: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return codes that are the numbers themselves: raw columns of numbers then need no recoding.

    Raises `DataError` if one is no whole number from 0 to `MOST_BINS`.
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
    return any((np.isnan(t.threshold) & (t.feature == column)).any() for t in forest.trees)


def _with_thresholds(forest: Forest, column: int, numbers: NDArray[np.float32]) -> Forest:
    """Return the forest with thresholds on the codes of a column replaced by its numbers.

    A code of at least the threshold goes right, and so does the number of that code. Beyond the
    last code only missing values go right.
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
    beyond = np.float32(2) * np.abs(numbers[-1]) + np.float32(1)
    values = np.append(numbers, beyond).astype(np.float32)
    return values[np.clip(np.ceil(thresholds), 0, len(numbers)).astype(np.intp)]


def thresholds_in_table(
    feature: NDArray[np.int32], threshold: NDArray[np.float32], features: Sequence[Feature]
) -> NDArray[np.float32]:
    """Return thresholds in the units of the table for columns of numbers; text keeps codes.

    Raises `DataError` as `in_table_values`.

    `feature, threshold`: arrays of one shape; a negative feature marks a leaf.
    `features`: of the columns on which the trees were trained.
    """
    out = threshold.copy()
    for k, column in enumerate(features):
        numbers = numbers_of(column) if column.categories else None
        if numbers is not None:
            out[feature == k] = _numbers_for(threshold[feature == k], numbers)
    return out


def _split_by_sets(forest: Forest, column: int, codes: NDArray[np.intp]) -> Forest:
    """Return the forest with every split on a column by a set of categories.

    `codes`: int array, shape (K,). The new code of each old one.
    """
    beyond = int(codes.max()) + 1  # the code of no category: XGBoost wants no empty set

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
                right = codes[int(np.clip(np.ceil(cut), 0, len(codes))) :]
            sets[node, right if len(right) else [beyond]] = True
        threshold = tree.threshold.copy()
        threshold[at] = np.nan
        return replace(tree, threshold=threshold, categories=sets)

    return replace(forest, trees=tuple(map(rewritten, forest.trees)))


def by_thresholds(forest: Forest, categories: Mapping[int, Names]) -> Forest | None:
    """Return a forest with a threshold in place of every set of the last categories of a column.

    For example, of the categories 0 to 3 the set {2, 3} is all codes of at least 2. None if some
    set is another one, or a column has no names of categories.
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
    """Return the entry ``cats`` of a model, as XGBoost 3.1 and later write it.

    Text is a list of UTF-8 bytes (int8) with the offset of each name.

    `width`: columns of the table.
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

    Raises `DataError` if they are no lists as XGBoost writes them.

    `booster`: the entry ``gradient_booster.model`` of a model.
    `version`: of XGBoost, as the file states it: 3.1 to 3.3 divide text that is not ASCII at the
    wrong places and cut off its end.
    """
    try:
        listed = (booster.get("cats") or {}).get("enc")
        columns = enumerate([] if listed is None else listed)
        by_bytes = not (3, 1) <= tuple(version[:2]) < _COUNTS_BYTES
        names = {k: _read_names(column, by_bytes) for k, column in columns}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"not a complete XGBoost model: cats ({error})") from error
    return {k: of_column for k, of_column in names.items() if of_column}


def _read_names(column: Mapping[str, Any], by_bytes: bool) -> tuple[str, ...] | tuple[int, ...]:
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
