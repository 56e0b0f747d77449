"""Read a model file and detect its format from its contents."""

import codecs
import struct
from os import PathLike
from pathlib import Path

from fedtrees.audit.model import ModelFile
from fedtrees.audit.read_forest import read_random_forest, read_released
from fedtrees.audit.read_lightgbm import read_lightgbm
from fedtrees.audit.read_xgboost import read_xgboost
from fedtrees.core.errors import DataError
from fedtrees.core.formats import is_numpy_archive, unreadable
from fedtrees.trees.files.forests import is_random_decision_forest
from fedtrees.trees.files.model_file import naming, read_model_file


def read_model(path: str | PathLike[str]) -> ModelFile:
    """Read a model file of any supported format.

    Parameters
    ----------
    path : str or path
        XGBoost's JSON or UBJSON, LightGBM's text, or a random forest of fedtrees (``.npz``). The
        contents decide the format, not the extension.

    Returns
    -------
    model : ModelFile

    Raises
    ------
    DataError
        If the file cannot be read, has no supported format, is not a complete and supported model
        of its format, or contains statistics that no training produces (negative, infinite, or not
        a number).
    """
    data = read_model_file(path)
    text = data.removeprefix(codecs.BOM_UTF8).lstrip()
    with naming(path):
        if text.startswith(b"{"):
            return read_xgboost(Path(path), text)
        if text[:16].split(b"\n")[0].rstrip() == b"tree":
            return read_lightgbm(Path(path), text)
    if data.startswith(b"PK") and is_numpy_archive(path):
        if is_random_decision_forest(path):
            return read_released(Path(path))
        return read_random_forest(Path(path))
    raise DataError(f"{path!s} {_refusal(data)}")


def _refusal(data: bytes) -> str:
    """Return why a file of an unsupported format is rejected, with a remedy."""
    if data.startswith(b"binf"):
        return "is in XGBoost's old binary format; save it as model.json"
    size = struct.unpack("<i", data[:4])[0] if len(data) > 4 else 0
    name = data[4 : 4 + size] if 0 < size < 40 else b""
    if b":" in name and name.replace(b":", b"").replace(b"_", b"").isalpha():
        return (
            "looks like a model that FedTree saved: raw memory of its C++ objects, laid out by the "
            "compiler that built it, and not read. Take no comfort: FedTree writes the gradient "
            "and hessian sums and the number of rows of every node into it"
        )
    if reason := unreadable(data[:16], "save the model with its own save_model as JSON or text"):
        return reason
    if not data.strip():
        return "is empty: save the model again, or give the file it was saved to"
    return (
        f"is of no known format, it starts with {data[:12]!r}; known are XGBoost's JSON and UBJ "
        "models, LightGBM's text models, and random forests saved here (.npz)"
    )
