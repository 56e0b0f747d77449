"""The datasets fedtrees knows by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.schema import Feature, Schema
from fedtrees.data import bundled
from fedtrees.data.csv_table import (
    TextTable,
    binary_target,
    class_target,
    coded,
    load_csv,
    missing,
    numeric,
    read_csv,
)
from fedtrees.data.dataset import Dataset, prepare
from fedtrees.data.sources import SOURCES, locate
from fedtrees.data.stroke import stroke, stroke_raw

#: Used where no dataset is named.
DEFAULT = "breast-cancer"

#: Named "top 5" together with the label in the published TimberStrike configuration.
_PIMA_TOP = ("Glucose", "BMI", "DiabetesPedigreeFunction", "Age")
# Plausible for adults, zero included where the file codes "not measured" as 0; mg/dL, mm Hg,
# mm, mu U/ml, kg/m^2, years. The pedigree function has no natural limit.
_PIMA_RANGES = {
    "Pregnancies": (0.0, 20.0),
    "Glucose": (0.0, 400.0),
    "BloodPressure": (0.0, 200.0),
    "SkinThickness": (0.0, 100.0),
    "Insulin": (0.0, 1000.0),
    "BMI": (0.0, 80.0),
    "Age": (18.0, 120.0),
}


def pima(path: Path) -> Dataset:
    """Return Pima (768 x 8) without preprocessing: zeros stay, as in the published runs.

    The paper prints 728 rows; the file and the authors' code have 768.
    """
    return load_csv(path, "Outcome", ranges=_PIMA_RANGES, top=_PIMA_TOP, name="pima")


def adult(path: Path) -> Dataset:
    """Return Adult (48842 x 14), class 1 is an income above 50K; ``?`` is missing."""
    categorical = (
        "workclass", "education", "marital-status", "occupation", "relationship", "race", "sex",
        "native-country",
    )  # fmt: skip
    # Hours of a week and the coarse codes of the survey are public; ages are top-coded at 90.
    ranges = {"age": (0.0, 120.0), "education-num": (1.0, 16.0), "hours-per-week": (0.0, 168.0)}
    return load_csv(path, "income", categorical=categorical, ranges=ranges, name="adult")


def phishing(path: Path) -> Dataset:
    """Return Phishing Websites (11055 x 30), class 1 is ``Result`` = 1 (legitimate).

    Every feature is a code out of -1, 0, 1; they become categories in numerical order.
    """
    names = [n for n in read_csv(path).names if n != "Result"]
    return load_csv(path, "Result", categorical=names, positive="1", name="phishing")


# From the lightest to the heaviest.
_WEIGHT_CLASSES = (
    "Insufficient_Weight", "Normal_Weight", "Overweight_Level_I", "Overweight_Level_II",
    "Obesity_Type_I", "Obesity_Type_II", "Obesity_Type_III",
)  # fmt: skip
_OBESITY_CODED = (
    "Gender", "family_history_with_overweight", "FAVC", "CAEC", "SMOKE", "SCC", "CALC", "MTRANS",
)  # fmt: skip


def obesity_7(path: Path) -> Dataset:
    """Return Obesity (2111 x 16) with its 7 classes, from the lightest to the heaviest.

    CAEC and CALC are coded in their natural order (no, Sometimes, Frequently, Always), the other
    categories alphabetically. One cell of the file is not a number (TUE, line 12, ``D2``) and is
    read as missing.
    """
    table, damaged = _obesity_table(path)
    y, classes = class_target(table, "NObeyesdad", _WEIGHT_CLASSES)
    return _obesity_dataset("obesity-7", table, y, classes, damaged)


def obesity(path: Path) -> Dataset:
    """Return Obesity (see `obesity_7`) made binary: class 1 is obesity of type I, II or III."""
    table, damaged = _obesity_table(path)
    obese = _WEIGHT_CLASSES[4:]
    rows = [(*r[:-1], "obese" if r[-1] in obese else "not obese") for r in table.rows]
    y, classes = binary_target(replace(table, rows=tuple(rows)), "NObeyesdad", "obese")
    note = "7 classes made binary: obesity of type I, II or III against the rest"
    return _obesity_dataset("obesity", table, y, classes, [note, *damaged])


def _obesity_table(path: Path) -> tuple[TextTable, list[str]]:
    """Return the table, target last, its damaged cells emptied, and a note on each of these."""
    table = read_csv(path)
    tue = table.names.index("TUE")
    damaged = [i for i, row in enumerate(table.rows) if not _number_or_missing(row[tue])]
    rows = list(table.rows)
    for i in damaged:
        rows[i] = (*rows[i][:tue], "", *rows[i][tue + 1 :])
    notes = [f"TUE at line {table.lines[i]} is not a number and read as missing" for i in damaged]
    return replace(table, rows=tuple(rows)), notes


def _obesity_dataset(
    name: str, table: TextTable, y: NDArray[np.int64], classes: tuple[str, ...], notes: list[str]
) -> Dataset:
    frequency = ("no", "Sometimes", "Frequently", "Always")
    # Years, metres, kilograms: plausible for any person; the answers' scales are the survey's.
    ranges = {
        "Age": (0.0, 120.0), "Height": (1.0, 2.5), "Weight": (20.0, 300.0), "FCVC": (1.0, 3.0),
        "NCP": (1.0, 4.0), "CH2O": (1.0, 3.0), "FAF": (0.0, 3.0), "TUE": (0.0, 2.0),
    }  # fmt: skip
    features, columns = [], []
    for column in table.names[:-1]:
        if column in _OBESITY_CODED:
            order = frequency if column in ("CAEC", "CALC") else ()
            codes, categories = coded(table, column, order)
            features.append(Feature(column, "categorical", categories=categories))
            columns.append(codes)
        else:
            features.append(Feature(column, "continuous", *ranges[column]))
            columns.append(numeric(table, column))
    schema = Schema(tuple(features), "NObeyesdad", classes)
    return prepare(name, schema, np.column_stack(columns), y, notes=notes)


def _number_or_missing(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return missing(cell)
    return True


def compas_binary(path: Path) -> Dataset:
    """Return binarised COMPAS (7206 x 14), class 1 is recidivism within two years."""
    return _all_binary(path, "recidivate-within-two-years:1", "compas-binary")


def adult_binary(path: Path) -> Dataset:
    """Return binarised Adult (48842 x 19), class 1 is ``income`` = 1."""
    return _all_binary(path, "income", "adult-binary")


def _all_binary(path: Path, target: str, name: str) -> Dataset:
    names = [n for n in read_csv(path).names if n != target]
    return load_csv(path, target, categorical=names, positive="1", name=name)


BUNDLED: dict[str, Callable[[], Dataset]] = {
    "breast-cancer": bundled.breast_cancer,
    "wine": bundled.wine,
    "digits": bundled.digits,
    "diabetes": bundled.diabetes,
    "iris": bundled.iris,
    "wine-3": bundled.wine_3,
    "digits-10": bundled.digits_10,
    "diabetes-regression": bundled.diabetes_regression,
}
#: Name -> key of `SOURCES` and the loader of that file.
FROM_FILE: dict[str, tuple[str, Callable[[Path], Dataset]]] = {
    "pima": ("pima", pima),
    "stroke": ("stroke", stroke),
    "stroke-raw": ("stroke", stroke_raw),
    "adult": ("adult", adult),
    "phishing": ("phishing", phishing),
    "obesity": ("obesity", obesity),
    "obesity-7": ("obesity", obesity_7),
    "compas-binary": ("compas-binary", compas_binary),
    "adult-binary": ("adult-binary", adult_binary),
}


def names() -> tuple[str, ...]:
    """Return the known dataset names, bundled ones first."""
    return (*BUNDLED, *FROM_FILE)


def load(name: str = DEFAULT, directory: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a dataset by name.

    Parameters
    ----------
    name : str
        One of `names`.
    directory : path, optional
        Where the data files lie; default the environment variable ``FEDTREES_DATA``. Bundled
        datasets need none.

    Raises
    ------
    UsageError
        Unknown name.
    DataError
        The file is missing, has another checksum, or cannot be used.
    """
    if name in BUNDLED:
        return BUNDLED[name]()
    if name not in FROM_FILE:
        raise UsageError(f"unknown dataset {name!r}{did_you_mean(name, names())}")
    source, loader = FROM_FILE[name]
    return loader(locate(source, Path(directory) if directory else None))


__all__ = ["BUNDLED", "DEFAULT", "FROM_FILE", "SOURCES", "load", "names"]
