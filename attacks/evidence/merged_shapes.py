"""The clients' bins in a model that `merge_ebms` made of theirs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from fedtrees.messages.additive import ShapeFunctions

Doubles = NDArray[np.float64]
#: How much an uneven count of rows costs, against one that does not add up.
_EVEN = 1e-3
#: Precision of double and of single floats, relative to the largest of a column.
_DOUBLE, _SINGLE = 1e-9, 1e-7
#: Chains of values that are followed at once; ends of one that are tried for each precision.
_CHAINS, _ENDS = 64, 50
#: Most decimal places that are told apart; how many fewer than any number has a column that people
#: wrote has on average.
_PLACES, _FEWER = 8, 0.7


@dataclass(frozen=True, eq=False)
class ClientBins:
    """One column of one client: nothing of it is certain, as rounder values are believed first.

    Attributes
    ----------
    values : float64 array, shape (b,)
        In the bins; empty if they are not known.
    edges : float64 array, shape (b + 1,)
        Of the bins.
    rows : float64 array, shape (b,)
        In the bins.
    """

    values: Doubles
    edges: Doubles
    rows: Doubles


def parted(
    m: ShapeFunctions, clients: int, noisy: bool, known: NDArray[np.float32]
) -> Iterator[list[ClientBins]]:
    """Yield, for every column, the bins of every client.

    Bags come in the clients' order, and what they add changes at cuts of their client alone. A
    client's rows in a bin are dealt to the merged bins by widths: sums of numbers, each 1 or more.

    `clients`: Whose models were merged.
    `noisy`: Whether cuts are not midway between values, nor counts whole.
    `known`: float32 array, shape (k, d). Rows of which some may be a client's.
    """
    for f, bins in enumerate(m.bins):
        cuts, ends = m.cuts_of(f), (float(m.low[f]), float(m.high[f]))
        changes = np.diff(m.scores[:, bins][:, 1:-1], axis=1) != 0
        there = changes.reshape(clients, -1, len(cuts)).any(axis=1)
        nobodys = ~there.any(axis=0)
        found = []
        for own in there:
            values, mine = np.zeros(0), cuts[own]
            if not noisy:
                values, mine = _chain(cuts, own, nobodys, ends, known[:, f])
            low, high = (values[0], values[-1]) if len(values) else ends
            found.append((values, np.concatenate([[low], mine, [high]])))
        rows = _rows(
            m.bin_weights[bins][1:-1],
            np.concatenate([ends[:1], cuts, ends[1:]]),
            [edges for _, edges in found],
            0.0 if noisy else 1.0,
        )
        yield [ClientBins(*told, n) for told, n in zip(found, rows, strict=True)]


def _rows(weights: Doubles, merged: Doubles, own: Sequence[Doubles], least: float) -> list[Doubles]:
    """Return the rows in each client's bins, so many at least."""
    shares = np.concatenate([_overlap(merged, edges) for edges in own], axis=1)
    even = _EVEN * np.eye(shares.shape[1])  # of all that add up the most even
    rest = np.append(weights - least * shares.sum(axis=1), np.zeros(len(even)))
    more, _ = nnls(np.concatenate([shares, even]), rest)
    return np.split(more + least, np.cumsum([len(edges) - 1 for edges in own])[:-1])


def _overlap(merged: Doubles, own: Doubles) -> Doubles:
    """Return the share of every own bin that lies in each merged one, shape (m, b)."""
    low = np.maximum(merged[:-1, None], own[None, :-1])
    high = np.minimum(merged[1:, None], own[None, 1:])
    return np.maximum(high - low, 0) / np.maximum(np.diff(own), np.finfo(float).tiny)


def _chain(
    cuts: Doubles,
    own: NDArray[np.bool_],
    nobodys: NDArray[np.bool_],
    ends: tuple[float, float],
    known: NDArray[np.float32],
) -> tuple[Doubles, Doubles]:
    """Return values that cuts are midway between, and these cuts; no values if they are not known.

    From the range of a value follows that of the next one. Cuts that are nobody's, as no bag
    changes there, may be the client's. Of all values within the range that is taken of which follow
    known ones, or those of the fewest decimal places.
    """
    near = _DOUBLE * max(map(abs, ends))
    chains: list[tuple[float, float, tuple[int, ...]]] = [(ends[0], np.inf, ())]
    for k in np.flatnonzero(own | nobodys).tolist():
        cut, grown = float(cuts[k]), []
        for low, high, taken in chains:
            if nobodys[k]:
                grown.append((low, high, taken))
            if low <= min(high, cut) + near:
                grown.append((2 * cut - min(high, cut), 2 * cut - low, (*taken, k)))
        chains = sorted(grown, key=lambda chain: chain[0] - chain[1])[:_CHAINS]
    best, found = np.inf, (np.zeros(0), cuts[own])
    for low, high, taken in chains:
        last = min(high, ends[1])
        tried = _within(low, last, _SINGLE * max(map(abs, ends)))
        for value in tried + known[(known >= low) & (known <= last)].tolist():
            values = _followed(float(np.float32(value)), cuts[list(taken)])
            x = values.astype(np.float32)
            places = float(np.where(np.isin(x, known), 0, _places(x)).mean())
            if places < min(best, float(_places_of_any(x).mean()) - _FEWER):
                best, found = places, (values, cuts[list(taken)])
    return found


def _followed(last: float, cuts: Doubles) -> Doubles:
    """Return the values that cuts are midway between, given the greatest one."""
    values = np.empty(len(cuts) + 1)
    values[-1] = last
    for k in range(len(cuts) - 1, -1, -1):
        values[k] = 2 * cuts[k] - values[k + 1]
    return values


def _within(low: float, high: float, near: float) -> list[float]:
    """Return the middle of a range, and the numbers of few decimal places in it."""
    if low > high + near:
        return []
    found = [(low + high) / 2]
    for unit in 10.0 ** np.arange(_PLACES):
        first, last = np.ceil((low - near) * unit), np.floor((high + near) * unit)
        if last - first > _ENDS:
            break
        found += (np.arange(first, last + 1) / unit).tolist()
    return found


def _places(x: NDArray[np.float32]) -> Doubles:
    """Return the decimal places that numbers are written with."""
    exact, found = x.astype(np.float64), np.full(len(x), float(_PLACES))
    for places in range(_PLACES - 1, -1, -1):
        found[np.abs(np.round(exact, places) - exact) <= _SINGLE * np.abs(exact)] = places
    return found


def _places_of_any(x: NDArray[np.float32]) -> Doubles:
    """Return the decimal places that tell numbers of this size from all others."""
    size = np.maximum(np.abs(x.astype(np.float64)), 10.0**-_PLACES)
    return np.asarray(np.clip(np.ceil(-np.log10(2 * _SINGLE * size)), 0, _PLACES))
