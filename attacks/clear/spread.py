"""Values of a column beyond those that were read: its rows between them, on the grid of these."""

import numpy as np
from numpy.typing import NDArray

#: Decimal places that are tried.
_PLACES = 6
#: Of the width of what was read, how far values go beyond it where no range is declared.
_BEYOND = 0.25
_STEPS = 3  # from even shares: more of them make a few values too likely (diabetes: .399, .411 now)


def decimals(values: NDArray[np.float32]) -> int | None:
    """Return the fewest decimal places that write all values; None if six do not."""
    for places in range(_PLACES + 1):
        if (np.round(values.astype(np.float64), places).astype(np.float32) == values).all():
            return places
    return None


def spread(
    read: NDArray[np.float32],
    low: NDArray[np.float32],
    high: NDArray[np.float32],
    declared: tuple[float, float],
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return values of all rows, with counts: those that were read once each, the rest spread out.

    As many rows as are likely to be between two values that were read are spread evenly over what
    can be written there with as many decimal places.

    `read`: float32 array, shape (k,), ascending.
    `low, high`: float32 array, shape (n,). Ends of rows' values, infinite where not known.
    `declared`: The column's range, NaN where it has none.
    """
    places, width = decimals(read), float(read[-1] - read[0])
    least, most = (
        at if np.isnan(end) else end
        for at, end in zip((read[0] - _BEYOND * width, read[-1] + _BEYOND * width), declared,
                           strict=True)
    )  # fmt: skip
    if places is None or most <= least or not len(low):
        return read, np.ones(len(read), np.int64)
    ends = np.unique(np.append(np.clip(read, least, most), (least, most)).astype(np.float64))
    share = _shares(ends, low.astype(np.float64), high.astype(np.float64))
    at = (np.arange(len(low)) + 0.5) / len(low)
    made = np.interp(at, np.append(0.0, np.cumsum(share)), ends)
    made = np.round(made, places).astype(np.float32) + np.float32(0)
    missed = np.setdiff1d(read, made)
    values, counts = np.unique(np.append(made, missed), return_counts=True)
    return values, counts.astype(np.int64)


def _shares(
    ends: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the shares of rows between ends, by EM from even ones (Turnbull 1976)."""
    width = np.diff(ends)
    inside = (low[:, None] < ends[None, 1:]) & (high[:, None] > ends[None, :-1])
    share = width / width.sum()
    for _ in range(_STEPS):
        each = inside * share
        share = (each / np.maximum(each.sum(axis=1, keepdims=True), 1e-300)).mean(axis=0)
    return share / share.sum()
