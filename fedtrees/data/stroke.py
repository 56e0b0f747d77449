"""The Stroke table, with the recipe of the published TimberStrike runs and without SMOTE."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Schema
from fedtrees.data.csv_file import TextTable, read_csv
from fedtrees.data.csv_table import encoded, numeric
from fedtrees.data.dataset import Dataset, prepare

#: Column order of the published runs.
_ORDER = (
    "age", "avg_glucose_level", "bmi", "gender", "hypertension", "heart_disease",
    "ever_married", "work_type", "Residence_type", "smoking_status",
)  # fmt: skip
#: The features that the published configuration calls "top 5" together with the label.
TOP = ("avg_glucose_level", "heart_disease", "work_type", "Residence_type")
# Plausible ranges for any person, in years, mg/dL and kg/m^2 (the recipe drops rows above 80).
_RANGES = {"age": (0.0, 120.0), "avg_glucose_level": (40.0, 400.0), "bmi": (10.0, 80.0)}
_BMI_LIMIT = 80.0
_SEED = 42
_SMOTE_RATIO = 0.6
_TEST_SHARE = 0.2


def stroke_raw(path: Path) -> Dataset:
    """Load the cleaned real rows: 5108 rows, 10 features, no synthetic rows.

    The rows are cleaned as in the published notebook: ``id`` is dropped, a missing bmi becomes the
    median, rows with a bmi above 80 are dropped, the gender ``Other`` becomes ``Female``, and
    categories are coded alphabetically.
    """
    schema, X, y = _clean(read_csv(path))
    return prepare("stroke-raw", schema, X, y, top=TOP)


def stroke(path: Path) -> Dataset:
    """Load the published training rows (6219, SMOTE included) and test rows (1022).

    After the cleaning of `stroke_raw`, the recipe draws 20% of the rows as stratified test rows
    (seed 42). It then applies ordinary SMOTE (ratio 0.6, seed 42) to the training rows. The paper
    describes SMOTE-NC. We follow the authors' code, which interpolates the category codes and
    truncates them. 2133 of the 6219 training rows, and most positives, are synthetic. A
    reconstruction score on this table is therefore partly about interpolated rows. Source: Di
    Gennaro et al., ``stroke_data_prepr.ipynb``.

    Raises `DataError` if imbalanced-learn is not installed.
    """
    try:
        from imblearn.over_sampling import SMOTE
    except ImportError:
        raise DataError(
            "stroke: the published recipe needs imbalanced-learn (pip install imbalanced-learn); "
            "stroke-raw does without"
        ) from None
    import pandas as pd
    from sklearn.model_selection import train_test_split

    schema, X, y = _clean(read_csv(path))
    frame = pd.DataFrame(X, columns=list(schema.names))
    for feature in schema.features:
        if feature.kind == "categorical":  # SMOTE truncates the codes of integer columns
            frame[feature.name] = frame[feature.name].astype(np.int64)
    X_train, X_test, y_train, y_test = train_test_split(
        frame, y, test_size=_TEST_SHARE, stratify=y, random_state=_SEED
    )
    smote = SMOTE(sampling_strategy=_SMOTE_RATIO, random_state=_SEED)
    X_more, y_more = smote.fit_resample(X_train, y_train)
    synthetic = len(y_more) - len(y_train)
    return prepare(
        "stroke",
        schema,
        np.concatenate([X_more.to_numpy(np.float64), X_test.to_numpy(np.float64)]),
        np.concatenate([y_more, y_test]),
        top=TOP,
        test_rows=np.arange(len(y_more), len(y_more) + len(y_test)),
        notes=(f"{synthetic} of {len(y_more)} training rows are SMOTE interpolations",),
    )


def _clean(table: TextTable) -> tuple[Schema, NDArray[np.float64], NDArray[np.int64]]:
    """Return the schema, the features and the labels after the published cleaning."""
    table = table.mapped("gender", {"Other": "Female"})
    # The smoking status "Unknown" is a separate category, as in the notebook.
    coded = [name for name in _ORDER if name not in _RANGES]
    features, X = encoded(table, _ORDER, coded, _RANGES)
    bmi = X[:, _ORDER.index("bmi")]
    bmi[np.isnan(bmi)] = np.nanmedian(bmi)
    keep = bmi <= _BMI_LIMIT
    y = numeric(table, "stroke").astype(np.int64)
    return Schema(features, "stroke", ("no stroke", "stroke")), X[keep], y[keep]
