"""Connected components of the record-id graph (UNI, Takahashi et al. 2023)."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fedtrees.attacks.labels.twins import Twins


def components(twins: Twins) -> NDArray[np.int64]:
    """Return the connected component of every group, int64, shape (S,).

    Two groups are connected if they share a visible leaf.
    """
    S, J = len(twins.leaf), len(twins.tree)
    s, t = np.nonzero(twins.leaf >= 0)
    ends = (s, S + twins.leaf[s, t])
    graph = coo_array((np.ones(len(s), np.int8), ends), shape=(S + J, S + J))
    return connected_components(graph, directed=False)[1][:S].astype(np.int64)
