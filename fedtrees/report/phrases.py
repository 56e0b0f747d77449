"""How scores, amounts and adversaries are said in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedtrees.core.columns import Measure, measure
from fedtrees.core.counts import listed, many
from fedtrees.core.errors import UsageError
from fedtrees.core.threat import Threat
from fedtrees.report import style
from fedtrees.report.frontier import Point

NOT_LOOKING = "one who never looked"
KNOWS_OTHERS = "who knows other rows"
NO_DIFFERENCE = "no clear difference"

Called = Mapping[str, tuple[str, str]]


def doing(metrics: Sequence[str]) -> str:
    """Write several kinds of leaks as subjects, each once."""
    return listed([*dict.fromkeys(measure(m).doing for m in metrics)])


def who(threat: str, called: Called) -> tuple[str, bool]:
    """Return an adversary in words and whether it is several: ``server`` is ``your server``."""
    try:
        parsed = Threat.parse(threat)
    except UsageError:  # of another release
        return f"the adversary {threat!r}", False
    parts = []
    for part in parsed.parts:
        unnamed = f"the party {part.name!r}", f"of {part.name!r} together"
        one, several = called.get(part.name, unnamed)
        count, index = part.params.get("count", 1), part.params.get("index")
        text = one if count == 1 else f"{count} {several}"
        parts.append(text if index is None else f"{text} (number {index})")
    text, besides = listed(parts), []
    if parsed.queries:
        besides.append(f"may ask for {many(parsed.queries, 'prediction')}")
    if parsed.labels:
        besides.append(f"told {many(parsed.labels, 'label')}")
    if parsed.attributes:
        besides.append(f"told {many(parsed.attributes, 'attribute')} of every row")
    text += f" ({', '.join(besides)})" if besides else ""
    several = len(parts) > 1 or any(part.params.get("count", 1) != 1 for part in parsed.parts)
    return text, several


def sees(several: bool) -> str:
    return "see" if several else "sees"


def reads(several: bool) -> str:
    return "read" if several else "reads"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def count(value: float) -> str:
    """Write a mean number of rows: whole where it is whole or large."""
    if value >= 9.95 or abs(value - round(value)) < 0.005:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.05 else "fewer than 0.1"


def percent(share: float) -> str:
    digits = 1 if 0 < abs(share) < 0.0995 else 0
    return f"{style.number(100 * share, digits)}%"


def span(texts: Sequence[str]) -> str:
    """Write one amount, or the first and the last of several."""
    return texts[0] if len(set(texts)) == 1 else f"{texts[0]} to {texts[-1]}"


def changed(score: Measure, changes: Sequence[float]) -> str:
    """Write changes of a score: ``AUC unchanged``, ``AUC lower by 0.012 to 0.045``."""
    name, digits = score.name, score.decimals or 0
    low, high = (round(end(changes), digits) for end in (min, max))
    if low == high == 0:
        return f"{name} unchanged"
    ends = [f"{abs(end):.{digits}f}" for end in (low, high)]
    if low < 0 < high:
        return f"{name} from {ends[0]} lower to {ends[1]} higher"
    way, (least, most) = ("higher", ends) if high > 0 else ("lower", ends[::-1])
    if least == most:
        return f"{name} {way} by {most}"
    amount = f"{least} to {most}" if float(least) else f"up to {most}"
    return f"{name} {way} by {amount}"


def grid(points: Sequence[Point]) -> str:
    """Write budgets of one defense as a grid: ``laplace-hist[epsilon=1,8]``."""
    first = points[0].defense
    if len(points) == 1:
        return first
    name = points[0].budget.name
    values = ",".join(f"{p.budget.value:g}" for p in sorted(points, key=lambda p: p.budget.value))
    return first.replace(f"{name}={points[0].budget.value:g}", f"{name}={values}", 1)
