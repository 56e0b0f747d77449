"""Rows joined by the leaves that they share."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fedtrees.attacks.labels.twins import Twins


def components(twins: Twins) -> NDArray[np.int64]:
    """Return the component of every group in the record-id graph (the Union attack of
    Takahashi et al. 2023: rows that share a leaf have one label, and so on from leaf to leaf)."""
    S, J = len(twins.leaf), len(twins.tree)
    s, t = np.nonzero(twins.leaf >= 0)
    ends = (s, S + twins.leaf[s, t])
    graph = coo_array((np.ones(len(s), np.int8), ends), shape=(S + J, S + J))
    return connected_components(graph, directed=False)[1][:S].astype(np.int64)
