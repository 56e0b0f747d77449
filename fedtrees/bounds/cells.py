"""Results of `fedtrees bound`: ceilings of a protocol, a defense and threat models."""

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

#: Parameters of a protocol on small tables. Three trees already reveal most information about so
#: few rows. Leaves may contain a single row. With a fixed base score, tables with a single class
#: can be used for training, too.
SMALL: dict[str, Any] = {
    "trees": 3, "max_depth": 2, "min_child_weight": 0.0, "base_score": 0.5, "colsample_bytree": 1.0,
}  # fmt: skip
#: Protocols with their defenses that are enumerated if the user names none.
USUAL = (
    ("fedtree-hist", ("none", "split-only", "leaf-rounding[decimals=1]", "secure-sum",
                      "secure-sum+public-cuts",
                      "secure-sum+public-cuts+hist-rounding[step=1]")),
    ("nvflare-hist", ("none",)),
    ("flower-bagging", ("none",)),
    ("flower-cyclic", ("none",)),
)  # fmt: skip


def tiny(tables: TinyTables, protocol: Spec, defense: Composed, seed: int = 0) -> Tiny:
    """Construct protocol and defense for enumerated tables.

    Parameters that the protocol does not specify are taken from `SMALL`. For a vertical protocol,
    `tables` is replaced by `AlignedTables` with the total number of rows.
    """
    accepted = signature(register.get("protocol", protocol.name)).parameters
    small = {name: value for name, value in SMALL.items() if name in accepted}
    instance = register.make("protocol", Spec(protocol.name, {**small, **protocol.params}))
    if instance.layout != Protocol.layout:
        names = tuple(instance.holder_names(instance.usual_parties))
        tables = AlignedTables(tables.columns, (sum(tables.rows),), tables.agrees, names)
    parts = tuple(register.make("defense", part) for part in defense.parts)
    return Tiny(tables, instance, Composition(parts), seed)


def lines(
    tables: TinyTables, protocol: Spec, defense: Composed, threats: Sequence[str],
    attacks: Sequence[Spec] = (), draws: int = 100, seed: int = 0,
) -> list[dict[str, Any]]:  # fmt: skip
    """Compute blind baseline, ceiling and attack scores for every threat model.

    Parameters
    ----------
    tables : TinyTables
        Size of the tables.
    protocol : Spec
        Protocol.
    defense : Composed
        Defense.
    threats : sequence of str
        Threat models. Empty: one for every role of the protocol.
    attacks : sequence of Spec
        Attacks to run. Only the one with the best score is reported.
    draws : int
        Number of tables that each attack is run on.
    seed : int
        Randomness of training and draws.

    Returns
    -------
    lines : list of dict
        One dict per threat model, and a further one if there are membership inference attacks. If
        there is no ceiling, a single dict with the reason under ``why``. ``alike`` and
        ``told_apart`` are the results of `splits`, if a defense reveals only sums and the adversary
        has no data.
    """
    named = {"protocol": str(protocol), "defense": str(defense)}
    try:
        tiny_run = tiny(tables, protocol, defense, seed)
        if isinstance(tiny_run.tables, AlignedTables) and any(map(_infers_membership, attacks)):
            raise UsageError("rows are known by id, and with them who is in the table")
        all_views = views(tiny_run, threats or [*dict.fromkeys(tiny_run.roles.values())])
    except FedtreesError as err:
        return [{**named, "why": str(err)}]
    results = []
    for view in all_views:
        membership_attacks = [*filter(_infers_membership, attacks)]
        row_attacks = [a for a in attacks if a not in membership_attacks]
        if row_attacks or not membership_attacks:
            results.append(named | _reconstruction_line(tiny_run, view, row_attacks, draws))
        if membership_attacks:
            results.append(named | _membership_line(tiny_run, view, membership_attacks, draws))
    return results


def _infers_membership(attack: Spec) -> bool:
    """Return whether an attack scores candidates of membership inference."""
    return bool(getattr(register.get("attack", attack.name), "candidates", False))


def _reconstruction_line(
    tiny_run: Tiny, view: Views, attacks: Sequence[Spec], draws: int
) -> dict[str, Any]:
    """Return ceiling and best attack score in numbers of rows."""
    top = ceiling(tiny_run.tables, view)
    line: dict[str, Any] = {
        "threat": view.threat, "rows": top.rows, "blind": top.blind, "ceiling": top.ceiling,
        "tables": len(view.of), "views": top.views, "refused": int(view.refused.sum()),
    }  # fmt: skip
    # A party with data can subtract its part from a sum, so that `pooled` does not describe its
    # view.
    summed = any("summed" in part.acts_through for part in tiny_run.defense.parts)
    holders = tiny_run.protocol.holder_names(tiny_run.tables.holders)
    if summed and not {*view.principals} & {*holders}:
        line["alike"], line["told_apart"] = splits(view, pooled(tiny_run.tables))
    return line | _best_attack(
        top, {str(a): attacked(tiny_run, view, submitted(a), draws) for a in attacks}
    )


def _membership_line(
    tiny_run: Tiny, view: Views, attacks: Sequence[Spec], draws: int
) -> dict[str, Any]:
    """Return ceiling and best attack score as AUC of membership inference."""
    top = recognition(tiny_run.tables, view)
    line = {
        "threat": view.threat, "rows": "AUC", "blind": top.blind, "ceiling": top.ceiling,
        "tables": len(view.of), "views": top.views, "refused": int(view.refused.sum()),
    }  # fmt: skip
    return line | _best_attack(top, {str(a): recognised(tiny_run, view, a, draws) for a in attacks})


def _best_attack(top: Ceiling, scored: dict[str, Attacked]) -> dict[str, Any]:
    if not scored:
        return {}
    best = max(scored, key=lambda name: scored[name].score)
    result = scored[best]
    return {"attack": best, "score": result.score, "error": result.error, "pure": result.pure,
            "share": top.share(result.score)}  # fmt: skip
