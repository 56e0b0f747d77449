"""Compute the layout of the figures on the report's page: frontiers and prices."""

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
    """Compute the layout of one adversary's frontier, with small ones for further leaks.

    The result is None if no measure can be drawn. `at` is the index of the setting on the page,
    from which the targets of links are built.
    """
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
    measure_text = measure(first).head.lower() + (f", of {cell.rows:,.0f}" if counted else "")
    return {
        "who": said.capital(adversary.name),
        "what": measure_text,
        "utility": measure(found.utility.metric).head,
        "d": drawing,
        "front": svg.path(drawing.front),
        "x_ticks": [(x, _tick(v)) for x, v in drawing.x_ticks],
        "y_ticks": [(y, said.value(cell, v / unit)) for y, v in drawing.y_ticks],
        "sparks": [_spark(found, adversary, m, at) for m in rest],
    }


def drawn(found: Found, adversary: Adversary) -> list[str]:
    """Return the measures that can be drawn, the leading one first."""
    lead = adversary.leading()
    metrics = [m for m in adversary.metrics if _drawable(found, adversary, m)]
    return sorted(metrics, key=lambda m: lead is None or m != lead.metric)


def _tick(value: float) -> str:
    """Format a tick of a change with two decimals, or with three if two are not exact."""
    decimals = 2 if math.isclose(value, round(value, 2)) else 3
    return number(value, decimals, signed=True) if value else "0"


def _unit(cell: Cell) -> float:
    """Return the factor from a score to the axis.

    It is the number of rows if rows are counted, else 1.
    """
    return cell.rows if math.isfinite(cell.rows) else 1.0


def _drawable(found: Found, adversary: Adversary, metric: str) -> bool:
    """Return whether a defense has both a price and a score by this measure."""
    return any(d.price.by_seed and adversary.cell(d.spec, metric).scores for d in found.defenses)


def _spark(found: Found, adversary: Adversary, metric: str, at: int) -> dict[str, Any]:
    """Compute the layout of a small frontier."""
    unit = _unit(adversary.cell(adversary.base, metric))
    line = unit * _line(adversary, found, metric)
    drawing = svg.spark(_marks(found, adversary, metric, at), line)
    return {
        "head": said.capital(measure(metric).head),
        "d": drawing,
        "front": svg.path(drawing.front),
    }


def _line(adversary: Adversary, found: Found, metric: str) -> float:
    """Return the baseline of a measure."""
    cells = (adversary.cell(d.spec, metric) for d in found.defenses)
    return next((c.line for c in cells if c.scores), 0.0)


def _marks(found: Found, adversary: Adversary, metric: str, at: int) -> list[svg.Mark]:
    """Return one mark per defense that has a price and a score or a known absence of a claim."""
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
    """Compute the layout of a change in utility by seed.

    None if there are fewer than two seeds or no seed differs.
    """
    values = [*price.by_seed.values()]
    e = price.change
    if len(values) < 2 or not any(values):
        return None
    ends = [*values, e.low, e.high, -TOLERANCE, TOLERANCE, 0.0]
    at = svg.Scale(min(ends), max(ends), 20.0, 310.0)
    ticks = [(at(v), number(v, 2, signed=True) if v else "0") for v in (-TOLERANCE, 0.0, TOLERANCE)]
    # If the labels at zero and at the tolerance would overlap, only the one at zero is drawn.
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
    """Compute the layout of a price's interval, on the same scale for all defenses.

    None if there is no interval or no seed differs.
    """
    e = price.change
    if not math.isfinite(e.low) or price.settled == "same":
        return None
    intervals = [d.price.change for d in found.defenses if math.isfinite(d.price.change.low)]
    ends = [-TOLERANCE, TOLERANCE, *(v for k in intervals for v in (k.low, k.high))]
    at = svg.Scale(min(ends), max(ends), 3.0, 109.0)
    return {"band": (at(-TOLERANCE), at(TOLERANCE)), "zero": at(0.0), "low": at(e.low),
            "high": at(e.high), "mean": at(e.mean)}  # fmt: skip
