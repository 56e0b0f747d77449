"""Masks of a growing tree: the splits that defenses allow, and the nodes that others may see.

The coordinator of a protocol applies the hooks `Defense.allowed_splits` and `Defense.visible_nodes`
with the functions of this module, once for each level of a tree. For example, ``min-bin`` forbids
splits with few rows on one side, and ``id-lmid`` hides nodes from the passive parties.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.defense import OpenNodes
from fedtrees.core.network import Network
from fedtrees.core.party import acting_party


def reads_open_nodes(defense: Composition) -> bool:
    """Return whether a part of the defense reads the statistics of open nodes (`OpenNodes`)."""
    return bool(defense.hooks & {"allowed_splits", "visible_nodes"})


def allowed_splits(
    net: Network, tree: int, nodes: int, bins: int, level: OpenNodes | None = None
) -> NDArray[np.bool_] | None:
    """Return which splits the defenses of the acting party allow.

    Parameters
    ----------
    net : Network
        Network of the run.
    tree : int
        Number of the tree.
    nodes, bins : int
        Number of nodes that are to be split, and of candidate splits of each node.
    level : OpenNodes, optional
        Statistics of the nodes, for a defense that reads them.

    Returns
    -------
    bool array, shape (nodes, bins), or None
        None if no defense restricts splits.
    """
    party = acting_party()
    if party is None or "allowed_splits" not in net.defense.hooks:
        return None
    context = replace(net.hosts[party.name].context, open_nodes=level)
    return net.defense.allowed_splits(np.ones((nodes, bins), dtype=bool), tree, context)


def visible_nodes(net: Network, level: OpenNodes) -> NDArray[np.bool_]:
    """Return of which nodes the defenses of the acting party let other parties learn the rows.

    A party that knows the rows of a node and of one of its children can compute those of the second
    child. Therefore, both children are shown or both are hidden.

    Parameters
    ----------
    net : Network
        Network of the run.
    level : OpenNodes
        Nodes that are to be split, and their statistics.

    Returns
    -------
    bool array, shape (k,)
        True for the nodes that are shown.
    """
    party = acting_party()
    assert party is not None, "a coordinator trains as the acting party"
    context = replace(net.hosts[party.name].context, open_nodes=level)
    mask = net.defense.visible_nodes(np.ones(len(level.nodes), dtype=bool), level.tree, context)
    if len(mask) > 1:
        # Nodes are in pairs of siblings, except the root.
        mask = np.repeat(mask.reshape(-1, 2).all(axis=1), 2)
    return mask
