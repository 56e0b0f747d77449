"""How amounts, prices and defenses are written, the same in the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedtrees.core.columns import measure
from fedtrees.core.counts import listed
from fedtrees.core.specs import parse_one
from fedtrees.report.intervals import Estimate, mean_of
from fedtrees.report.price import MOST_SEEDS, TOLERANCE, Price
from fedtrees.report.rows import UNDEFENDED
from fedtrees.report.states import Cell
from fedtrees.report.style import number

_SYMBOLS = {"epsilon": "ε", "decimals": "d", "xi": "ξ"}
_MOST_PARTS = 2
GLYPHS = {"open": "●", "unsettled": "◆", "unknown": "◆", "shut": "■", "gone": "□", "undefined": "○"}
WORDS = {
    "open": "read", "unsettled": "not settled",
    "unknown": "not known: an attack failed or did not run",
    "shut": "within the margin of blind", "gone": "nothing to read",
    "undefined": "a blind guess is perfect",
}  # fmt: skip


def count(value: float) -> str:
    """Write a mean number of rows: whole where it is whole or large."""
    if value >= 9.95 or abs(value - round(value)) < 0.05:
        return f"{value:,.0f}"
    return f"{value:.1f}"


def percent(share: float) -> str:
    """Write a share: ``5.5%``, ``67%``."""
    digits = 1 if 0 < abs(share) < 0.0995 else 0
    return f"{number(100 * share, digits)}%"


def value(cell: Cell, score: float) -> str:
    """Write a score without its whole: ``83``, ``67%``, ``0.81``."""
    if not math.isfinite(score):
        return "none"
    if math.isfinite(cell.rows):
        return count(score * cell.rows)
    decimals = measure(cell.metric).decimals
    return percent(score) if decimals is None else number(score, decimals)


def shown(cell: Cell) -> str:
    """Write a cell: its score, or the word that says why there is none."""
    if cell.scores:
        return value(cell, cell.score)
    if cell.no_claim:
        return "no claim"
    return {"gone": "none", "unknown": "?", "undefined": "–"}.get(cell.state, "–")


def amount(cell: Cell, score: float) -> str:
    """Write a score with its whole: ``83 of 456 rows``, ``67%``, ``0.81``."""
    counted = measure(cell.metric).counted_by
    if math.isfinite(cell.rows):
        return f"{value(cell, score)} of {cell.rows:,.0f} {counted}"
    return f"{value(cell, score)} of the {counted}" if counted else value(cell, score)


def can(cell: Cell) -> str:
    """Write what an adversary can learn, with its baselines.

    For example: ``reconstruct 83 of 456 rows in every column (blind 0)``. If few of the seeds
    determine the mean, the value of every seed follows.
    """
    details = "; ".join(part for part in (line(cell), by_seed(cell)) if part)
    return f"{measure(cell.metric).phrase.format(amount(cell, cell.score))} ({details})"


def achievement(who: str, cell: Cell) -> str:
    """Write what an adversary can learn and what it guesses without messages, as two sentences.

    For example: ``Your server can reconstruct 83 of 456 rows in every column. A guess without any
    message reaches 0.``
    """
    sentence = measure(cell.metric).phrase.format(amount(cell, cell.score))
    blind = value(cell, mean_of(cell.blinds)) if cell.blinds else "none"
    baseline = f"A guess without any message reaches {blind}"
    population = value(cell, mean_of(cell.populations)) if cell.has_population else blind
    if population != blind:
        baseline += f", a guess from other rows of the population {population}"
    details = by_seed(cell)
    seeds = f" ({details})" if details else ""
    return f"{capital(who)} can {sentence}{seeds}. {baseline}."


def line(cell: Cell) -> str:
    """Write the baselines of a score by name: ``blind 5.5%``, ``blind 48%, population 77%``.

    The population baseline guesses from rows that no party has. It exists where the adversary has
    no rows of its own.
    """
    blind = mean_of(cell.blinds)
    if not cell.blinds or not cell.has_population:
        return f"blind {value(cell, cell.line)}"
    return f"blind {value(cell, blind)}, population {value(cell, mean_of(cell.populations))}"


def by_seed(cell: Cell) -> str:
    """Write the score of every seed, where the mean hides it: ``by seed 70%, 0%, 0%, 0%, 0%``.

    That is where the median of three or more seeds is below half of the mean. Else "".
    """
    if not cell.heavy_tailed:
        return ""
    return f"by seed {', '.join(value(cell, score) for score in cell.scores)}"


def _by_population(cell: Cell) -> bool:
    """Return whether the baseline that counts is the population's, not the blind one."""
    blind = sum(cell.blinds) / len(cell.blinds) if cell.blinds else math.nan
    return not (cell.line == blind or math.isnan(blind))


def failed(cell: Cell) -> str:
    """Write that the attack failed: ``the attack did worse than a blind guess; ...``."""
    other = "a guess from other rows" if _by_population(cell) else "a blind guess"
    return f"the attack did worse than {other}; nothing is shown"


def word(cell: Cell) -> str:
    """Write the state of a cell in words."""
    if cell.below_baseline:
        return failed(cell)
    if cell.no_claim and cell.state == "unsettled":
        return silent(cell)
    return WORDS[cell.state]


def silent(cell: Cell) -> str:
    """Write which attacks returned no claim: ``lattice returned no claim: <reason>``."""
    return "; ".join(f"{name} returned no claim: {why}" for name, why in cell.no_claim)


class Elsewhere(str):
    """A recipe of another protocol, by name. `protocol`, `defense`: As typed."""

    protocol: str
    defense: str

    def __new__(cls, protocol: str, defense: str) -> Elsewhere:
        """Name it."""
        text = super().__new__(cls, f"{protocol} with {defense}")
        text.protocol, text.defense = protocol, defense
        return text


def parted(name: str) -> tuple[str, str]:
    """Return the other protocol of a recipe, "" where there is none, and its defense."""
    return (name.protocol, name.defense) if isinstance(name, Elsewhere) else ("", name)


def short(spec: str) -> str:
    """Write a defense in few characters: ``laplace-hist ε=8``, ``split-only + 3 more``."""
    if spec == UNDEFENDED:
        return "no defense"
    protocol, defense = parted(spec)
    parts = parse_one(defense).parts
    if protocol or len(parts) > _MOST_PARTS:
        name = parse_one(protocol).parts[0].name if protocol else parts[0].name
        return f"{name} + {len(parts) - (not protocol)} more"
    texts = []
    for part in parts:
        values = [f"{_SYMBOLS.get(k, k)}={v}" for k, v in part.params.items()]
        texts.append(" ".join([part.name, *values]))
    return " + ".join(texts)


def change(e: Estimate) -> str:
    """Write a change with its interval: ``+0.003 [−0.012, +0.019]``."""
    return f"{number(e.mean, 3, signed=True)} {interval(e)}".strip()


def interval(e: Estimate) -> str:
    """Write the interval of a change, "" where there is none."""
    if not math.isfinite(e.low):
        return ""
    return f"[{number(e.low, 3, signed=True)}, {number(e.high, 3, signed=True)}]"


def settled(price: Price) -> str:
    """Write what is shown of a price: ``not settled at ±0.01, run about 5 seeds``."""
    name = measure(price.utility.metric).head
    match price.settled:
        case "same":
            return f"{name} identical in every seed"
        case "equal":
            return f"within ±{TOLERANCE:g}"
        case "ok":
            return f"no loss beyond {TOLERANCE:g}"
        case "worse":
            return "a clear loss"
        case "one":
            return "one seed settles nothing"
        case "unknown":
            return "not known"
    if price.seeds_needed <= MOST_SEEDS:
        return f"not settled at ±{TOLERANCE:g}, run about {price.seeds_needed} seeds"
    shown = number(price.shown_by_most, 2)
    return f"not settled at ±{TOLERANCE:g}; {MOST_SEEDS} seeds would show ±{shown}"


def some(names: Sequence[str], most: int = 3) -> str:
    """Write the first of some names and how many more there are."""
    shown = [*names[:most]]
    if len(names) > most:
        shown.append(f"{len(names) - most} more")
    return listed(shown)


def capital(text: str) -> str:
    """Begin a sentence."""
    return text[:1].upper() + text[1:]


def guarded(guards: Sequence[Mapping[str, str]], details: bool = True) -> str:
    """Write who guards a message: ``split-only; masking: exempt, of sums alone``."""
    exempt = ": exempt, {why}" if details else ": exempt"
    return "; ".join(
        g["defense"] + (exempt.format(**g) if g["act"] == "exempts" else "") for g in guards
    )
