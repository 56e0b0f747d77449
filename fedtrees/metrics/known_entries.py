"""Values of the victims that a threat model declares known to the adversary.

`Case.known_entries` selects one of the three functions by the parameters of the threat model:
``attributes=`` (`of_every_row`), ``sensitive=`` (`all_but`) and ``entries=`` (`draw_known_values`).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import KnownEntries, LocalData
from fedtrees.core.schema import Schema


def of_every_row(
    victims: Mapping[str, LocalData], schema: Schema, count: int, rng: np.random.Generator
) -> KnownEntries:
    """Draw attributes that are known for all rows of the victims (Gorgé et al. 2026).

    Parameters
    ----------
    victims : mapping of str to LocalData
        Complete rows, by victim.
    schema : Schema
        Columns. A one-hot group is one attribute.
    count : int
        Number of known attributes.
    rng : numpy.random.Generator
        Draws the attributes.

    Returns
    -------
    known : KnownEntries
        Values of the attributes in all rows.

    Raises
    ------
    UsageError
        If no attribute remains unknown, or a victim has only some columns of its rows.
    """
    attributes = schema.attributes
    if count >= len(attributes):
        raise UsageError(
            f"attributes={count}, and a row has {len(attributes)}, a one-hot group being one; give "
            "fewer, so that some are left to guess"
        )
    if not all(local_data.covers(schema) for local_data in victims.values()):
        raise UsageError(
            f"attributes={count}: other parties have columns, not rows; give entries, or "
            "use a protocol whose parties have complete rows"
        )
    # The same attributes are known for all rows of all victims.
    drawn = rng.permutation(len(attributes))[:count]
    return _cells(victims, [c for a in drawn.tolist() for c in attributes[a]])


def all_but(victims: Mapping[str, LocalData], schema: Schema, attribute: int) -> KnownEntries:
    """Return all values of the victims' rows except one attribute (Fredrikson et al. 2014).

    Parameters
    ----------
    victims : mapping of str to LocalData
        Complete rows, by victim.
    schema : Schema
        Columns. A one-hot group is one attribute.
    attribute : int
        Index of the sensitive attribute in ``schema.attributes``.

    Returns
    -------
    known : KnownEntries
        Values of all further attributes.

    Raises
    ------
    UsageError
        If there is no such attribute, or a victim has only some columns of its rows.
    """
    attributes = schema.attributes
    if attribute >= len(attributes):
        raise UsageError(
            f"sensitive={attribute}: a row has {len(attributes)} attributes, counted from 0"
        )
    if not all(local_data.covers(schema) for local_data in victims.values()):
        raise UsageError(
            f"sensitive={attribute}: other parties have columns, not rows; use a "
            "protocol whose parties have complete rows"
        )
    return _cells(victims, [c for k, a in enumerate(attributes) if k != attribute for c in a])


def _cells(victims: Mapping[str, LocalData], of: Sequence[int]) -> KnownEntries:
    """Return the values of the columns `of` in all rows of the victims."""
    columns = np.sort(of).astype(np.int64)
    ids = np.concatenate([local_data.ids for local_data in victims.values()])
    X = np.concatenate([local_data.X[:, columns] for local_data in victims.values()])
    return KnownEntries(np.repeat(ids, len(columns)), np.tile(columns, len(ids)), X.reshape(-1))


def draw_known_values(
    victims: Mapping[str, LocalData], count: int, rng: np.random.Generator
) -> KnownEntries | None:
    """Draw known values in the order in which an attack on linear regressions needs them.

    The values are divided into n groups. For a victim without labels (vertical), a group is one of
    its columns. For a victim with labels, it is one row. The first group, in random order, provides
    n - 2 values, the next one n - 3, and so on (the known data of Li et al. 2022, Thm. 2). Then
    each group provides one more value in turn, until `count` values are drawn.

    Parameters
    ----------
    victims : mapping of str to LocalData
        Local data of the victims. Constant columns are omitted.
    count : int
        Number of known values.
    rng : numpy.random.Generator
        Draws the order of the groups and of the values in each group.

    Returns
    -------
    known : KnownEntries or None
        None if there is no value to draw.
    """
    groups: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]] = []
    for local_data in victims.values():
        # A constant column would provide no equation for the attack.
        varied = np.array([len(np.unique(x[~np.isnan(x)])) > 1 for x in local_data.X.T], dtype=bool)
        X, columns = local_data.X[:, varied], local_data.columns[varied].astype(np.int64)
        if local_data.y is None:
            groups += [(local_data.ids, np.full(len(X), c), X[:, j]) for j, c in enumerate(columns)]
        else:
            groups += [
                (np.full(len(columns), i), columns, x)
                for i, x in zip(local_data.ids, X, strict=True)
            ]
    shuffled = []
    for g in rng.permutation(len(groups)).tolist():
        ids, columns, values = groups[g]
        order = rng.permutation(len(values))
        order = order[~np.isnan(values[order])]
        shuffled.append((ids[order], columns[order], values[order]))
    taken = [0] * len(shuffled)
    # First n - 2 values of group 0, n - 3 of group 1, and so on. Then one of each group in turn.
    draws_from = [g for g in range(len(shuffled)) for _ in range(len(shuffled) - 2 - g)]
    longest = max((len(g[0]) for g in shuffled), default=0)
    draws_from += [g for _ in range(longest) for g in range(len(shuffled))]
    for g in draws_from:
        if sum(taken) < count and taken[g] < len(shuffled[g][0]):
            taken[g] += 1
    parts = [tuple(a[:k] for a in group) for group, k in zip(shuffled, taken, strict=True)]
    if not sum(taken):
        return None
    ids, columns, values = (np.concatenate(p) for p in zip(*parts, strict=True))
    return KnownEntries(ids.astype(np.int64), columns, values.astype(np.float32))
