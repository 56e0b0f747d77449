"""Learning rates of clients that shrink their leaves each by its own.

NVFlare's bagging does so with ``lr_mode="scaled"``: eta times the client's share of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedtrees.attacks.evidence import AGREES
from fedtrees.audit.model import Statistics
from fedtrees.audit.newton import Settings, agreement, infer_settings
from fedtrees.trees.boosted.forest import Tree

MOST_RATES = 50
MOST_FAILURES = 5  # trees that no eta and lambda explain, after which no more are tried


def settings_by_tree(
    trees: Sequence[Tree], statistics: Sequence[Statistics]
) -> list[Settings | None]:
    """Return eta and lambda of each tree, None where they do not explain a second tree.

    The few equations of one tree agree with some eta by chance; those of two do not.
    """
    pairs = list(zip(trees, statistics, strict=True))
    found: list[Settings] = []
    failures = 0
    for pair in pairs:
        if failures == MOST_FAILURES or len(found) == MOST_RATES:
            break
        if any(_explains(s, *pair) for s in found):
            continue
        alone = infer_settings([pair[0]], [pair[1]])
        failures += alone is None
        found += [] if alone is None else [alone]
    shared: list[Settings] = []
    for candidate in found:
        members = [pair for pair in pairs if _explains(candidate, *pair)]
        if len(members) > 1:
            together = infer_settings(*zip(*members, strict=True))
            shared.append(together or candidate)
    return [next((s for s in shared if _explains(s, *pair)), None) for pair in pairs]


def _explains(settings: Settings, tree: Tree, known: Statistics) -> bool:
    """Tell whether a tree has equations, and all agree with eta and lambda."""
    return bool(0 < agreement(settings, [tree], [known]) <= AGREES)
