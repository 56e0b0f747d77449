"""Datasets that fedtrees loads by name."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.schema import OneHot, Schema
from fedtrees.data import bundled
from fedtrees.data.cells import missing
from fedtrees.data.csv_file import Reading, read_csv
from fedtrees.data.csv_table import binary_target, class_target, encoded
from fedtrees.data.dataset import Dataset, prepare
from fedtrees.data.sources import SOURCES, locate
from fedtrees.data.stroke import stroke, stroke_raw

#: Dataset that is used if no name is given.
DEFAULT = "breast-cancer"

#: The features that the published TimberStrike configuration calls "top 5" together with the label.
_PIMA_TOP = ("Glucose", "BMI", "DiabetesPedigreeFunction", "Age")
# Plausible ranges for adults. They include 0 if the file codes "not measured" as 0. The units are
# mg/dL, mm Hg, mm, mu U/ml, kg/m^2 and years. The pedigree function has no natural limit.
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
    """Load Pima (768 x 8) without preprocessing: zeros are preserved, as in the published runs.

    The paper prints 728 rows. The file and the authors' code have 768.
    """
    return _declared("pima", path, "Outcome", ranges=_PIMA_RANGES, top=_PIMA_TOP)


def adult(path: Path) -> Dataset:
    """Load Adult (48842 x 14). Class 1 is an income above 50K, and ``?`` is missing."""
    categorical = (
        "workclass", "education", "marital-status", "occupation", "relationship", "race", "sex",
        "native-country",
    )  # fmt: skip
    # The number of hours in a week and the codes of the survey are public. The survey codes ages
    # above 90 as 90.
    ranges = {"age": (0.0, 120.0), "education-num": (1.0, 16.0), "hours-per-week": (0.0, 168.0)}
    return _declared("adult", path, "income", categorical=categorical, ranges=ranges)


def _all_coded(
    name: str, target: str, path: Path, one_hot: Sequence[str] = (), empty: Sequence[str] = ()
) -> Dataset:
    """Load a table of codes, which become categories in numerical order.

    Columns whose names begin with the same prefix of `one_hot` or `empty` form a one-hot group. In
    groups of `empty`, some rows have no 1.
    """
    data = _declared(name, path, target, categorical=None, positive="1")
    names = [feature.name for feature in data.schema.features]
    groups = tuple(
        OneHot(tuple(n for n in names if n.startswith(start)), start in empty)
        for start in (*one_hot, *empty)
    )
    return prepare(name, replace(data.schema, groups=groups), data.table.X, data.table.y)


def _declared(
    name: str,
    path: Path,
    target: str,
    *,
    categorical: Sequence[str] | None = (),
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    top: Sequence[str] = (),
    positive: str | None = None,
) -> Dataset:
    """Load a file with known columns, without inferring anything.

    If `categorical` is None, all columns are categorical.
    """
    table = read_csv(path, Reading(separator=","), [target])
    y, classes = binary_target(table, target, positive)
    columns = [n for n in table.names if n != target]
    coded = columns if categorical is None else categorical
    features, X = encoded(table, columns, coded, ranges)
    schema = Schema(features, target, classes)
    return prepare(name, schema, X, y, top=top, place=lambda i: f"line {table.lines[i]}")


# From the lightest to the heaviest.
_WEIGHT_CLASSES = (
    "Insufficient_Weight", "Normal_Weight", "Overweight_Level_I", "Overweight_Level_II",
    "Obesity_Type_I", "Obesity_Type_II", "Obesity_Type_III",
)  # fmt: skip
_OBESITY_CODED = (
    "Gender", "family_history_with_overweight", "FAVC", "CAEC", "SMOKE", "SCC", "CALC", "MTRANS",
)  # fmt: skip


def obesity(path: Path, binary: bool = True) -> Dataset:
    """Load Obesity (2111 x 16). Class 1 is obesity of type I, II or III.

    If `binary` is False, the target has 7 classes from the lightest to the heaviest. CAEC and CALC
    are coded in their natural order (no, Sometimes, Frequently, Always), and the remaining
    categories alphabetically. One cell of the file is not a number (TUE, line 12, ``D2``). It is
    read as missing.
    """
    table = read_csv(path)
    tue = table.column("TUE")
    odd = [i for i, cell in enumerate(tue) if not _number_or_missing(cell)]
    notes = [f"TUE at line {table.lines[i]} is not a number and read as missing" for i in odd]
    table = table.mapped("TUE", dict.fromkeys((tue[i] for i in odd), ""))
    if binary:
        two = {n: "obese" if n in _WEIGHT_CLASSES[4:] else "not obese" for n in _WEIGHT_CLASSES}
        table = table.mapped("NObeyesdad", two)
        notes.insert(0, "7 classes made binary: obesity of type I, II or III against the rest")
    y, classes = class_target(
        table, "NObeyesdad", ("not obese", "obese") if binary else _WEIGHT_CLASSES
    )
    # Age, height and weight have plausible ranges for any person, in years, metres and kilograms.
    # The remaining ranges are the scales of the survey's answers.
    ranges = {
        "Age": (0.0, 120.0), "Height": (1.0, 2.5), "Weight": (20.0, 300.0), "FCVC": (1.0, 3.0),
        "NCP": (1.0, 4.0), "CH2O": (1.0, 3.0), "FAF": (0.0, 3.0), "TUE": (0.0, 2.0),
    }  # fmt: skip
    orders = dict.fromkeys(("CAEC", "CALC"), ("no", "Sometimes", "Frequently", "Always"))
    features, X = encoded(table, table.names[:-1], _OBESITY_CODED, ranges, orders)
    name = "obesity" if binary else "obesity-7"
    return prepare(name, Schema(features, "NObeyesdad", classes), X, y, notes=notes)


def _number_or_missing(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return missing(cell)
    return True


BUNDLED: dict[str, Callable[[], Dataset]] = {
    "breast-cancer": bundled.breast_cancer,
    "wine": bundled.wine,
    "digits": bundled.digits,
    "diabetes": bundled.diabetes,
    "iris": bundled.iris,
    "wine-3": partial(bundled.wine, binary=False),
    "digits-10": partial(bundled.digits, binary=False),
    "diabetes-regression": partial(bundled.diabetes, binary=False),
}
#: Name -> key of `SOURCES`, and the loader of that file.
FROM_FILE: dict[str, tuple[str, Callable[[Path], Dataset]]] = {
    "pima": ("pima", pima),
    "stroke": ("stroke", stroke),
    "stroke-raw": ("stroke", stroke_raw),
    "adult": ("adult", adult),
    # Phishing Websites (11055 x 30). Class 1 is legitimate.
    "phishing": ("phishing", partial(_all_coded, "phishing", "Result")),
    "obesity": ("obesity", obesity),
    "obesity-7": ("obesity", partial(obesity, binary=False)),
    # COMPAS (7206 x 14) and Adult (48842 x 19) in binary columns.
    "compas-binary": (
        "compas-binary",
        partial(
            _all_coded, "compas-binary", "recidivate-within-two-years:1",
            one_hot=("age:", "priors:"),
        ),
    ),
    "adult-binary": (
        "adult-binary",
        partial(
            _all_coded, "adult-binary", "income",
            one_hot=("education_",), empty=("occupation_", "workclass_"),
        ),
    ),
}  # fmt: skip


def names() -> tuple[str, ...]:
    """Return the names of all datasets, bundled ones first."""
    return (*BUNDLED, *FROM_FILE)


def load(name: str = DEFAULT, directory: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a dataset by name.

    Parameters
    ----------
    name : str
        One of `names`.
    directory : str or path, optional
        Folder with the data files. The default is `fedtrees.data.sources.data_directory`. Bundled
        datasets need no folder.

    Returns
    -------
    dataset : Dataset

    Raises
    ------
    UsageError
        If the name is unknown.
    DataError
        If the file is missing, has another checksum, or cannot be used.

    Examples
    --------
    >>> load("iris").table.X.shape
    (150, 4)
    """
    if name in BUNDLED:
        return BUNDLED[name]()
    if name not in FROM_FILE:
        raise UsageError(f"unknown dataset {name!r}{did_you_mean(name, names())}")
    source, loader = FROM_FILE[name]
    return loader(locate(source, Path(directory) if directory else None))


__all__ = ["BUNDLED", "DEFAULT", "FROM_FILE", "SOURCES", "load", "names"]
