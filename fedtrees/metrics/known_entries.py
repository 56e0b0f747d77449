"""Which of the victims' values a threat declares known."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import KnownEntries, LocalData
from fedtrees.core.schema import Schema


def of_every_row(
    victims: Mapping[str, LocalData], schema: Schema, count: int, rng: np.random.Generator
) -> KnownEntries:
    """Draw attributes that a threat declares known of all rows of others (Gorgé et al. 2025).

    Raises `UsageError` if no attribute is left to guess, or someone holds but some columns of rows.
    """
    attributes = schema.attributes
    if count >= len(attributes):
        raise UsageError(
            f"attributes={count}, and a row has {len(attributes)}, a one-hot group being one; give "
            "fewer, so that some are left to guess"
        )
    if not all(held.covers(schema) for held in victims.values()):
        raise UsageError(
            f"attributes={count}: others hold columns of rows; give entries, or take a protocol "
            "whose parties hold whole rows"
        )
    drawn = rng.permutation(len(attributes))[:count]
    return _cells(victims, [c for a in drawn.tolist() for c in attributes[a]])


def all_but(victims: Mapping[str, LocalData], schema: Schema, attribute: int) -> KnownEntries:
    """Return all values of others' rows but those of one attribute (Fredrikson et al. 2014).

    Raises `UsageError` if there is no such attribute, or someone holds but some columns of rows.
    """
    attributes = schema.attributes
    if attribute >= len(attributes):
        raise UsageError(
            f"sensitive={attribute}: a row has {len(attributes)} attributes, counted from 0"
        )
    if not all(held.covers(schema) for held in victims.values()):
        raise UsageError(
            f"sensitive={attribute}: others hold columns of rows; take a protocol whose parties "
            "hold whole rows"
        )
    return _cells(victims, [c for k, a in enumerate(attributes) if k != attribute for c in a])


def _cells(victims: Mapping[str, LocalData], of: Sequence[int]) -> KnownEntries:
    columns = np.sort(of).astype(np.int64)
    ids = np.concatenate([held.ids for held in victims.values()])
    X = np.concatenate([held.X[:, columns] for held in victims.values()])
    return KnownEntries(np.repeat(ids, len(columns)), np.tile(columns, len(ids)), X.reshape(-1))


def dealt(
    victims: Mapping[str, LocalData], count: int, rng: np.random.Generator
) -> KnownEntries | None:
    """Draw values that a threat declares known, where an inversion of regressions needs them.

    Over columns: n - 2 values of one column, n - 3 of the next, ... of n (the known data of Li et
    al. 2022, Thm. 2), then one more of each in turn; rows are drawn at random. Whole rows are dealt
    in the same way, row by row. Constant columns are left out.
    """
    groups: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]] = []
    for held in victims.values():
        varied = np.array([len(np.unique(x[~np.isnan(x)])) > 1 for x in held.X.T], dtype=bool)
        X, columns = held.X[:, varied], held.columns[varied].astype(np.int64)
        if held.y is None:
            groups += [(held.ids, np.full(len(X), c), X[:, j]) for j, c in enumerate(columns)]
        else:
            groups += [
                (np.full(len(columns), i), columns, x) for i, x in zip(held.ids, X, strict=True)
            ]
    shuffled = []
    for g in rng.permutation(len(groups)).tolist():
        ids, columns, values = groups[g]
        order = rng.permutation(len(values))
        order = order[~np.isnan(values[order])]
        shuffled.append((ids[order], columns[order], values[order]))
    taken = [0] * len(shuffled)
    turns = [g for g in range(len(shuffled)) for _ in range(len(shuffled) - 2 - g)]
    most = max((len(g[0]) for g in shuffled), default=0)
    turns += [g for _ in range(most) for g in range(len(shuffled))]
    for g in turns:
        if sum(taken) < count and taken[g] < len(shuffled[g][0]):
            taken[g] += 1
    parts = [tuple(a[:k] for a in group) for group, k in zip(shuffled, taken, strict=True)]
    if not sum(taken):
        return None
    ids, columns, values = (np.concatenate(p) for p in zip(*parts, strict=True))
    return KnownEntries(ids.astype(np.int64), columns, values.astype(np.float32))
