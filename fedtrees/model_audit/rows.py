"""Read tables of rows from CSV files and convert them to the columns and codes of a model."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, did_you_mean
from fedtrees.core.schema import Feature, Schema
from fedtrees.data.cells import codes_of_cells, marks_note, missing, numbers, probable_marks
from fedtrees.data.csv_file import UNDECLARED, Reading, TextTable, cells_as_text, plain_name
from fedtrees.data.csv_table import numeric, read_target
from fedtrees.data.dataset import Dataset, prepare
from fedtrees.data.table_files import read_table
from fedtrees.model_audit.model import ModelFile
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.losses import SQUARED_ERROR
from fedtrees.trees.files.categories import BOOLEANS
from fedtrees.trees.forest.random_forest import RandomForest

MOST_TARGETS = 8000  # largest number of scored rows. The time of matching grows quadratically
MOST_OWN = 100_000  # largest number of the adversary's rows. Reading them takes 250 megabytes
OWN_SHARE = 0.2  # share of a single table that the adversary knows by default


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Meaning of the columns of the files."""

    target: str  # label column
    # Columns of text, each by its name. If the model file does not contain the categories, they are
    # added in the order of their codes: ``name=first|second|third``.
    categorical: tuple[str, ...] = ()
    positive: str | None = None  # the class coded 1
    reading: Reading = UNDECLARED  # declared format of the files, for example the separator

    def orders(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the declared categories by column, empty for a column declared only by name.

        `names` are the columns of a table. They are needed because a name may contain an equals
        sign.
        """
        parts = ((e, "", "") if e in names else e.partition("=") for e in self.categorical)
        return {name: tuple(order.split("|")) if mark else () for name, mark, order in parts}


def check_sizes(own_path: str | None, truth: str | None) -> None:
    """Reject files with too many rows without reading them completely.

    Raises `DataError` if there are more than `MOST_OWN` rows in `own_path`, or if more than
    `MOST_TARGETS` target rows certainly remain.
    """
    if own_path and truth:
        n_own = _rows_in(own_path, MOST_OWN)
        _rows_in(truth, MOST_TARGETS + n_own)
    elif path := own_path or truth:
        _rows_in(path, int(MOST_TARGETS / (1 - OWN_SHARE)))


def _rows_in(path: str, max_rows: int) -> int:
    """Return the number of rows of a CSV file.

    Raises `DataError` if there are more than `max_rows`. Other faults of the file are left to
    `read_table`.
    """
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            n_rows = sum(1 for _ in islice(filter(None, csv.reader(file)), max_rows + 2)) - 1
    except (OSError, csv.Error):
        return 0
    if n_rows > max_rows:
        raise DataError(
            f"{path} has more than {max_rows} rows; an attack searches for at most "
            f"{MOST_TARGETS} rows and uses at most {MOST_OWN} local rows: give random "
            "parts of the table as --truth and as --own"
        )
    return max(n_rows, 0)


def read_rows(
    model: ModelFile, paths: Sequence[str], columns: Columns
) -> tuple[list[Dataset], list[str]]:
    """Read one table per file, in the columns of the model.

    Categories get the codes that the model file contains. Classes are coded over all files
    together, because one file may lack some of them.

    Parameters
    ----------
    model : ModelFile
        The model.
    paths : sequence of str
        CSV files.
    columns : Columns
        Meaning of their columns.

    Returns
    -------
    tables : list of Dataset
        One per file.
    notes : list of str
        Notes on columns that the model does not use.

    Raises
    ------
    DataError
        If a column of the model is missing, the codes of its categories are not known, a threshold
        of the model is stored at another party, or a file cannot be read by
        `fedtrees.data.user_tables.load_csv`.
    """
    if model.hidden:
        raise DataError(
            f"{model.path.name} lacks thresholds that another party keeps, so that no row can be "
            "followed to its leaf: audit it without tables of rows"
        )
    files = [read_table(path, columns.reading, (columns.target,)) for path in paths]
    files = [_with_names(file, model.feature_names) for file in files]
    for file in files:
        for name in (columns.target, *columns.orders(file.names)):
            file.column(name)
    model_columns = _feature_names(model, files[0], columns.target)
    notes = []
    for file in files:
        feature_names = [name for name in file.names if name != columns.target]
        extra = [name for name in feature_names if name not in model_columns]
        for name in model_columns:
            if name not in feature_names:
                guess = did_you_mean(name, extra) if extra else ""
                raise DataError(
                    f"{file.path}: no column {name!r}, which {model.path.name} was trained "
                    f"on{guess}"
                )
        if extra:
            listed = ", ".join(extra)
            notes.append(f"{file.path}: columns the model does not know were left out: {listed}")
    notes += _marks(files, model_columns)
    return _datasets(model, files, model_columns, columns), notes


def _marks(files: Sequence[TextTable], names: Sequence[str]) -> list[str]:
    """Return a note on each column in which a number probably marks missing values.

    A model file does not state which number the training took for a missing value (for example
    ``XGBClassifier(missing=-999)``), so that rows with this number would follow a wrong path.
    """
    notes = []
    for file in files:
        for name in names:
            cells = file.column(name)
            numeric_values = numbers({*cells} - {""})
            values = np.array([numeric_values.get(cell, np.nan) for cell in cells], np.float64)
            if marks := probable_marks(cells, values):
                notes.append(f"{file.path}: {marks_note(name, marks)}")
    return notes


def _with_names(file: TextTable, feature_names: Sequence[str]) -> TextTable:
    """Rename the columns of a table whose names differ from the model's only in white space.

    The header of a table is read without surrounding and doubled white space. LightGBM writes
    underscores in place of white space. A column is renamed only if the match is unique.
    """
    names: dict[str, str] = {}
    for spelled in (plain_name, _join_words):
        free = [n for n in file.names if n not in feature_names and n not in names]
        lacking = [n for n in feature_names if n not in (*file.names, *names.values())]
        for name in lacking:
            same = [n for n in free if spelled(n) == spelled(name)]
            alike_names = [n for n in lacking if spelled(n) == spelled(name)]
            if len(same) == len(alike_names) == 1:
                names[same[0]] = name
    return file.renamed(names) if names else file


def _join_words(name: str) -> str:
    """Return a name with each run of white space or underscores replaced by one underscore."""
    return re.sub(r"[\s_]+", "_", name).strip("_")


def _feature_names(model: ModelFile, file: TextTable, target: str) -> tuple[str, ...]:
    """Return the names of the model's columns, or of the first file's if the model has none."""
    if model.feature_names:
        return model.feature_names
    feature_names = tuple(name for name in file.names if name != target)
    # The file of a forest contains the columns that its trees test, not all training columns.
    least = isinstance(model.forest, RandomForest)
    if len(feature_names) < len(model.categorical) or (
        len(feature_names) > len(model.categorical) and not least
    ):
        raise DataError(
            f"{file.path} has {len(feature_names)} feature columns, the model has "
            f"{len(model.categorical)} without names; give the columns it was trained on, in "
            "its order"
        )
    return feature_names


def _datasets(
    model: ModelFile, files: Sequence[TextTable], feature_names: Sequence[str], columns: Columns
) -> list[Dataset]:
    """Convert the files to datasets with a common schema."""
    y, classes = _target(model, files, columns)
    features: list[Feature] = []
    values: list[NDArray[np.float64]] = []
    declared = columns.orders(files[0].names)
    for k, name in enumerate(feature_names):
        together = _together(files, name)
        if k in model.categories or name in declared:
            order = _order(model, k, name, declared.get(name, ()))
            features.append(Feature(name, "categorical", categories=tuple(map(str, order))))
            values.append(_codes(model, together, name, order))
        else:
            features.append(Feature(name, "continuous"))
            values.append(np.concatenate([_numbers(file, name) for file in files]))
            if k < len(model.categorical) and model.categorical[k]:
                _check_codes(model, name, values[-1])
    schema = Schema(tuple(features), columns.target, classes)
    places = [f"line {line} of {file.path}" for file in files for line in file.lines]
    joint = prepare("rows", schema, np.column_stack(values), y, place=places.__getitem__)
    parts = np.split(np.arange(len(y)), np.cumsum([len(file) for file in files])[:-1])
    return [
        Dataset(file.path.stem, schema, joint.table.take(part))
        for file, part in zip(files, parts, strict=True)
    ]


def _numbers(file: TextTable, name: str) -> NDArray[np.float64]:
    """Return one column as numbers, float64, shape (n,). Booleans are 0 and 1, as in XGBoost."""
    cells = [cell.casefold() for cell in file.column(name)]
    present = {cell for cell in set(cells) if not missing(cell)}
    if present and present <= BOOLEANS.keys():
        return np.array([BOOLEANS.get(cell, np.nan) for cell in cells])
    return numeric(file, name)


def _order(model: ModelFile, k: int, name: str, declared: tuple[str, ...]) -> Sequence[Any]:
    """Return the categories of a column in the order of their codes, from the model or declared.

    Raises `DataError` if neither exists, or if they differ.
    """
    order = model.categories.get(k, declared)
    if not order:
        raise DataError(
            f"{model.path.name} does not state the categories of the codes of {name!r} "
            "(XGBoost writes the names of categories since 3.1), and another order would give "
            f"wrong results: declare them in the order of their codes, --categorical "
            f"'{name}=FIRST|SECOND|...', or leave {name!r} out of --categorical if the column "
            "contains the numbers that the model takes"
        )
    if declared and declared != tuple(map(str, order)):
        raise DataError(
            f"--categorical declares {'|'.join(declared)} for {name!r}, and {model.path.name} "
            f"states {'|'.join(map(str, order))}: leave the order out"
        )
    return order


def _codes(
    model: ModelFile, table: TextTable, name: str, order: Sequence[Any]
) -> NDArray[np.float64]:
    """Return the codes of one column, float64, shape (n,), NaN if the cell is empty.

    Raises `DataError` if a cell contains none of the categories.
    """
    cells: Sequence[Any] = table.column(name)
    code: dict[Any, float] = {category: float(c) for c, category in enumerate(order)}
    if isinstance(order[0], str):  # other spellings of a category get the same code
        code = {**codes_of_cells(Counter(filter(None, cells)), order), **code}
    else:
        cells = [None if np.isnan(value) else value for value in _numbers(table, name)]
    for i, cell in enumerate(cells):
        if cell is not None and cell not in code and not (isinstance(cell, str) and missing(cell)):
            shown = ", ".join(map(repr, order[:10])) + (", ..." if len(order) > 10 else "")
            raise DataError(
                f"{table.path}, line {table.lines[i]}: column {name!r} contains "
                f"{table.column(name)[i]!r}, and the categories of {model.path.name} are {shown}: "
                "correct the value, or leave the cell empty if it is missing"
            )
    return np.array([code.get(cell, np.nan) for cell in cells])


def _check_codes(model: ModelFile, name: str, values: NDArray[np.float64]) -> None:
    """Reject numbers of which it is unclear whether they are codes of categories.

    A data frame codes its numbers by their ranks. The ranks equal the numbers only for 0, 1, ..., K
    - 1.
    """
    different = np.unique(values[~np.isnan(values)])
    if not np.array_equal(different, np.arange(len(different))):
        shown = "|".join(f"{value:g}" for value in different[:4].tolist())
        raise DataError(
            f"{model.path.name} splits {name!r} by categories and does not state the codes "
            f"of {shown.replace('|', ', ')}{', ...' if len(different) > 4 else ''}: "
            f"declare them in the order of their codes, --categorical '{name}={shown}|...'"
        )


def _target(
    model: ModelFile, files: Sequence[TextTable], columns: Columns
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the labels of all files, and the names of the classes (empty for a numeric target)."""
    forest, task = model.forest, "binary"
    if isinstance(forest, Forest) and forest.objective.name == SQUARED_ERROR.name:
        task = "number"
    elif (forest.n_classes if isinstance(forest, RandomForest) else forest.objective.n_outputs) > 2:
        task = "classes"
    together = _together(files, columns.target)
    return read_target(together, columns.target, task, columns.positive)


def _together(files: Sequence[TextTable], name: str) -> TextTable:
    """Return one column of all files as a single table."""
    text = cells_as_text(cell for file in files for cell in file.column(name))
    lines = [line for file in files for line in file.lines]
    return TextTable(Path(" and ".join(str(file.path) for file in files)), (name,), (text,), lines)
