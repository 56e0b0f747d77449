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
    classes: tuple[str, str],
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


def wine() -> Dataset:
    """Return Wine (178 x 13); class 1 is scikit-learn's ``class_1`` (71 rows), the rest class 0."""
    from sklearn.datasets import load_wine

    bunch = load_wine()
    features = [Feature(_plain(str(n))) for n in bunch.feature_names]
    return _build(
        "wine", bunch, bunch.target == 1, ("class_0 or class_2", "class_1"), features,
        "3 classes made binary: class_1 against the rest",
    )  # fmt: skip


def digits() -> Dataset:
    """Return Digits (1797 x 64 pixels); class 1 is a digit of 5 or above.

    The pixel range 0..16 is part of the published format and therefore declared.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    features = [Feature(str(n), "continuous", 0.0, 16.0) for n in bunch.feature_names]
    return _build(
        "digits", bunch, bunch.target >= 5, ("0 to 4", "5 to 9"), features,
        "10 classes made binary: digits 5 to 9 against 0 to 4",
    )  # fmt: skip


def diabetes() -> Dataset:
    """Return the diabetes progression table (442 x 10) in its original units.

    Class 1 is a progression above the median of all rows (the table is a regression problem).
    Age in years, sex coded, bmi in kg/m^2, blood pressure in mm Hg have plausible human ranges.
    """
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)
    ranges = {"age": (0.0, 120.0), "bmi": (10.0, 80.0), "bp": (30.0, 200.0)}
    features = [Feature(n, "continuous", *ranges.get(n, (None, None))) for n in bunch.feature_names]
    sex = bunch.feature_names.index("sex")
    features[sex] = Feature("sex", "categorical", categories=("1", "2"))
    bunch.data[:, sex] -= 1  # codes start at 0
    median = float(np.median(bunch.target))
    return _build(
        "diabetes", bunch, bunch.target > median, ("at most median", "above median"), features,
        f"regression target made binary: above its median, {median:g}",
    )  # fmt: skip
