"""Load a model file of any supported format, which is detected from its content."""

from os import PathLike

from fedtrees.core.errors import DataError
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.files.forests import load_random_forest
from fedtrees.trees.files.lightgbm import from_lightgbm_text
from fedtrees.trees.files.model_file import naming, read_model_file
from fedtrees.trees.files.xgboost import from_xgboost_json
from fedtrees.trees.forest.random_forest import RandomForest

_KNOWN = (
    "known are XGBoost's JSON and UBJ models, LightGBM's text models, and random forests saved "
    "here (.npz)"
)


def load_model(path: str | PathLike[str]) -> Forest | RandomForest:
    """Read a forest from a model file.

    Supported formats are XGBoost's JSON and UBJ (see `from_xgboost_json`), LightGBM's text (see
    `from_lightgbm_text`) and the arrays of a random forest (see `load_random_forest`). The name of
    the file is irrelevant. No code in a model is executed, and pickles are not read.

    Parameters
    ----------
    path : str or Path
        The file.

    Returns
    -------
    model : Forest or RandomForest
        Boosted trees, or a random forest. Both predict with ``predict``.

    Raises
    ------
    DataError
        If the file cannot be read, has no supported format, or is not a complete and supported
        model.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from sklearn.datasets import load_breast_cancer
    >>> from fedtrees import FederatedGBDTClassifier, load_model
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = FederatedGBDTClassifier(n_estimators=2, max_depth=2, random_state=0).fit(X, y)
    >>> with TemporaryDirectory() as folder:
    ...     model.save_model(Path(folder, "model.json"))
    ...     forest = load_model(Path(folder, "model.json"))
    >>> len(forest.trees)
    2
    """
    data = read_model_file(path)
    start = data.lstrip()[:16]
    with naming(path):
        if start.startswith(b"{"):
            return from_xgboost_json(data.lstrip())
        if start.split(b"\n")[0].rstrip() == b"tree":
            return from_lightgbm_text(data.lstrip())
    if data.startswith(b"PK"):
        return load_random_forest(path)
    if data.startswith(b"binf"):
        raise DataError(f"{path!s} is in XGBoost's old binary format; save it as model.json")
    if not start:
        raise DataError(f"{path!s} is empty: save the model again, or give the file it is in")
    raise DataError(f"{path!s} is of no known format, it starts with {data[:12]!r}; {_KNOWN}")
