"""How many rows others hold."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedtrees.attacks.evidence.column import Column, fullest
from fedtrees.core.view import View


def not_held_out(view: View, own: int) -> int:
    """Return how many rows of the victims are counted, about."""
    return round((view.n_rows - own) * (1 - float(view.parameters["validation_fraction"])))


def victims_rows(view: View) -> int:
    """Return how many rows the victims have together, as declared, less those in no sketch.

    0 where that is not known: rows may be held out.
    """
    if view.parameters.get("early_stopping_rounds"):
        return 0
    return view.n_rows - (0 if view.rows is None else len(view.rows))


def owners_rows(columns: Mapping[str, Sequence[Column]], together: int = 0) -> dict[str, int]:
    """Return how many rows each owner may have: as its fullest column, and a share of the rest.

    ``together`` is how many they have in all, if known; each owner's share of the rest is as its
    share of what is told.
    """
    told = np.array([fullest(parts) for parts in columns.values()], dtype=np.int64)
    rest = max(together - int(told.sum()), 0) if told.sum() else 0
    more = np.diff(np.rint(rest * np.cumsum(told) / max(told.sum(), 1)), prepend=0.0)
    return dict(zip(columns, (told + more.astype(np.int64)).tolist(), strict=True))
