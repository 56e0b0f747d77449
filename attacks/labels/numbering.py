"""Number values by their first appearance, as `pandas.factorize` does, without loading pandas.

Loading pandas takes longer than most label attacks.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def number_values(values: NDArray[np.integer]) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """Return the number of every value, and the distinct values in the order of their numbers.

    Parameters
    ----------
    values : int array, shape (n,)

    Returns
    -------
    number : intp array, shape (n,)
        0 for the first value and those equal to it, 1 for the next distinct value, and so on.
    distinct : array of the type of `values`

    Examples
    --------
    >>> number, distinct = numbered(np.array([7, 3, 7, -1]))
    >>> number.tolist(), distinct.tolist()
    ([0, 1, 0, 2], [7, 3, -1])
    """
    n = len(values)
    low = int(values.min(initial=0))
    span = int(values.max(initial=0)) - low + 1
    if span > 4 * n + 64:  # such as hashes: sort the values
        ordered, first, place = np.unique(values, return_index=True, return_inverse=True)
    else:  # such as leaves: count them, in linear time
        place = values.astype(np.intp) - low
        first = np.full(span, n, dtype=np.intp)
        first[place[::-1]] = np.arange(n)[::-1]  # the last assignment is the first appearance
        present = first < n
        place = (np.cumsum(present) - 1)[place]
        ordered = (np.flatnonzero(present) + low).astype(values.dtype)
        first = first[present]
    order = np.argsort(first)
    number = np.empty(len(order), dtype=np.intp)
    number[order] = np.arange(len(order))
    return number[place.reshape(-1)], ordered[order]
