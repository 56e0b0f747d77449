"""The figures of the report's page, laid out: frontiers, prices."""

import math
from typing import Any

from fedtrees.core.columns import measure
from fedtrees.report import said, svg
from fedtrees.report.found import Adversary, Found
from fedtrees.report.price import TOLERANCE, Price
from fedtrees.report.rows import UNDEFENDED
from fedtrees.report.states import Cell
from fedtrees.report.style import number

_MOST_SPARKS = 4


def frontier(found: Found, adversary: Adversary, at: int) -> dict[str, Any] | None:
    """Lay out one adversary's frontier, and small ones of its other measures that leak."""
    metrics = drawn(found, adversary)
    if not metrics:
        return None
    first = metrics[0]
    leaking = [
        m
        for m in metrics
        if m != first and any(adversary.cell(d.spec, m).state == "open" for d in found.defenses)
    ]
    rest = leaking[:_MOST_SPARKS]
    cell = adversary.cell(adversary.base, first)
    unit = _unit(cell)
    drawing = svg.draw(_marks(found, adversary, first, at), unit * _line(adversary, found, first))
    counted = math.isfinite(cell.rows)
    what = measure(first).head.lower() + (f", of {cell.rows:,.0f}" if counted else "")
    return {
        "who": said.capital(adversary.name),
        "what": what,
        "utility": measure(found.utility.metric).head,
        "d": drawing,
        "front": svg.path(drawing.front),
        "x_ticks": [(x, _tick(v)) for x, v in drawing.x_ticks],
        "y_ticks": [(y, said.value(cell, v / unit)) for y, v in drawing.y_ticks],
        "sparks": [_spark(found, adversary, m, at) for m in rest],
    }


def drawn(found: Found, adversary: Adversary) -> list[str]:
    """Return the measures that can be drawn, the one that leads first."""
    lead = adversary.leading()
    metrics = [m for m in adversary.metrics if _drawable(found, adversary, m)]
    return sorted(metrics, key=lambda m: lead is None or m != lead.metric)


def _tick(value: float) -> str:
    """Write a tick of a change: to 0.01, or as fine as the ticks are."""
    decimals = 2 if math.isclose(value, round(value, 2)) else 3
    return number(value, decimals, signed=True) if value else "0"


def _unit(cell: Cell) -> float:
    """Return what one of a score is: of counted rows all of them."""
    return cell.rows if math.isfinite(cell.rows) else 1.0


def _drawable(found: Found, adversary: Adversary, metric: str) -> bool:
    return any(d.price.by_seed and adversary.cell(d.spec, metric).scores for d in found.defenses)


def _spark(found: Found, adversary: Adversary, metric: str, at: int) -> dict[str, Any]:
    unit = _unit(adversary.cell(adversary.base, metric))
    line = unit * _line(adversary, found, metric)
    drawing = svg.spark(_marks(found, adversary, metric, at), line)
    return {
        "head": said.capital(measure(metric).head),
        "d": drawing,
        "front": svg.path(drawing.front),
    }


def _line(adversary: Adversary, found: Found, metric: str) -> float:
    cells = (adversary.cell(d.spec, metric) for d in found.defenses)
    return next((c.line for c in cells if c.scores), 0.0)


def _marks(found: Found, adversary: Adversary, metric: str, at: int) -> list[svg.Mark]:
    out = []
    for d in found.defenses:
        cell = adversary.cell(d.spec, metric)
        at_baseline = cell.state == "gone" or bool(cell.no_claim)  # if there is no score
        if not d.price.by_seed or not (cell.scores or at_baseline):
            continue
        unit = _unit(adversary.cell(adversary.base, metric))
        score = unit * (cell.score if cell.scores else _line(adversary, found, metric))
        e = d.price.change
        say = f"{d.label} {said.short(d.spec)}. {measure(metric).head}: {said.shown(cell)}"
        if cell.scores:
            say += f" ({said.line(cell)})"
        if cell.below_baseline or cell.no_claim:
            say += f", {said.word(cell)}"
        say += f". {measure(found.utility.metric).head} {said.change(e)}."
        spread = len(set(cell.scores)) > 1
        out.append(
            svg.Mark(
                e.mean, score, f"{d.label} {said.short(d.spec)}" if d.spec != UNDEFENDED
                else "no defense", d.label, say, f"#m{at}-{d.label}", cell.state,
                e.low, e.high, unit * min(cell.scores) if spread else math.nan,
                unit * max(cell.scores) if spread else math.nan, d.spec == found.recipe,
                on_front=not (cell.below_baseline or (cell.no_claim and not cell.scores)),
            )
        )  # fmt: skip
    return out


def price_plot(price: Price) -> dict[str, Any] | None:
    """Lay out a change in utility, seed by seed; None where there is none to see."""
    values = [*price.by_seed.values()]
    e = price.change
    if len(values) < 2 or not any(values):
        return None
    ends = [*values, e.low, e.high, -TOLERANCE, TOLERANCE, 0.0]
    at = svg.Scale(min(ends), max(ends), 20.0, 310.0)
    ticks = [(at(v), number(v, 2, signed=True) if v else "0") for v in (-TOLERANCE, 0.0, TOLERANCE)]
    near = at(TOLERANCE) - at(0.0) < 30
    return {
        "band": (at(-TOLERANCE), at(TOLERANCE)),
        "zero": at(0.0),
        "low": at(e.low),
        "high": at(e.high),
        "mean": at(e.mean),
        "seeds": [at(v) for v in values],
        "ticks": ticks[1:2] if near else ticks,
    }


def forest(found: Found, price: Price) -> dict[str, Any] | None:
    """Lay out the interval of a price, on one scale for all defenses."""
    e = price.change
    if not math.isfinite(e.low) or price.settled == "same":
        return None
    known = [d.price.change for d in found.defenses if math.isfinite(d.price.change.low)]
    ends = [-TOLERANCE, TOLERANCE, *(v for k in known for v in (k.low, k.high))]
    at = svg.Scale(min(ends), max(ends), 3.0, 109.0)
    return {"band": (at(-TOLERANCE), at(TOLERANCE)), "zero": at(0.0), "low": at(e.low),
            "high": at(e.high), "mean": at(e.mean)}  # fmt: skip
