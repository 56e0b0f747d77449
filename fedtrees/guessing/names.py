"""Find related columns by the similarity of their names."""

from collections.abc import Iterable
from difflib import SequenceMatcher

import numpy as np

from fedtrees.core.schema import Schema


def likest(schema: Schema, columns: Iterable[int], feature: int) -> int:
    """Return which of several columns has the name that is most similar to that of a feature.

    For example, *mean radius* is similar to *worst radius*, and their values are correlated.

    Columns and the feature are positions in the schema. The result is an index into `columns`.
    """
    names = [f.name for f in schema.features]
    similarity = [SequenceMatcher(None, names[int(c)], names[feature]).ratio() for c in columns]
    return int(np.argmax(similarity))
