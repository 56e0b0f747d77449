"""Learning rates of clients that shrink their leaves each by its own.

NVFlare's bagging does so with ``lr_mode="scaled"``: the learning rate times the client's share of
the rows. No single eta then agrees with the statistics of a file.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedtrees.audit.evidence import AGREES
from fedtrees.audit.model import Statistics
from fedtrees.audit.newton import Settings, agreement, infer_settings
from fedtrees.trees.boosted.forest import Tree

MOST_RATES = 50
MOST_FAILURES = 5  # trees that no eta and lambda explain, after which no more are tried


def settings_by_tree(
    trees: Sequence[Tree], statistics: Sequence[Statistics]
) -> list[Settings | None]:
    """Infer eta and lambda of each tree, where every eta was used for two trees or more.

    Returns
    -------
    list of Settings or None
        None for a tree that no eta and lambda found in others explain: a few equations agree with
        some eta by chance, those of two trees do not.
    """
    found: list[Settings] = []
    failures = 0
    for tree, known in zip(trees, statistics, strict=True):
        if failures == MOST_FAILURES or len(found) == MOST_RATES:
            break
        if any(_explains(s, tree, known) for s in found):
            continue
        alone = infer_settings([tree], [known])
        failures += alone is None
        found += [] if alone is None else [alone]
    pairs = list(zip(trees, statistics, strict=True))
    shared: list[Settings] = []
    for candidate in found:
        members = [pair for pair in pairs if _explains(candidate, *pair)]
        if len(members) < 2:
            continue
        together = infer_settings([t for t, _ in members], [k for _, k in members])
        shared.append(together or candidate)
    return [next((s for s in shared if _explains(s, *pair)), None) for pair in pairs]


def _explains(settings: Settings, tree: Tree, known: Statistics) -> bool:
    """Tell whether the equations of a tree, if it has any, agree with eta and lambda."""
    return 0 < agreement(settings, [tree], [known]) <= AGREES
