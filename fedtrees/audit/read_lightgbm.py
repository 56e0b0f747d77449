"""Read LightGBM's text models together with their statistics (`LIGHTGBM_STATISTICS`)."""

import json
from pathlib import Path

import numpy as np

from fedtrees.audit.model import Floats, ModelFile, Statistics, parameter, width_of
from fedtrees.core.errors import DataError
from fedtrees.trees.files.lightgbm import (
    from_lightgbm_text,
    numbers_of_leaves,
    rows_of_leaves,
    sections,
)

LIGHTGBM_STATISTICS = (
    "leaf_count",
    "leaf_weight",
    "internal_count",
    "internal_weight",
    "internal_value",
    "split_gain",
)


def read_lightgbm(path: Path, data: bytes) -> ModelFile:
    """Read a text file, whose contents are `data`.

    Raises `DataError` if it is not a complete and supported model.
    """
    forest = from_lightgbm_text(data)
    lines = data.decode("utf-8", errors="replace").splitlines()
    header, blocks = sections(lines)
    width = width_of(int(header["max_feature_idx"]) + 1)
    names = tuple(header.get("feature_names", "").split(" ")) if header.get("feature_names") else ()
    rows = [rows_of_leaves(block, width) for block in blocks]
    agree = [counts is None or _adds_up(block) for counts, block in zip(rows, blocks, strict=True)]
    settings = _parameters(lines)
    trees_and_rows = zip(forest.trees, rows, strict=True)
    statistics = tuple(Statistics(cover=tree.h, rows=counted) for tree, counted in trees_and_rows)
    raw = {
        name: [_numbers(block[name]) for block in blocks if block.get(name)]
        for name in LIGHTGBM_STATISTICS
    }
    if len(names) == width and names == tuple(f"Column_{k}" for k in range(width)):
        names = ()  # LightGBM writes these names if the training table has none
    infos = header.get("feature_infos", "").split(" ")
    ranges = dict(zip(names or map(str, range(width)), infos, strict=False))
    return ModelFile(
        path=path,
        format="LightGBM text",
        categories=_categories(lines, infos) if len(infos) == width else {},
        forest=forest,
        statistics=statistics,
        raw={name: values for name, values in raw.items() if values},
        feature_names=names if len(names) == width else (),
        categorical=(False,) * width,
        learning_rate=parameter(settings, "learning_rate"),
        reg_lambda=parameter(settings, "lambda_l2"),
        positive_weight=parameter(settings, "scale_pos_weight") or 1.0,
        ranges=ranges if len(infos) == width else None,
        parameters=settings,
        consistent=all(agree),
        numbers=tuple(numbers_of_leaves(block, width) for block in blocks),
    )


def _categories(lines: list[str], infos: list[str]) -> dict[int, tuple[str, ...] | tuple[int, ...]]:
    """Return the names of the categories by column that LightGBM stored from a data frame.

    The file lists them in the order of the categorical columns, and ``feature_infos`` shows codes
    without a range for these columns. The result is empty if the two numbers of columns differ.
    """
    begin = "pandas_categorical:"
    listed = next((line.removeprefix(begin) for line in lines if line.startswith(begin)), "null")
    try:
        names = json.loads(listed) or []
    except ValueError as error:
        raise DataError(f"not a complete LightGBM model: {begin} {error}") from error
    columns = [k for k, info in enumerate(infos) if not info.startswith("[")]
    if len(columns) != len(names):
        return {}
    return {
        k: tuple(of_column)
        if all(type(n) is int for n in of_column)
        else tuple(map(str, of_column))
        for k, of_column in zip(columns, names, strict=True)
        if of_column
    }


def _adds_up(block: dict[str, str]) -> bool:
    """Return whether each ``internal_count`` of a tree is the sum of its two children's counts.

    The result is True if the tree has no ``internal_count``.
    """
    if not block.get("internal_count"):
        return True
    inner, leaves = _numbers(block["internal_count"]), _numbers(block["leaf_count"])
    # LightGBM writes leaf j as child ~j = -j - 1, an index from the end of the reversed leaves.
    count = np.concatenate([inner, leaves[::-1]])
    left, right = (
        np.array(block[f"{side}_child"].split(), dtype=int) for side in ("left", "right")
    )
    return len(inner) == len(left) and bool((inner == count[left] + count[right]).all())


def _numbers(text: str) -> Floats:
    try:
        return np.array(text.split(), dtype=np.float64)
    except ValueError as error:
        raise DataError(f"not a complete LightGBM model: {error}") from error


def _parameters(lines: list[str]) -> dict[str, str]:
    """Return the training parameters that LightGBM lists after the trees."""
    if "parameters:" not in lines:
        return {}
    listed = lines[lines.index("parameters:") + 1 :]
    pairs = (line.strip("[]").partition(":") for line in listed if line.startswith("["))
    return {name: value.strip() for name, _, value in pairs}
