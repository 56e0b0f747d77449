"""Leaf sums that the adversary's parties opened, for trees whose splits ignore the data.

If the server adds the noise, it opens exact sums of every client or of all clients together. If the
clients add shares of the noise, only the sum is opened. An adversary that knows some of the shares,
because its parties sent them, subtracts these and the contribution of its rows. The remaining noise
is that of the other shares.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import NodeNoise
from fedtrees.core.view import View
from fedtrees.messages.horizontal import BaseScore, LeafSums, LeafValues
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import from_fixed

Floats = NDArray[np.float64]

EVERYONE = "everyone"
OTHERS = "others"


@dataclass(frozen=True, eq=False)
class Opened:
    """Leaf sums of every tree, from one source.

    Attributes
    ----------
    sums : tuple of float64 array, shape (J, 2)
        Gradients and hessians, in the order of `Tree.leaves`.
    noise : float
        Remaining share of the declared noise variance. 0 means that the sums are exact.
    own_inside : bool
        Whether the sums contain the adversary's rows.
    """

    sums: tuple[Floats, ...]
    noise: float
    own_inside: bool

    def trees(self, trees: Sequence[Tree]) -> tuple[Tree, ...]:
        """Return the trees with these sums in all nodes."""
        return tuple(_with_sums(t, s) for t, s in zip(trees, self.sums, strict=True))


def releases_leaves(view: View) -> bool:
    """Return whether the protocol releases only leaf sums, with declared Gaussian noise."""
    return "hessian_share" in view.parameters


def opened_leaves(view: View) -> dict[str, Opened]:
    """Return leaf sums that were opened beyond the release, by source.

    A source is the name of a client, `EVERYONE` or `OTHERS`. The result is empty if the adversary's
    parties know only the public release.
    """
    if not releases_leaves(view):
        return {}
    start = next((m for _, m in view.messages(BaseScore)), None)
    if start is None:
        return {}
    bits = (start.g_bits, start.h_bits)
    parts: dict[str, dict[int, Floats]] = defaultdict(dict)
    for item, m in view.messages(LeafSums):
        parts[EVERYONE if item.opened else item.sender][m.tree] = from_fixed(m.sums, bits)
    if view.changes(LeafSums, "sums", "client"):
        return _less_own(view, parts)
    if EVERYONE in parts:  # it contains the replies of the adversary's parties as well
        return {EVERYONE: Opened(_in_order(parts[EVERYONE]), 0.0, True)}
    if set(parts) <= set(view.principals):
        return {}
    return {
        source: Opened(_in_order(p), 0.0, source in view.principals) for source, p in parts.items()
    }


def together(opened: dict[str, Opened]) -> Opened:
    """Add the sums of all sources."""
    each = [o.sums for o in opened.values()]
    sums = tuple(np.sum(part, axis=0) for part in zip(*each, strict=True))
    return Opened(
        sums, max(o.noise for o in opened.values()), any(o.own_inside for o in opened.values())
    )


def _less_own(view: View, parts: dict[str, dict[int, Floats]]) -> dict[str, Opened]:
    """Return the noisy sums of all clients less the messages of the adversary's parties."""
    released = {
        m.tree: np.stack([m.g, m.h], axis=1)
        for _, m in view.messages(LeafValues)
        if m.g is not None and m.h is not None
    }
    total = parts.pop(EVERYONE, released)
    local_parts = [
        p for source, p in parts.items() if source in view.principals and set(p) == set(total)
    ]
    clients = sum(role == "client" for role in view.roles.values())
    if not total or not local_parts:
        return {EVERYONE: Opened(_in_order(total), 1.0, True)} if total is not released else {}
    # the subtracted messages contain the noise of these parties, so that their share of it vanishes
    rest = {t: sums - np.sum([p[t] for p in local_parts], axis=0) for t, sums in total.items()}
    return {OTHERS: Opened(_in_order(rest), 1 - len(local_parts) / clients, False)}


def _in_order(by_tree: dict[int, Floats]) -> tuple[Floats, ...]:
    return tuple(by_tree[t] for t in sorted(by_tree))


def _with_sums(tree: Tree, sums: Floats) -> Tree:
    both = np.zeros((len(tree), 2))
    both[tree.leaves] = sums
    for i in np.flatnonzero(tree.feature >= 0)[::-1]:  # children come after their parent
        both[i] = both[tree.left[i]] + both[tree.right[i]]
    return replace(tree, g=both[:, 0], h=both[:, 1])


def leaf_noise(view: View, trees: tuple[Tree, ...], left: float) -> tuple[NodeNoise, ...] | None:
    """Return the noise on node sums computed from leaf sums. None means exact.

    On a grid as fine as that of the fixed-point numbers, a discrete Gaussian has the moments of the
    continuous one to double precision (Canonne, Kamath and Steinke 2020, fact 18).

    Parameters
    ----------
    view : View
        The adversary's view.
    trees : tuple of Tree
        The trees.
    left : float
        Share of the noise variance that the sums contain.
    """
    laws = (view.channel(LeafValues, "g", "server"), view.channel(LeafValues, "h", "server"))
    if not left or laws == (None, None):
        return None
    g, h = (0.0 if law is None else left * float(law.error(np.zeros(1))[1][0]) for law in laws)
    out = []
    for tree in trees:
        leaves = np.ones(len(tree))
        for i in np.flatnonzero(tree.feature >= 0)[::-1]:
            leaves[i] = leaves[tree.left[i]] + leaves[tree.right[i]]
        out.append(NodeNoise(g=g * leaves, h=h * leaves, cell_g=g, cell_h=h))
    return tuple(out)
