"""How scores, amounts and adversaries are said in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedtrees.core.counts import listed, many
from fedtrees.core.errors import UsageError
from fedtrees.core.threat import Threat
from fedtrees.report import style
from fedtrees.report.frontier import Point

NOT_LOOKING = "one who never looked"
KNOWS_OTHERS = "who knows other rows"
NO_DIFFERENCE = "no clear difference"

Called = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Words:
    """How a score is said.

    `can`: What an adversary can do, with ``{}`` for how much. `doing`: The same as a subject.
    `counted`: The metric whose rows the share is of, "" where a percentage says more. `plain`: A
    number as it is, not a share. `beside`: Scores that tell the same more plainly: where one of
    them leaks, this one is not said.
    """

    can: str
    doing: str
    counted: str = ""
    plain: bool = False
    beside: tuple[str, ...] = ()


#: What is said of a leak, the worst kind first; the first that is past blind leads.
WORDS: dict[str, Words] = {
    "exact_rows": Words("rebuild {} in every column", "rebuilding rows", "records"),
    "returned_right": Words("be sure of {}, right in every bin", "being sure of rows", "records",
                            beside=("exact_rows",)),
    "label_accuracy": Words("put {} into the right class", "telling classes apart", "labels"),
    "routed_accuracy": Words("put {} of the rows to predict into the right class",
                             "telling classes of new rows apart"),
    "thresholds": Words("find {} of the others' thresholds", "finding thresholds"),
    "bins_read": Words("name the bin of {} of the others' values", "naming bins of values"),
    "rank_correlation": Words("order the others' values with a rank correlation of {}",
                              "ordering values", plain=True, beside=("bins_read",)),
    "ra": Words("guess {} of the values right", "guessing values"),
    "batch_exact": Words("rebuild {} of the rows of a batch", "rebuilding rows of a batch"),
    "batch_ra": Words("guess {} of the values of a batch right", "guessing values of a batch"),
    "batch_leaves": Words("tell {} of the leaves that a batch reaches", "telling leaves"),
    "entries": Words("tell {} of the others' values", "telling values"),
    "entries_close": Words("come close to {} of the others' values", "coming close to values",
                           beside=("entries",)),
    "column_values": Words("read {} of the values of every column, though not whose they are",
                           "reading columns"),
    "leaf_mass_exact": Words("tell how many rows of each class lie in a leaf, for {} of the rows",
                             "counting the classes in leaves"),
    "leaf_counts_exact": Words("tell how many rows of each class lie in {} of the leaves",
                               "counting the classes in leaves", beside=("leaf_mass_exact",)),
    "close_rows": Words("rebuild {} in 90% of the columns", "rebuilding most of a row", "records",
                        beside=("exact_rows", "ra")),
    "v_measure": Words("sort rows into classes with a V-measure of {}", "telling classes apart",
                       plain=True, beside=("label_accuracy",)),
    "rank_width": Words("narrow ranks down to {} of a column", "ordering values",
                        beside=("rank_correlation",)),
    "ranges_covered": Words("give {} of the ranges of somebody's values", "finding thresholds",
                            beside=("thresholds",)),
    "column_extremes": Words("read {} of the smallest and largest values", "reading columns",
                             beside=("column_values",)),
    "column_singles": Words("read {} of the values that one row alone has", "reading columns",
                            beside=("column_values",)),
}  # fmt: skip


def wording(metric: str) -> Words:
    name = style.metric_name(metric)
    return WORDS.get(metric, Words(f"reach {{}} in {name}", name, plain=True))


def doing(metrics: Sequence[str]) -> str:
    """Write several kinds of leaks as subjects, each once."""
    return listed([*dict.fromkeys(wording(m).doing for m in metrics)])


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


def guarded(guards: Sequence[Mapping[str, str]], details: bool = True) -> str:
    """Write who guards a message: ``split-only; masking: exempt, of sums alone``."""
    exempt = ": exempt, {why}" if details else ": exempt"
    return "; ".join(
        g["defense"] + (exempt.format(**g) if g["act"] == "exempts" else "") for g in guards
    )


def unchanged(changes: Sequence[float]) -> bool:
    """Tell whether changes are 0 as they are written."""
    return not any(round(change, 3) for change in changes)


def changed(name: str, changes: Sequence[float]) -> str:
    """Write changes of a score: ``AUC unchanged``, ``AUC lower by 0.012 to 0.045``."""
    low, high = (round(end(changes), 3) for end in (min, max))
    if unchanged(changes):
        return f"{name} unchanged"
    if low < 0 < high:
        return f"{name} from {-low:.3f} lower to {high:.3f} higher"
    way, least, most = ("higher", low, high) if high > 0 else ("lower", -high, -low)
    if least == most:
        return f"{name} {way} by {most:.3f}"
    amount = f"{least:.3f} to {most:.3f}" if least else f"up to {most:.3f}"
    return f"{name} {way} by {amount}"


def grid(points: Sequence[Point]) -> str:
    """Write budgets of one defense as a grid: ``laplace-hist[epsilon=1,8]``."""
    first = points[0].defense
    if len(points) == 1:
        return first
    name = points[0].budget.name
    values = ",".join(f"{p.budget.value:g}" for p in sorted(points, key=lambda p: p.budget.value))
    return first.replace(f"{name}={points[0].budget.value:g}", f"{name}={values}", 1)
