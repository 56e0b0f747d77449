"""TimberStrike on trees that clients grew alone: one reconstruction per client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedtrees.attacks.shared_trees.victims import Victim
from fedtrees.attacks.timberstrike.evidence import Evidence, Level, Options
from fedtrees.attacks.timberstrike.reconstruct import reconstruct
from fedtrees.core.guess import Guess
from fedtrees.core.schema import Table
from fedtrees.core.view import View


def reconstruct_each(
    victims: Sequence[Victim],
    view: View,
    options: Options,
    most: Level,
    rng: np.random.Generator,
) -> Guess:
    """Return the union of the reconstructions of all victims.

    Parameters
    ----------
    victims : sequence of Victim
    view : View
    options : Options
        Own rows are in no victim's trees; with ``scope="union"`` they are still not sought.
    most : {"histograms", "statistics", "values"}
        Use no more than this.
    rng : numpy.random.Generator

    Returns
    -------
    Guess
        `owner` is set if all victims are known by name; leaf counts are numbered by the released
        model; notes are sums over victims, residuals their maximum.
    """
    tables, owners, counts = [], [], []
    notes: dict[str, float] = {"victims": float(len(victims))}
    for victim in victims:
        evidence = _at_most(victim.evidence, most)
        guess = reconstruct(evidence, view.own, view.schema, options, rng)
        assert guess.records is not None
        tables.append(guess.records)
        owners += [victim.owner] * len(guess.records)
        first = victim.blocks[0].first
        counts += [replace(c, tree=first + c.tree) for c in guess.leaf_counts]
        for key, value in guess.notes.items():
            if key.startswith("trees"):
                notes[key] = notes.get(key, 0.0) + value
            else:
                notes[key] = max(notes.get(key, 0.0), value)
    named = tuple(o for o in owners if o is not None)
    return Guess(
        Table.concat(tables),
        tuple(counts),
        notes,
        owner=named if len(named) == len(owners) else None,
    )


def _at_most(evidence: Evidence, most: Level) -> Evidence:
    if most != "values" or evidence.level == "values":
        return evidence
    bare = tuple(replace(t, g=None, h=None) for t in evidence.trees)
    return replace(evidence, trees=bare, level="values")
