"""Format scores, utility changes and names of defenses as text for the terminal and for the page.

The module also replaces the names of datasets, protocols and defenses by the labels that a paper
uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from fedtrees.core.errors import UsageError, did_you_mean, listed
from fedtrees.core.results import measure
from fedtrees.core.specs import parse_one
from fedtrees.report.cost import MOST_SEEDS, TOLERANCE, UtilityChange
from fedtrees.report.leakage import LeakageResult
from fedtrees.report.results import UNDEFENDED
from fedtrees.report.statistics import Estimate, mean_of

_SYMBOLS = {"epsilon": "ε", "decimals": "d", "xi": "ξ"}
GLYPHS = {
    "leaking": "●",
    "unsettled": "◆",
    "unknown": "◆",
    "safe": "■",
    "not-applicable": "□",
    "undefined": "○",
}
WORDS = {
    "leaking": "leak", "unsettled": "not settled",
    "unknown": "not known: an attack failed or did not run",
    "safe": "within the margin of a blind guess", "not-applicable": "no attack applies",
    "undefined": "a blind guess is perfect",
}  # fmt: skip


def number(value: float, digits: int = 3, signed: bool = False) -> str:
    """Format a number with fixed decimals and a true minus sign. "–" if it is not finite."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:{'+' if signed else ''},.{digits}f}"
    # A value that rounds to zero has no sign.
    if not float(text.replace(",", "")):
        text = text.lstrip("+-")
    return text.replace("-", "\N{MINUS SIGN}")


def scored(score: float, blind: float, population: float) -> str:
    """Format a score with its baselines.

    The population baseline is NaN for adversaries with local rows, and is then omitted.
    """
    population_text = f", population {number(population)}" if math.isfinite(population) else ""
    return f"score {number(score)}, blind {number(blind)}{population_text}"


def mean_and_interval(e: Estimate, digits: int = 3, signed: bool = False) -> str:
    """Format a mean with its interval as ``mean [low, high]``."""
    mean = number(e.mean, digits, signed)
    if not math.isfinite(e.low):
        return mean
    return f"{mean} [{number(e.low, digits, signed)}, {number(e.high, digits, signed)}]"


def bytes_text(value: float) -> str:
    """Format bytes in decimal units with three significant digits."""
    if not math.isfinite(value):
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def seconds_text(value: float) -> str:
    """Format seconds with three significant digits."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def count(value: float) -> str:
    """Format a mean number of rows, without decimals if it is an integer or at least 9.95."""
    if value >= 9.95 or abs(value - round(value)) < 0.05:
        return f"{value:,.0f}"
    return f"{value:.1f}"


def percent(share: float) -> str:
    """Format a share as a percentage, for example ``5.5%`` or ``67%``."""
    digits = 1 if 0 < abs(share) < 0.0995 else 0
    return f"{number(100 * share, digits)}%"


def value(cell: LeakageResult, score: float) -> str:
    """Format a score without its total, for example ``83``, ``67%`` or ``0.81``."""
    if not math.isfinite(score):
        return "none"
    if math.isfinite(cell.rows):
        return count(score * cell.rows)
    decimals = measure(cell.metric).decimals
    return percent(score) if decimals is None else number(score, decimals)


def shown(cell: LeakageResult) -> str:
    """Format a cell: its score, or the word that explains why it has no score."""
    if cell.scores:
        return value(cell, cell.score)
    if cell.no_claim:
        return "no claim"
    return {"not-applicable": "none", "unknown": "?", "undefined": "–"}.get(cell.state, "–")


def amount(cell: LeakageResult, score: float) -> str:
    """Format a score with its total, for example ``83 of 456 rows``, ``67%`` or ``0.81``."""
    counted = measure(cell.metric).counted_by
    if math.isfinite(cell.rows):
        return f"{value(cell, score)} of {cell.rows:,.0f} {counted}"
    return f"{value(cell, score)} of the {counted}" if counted else value(cell, score)


def can(cell: LeakageResult) -> str:
    """Describe what an adversary can learn, with the baselines in brackets.

    For example, ``reconstruct 83 of 456 rows in every column (blind 0)``. If few of the seeds
    determine the mean, the score of every seed follows.
    """
    details = "; ".join(part for part in (describe_baseline(cell), by_seed(cell)) if part)
    return f"{measure(cell.metric).phrase.format(amount(cell, cell.score))} ({details})"


def describe_leak(who: str, cell: LeakageResult) -> str:
    """Write one sentence with the score of an adversary and its score without any message.

    For example, ``Your server can reconstruct 83 of 456 rows in every column; guessing without any
    message reconstructs 0.``
    """
    phrase = measure(cell.metric).phrase
    sentence = phrase.format(amount(cell, cell.score))
    verb, _, following = phrase.partition(" ")
    # "guesses 40%" is a sentence only if the amount is the object of the verb.
    reaches = _third_person(verb) if following.startswith("{}") else "reaches"
    blind = value(cell, mean_of(cell.blinds)) if cell.blinds else "none"
    baseline = f"guessing without any message {reaches} {blind}"
    population = value(cell, mean_of(cell.populations)) if cell.has_population else blind
    if population != blind:
        baseline += f", and guessing from other rows of the population {population}"
    details = by_seed(cell)
    seeds = f" ({details})" if details else ""
    return f"{capital(who)} can {sentence}{seeds}; {baseline}."


def _third_person(verb: str) -> str:
    """Return the third person of a regular verb: ``guess`` becomes ``guesses``."""
    return f"{verb}es" if verb.endswith(("s", "sh", "ch")) else f"{verb}s"


def describe_baseline(cell: LeakageResult) -> str:
    """Format the baselines of a score by name, for example ``blind 48%, population 77%``.

    The population baseline guesses from rows that no party has. It exists if the adversary has no
    local rows, and it is named if it differs from the blind baseline.
    """
    blind = mean_of(cell.blinds)
    if not cell.blinds or not cell.has_population:
        return f"blind {value(cell, cell.baseline)}"
    first, second = value(cell, blind), value(cell, mean_of(cell.populations))
    return f"blind {first}" if first == second else f"blind {first}, population {second}"


def by_seed(cell: LeakageResult) -> str:
    """Format the score of every seed if the mean is misleading.

    For example, ``by seed 70%, 0%, 0%, 0%, 0%``. The mean is misleading if there are three or more
    seeds and their median is below half of the mean. Otherwise the result is "".
    """
    if not cell.heavy_tailed:
        return ""
    return f"by seed {', '.join(value(cell, score) for score in cell.scores)}"


def by_population(cell: LeakageResult) -> bool:
    """Return whether the population baseline counts, because it is better than the blind one."""
    blind = sum(cell.blinds) / len(cell.blinds) if cell.blinds else math.nan
    return not (cell.baseline == blind or math.isnan(blind))


def failed(cell: LeakageResult) -> str:
    """Write that the attack failed: ``the attack scored worse than a blind guess, ...``."""
    return f"the attack scored worse than {better_guess([cell])}, which shows nothing"


def better_guess(cells: Iterable[LeakageResult]) -> str:
    """Name the baseline that counts in some cells: the blind or the population baseline."""
    names = {"a guess from other rows" if by_population(c) else "a blind guess" for c in cells}
    return " or ".join(sorted(names))


def word(cell: LeakageResult) -> str:
    """Describe the state of a cell in words."""
    if cell.below_baseline:
        return failed(cell)
    if cell.no_claim and cell.state == "unsettled":
        return silent(cell)
    return WORDS[cell.state]


def silent(cell: LeakageResult) -> str:
    """List the attacks without a claim, for example ``lattice returned no claim: <reason>``."""
    return "; ".join(f"{name} returned no claim: {why}" for name, why in cell.no_claim)


class ProtocolRecipe(str):
    """Name of a recipe that uses another protocol than the setting.

    Attributes
    ----------
    protocol, defense : str
        Both parts of the recipe, in the notation of the command line.
    """

    protocol: str
    defense: str

    def __new__(cls, protocol: str, defense: str) -> ProtocolRecipe:
        """Build the name from the protocol and the defense."""
        text = super().__new__(cls, f"{protocol} with {defense}")
        text.protocol, text.defense = protocol, defense
        return text


def split_recipe(name: str) -> tuple[str, str]:
    """Split the name of a recipe into its protocol and its defense.

    The protocol is "" if the recipe uses the protocol of the setting.
    """
    return (name.protocol, name.defense) if isinstance(name, ProtocolRecipe) else ("", name)


def short(spec: str, most_parts: int = 2) -> str:
    """Abbreviate a defense, for example ``laplace-hist ε=8`` or ``dp-gbdt with dp-grid-cuts``.

    A defense with more than `most_parts` parts, or of another protocol, is written without the
    parameters of its parts.
    """
    if spec == UNDEFENDED:
        return "no defense"
    protocol, defense = split_recipe(spec)
    parts = parse_one(defense).parts
    if protocol:
        names = " + ".join(part.name for part in parts)
        return f"{parse_one(protocol).parts[0].name} with {names}"
    texts = []
    for part in parts:
        values = [f"{_SYMBOLS.get(k, k)}={v}" for k, v in part.params.items()]
        texts.append(" ".join([part.name, *(values if len(parts) <= most_parts else ())]))
    return " + ".join(texts)


def change(e: Estimate) -> str:
    """Format a change with its interval, for example ``+0.003 [−0.012, +0.019]``."""
    return f"{number(e.mean, 3, signed=True)} {interval(e)}".strip()


def interval(e: Estimate) -> str:
    """Format the interval of a change. The result is "" if there is no interval."""
    if not math.isfinite(e.low):
        return ""
    return f"[{number(e.low, 3, signed=True)}, {number(e.high, 3, signed=True)}]"


def settled(utility_change: UtilityChange) -> str:
    """Describe whether a utility change is settled.

    For example, ``not settled at ±0.01, run about 5 seeds``.
    """
    name = measure(utility_change.utility.metric).head
    match utility_change.settled:
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
    if utility_change.seeds_needed <= MOST_SEEDS:
        return f"not settled at ±{TOLERANCE:g}, run about {utility_change.seeds_needed} seeds"
    shown = number(utility_change.shown_by_most, 2)
    return f"not settled at ±{TOLERANCE:g}; {MOST_SEEDS} seeds would show ±{shown}"


def some(names: Sequence[str], limit: int = 3) -> str:
    """List the first `limit` names and the number of further ones."""
    shown = [*names[:limit]]
    if len(names) > limit:
        shown.append(f"{len(names) - limit} more")
    return listed(shown)


def capital(text: str) -> str:
    """Return the text with an upper-case first letter."""
    return text[:1].upper() + text[1:]


def guarded(guards: Sequence[Mapping[str, str]], details: bool = True) -> str:
    """List the defenses that protect a message, and those that exempt it, with reasons.

    Without `details`, the reasons are omitted.
    """
    exempt = ": exempt, {why}" if details else ": exempt"
    return "; ".join(
        g["defense"] + (exempt.format(**g) if g["act"] == "exempts" else "") for g in guards
    )


class Names:
    """Map names in a figure or a table to labels. A name without a label is returned unchanged.

    Attributes
    ----------
    labels : mapping of str to str
        Label by name, from the option ``--label NAME=LABEL``.
    used : set of str
        Names that were looked up so far. `check` compares the labels with them.
    """

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self.labels = labels or {}
        self.used: set[str] = set()

    def __call__(self, name: str) -> str:
        """Return the label of a name, and record that the name occurs."""
        self.used.add(name)
        return self.labels.get(name, name)

    def check(self, further_names: Iterable[str] = ()) -> None:
        """Raise `UsageError` if a label belongs to a name that does not occur.

        Parameters
        ----------
        further_names : iterable of str
            Names that are valid although no figure displays them. For example, a name that all rows
            of a table share is not written in the table.
        """
        names = self.used | {*further_names}
        for name in self.labels:
            if name not in names:
                hint = did_you_mean(name, names)
                raise UsageError(f"--label: the output does not contain the name {name!r}{hint}")
