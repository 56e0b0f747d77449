"""Read a model file into memory, and limit its size and the depth of its trees."""

from __future__ import annotations

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
from fedtrees.core.files import no_local_file

# A thousand trees of depth 12 need about 600 MB of JSON. The parsed JSON needs several times this
# size.
MAX_MODEL_BYTES = 2**30
_BLOCK = 2**20
# Largest number of levels of a tree. Each split of a training divides the rows, so that no trained
# tree has this depth. Algorithms that follow the path to every leaf would need time that grows with
# the square of the file size.
MOST_LEVELS = 2**12


def read_model_file(path: str | PathLike[str]) -> bytes:
    """Return the bytes of a model file.

    Raises
    ------
    DataError
        If the file cannot be read or is larger than `MAX_MODEL_BYTES`.
    """
    try:
        with Path(path).open("rb") as file:
            # If all bytes are requested at once, Python allocates the memory for them in advance.
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
    """Refuse a tree with more than `MOST_LEVELS` levels.

    Parameters
    ----------
    left, right : int array, shape (n_nodes,)
        Children of every node, which follow it. Those of leaves are negative or not node numbers.

    Raises
    ------
    DataError
        If the tree has more levels.
    """
    level = np.zeros(1, dtype=np.int64)
    for _ in range(MOST_LEVELS):
        # All nodes of one level at a time, so that a cycle also ends after `MOST_LEVELS` steps.
        both = np.concatenate([left[level], right[level]])
        level = both[(both >= 0) & (both < len(left))]
        if not len(level):
            return
    raise DataError(
        f"a tree of {len(left)} nodes has more than {MOST_LEVELS} levels, which no training grows "
        "and nothing reads in bounded time; the file is damaged"
    )
