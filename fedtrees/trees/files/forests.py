"""Read and write random forests as NumPy ``.npz`` files, and convert those of scikit-learn.

The leaves of a random forest contain class shares, and its trees are averaged. The formats of
XGBoost and LightGBM cannot represent this, and scikit-learn has no format except pickle. The arrays
are those of `RandomForest.to_arrays`, or the splits, counts and number of rows of a
`RandomDecisionForest`. `from_sklearn` converts a fitted forest of scikit-learn, because its files
are pickles, which are not read.
"""

import io
import json
import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Feature
from fedtrees.trees.files.categories import category_numbers, table_thresholds
from fedtrees.trees.files.model_file import MAX_MODEL_BYTES, check_depth, read_model_file
from fedtrees.trees.forest.random_decision import RandomDecisionForest, RandomSplits
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest

# Limits of the size after decompression. Forests shrink to a tenth, and zeros to a thousandth of
# their size. A small file may consist almost entirely of zeros.
_MOST_TIMES, _SMALL = 64, 2**22
_MOST_TREES = 50_000
_STORED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

_COLUMNS = "columns"  # JSON with name and categories of each column
_KINDS = {
    "feature": np.int32,
    "threshold": np.float32,
    "left": np.int32,
    "default_left": np.bool_,
    "probability": np.float64,
    "counts": np.int64,
    "distinct": np.int64,
}


def save_random_forest(
    forest: RandomForest, path: str | PathLike[str], features: Sequence[Feature] = ()
) -> None:
    """Write a forest. The name of the file is not changed.

    Parameters
    ----------
    forest : RandomForest
        The forest.
    path : path
        The file.
    features : sequence of Feature, optional
        Columns on which the forest was trained. If they are given, numeric columns have thresholds
        in the units of the table (`fedtrees.trees.files.categories`), and the file contains the
        names of the columns and of their remaining categories, in the order of their codes.

    Raises
    ------
    DataError
        If the file cannot be written, or cannot contain the values of a column.
    """
    trees = (
        replace(t, threshold=table_thresholds(t.feature, t.threshold, features))
        for t in forest.trees
    )
    forest = RandomForest(tuple(trees))
    distinct = [tree.distinct for tree in forest.trees]
    has_distinct = all(rows is not None for rows in distinct)
    arrays = forest.to_arrays()
    if has_distinct:
        arrays["distinct"] = np.concatenate([rows for rows in distinct if rows is not None])
    _write(path, arrays | _describe_columns(features))


def _describe_columns(features: Sequence[Feature]) -> dict[str, NDArray[Any]]:
    """Return the names of columns and of text categories as one array of JSON."""
    if not features:
        return {}
    columns = [
        {
            "name": f.name,
            "categories": []
            if not f.categories or category_numbers(f) is not None
            else f.categories,
        }
        for f in features
    ]
    return {_COLUMNS: np.array(json.dumps(columns))}


def load_columns(
    path: str | PathLike[str],
) -> tuple[tuple[str, ...], dict[int, tuple[str, ...]]]:
    """Return the names of the columns of a forest's file, and of their categories by column.

    Both are empty if the file contains none.

    Raises
    ------
    DataError
        If the entry is malformed.
    """
    with _arrays(path) as arrays:
        if _COLUMNS not in arrays:
            return (), {}
        columns = json.loads(str(arrays[_COLUMNS]))
        names = tuple(str(column["name"]) for column in columns)
        listed = {k: tuple(map(str, column["categories"])) for k, column in enumerate(columns)}
        return names, {k: categories for k, categories in listed.items() if categories}


def save_random_decision_forest(
    forest: RandomDecisionForest,
    path: str | PathLike[str],
    mechanism: str | None = None,
    epsilon: float | None = None,
    noise_from: str = "system",
    features: Sequence[Feature] = (),
) -> None:
    """Write a random decision forest. The name of the file is not changed.

    Parameters
    ----------
    forest : RandomDecisionForest
        The forest.
    path : path
        The file.
    mechanism : str, optional
        Mechanism of the noise on its counts (`fedtrees.protocols.forests.dp_forest`). It is public.
    epsilon : float, optional
        Privacy parameter of the noise. It is public.
    noise_from : str
        Source of the noise (`fedtrees.core.streams.NoiseFrom`).
    features : sequence of Feature, optional
        As in `save_random_forest`.

    Raises
    ------
    DataError
        As in `save_random_forest`.
    """
    splits = forest.splits
    threshold = table_thresholds(splits.feature, splits.threshold, features)
    tests = {"feature": splits.feature, "threshold": threshold, **_describe_columns(features)}
    if mechanism is not None and epsilon is not None:
        tests |= {"mechanism": np.array(mechanism), "epsilon": np.array(float(epsilon))}
        tests |= {"noise_from": np.array(noise_from)}
    _write(path, {**tests, "counts": forest.counts, "rows": np.array(forest.rows)})


def _write(path: str | PathLike[str], arrays: dict[str, NDArray[Any]]) -> None:
    """Write arrays as a compressed archive."""
    try:
        with open(path, "wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise DataError(f"cannot write the model {path!s}: {error.strerror}") from error


def load_released(path: str | PathLike[str]) -> tuple[RandomDecisionForest, dict[str, Any]]:
    """Read a random decision forest and the description of its noise.

    No code in the file is executed. The description has the keys ``mechanism``, ``epsilon`` and
    ``noise_from`` of `save_random_decision_forest`, as far as the file contains them.

    Raises
    ------
    DataError
        If the file cannot be read, or its arrays do not fit together.
    """
    with _arrays(path) as arrays:
        missing = {"feature", "threshold", "counts", "rows"} - set(arrays)
        if missing:
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        for name in ("feature", "threshold", "counts"):
            if arrays[name].dtype != _KINDS[name]:
                raise ValueError(f"{name} is of {arrays[name].dtype}")
        splits = RandomSplits(arrays["feature"], arrays["threshold"])
        if (splits.feature < 0).any() or np.isnan(splits.threshold).any():
            raise ValueError("a test is of no column, or its threshold is no number")
        if len(splits.feature) > _MOST_TREES:
            raise ValueError(f"of {len(splits.feature)} trees, {_MOST_TREES} are read at most")
        forest = RandomDecisionForest(splits, arrays["counts"], int(arrays["rows"]))
        noise = {"mechanism": str, "epsilon": float}
        description = {name: kind(arrays[name]) for name, kind in noise.items() if name in arrays}
        description = description if len(description) == len(noise) else {}
        if description and "noise_from" in arrays:
            description["noise_from"] = str(arrays["noise_from"])
        return forest, description


def is_random_decision_forest(path: str | PathLike[str]) -> bool:
    """Return whether a file contains a random decision forest, by the names of its arrays.

    Raises
    ------
    DataError
        If the file does not contain arrays.
    """
    with _arrays(path) as arrays:
        return "rows" in arrays


def load_random_forest(path: str | PathLike[str]) -> RandomForest:
    """Read a forest that `save_random_forest` wrote. No code in the file is executed.

    Raises
    ------
    DataError
        If the file cannot be read, or does not contain a complete forest.
    """
    with _arrays(path) as arrays:
        arrays = {name: array for name, array in arrays.items() if name != _COLUMNS}
        _check_sizes(arrays)
        forest = RandomForest.from_arrays(arrays)
        for tree in forest.trees:
            _check(tree)
        return forest


@contextmanager
def _arrays(path: str | PathLike[str]) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the arrays of a file.

    Errors in reading or using them become a `DataError` about the file.
    """
    data = read_model_file(path)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            items = archive.infolist()
            # Limits against files that would exhaust the memory when they are unpacked.
            if len(items) > 2 * len(_KINDS):
                raise ValueError(f"{len(items)} arrays are not the arrays of a forest")
            limit = min(max(_MOST_TIMES * len(data), _SMALL), MAX_MODEL_BYTES)
            size = sum(item.file_size for item in items)
            if size > limit:
                raise ValueError(f"its arrays take {size} bytes; the limit is {limit} here")
            by_name = {item.filename.removesuffix(".npy"): _array(archive, item) for item in items}
        yield by_name
    except (
        ArithmeticError,
        EOFError,
        LookupError,
        OSError,
        RuntimeError,  # a password, another compression, or nesting
        SyntaxError,
        TypeError,
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(f"{path!s} contains no complete random forest ({error})") from error


def _array(archive: zipfile.ZipFile, item: zipfile.ZipInfo) -> NDArray[Any]:
    """Read one array, after a check that its header describes the bytes in the file.

    NumPy does not check this before it allocates memory.
    """
    if item.compress_type not in _STORED:
        raise ValueError(f"{item.filename!r} is compressed by another method than NumPy's")
    file = io.BytesIO(archive.read(item))
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"{item.filename!r} has a header of version {version}")
    try:
        shape, fortran, kind = _HEADERS[version](file)
    # Raised by Python's parser for a header that is nested too deep or truncated.
    except (MemoryError, TokenError) as error:
        raise ValueError(f"the header of {item.filename!r} is not NumPy's") from error
    n_bytes = len(file.getbuffer()) - file.tell()
    # Arrays of Python objects would require pickle.
    if kind.hasobject or min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize != n_bytes:
        raise ValueError(f"{item.filename!r} declares {kind} of shape {shape} in {n_bytes} bytes")
    flat = np.frombuffer(file.getbuffer(), kind, offset=file.tell())
    return flat.reshape(shape, order="F" if fortran else "C").copy()


def _check_sizes(arrays: dict[str, NDArray[Any]]) -> None:
    """Raise `ValueError` unless the trees have at least one node each and fill their arrays."""
    missing = {"sizes", "feature", "threshold", "left", "default_left", "probability"} - set(arrays)
    if missing:
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    sizes = arrays["sizes"]
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or not 0 < len(sizes) <= _MOST_TREES:
        raise ValueError(f"sizes of {sizes.dtype} and shape {sizes.shape} are not those of trees")
    lengths = {len(array) for name, array in arrays.items() if name != "sizes"}
    if lengths != {sum(sizes.tolist())} or (sizes < 1).any():
        raise ValueError("trees are not as long as their arrays")


def _check(tree: ClassTree) -> None:
    """Raise `ValueError` unless every row reaches a leaf, and shares and counts are consistent."""
    for name, kind in _KINDS.items():
        array = getattr(tree, name)
        flat = (len(tree),) if name not in ("probability", "counts") else tree.probability.shape
        if array is not None and (array.dtype != kind or array.shape != flat):
            raise ValueError(f"{name} is of {array.dtype} and shape {array.shape}, not {flat}")
    if tree.probability.shape != (len(tree), max(tree.n_classes, 2)):
        raise ValueError("leaves have no shares of two classes or more")
    inner = np.flatnonzero(tree.feature >= 0)
    # If children follow their parent, there is no cycle.
    pairs = np.array_equal(np.sort(tree.left[inner]), np.arange(1, len(tree), 2))
    if not pairs or (tree.left[inner] <= inner).any() or (tree.left[tree.feature < 0] != -1).any():
        raise ValueError("children of a node are not where they should be")
    check_depth(tree.left, tree.right)
    leaf_shares = tree.probability[tree.feature < 0]
    if not ((leaf_shares >= 0) & (leaf_shares <= 1)).all() or np.isnan(tree.threshold[inner]).any():
        raise ValueError("class shares are no numbers from 0 to 1, or a threshold is no number")
    if tree.counts is not None:
        both = tree.counts[tree.left[inner]] + tree.counts[tree.right[inner]]
        if (tree.counts < 0).any() or not np.array_equal(tree.counts[inner], both):
            raise ValueError(
                "class counts are negative, or the counts of children do not sum to the parent's"
            )
    if tree.distinct is not None:
        both = tree.distinct[tree.left[inner]] + tree.distinct[tree.right[inner]]
        if (tree.distinct < 0).any() or not np.array_equal(tree.distinct[inner], both):
            raise ValueError(
                "rows are negative, or the rows of children do not sum to the parent's"
            )


#: Tolerance of counts, which are computed from quotients of float64 sums.
_WHOLE = 1e-6


def from_sklearn(estimator: Any) -> RandomForest:
    """Convert a fitted forest or tree of scikit-learn, with the class counts that it stores.

    Parameters
    ----------
    estimator : scikit-learn classifier
        Fitted, with one output. Class codes are positions in its ``classes_``.

    Returns
    -------
    forest : RandomForest
        It makes the same predictions. Counts are those of the drawn rows, or None if rows or
        classes had weights that are not integers. For scikit-learn's forests and trees, `distinct`
        rows are also known. For bagging they are not, because it may draw rows before its trees
        receive them.

    Raises
    ------
    DataError
        If the estimator is not fitted, is no classifier of trees or has several outputs, or if its
        trees have weights or use different columns.
    """
    trees = getattr(estimator, "estimators_", [estimator])
    fitted: list[Any] = [
        getattr(t, "tree_", None) for t in np.ravel(np.asarray(trees, dtype=object))
    ]
    if not hasattr(estimator, "classes_") or any(t is None for t in fitted):
        raise DataError(
            f"a {type(estimator).__name__} is no fitted classifier of trees; give a fitted "
            "RandomForestClassifier, ExtraTreesClassifier or DecisionTreeClassifier"
        )
    if any(t.value.shape[1:] != (1, len(np.ravel(estimator.classes_))) for t in fitted):
        raise DataError(
            f"a {type(estimator).__name__} of several outputs, or of boosted trees, is "
            "not supported: its leaves contain no class shares of one target"
        )
    columns = getattr(estimator, "estimators_features_", [])
    if hasattr(estimator, "estimator_weights_") or any(
        not np.array_equal(c, np.arange(estimator.n_features_in_)) for c in columns
    ):
        raise DataError(
            f"a {type(estimator).__name__} whose trees have weights or different columns "
            "is not supported: the trees of a forest have equal weights and use all "
            "columns; give a "
            "RandomForestClassifier, or bagging with max_features=1.0"
        )
    # Bagging draws rows before the trees are fitted.
    draws = hasattr(estimator, "estimators_features_")
    return RandomForest(tuple(_tree(t, not draws) for t in fitted))


def _tree(tree: Any, distinct: bool) -> ClassTree:
    """Return one tree with its children in pairs, level by level."""
    order = [0]
    for node in order:
        if tree.children_left[node] >= 0:
            order += [tree.children_left[node], tree.children_right[node]]
    at = np.array(order)
    number = np.empty(len(at), dtype=np.int32)
    number[at] = np.arange(len(at))
    leaf = tree.children_left[at] < 0

    def child(nodes: NDArray[np.int64]) -> NDArray[np.int32]:
        return np.where(leaf, -1, number[np.maximum(nodes[at], 0)]).astype(np.int32)

    value = tree.value[at, 0, :].astype(np.float64)
    share = value / value.sum(axis=1, keepdims=True)
    drawn = share * tree.weighted_n_node_samples[at, None]
    counts = np.rint(drawn).astype(np.int64)
    integral = np.abs(counts - drawn).max() < _WHOLE and (counts.sum(axis=1) > 0).all()
    return ClassTree(
        np.where(leaf, -1, tree.feature[at]).astype(np.int32),
        np.where(leaf, 0, _above(tree.threshold[at])).astype(np.float32),
        child(tree.children_left),
        child(tree.children_right),
        np.where(leaf, False, tree.missing_go_to_left[at].astype(bool)),
        share,
        counts if integral else None,
        # Forests draw rows by weights: the number of rows with positive weight.
        tree.n_node_samples[at].astype(np.int64) if distinct else None,
    )


def _above(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the smallest float32 above each threshold.

    ``x <= threshold`` is then equivalent to ``x < result``, for every float32 x.
    """
    near = threshold.astype(np.float32)
    under = np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)
    return np.nextafter(under, np.float32(np.inf))
