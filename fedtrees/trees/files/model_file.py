"""Read a model file into memory, up to a size that a model can have."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from fedtrees.core.errors import DataError

# A thousand trees of depth 12 are about 600 MB of JSON. Parsed, it takes several times its size.
MAX_MODEL_BYTES = 2**30


def read_model_file(path: str | PathLike[str]) -> bytes:
    """Return the bytes of a model file.

    Raises
    ------
    DataError
        If the file cannot be read or is larger than `MAX_MODEL_BYTES`.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_MODEL_BYTES + 1)
    except OSError as error:
        raise DataError(f"cannot read the model {path!s}: {error.strerror}") from error
    if len(data) > MAX_MODEL_BYTES:
        raise DataError(
            f"the model {path!s} is larger than {MAX_MODEL_BYTES} bytes; models that large are not "
            "read: save it with fewer trees"
        )
    return data
