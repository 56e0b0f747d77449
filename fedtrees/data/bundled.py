"""Tables that scikit-learn contains, which need no data file and no network."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Feature, Schema
from fedtrees.data.dataset import Dataset, prepare


def _build(
    name: str,
    bunch: Any,
    y: NDArray[Any],
    classes: Any,
    *notes: str,
    features: list[Feature] | None = None,
) -> Dataset:
    """Create a dataset from a table of scikit-learn.

    Column names get underscores in place of spaces. Unless `features` declares them, no ranges are
    public.
    """
    plain = [str(n).replace(" (cm)", "") for n in bunch.feature_names]
    columns = features or [Feature(n.replace(" ", "_").replace("/", "_per_")) for n in plain]
    schema = Schema(tuple(columns), "target", tuple(map(str, classes)))
    return prepare(name, schema, bunch.data, y, notes=notes)


def breast_cancer() -> Dataset:
    """Load Wisconsin breast cancer (569 x 30). Class 1 is malignant.

    scikit-learn codes benign as 1. Here class 1 is the rarer, clinically positive class.
    """
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    return _build("breast-cancer", bunch, bunch.target == 0, ("benign", "malignant"))


def iris() -> Dataset:
    """Load Iris (150 x 4, in cm), three species with 50 flowers each."""
    from sklearn.datasets import load_iris

    bunch = load_iris()
    return _build("iris", bunch, bunch.target, bunch.target_names)


def wine(binary: bool = True) -> Dataset:
    """Load Wine (178 x 13): ``class_1`` (71 rows) against the rest, or its three classes."""
    from sklearn.datasets import load_wine

    bunch = load_wine()
    if not binary:
        return _build("wine-3", bunch, bunch.target, bunch.target_names)
    note = "3 classes made binary: class_1 against the rest"
    return _build("wine", bunch, bunch.target == 1, ("class_0 or class_2", "class_1"), note)


def digits(binary: bool = True) -> Dataset:
    """Load Digits (1797 x 64 pixels). Class 1 is a digit of 5 or above, or there are ten classes.

    The range of a pixel, 0 to 16, is part of the published format.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    features = [Feature(str(n), "continuous", 0.0, 16.0) for n in bunch.feature_names]
    if not binary:
        return _build("digits-10", bunch, bunch.target, "0123456789", features=features)
    note = "10 classes made binary: digits 5 to 9 against 0 to 4"
    classes = ("0 to 4", "5 to 9")
    return _build("digits", bunch, bunch.target >= 5, classes, note, features=features)


def diabetes(binary: bool = True) -> Dataset:
    """Load diabetes progression (442 x 10, original units). Class 1 is above the median.

    If `binary` is False, the target is the measure of progression itself. Age in years, bmi in
    kg/m^2 and blood pressure in mm Hg have plausible human ranges. Sex is coded from 0.
    """
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)
    ranges = {"age": (0.0, 120.0), "bmi": (10.0, 80.0), "bp": (30.0, 200.0)}
    features = [Feature(n, "continuous", *ranges.get(n, ())) for n in bunch.feature_names]
    sex = bunch.feature_names.index("sex")
    features[sex] = Feature("sex", "categorical", categories=("1", "2"))
    # scikit-learn codes the two sexes as 1 and 2.
    bunch.data[:, sex] -= 1
    if not binary:
        return _build("diabetes-regression", bunch, bunch.target, (), features=features)
    median = float(np.median(bunch.target))
    note = f"regression target made binary: above its median, {median:g}"
    classes = ("at most median", "above median")
    return _build("diabetes", bunch, bunch.target > median, classes, note, features=features)
