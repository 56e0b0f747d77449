"""The union of one reconstruction per client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fedtrees.attacks.evidence.boosted import Evidence, Level
from fedtrees.attacks.evidence.clients.victims import Victim
from fedtrees.core.guess import Guess, LeafCounts, Records
from fedtrees.core.schema import Table


def union_of(victims: Sequence[Victim], most: Level, one: Callable[[Evidence], Guess]) -> Guess:
    """Return the union of the reconstructions of all victims.

    Parameters
    ----------
    victims : sequence of Victim
    most : {"histograms", "statistics", "values"}
        Use no more than this.
    one : callable
        Turns one victim's evidence into a guess about its rows.

    Returns
    -------
    Guess
        `owner` is set if all victims are known by name. Leaf counts have tree numbers of the
        released model. Notes about numbers of trees are sums over victims, others their maximum.
    """
    tables, owners = [], []
    counts: list[LeafCounts] = []
    notes: dict[str, float] = {"victims": float(len(victims))}
    for victim in victims:
        guess = one(_at_most(victim.evidence, most))
        (records,) = guess.all(Records)
        tables.append(records.table)
        owners += [victim.owner] * len(records.table)
        first = victim.blocks[0].first
        counts += [replace(c, tree=first + c.tree) for c in guess.all(LeafCounts)]
        if most != "values" and victim.late is not None:
            counts.append(victim.late_leaves)
            notes["late_leaves"] = notes.get("late_leaves", 0.0) + len(victim.late.n)
            certain = notes.get("late_leaves_certain", 0.0)
            notes["late_leaves_certain"] = certain + float(victim.late.certain.sum())
        for key, value in guess.notes.items():
            if key.startswith("trees"):
                notes[key] = notes.get(key, 0.0) + value
            else:
                notes[key] = max(notes.get(key, 0.0), value)
    named = tuple(o for o in owners if o is not None)
    owner = named if len(named) == len(owners) else None
    return Guess((Records(Table.concat(tables), owner=owner), *counts), notes)


def _at_most(evidence: Evidence, most: Level) -> Evidence:
    if most != "values" or evidence.level == "values":
        return evidence
    bare = tuple(replace(t, g=None, h=None) for t in evidence.trees)
    return replace(evidence, trees=bare, level="values")
