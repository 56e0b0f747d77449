"""Read a model file into memory, up to a size and to a depth of trees that a model can have."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.formats import no_local_file

# A thousand trees of depth 12 are about 600 MB of JSON. Parsed, it takes several times its size.
MAX_MODEL_BYTES = 2**30
_BLOCK = 2**20
# Levels of a tree. A split of a training divides its rows: so deep is no tree that was trained, and
# what follows paths (one for each leaf) would take time that grows with the square of the file.
MOST_LEVELS = 2**12


def read_model_file(path: str | PathLike[str]) -> bytes:
    """Return the bytes of a model file.

    Raises `DataError` if the file cannot be read or is larger than `MAX_MODEL_BYTES`.
    """
    try:
        with Path(path).open("rb") as file:
            # To be asked for as many bytes at once, Python makes room for them all beforehand.
            blocks = iter(partial(file.read, _BLOCK), b"")
            data = b"".join(islice(blocks, MAX_MODEL_BYTES // _BLOCK + 1))
    except OSError as error:
        reason = no_local_file(str(path)) or error.strerror
        raise DataError(f"cannot read the model {path!s}: {reason}") from error
    if len(data) > MAX_MODEL_BYTES:
        raise DataError(
            f"the model {path!s} is larger than {MAX_MODEL_BYTES} bytes; models that large are not "
            "read: save it with fewer trees"
        )
    return data


@contextmanager
def naming(path: str | PathLike[str]) -> Iterator[None]:
    """Put the name of a model file in front of a `DataError` of the block that lacks it."""
    try:
        yield
    except DataError as error:
        if str(path) in str(error):
            raise
        raise DataError(f"{path!s}: {error}") from error


def check_depth(left: NDArray[np.integer[Any]], right: NDArray[np.integer[Any]]) -> None:
    """Refuse a tree of more than `MOST_LEVELS` levels.

    `left, right`: int array, shape (n_nodes,). Children of every node, after it; those of leaves
    are below 0 or no nodes.

    Raises `DataError`.
    """
    level = np.zeros(1, dtype=np.int64)
    for _ in range(MOST_LEVELS):
        both = np.concatenate([left[level], right[level]])
        level = both[(both >= 0) & (both < len(left))]
        if not len(level):
            return
    raise DataError(
        f"a tree of {len(left)} nodes has more than {MOST_LEVELS} levels, which no training grows "
        "and nothing reads in bounded time; the file is damaged"
    )
