"""Recover each client's bins from an additive model that `merge_ebms` merged from theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from fedtrees.messages.additive import ShapeFunctions

Doubles = NDArray[np.float64]
#: Weight of even counts of rows, relative to counts that add up to the merged weights.
_EVEN = 1e-3
#: Precision of double and single floats, relative to the largest value of a column.
_DOUBLE, _SINGLE = 1e-9, 1e-7
#: Number of value chains that are searched together, and of end values tried per precision.
_CHAINS, _ENDS = 64, 50
#: Largest number of decimal places that are distinguished. A column that people wrote has on
#: average at least 0.7 places fewer than arbitrary numbers.
_PLACES, _FEWER = 8, 0.7


@dataclass(frozen=True, eq=False)
class ClientBins:
    """Estimated bins of one column of one client.

    Candidates with fewer decimal places are preferred, so that no entry is certain.

    Attributes
    ----------
    values : float64 array, shape (b,)
        Value in each bin. Empty if the values are not known.
    edges : float64 array, shape (b + 1,)
        Borders of the bins.
    rows : float64 array, shape (b,)
        Number of rows in each bin.
    """

    values: Doubles
    edges: Doubles
    rows: Doubles


def split_bins(
    m: ShapeFunctions, clients: int, noisy: bool, known_values: NDArray[np.float32]
) -> Iterator[list[ClientBins]]:
    """Yield, for every column, the bins of every client.

    The bags of the merged model are in the order of the clients, and the scores of a bag change
    only at cuts of its client. The rows of a merged bin are distributed to the clients' bins by
    width, such that every client bin contains at least one row.

    Parameters
    ----------
    m : ShapeFunctions
        The merged model.
    clients : int
        Number of clients whose models were merged.
    noisy : bool
        If True, cuts are not midway between values, and counts are not integers.
    known_values : float32 array, shape (k, d)
        Rows of which some may be rows of a client.
    """
    for f, bins in enumerate(m.bins):
        cuts, ends = m.cuts_of(f), (float(m.low[f]), float(m.high[f]))
        changes = np.diff(m.scores[:, bins][:, 1:-1], axis=1) != 0
        own_cuts = changes.reshape(clients, -1, len(cuts)).any(axis=1)
        # a cut at which no score changes may belong to any client
        unused = ~own_cuts.any(axis=0)
        client_columns = []
        for is_own in own_cuts:
            values, client_cuts = np.zeros(0), cuts[is_own]
            if not noisy:
                values, client_cuts = _chain(cuts, is_own, unused, ends, known_values[:, f])
            low, high = (values[0], values[-1]) if len(values) else ends
            client_columns.append((values, np.concatenate([[low], client_cuts, [high]])))
        rows = _rows(
            m.bin_weights[bins][1:-1],
            np.concatenate([ends[:1], cuts, ends[1:]]),
            [edges for _, edges in client_columns],
            0.0 if noisy else 1.0,
        )
        yield [ClientBins(*column, n) for column, n in zip(client_columns, rows, strict=True)]


def _rows(
    weights: Doubles, merged: Doubles, client_edges: Sequence[Doubles], least: float
) -> list[Doubles]:
    """Return the number of rows in each client's bins, at least `least` in each."""
    shares = np.concatenate([_overlap(merged, edges) for edges in client_edges], axis=1)
    even = _EVEN * np.eye(shares.shape[1])  # prefers the most even solution
    # every bin of a client contains at least `least` rows, so that only the excess is solved for
    rest = np.append(weights - least * shares.sum(axis=1), np.zeros(len(even)))
    more, _ = nnls(np.concatenate([shares, even]), rest)
    return np.split(more + least, np.cumsum([len(edges) - 1 for edges in client_edges])[:-1])


def _overlap(merged: Doubles, client_edges: Doubles) -> Doubles:
    """Return the share of every client bin that lies in each merged bin, shape (m, b)."""
    low = np.maximum(merged[:-1, None], client_edges[None, :-1])
    high = np.minimum(merged[1:, None], client_edges[None, 1:])
    return np.maximum(high - low, 0) / np.maximum(np.diff(client_edges), np.finfo(float).tiny)


def _chain(
    cuts: Doubles,
    is_client: NDArray[np.bool_],
    nobodys: NDArray[np.bool_],
    ends: tuple[float, float],
    known_values: NDArray[np.float32],
) -> tuple[Doubles, Doubles]:
    """Return values with the client's cuts midway between them, and these cuts.

    The range of a value gives the range of the next one. Cuts at which no bag changes may belong to
    any client. Among the possible end values in the best range, known values or values with the
    fewest decimal places are chosen. The values are empty if no candidate is plausible.
    """
    near = _DOUBLE * max(map(abs, ends))
    chains: list[tuple[float, float, tuple[int, ...]]] = [(ends[0], np.inf, ())]
    for k in np.flatnonzero(is_client | nobodys).tolist():
        cut, grown = float(cuts[k]), []
        for low, high, taken in chains:
            if nobodys[k]:
                grown.append((low, high, taken))
            if low <= min(high, cut) + near:
                grown.append((2 * cut - min(high, cut), 2 * cut - low, (*taken, k)))
        chains = sorted(grown, key=lambda chain: chain[0] - chain[1])[:_CHAINS]
    best, best_chain = np.inf, (np.zeros(0), cuts[is_client])
    for low, high, taken in chains:
        last = min(high, ends[1])
        tried = _within(low, last, _SINGLE * max(map(abs, ends)))
        for value in tried + known_values[(known_values >= low) & (known_values <= last)].tolist():
            values = _values_of_cuts(float(np.float32(value)), cuts[list(taken)])
            x = values.astype(np.float32)
            places = float(np.where(np.isin(x, known_values), 0, _places(x)).mean())
            if places < min(best, float(_places_of_any(x).mean()) - _FEWER):
                best, best_chain = places, (values, cuts[list(taken)])
    return best_chain


def _values_of_cuts(last: float, cuts: Doubles) -> Doubles:
    """Return the values with the given cuts midway between them, from the largest value."""
    values = np.empty(len(cuts) + 1)
    values[-1] = last
    for k in range(len(cuts) - 1, -1, -1):
        values[k] = 2 * cuts[k] - values[k + 1]
    return values


def _within(low: float, high: float, near: float) -> list[float]:
    """Return the middle of a range and the numbers with few decimal places in it."""
    if low > high + near:
        return []
    candidates = [(low + high) / 2]
    for unit in 10.0 ** np.arange(_PLACES):
        first, last = np.ceil((low - near) * unit), np.floor((high + near) * unit)
        if last - first > _ENDS:
            break
        candidates += (np.arange(first, last + 1) / unit).tolist()
    return candidates


def _places(x: NDArray[np.float32]) -> Doubles:
    """Return the number of decimal places of each number."""
    exact, decimals = x.astype(np.float64), np.full(len(x), float(_PLACES))
    for places in range(_PLACES - 1, -1, -1):
        decimals[np.abs(np.round(exact, places) - exact) <= _SINGLE * np.abs(exact)] = places
    return decimals


def _places_of_any(x: NDArray[np.float32]) -> Doubles:
    """Return the number of decimal places that distinguish numbers of this size in float32."""
    size = np.maximum(np.abs(x.astype(np.float64)), 10.0**-_PLACES)
    return np.asarray(np.clip(np.ceil(-np.log10(2 * _SINGLE * size)), 0, _PLACES))
