"""One line of `fedtrees bound`: a protocol, a defense and a threat on enumerated tables."""

from collections.abc import Sequence
from inspect import signature
from typing import Any

from fedtrees.bounds.aligned import AlignedTables
from fedtrees.bounds.attacked import Attacked, attacked, recognised, submitted
from fedtrees.bounds.ceiling import Ceiling, ceiling, pooled, recognition, splits
from fedtrees.bounds.tables import TinyTables
from fedtrees.bounds.views import Tiny, Views, views
from fedtrees.core.composition import Composition
from fedtrees.core.errors import FedtreesError, UsageError
from fedtrees.core.registry import register
from fedtrees.core.specs import Composed, Spec
from fedtrees.protocols.base import Protocol

#: Few trees tell most that there is to tell of so few rows; leaves may be of one row, and a start
#: that is nobody's mean lets tables of one class be trained on.
SMALL: dict[str, Any] = {
    "trees": 3, "max_depth": 2, "min_child_weight": 0.0, "base_score": 0.5, "colsample_bytree": 1.0,
}  # fmt: skip
#: What is enumerated unless something is named.
USUAL = (
    ("fedtree-hist", ("none", "split-only", "leaf-rounding[decimals=1]", "secure-sum",
                      "secure-sum+public-cuts",
                      "secure-sum+public-cuts+hist-rounding[step=1]")),
    ("nvflare-hist", ("none",)),
    ("flower-bagging", ("none",)),
    ("flower-cyclic", ("none",)),
)  # fmt: skip


def tiny(tables: TinyTables, protocol: Spec, defense: Composed, seed: int = 0) -> Tiny:
    """Construct what is trained, small where the protocol's parameters do not say otherwise.

    Where parties hold columns, all rows are everybody's: as many as `tables` has together.
    """
    known = signature(register.get("protocol", protocol.name)).parameters
    few = {name: value for name, value in SMALL.items() if name in known}
    made = register.make("protocol", Spec(protocol.name, {**few, **protocol.params}))
    if made.layout != Protocol.layout:
        names = tuple(made.holder_names(made.usual_parties))
        tables = AlignedTables(tables.columns, (sum(tables.rows),), tables.agrees, names)
    parts = tuple(register.make("defense", part) for part in defense.parts)
    return Tiny(tables, made, Composition(parts), seed)


def lines(
    tables: TinyTables, protocol: Spec, defense: Composed, threats: Sequence[str],
    attacks: Sequence[Spec] = (), draws: int = 100, seed: int = 0,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the figures of every threat; one line with ``why`` where there is no ceiling.

    ``told_apart`` and ``alike`` are of `splits`, where a defense lets through sums alone.
    """
    named = {"protocol": str(protocol), "defense": str(defense)}
    try:
        made = tiny(tables, protocol, defense, seed)
        if isinstance(made.tables, AlignedTables) and any(map(_asks, attacks)):
            raise UsageError("rows are known by id, and with them who is in the table")
        found = views(made, threats or [*dict.fromkeys(made.roles.values())])
    except FedtreesError as err:
        return [{**named, "why": str(err)}]
    told = []
    for seen in found:
        asked = [*filter(_asks, attacks)]
        others = [a for a in attacks if a not in asked]
        if others or not asked:
            told.append(named | _line(made, seen, others, draws))
        if asked:
            told.append(named | _recognised(made, seen, asked, draws))
    return told


def _asks(attack: Spec) -> bool:
    """Tell whether an attack says which candidates are members."""
    return bool(getattr(register.get("attack", attack.name), "candidates", False))


def _line(made: Tiny, seen: Views, attacks: Sequence[Spec], draws: int) -> dict[str, Any]:
    top = ceiling(made.tables, seen)
    line: dict[str, Any] = {
        "threat": seen.threat, "rows": top.rows, "blind": top.blind, "ceiling": top.ceiling,
        "tables": len(seen.of), "views": top.views, "refused": int(seen.refused.sum()),
    }  # fmt: skip
    summed = any("summed" in part.acts_through for part in made.defense.parts)
    holders = made.protocol.holder_names(made.tables.holders)
    if summed and not {*seen.principals} & {*holders}:
        line["alike"], line["told_apart"] = splits(seen, pooled(made.tables))
    return line | _best(top, {str(a): attacked(made, seen, submitted(a), draws) for a in attacks})


def _recognised(made: Tiny, seen: Views, attacks: Sequence[Spec], draws: int) -> dict[str, Any]:
    top = recognition(made.tables, seen)
    line = {
        "threat": seen.threat, "rows": "AUC", "blind": top.blind, "ceiling": top.ceiling,
        "tables": len(seen.of), "views": top.views, "refused": int(seen.refused.sum()),
    }  # fmt: skip
    return line | _best(top, {str(a): recognised(made, seen, a, draws) for a in attacks})


def _best(top: Ceiling, scored: dict[str, Attacked]) -> dict[str, Any]:
    if not scored:
        return {}
    best = max(scored, key=lambda name: scored[name].score)
    got = scored[best]
    return {"attack": best, "score": got.score, "error": got.error, "pure": got.pure,
            "share": top.share(got.score)}  # fmt: skip
