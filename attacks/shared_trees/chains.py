"""Chains: which tree of a round comes from the same client as which of the round before.

Clients of a bagging federation see an ordered list of trees without names. A client's hessian and
gradient sums change little from one round to the next; Di Gennaro et al. (2025), Sec. 5.3, match
them by the Hungarian method (their code: the root's hessian alone). Beyond them: every client
keeps its own cut points, so that its thresholds come back in later rounds, and values of other
clients' rows do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.shared_trees.blocks import Block
from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.trees.forest import Tree

Clues = Literal["hessian", "sums", "all"]

# Weight of all thresholds known, in units of the mean distance of the sums of two clients. A block
# of the same client shares most of its thresholds, one of another client few.
THRESHOLD_WEIGHT = 6.0

Split = tuple[int, int]  # feature, bits of the float32 threshold


def link(rounds: Sequence[Sequence[Block]], clues: Clues = "all") -> list[list[int]]:
    """Return for every block of every round the number of its chain.

    Parameters
    ----------
    rounds : sequence of sequence of Block
        The blocks of the first round start the chains, in their order; later rounds have no more
        blocks than it.
    clues : {"hessian", "sums", "all"}
        Match root hessians alone, as the authors' code; root hessians and gradients; or these and
        thresholds. Without sums in the trees, thresholds are all there is.

    Raises
    ------
    UsageError
        If the clues have another name.
    """
    if clues not in get_args(Clues):
        raise UsageError(f"unknown clues {clues!r}{did_you_mean(str(clues), get_args(Clues))}")
    if not rounds:
        return []
    chains = [list(range(len(rounds[0])))]
    last = [_roots(b, clues) for b in rounds[0]]
    seen = [Counter(_splits(b)) for b in rounds[0]]
    for blocks in rounds[1:]:
        cost = np.zeros((len(last), len(blocks)))
        roots = [_roots(b, clues) for b in blocks]
        if all(r is not None for r in (*last, *roots)):
            cost += np.abs(np.array(last)[:, None] - np.array(roots)[None]).sum(axis=2)
            cost /= max(cost.mean(), 1e-12)
        if clues == "all":
            known = np.array([[_known(b, c, seen) for b in blocks] for c in range(len(seen))])
            cost -= THRESHOLD_WEIGHT * known
        chain, block = linear_sum_assignment(cost)
        numbers = [0] * len(blocks)
        for c, b in zip(chain.tolist(), block.tolist(), strict=True):
            numbers[b] = c
            last[c] = roots[b]
            seen[c].update(_splits(blocks[b]))
        chains.append(numbers)
    return chains


def _roots(block: Block, clues: Clues) -> list[float] | None:
    """Return the sums at the block's roots, None where they are not told."""
    out: list[float] = []
    for tree in block.trees:
        if tree.h is None or (tree.g is None and clues != "hessian"):
            return None
        leaves = tree.leaves
        out.append(float(tree.h[leaves].sum()))
        if clues != "hessian":
            assert tree.g is not None
            out.append(float(tree.g[leaves].sum()))
    return out


def _splits(block: Block) -> set[Split]:
    return {split for tree in block.trees for split in _splits_of(tree)}


def _splits_of(tree: Tree) -> list[Split]:
    inner = tree.feature >= 0
    bits = np.ascontiguousarray(tree.threshold[inner]).view(np.int32)
    return list(zip(tree.feature[inner].tolist(), bits.tolist(), strict=True))


def _known(block: Block, chain: int, seen: Sequence[Counter[Split]]) -> float:
    """Return the share of the block's thresholds that the chain had before, rare ones full."""
    splits = _splits(block)
    had = [s for s in splits if s in seen[chain]]
    return sum(1.0 / sum(s in other for other in seen) for s in had) / max(len(splits), 1)
