"""Join the frontiers of one protocol that was run with several values of a parameter."""

from collections.abc import Sequence
from dataclasses import replace

from fedtrees.report.budgets import Budget, budgets, family
from fedtrees.report.frontier import Frontier, Point, front_of, lines_of
from fedtrees.report.results import UNDEFENDED, Panel, Setting
from fedtrees.report.statistics import Estimate


def over_budgets(panels: Sequence[Frontier]) -> tuple[Frontier, ...]:
    """Join the panels of protocols that differ in one number, such as ``dp-forest[epsilon=]``.

    The result has one panel per dataset, partition, protocol and threat. It contains one line for
    the protocol without a defense, and one line for each defense. Only references that do not
    depend on the parameter are shown, all of them.
    """
    groups: dict[Panel, list[tuple[Frontier, Budget]]] = {}
    for data in panels:
        setting = data.panel.setting
        protocols = {
            f.panel.setting.protocol
            for f in panels
            if replace(f.panel.setting, protocol="") == replace(setting, protocol="")
            and family(f.panel.setting.protocol) == family(setting.protocol)
        }
        budget = budgets(protocols)[setting.protocol]
        if len(protocols) > 1 and budget.known:
            groups.setdefault(Panel(unswept(setting), data.panel.threat), []).append((data, budget))
    joined = (_join_frontiers(panel, parts) for panel, parts in groups.items())
    return tuple(data for data in joined if data.lines)


def unswept(setting: Setting) -> Setting:
    """Return a setting without the parameters of its protocol."""
    return replace(setting, protocol=family(setting.protocol))


def _join_frontiers(panel: Panel, parts: list[tuple[Frontier, Budget]]) -> Frontier:
    """Join the frontiers of one protocol, given with their values of the parameter."""
    parts = sorted(parts, key=lambda part: part[1].value)
    first = parts[0][0]
    comparable = [
        (f, b) for f, b in parts if (f.metric, f.utility) == (first.metric, first.utility)
    ]
    points = tuple(_point(f, b, p) for f, b in comparable for p in f.drawn)
    same: dict[str, set[Estimate]] = {}
    for f, _ in comparable:
        for name, value in f.references:
            same.setdefault(name, set()).add(value)
    # A reference that differs between the panels depends on the swept parameter.
    fixed = tuple((name, *values) for name, values in same.items() if len(values) == 1)
    return Frontier(
        panel, first.metric, first.utility, points, front_of(points, first.utility),
        lines_of(points), fixed, first.blind, every_reference=True,
    )  # fmt: skip


def _point(data: Frontier, budget: Budget, point: Point) -> Point:
    """Return a point with the protocol in its name, so that points of several panels differ."""
    protocol, defended = data.panel.setting.protocol, point.defense != UNDEFENDED
    return replace(
        point,
        defense=f"{protocol} {point.defense}" if defended else protocol,
        family=f"{family(protocol)} {point.family}" if defended else family(protocol),
        budget=replace(budget, rest=f"{budget.rest} {point.defense}"),
    )
