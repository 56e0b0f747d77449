"""Tables that come with scikit-learn: always there, no file and no network needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Feature, Schema
from fedtrees.data.dataset import Dataset, prepare


def _plain(name: str) -> str:
    return name.replace(" ", "_").replace("/", "_per_")


def _build(
    name: str,
    bunch: Any,
    y: NDArray[Any],
    classes: tuple[str, ...],
    features: list[Feature],
    *notes: str,
) -> Dataset:
    return prepare(name, Schema(tuple(features), "target", classes), bunch.data, y, notes=notes)


def breast_cancer() -> Dataset:
    """Return Wisconsin breast cancer (569 x 30); class 1 is malignant.

    scikit-learn codes benign as 1; here the rarer, clinically positive class is 1. No public
    ranges are declared: the features are image measurements without natural limits.
    """
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    features = [Feature(_plain(str(n))) for n in bunch.feature_names]
    return _build("breast-cancer", bunch, bunch.target == 0, ("benign", "malignant"), features)


def iris() -> Dataset:
    """Return Iris (150 x 4, in cm), three species of 50 flowers each."""
    from sklearn.datasets import load_iris

    bunch = load_iris()
    features = [Feature(_plain(str(n).removesuffix(" (cm)"))) for n in bunch.feature_names]
    return _build("iris", bunch, bunch.target, tuple(map(str, bunch.target_names)), features)


def _wine() -> tuple[Any, list[Feature]]:
    from sklearn.datasets import load_wine

    bunch = load_wine()
    return bunch, [Feature(_plain(str(n))) for n in bunch.feature_names]


def wine_3() -> Dataset:
    """Return Wine (178 x 13) with its three classes: 59, 71 and 48 rows."""
    bunch, features = _wine()
    return _build("wine-3", bunch, bunch.target, tuple(map(str, bunch.target_names)), features)


def wine() -> Dataset:
    """Return Wine (178 x 13); class 1 is scikit-learn's ``class_1`` (71 rows), the rest class 0."""
    bunch, features = _wine()
    return _build(
        "wine", bunch, bunch.target == 1, ("class_0 or class_2", "class_1"), features,
        "3 classes made binary: class_1 against the rest",
    )  # fmt: skip


def _digits() -> tuple[Any, list[Feature]]:
    """Return the table with its pixel range, 0..16, which is part of the published format."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch, [Feature(str(n), "continuous", 0.0, 16.0) for n in bunch.feature_names]


def digits_10() -> Dataset:
    """Return Digits (1797 x 64 pixels, range 0..16 declared) with its ten classes."""
    bunch, features = _digits()
    return _build("digits-10", bunch, bunch.target, tuple("0123456789"), features)


def digits() -> Dataset:
    """Return Digits (1797 x 64 pixels, range 0..16 declared); class 1 is a digit of 5 or above."""
    bunch, features = _digits()
    return _build(
        "digits", bunch, bunch.target >= 5, ("0 to 4", "5 to 9"), features,
        "10 classes made binary: digits 5 to 9 against 0 to 4",
    )  # fmt: skip


def _diabetes() -> tuple[Any, list[Feature]]:
    """Return the table in its original units.

    Age in years, bmi in kg/m^2, blood pressure in mm Hg have plausible human ranges; sex is coded.
    """
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)
    ranges = {"age": (0.0, 120.0), "bmi": (10.0, 80.0), "bp": (30.0, 200.0)}
    features = [Feature(n, "continuous", *ranges.get(n, (None, None))) for n in bunch.feature_names]
    sex = bunch.feature_names.index("sex")
    features[sex] = Feature("sex", "categorical", categories=("1", "2"))
    bunch.data[:, sex] -= 1  # codes start at 0
    return bunch, features


def diabetes_regression() -> Dataset:
    """Return diabetes progression (442 x 10, original units): the target is its measure."""
    bunch, features = _diabetes()
    return _build("diabetes-regression", bunch, bunch.target, (), features)


def diabetes() -> Dataset:
    """Return diabetes progression (442 x 10, original units) made binary.

    Class 1 is a progression above the median of all rows (the table is a regression problem).
    """
    bunch, features = _diabetes()
    median = float(np.median(bunch.target))
    return _build(
        "diabetes", bunch, bunch.target > median, ("at most median", "above median"), features,
        f"regression target made binary: above its median, {median:g}",
    )  # fmt: skip
