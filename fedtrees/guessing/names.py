"""Which column goes with which, by their names."""

from collections.abc import Iterable
from difflib import SequenceMatcher

import numpy as np

from fedtrees.core.schema import Schema


def likest(schema: Schema, columns: Iterable[int], feature: int) -> int:
    """Return the place of the column whose name is most like another's, of some."""
    names = [f.name for f in schema.features]
    alike = [SequenceMatcher(None, names[int(c)], names[feature]).ratio() for c in columns]
    return int(np.argmax(alike))
