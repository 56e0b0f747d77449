"""Write the verdict of a run, and the table above it, for a terminal.

The verdict contains the sentences on which a data protection officer decides. It is a list of
labelled entries that fits on one screen (`SCREEN_LINES`, `SCREEN_COLUMNS`). The table has one line
per defense and as many measures as fit. The HTML report and the JSON output are computed from the
same findings (`fedtrees.report.findings`).
"""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedtrees.core.errors import listed, many
from fedtrees.core.guarantee import ActedOnNothing
from fedtrees.core.results import measure
from fedtrees.report import wording
from fedtrees.report.adversaries import AdversaryFindings
from fedtrees.report.cost import MOST_SEEDS, TOLERANCE, UtilityChange
from fedtrees.report.findings import (
    DefenseResult,
    Leak,
    RunAnalysis,
    SettingFindings,
)
from fedtrees.report.guarantees import REFUTED, in_words
from fedtrees.report.leakage import SETTLED, LeakageResult, gravity, plain, upper
from fedtrees.report.local_baseline import compare_with_training_alone
from fedtrees.report.recipe import Recipe
from fedtrees.report.results import UNDEFENDED
from fedtrees.report.statistics import finite
from fedtrees.report.wording import number

if TYPE_CHECKING:
    from rich.table import Table

#: Name of the page that `fedtrees recommend` writes into its run folder.
ADVICE_PAGE = "advice.html"
#: Size of the screen that the verdict must fit, below the line that names the setting.
SCREEN_LINES, SCREEN_COLUMNS = 22, 80
#: Width of the column of labels in characters.
LABEL_COLUMNS = 15
_COMMAND_INDENT = 4
# The largest advantage of the leading adversary is mentioned if it exceeds the first one by this.
_MUCH_LARGER = 0.25
# Largest number of remaining leaks that are described for one adversary.
_LEAKS_PER_ADVERSARY = 2
_SEEDS_TO_SETTLE = 10
_NOTHING_REMAINS = "No adversary has an advantage above the margin."
# Widths in the table of the terminal, in characters: of the name of a defense, of the mark of the
# recommended defense and the change in utility together, and of the symbol and spaces of a score.
_DEFENSE_WIDTH, _FIXED_WIDTH, _SYMBOL_WIDTH = 34, 12, 3
_LEGEND = ("leaking", "unsettled", "safe", "not-applicable")
_COLOURS = {"leaking": "red", "unsettled": "yellow", "unknown": "yellow", "safe": "blue",
            "not-applicable": "blue", "undefined": "dim"}  # fmt: skip
#: Label of the first entry, by the kind of the main finding
#: (`fedtrees.report.findings.Leak`).
LEAK_LABELS = {
    "leak": "LEAK FOUND", "trace": "TRACE FOUND", "none-found": "NO LEAK FOUND",
    "none-clear": "NOT SETTLED", "attack-failed": "NOT KNOWN", "unknown": "NOT KNOWN",
    "no-attack": "NOT KNOWN",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One entry of a verdict.

    Attributes
    ----------
    label : str
        Topic of the entry, in capitals.
    text : str
        One or more sentences.
    command : str
        A defense or options to type, printed on a separate line below the text. "" for none.
    """

    label: str
    text: str
    command: str = ""

    def wrapped(self, columns: int = SCREEN_COLUMNS) -> str:
        """Return the entry for a terminal with the given number of columns.

        The label is to the left of the text. The command is not wrapped, so that it can be copied.
        It is indented as far as it then fits on one line.
        """
        indent = " " * LABEL_COLUMNS
        text = textwrap.fill(
            self.text, columns - 1, initial_indent=f"{self.label:{LABEL_COLUMNS}}",
            subsequent_indent=indent, break_on_hyphens=False,
        )  # fmt: skip
        if not self.command:
            return text
        spare = columns - len(self.command)
        return f"{text}\n{' ' * min(_COMMAND_INDENT, max(spare, 0))}{self.command}"

    @property
    def height(self) -> int:
        """Number of lines that the entry takes on a screen of `SCREEN_COLUMNS`."""
        return sum(-(-len(line) // SCREEN_COLUMNS) for line in self.wrapped().splitlines())


@dataclass(frozen=True)
class Verdict:
    """The entries about the setting with the gravest leak, and one entry per further setting."""

    setting: str
    lines: tuple[Line, ...]

    @property
    def height(self) -> int:
        """Number of lines that all entries take on a screen of `SCREEN_COLUMNS`."""
        return sum(line.height for line in self.lines)

    def __str__(self) -> str:
        return "\n".join([self.setting, *(line.wrapped() for line in self.lines)])


def verdict(analysis: RunAnalysis) -> Verdict:
    """Write the verdict of a run."""
    if not analysis.settings:
        return Verdict("", (Line("NOT KNOWN", "No model was trained."),))
    first, *rest = analysis.settings
    # The command to type next is always the last entry, so that its lines are reserved first.
    next_step = _next_step(first, analysis)
    lines = _fitting_lines(first, analysis, SCREEN_LINES - next_step.height)
    room = SCREEN_LINES - sum(line.height for line in (*lines, next_step))
    # Protocols that are recipes of the first setting are already compared with it.
    compared = {wording.split_recipe(c.name)[0] for c in first.recommendation.recipes} - {""}
    setting_lines = [_other_setting(f) for f in rest if f.setting.protocol not in compared]
    for at, line in enumerate(setting_lines):
        # Reserve space for a line that names the number of omitted settings.
        remaining = Line(
            "ALSO", f"{many(len(setting_lines) - at, 'more setting')}: see the report."
        )
        is_last = at == len(setting_lines) - 1
        if line.height + (0 if is_last else remaining.height) > room:
            lines.append(remaining)
            room -= remaining.height
            break
        lines.append(line)
        room -= line.height
    return Verdict(f"{first.setting} · {many(first.seeds, 'seed')}", (*lines, next_step))


def _fitting_lines(findings: SettingFindings, analysis: RunAnalysis, room: int) -> list[Line]:
    """Return the entries of a setting with the most details that fit in `room` lines."""
    lines: list[Line] = []
    # Reduce details step by step until the entries fit on the screen.
    for leaks, details in ((_LEAKS_PER_ADVERSARY, True), (1, True), (1, False), (0, False)):
        lines = list(_lines(findings, leaks, details))
        if sum(line.height for line in lines) <= room:
            break
    # The epsilon of the recommended defense is more important than other defenses without one.
    brief = [line for line in lines if line.label != "NO GUARANTEE"]
    for shown in (lines, brief):
        extended = [*shown, *_epsilon(findings, analysis)]
        if sum(line.height for line in extended) <= room:
            return extended
    return lines


def _epsilon(findings: SettingFindings, analysis: RunAnalysis) -> Iterator[Line]:
    """Yield the epsilon that the recommended defense claims, if it is finite and was kept.

    The claimed epsilon is valid for every outcome, whereas the spent epsilon of a run may depend on
    its rows. The report states both, also for other coalitions and for another neighbouring
    relation.
    """
    if findings.recommended_recipe is None:
        return
    protocol, spec = wording.split_recipe(findings.recommended_recipe.name)
    trained = next((f for f in analysis.settings if f.setting.protocol == protocol), findings)
    defended = trained.defended(spec)
    text = in_words(defended.guarantees.claimed, brief=True) if defended is not None else ""
    if text and defended is not None and not defended.void:
        yield Line("EPSILON", f"This defense claims {text}.")


def _lines(findings: SettingFindings, leaks: int, details: bool) -> Iterator[Line]:
    """Yield the entries of a setting with the given number of leaks per adversary."""
    yield from _collapsed_models(findings)
    yield Line(LEAK_LABELS[findings.leak.kind], leak(findings, details))
    yield from _model(findings)
    yield from _defense(findings, leaks)
    yield from _notes(findings)
    if text := untested(findings):
        yield Line("NOT TESTED", text)


def _next_step(findings: SettingFindings, analysis: RunAnalysis) -> Line:
    """Return the entry with the command to type after the verdict, for the table of the run.

    If `fedtrees recommend` wrote the run, its page of advice is named instead. The command compares
    AUCs, which a numeric target does not have.
    """
    advice = analysis.folder / ADVICE_PAGE
    if advice.is_file():
        return Line("NEXT STEP", "Read the recommendation for your limits:", str(advice))
    table_options = analysis.table_options(findings.setting.dataset)
    own_table = "" if "--csv" in table_options else " (own table: --csv, --target)"
    if not findings.has_numeric_target:
        text = f"Find a defense for your limits{own_table}:"
        return Line("NEXT STEP", text, shlex.join(["fedtrees", "recommend", *table_options]))
    if findings.seeds < _SEEDS_TO_SETTLE:
        options = (*table_options, "--seeds", str(_SEEDS_TO_SETTLE))
        text = f"Narrow the intervals with more seeds{own_table}:"
        return Line("NEXT STEP", text, shlex.join(["fedtrees", "bench", *options]))
    return Line("NEXT STEP", "Choose further defenses to test:", "fedtrees list defenses")


def _model(findings: SettingFindings) -> Iterator[Line]:
    """Yield the utility without a defense, with the best defense, and of training alone.

    The utility of a constant and of a perfect model is beside it.
    """
    trained = findings.defended(findings.baseline_defense)
    if trained is None or not math.isfinite(trained.utility_change.mean_utility):
        return
    utility, spec = measure(findings.utility.metric), trained.spec
    how = "without a defense" if spec == UNDEFENDED else f"with {wording.short(spec)}"
    marks = [f"perfect: {utility.best:g}"]
    if math.isfinite(findings.constant_utility):
        marks.insert(0, f"a guess: {findings.constant_utility:.3g}")
    values, better = [f"{number(trained.utility_change.mean_utility)} {how}"], ""
    use = findings.recommended_recipe
    if use is not None and math.isfinite(use.utility_change.mean_utility):
        values.append(f"{number(use.utility_change.mean_utility)} with the best one")
        if compare_with_training_alone(findings, use).gain.mean < 0:
            better = ", which is better"
    if math.isfinite(findings.local_utility):
        values.append(f"{number(findings.local_utility)} if a party trains alone{better}")
    yield Line("MODEL", f"{utility.head} {', '.join(values)} ({', '.join(marks)}).")


def _collapsed_models(findings: SettingFindings) -> Iterator[Line]:
    """Yield a note on defenses under which the model is useless, so that privacy has no value."""
    collapsed = [d.spec for d in findings.defenses if d.utility_change.collapsed]
    if collapsed:
        name = measure(findings.utility.metric).head
        text = (
            f"Under {wording.some(collapsed, 2)} the model predicts no better than a constant "
            f"(by {name})."
        )
        yield Line("NO UTILITY", text)


def leak(findings: SettingFindings, details: bool = False) -> str:
    """Describe the main finding without a defense, or the state of knowledge without a clear leak.

    If no model was trained without a defense, the first defense takes its place and is named.

    Parameters
    ----------
    findings : SettingFindings
        Findings of the setting.
    details : bool
        Whether to mention a much larger advantage of the same adversary by another measure.
    """
    text = _leak(findings, details)
    if findings.baseline_defense == UNDEFENDED:
        return text
    return f"With {wording.short(findings.baseline_defense)}, {text[0].lower()}{text[1:]}"


def _leak(findings: SettingFindings, details: bool) -> str:
    """Describe the main finding by its kind."""
    lead = findings.leak
    who = describe_adversary(lead.adversary)
    match lead.kind, lead.result:
        case "no-attack", _:
            for spec, why in findings.untested.failed_trainings:
                if spec == findings.baseline_defense:
                    return f"No attack was run, because the training failed: {why.rstrip('.')}."
            if failed := findings.untested.failed:
                names = listed([name for name, _ in failed])
                return f"None of the attacks that apply finished ({names})."
            return "No attack that ran applies to the messages that these adversaries see."
        case "none-found", _:
            return _none_found(findings)
        case "trace", LeakageResult() as result:
            return (
                f"{wording.describe_leak(who, result)} The advantage is below the margin of "
                f"{findings.margin:g}. Strongest attack: {_attack(result)}."
            )
        case "unknown", _:
            return f"{_missing_attacks(findings)}, and no other attack shows a leak."
        case "attack-failed", LeakageResult() as result:
            head = measure(result.metric).head.lower()
            return (
                "By every measure that is not settled, the attacks scored worse than their "
                f"baseline, so that they show nothing. The best one, {_attack(result)} by {who}, "
                f"has {head} {wording.value(result, result.score)} "
                f"({wording.describe_baseline(result)})."
            )
        case "none-clear", LeakageResult() as result:
            advantage = replace(result.advantage, high=upper(result))
            return (
                f"No clear leak, but none is excluded: {who} may {wording.can(result)}. "
                f"The advantage is {wording.change(advantage)}. "
                f"{_how_to_settle(findings, lead.adversary)}"
            ).rstrip()
        case _, LeakageResult() as result:
            addition = _larger_advantage(lead) if details else ""
            text = wording.describe_leak(who, result) + addition
            return f"{text} Strongest attack: {_attack(result)}."
    raise AssertionError(lead)


def _missing_attacks(findings: SettingFindings) -> str:
    """Name the attacks that failed or returned no claim, as the beginning of a sentence."""
    gaps = findings.untested
    failed, silent = (
        wording.some(list(dict.fromkeys(name.partition("[")[0] for name, _ in pairs)))
        for pairs in (gaps.failed, gaps.no_claim)
    )
    parts = [f"attacks failed ({failed})"] * bool(failed)
    parts += [f"attacks returned no claim ({silent})"] * bool(silent)
    return wording.capital(" and ".join(parts) or "attacks that apply did not run")


def _larger_advantage(lead: Leak) -> str:
    """Describe the largest advantage of the leading adversary if it is much larger."""
    assert lead.adversary is not None
    assert lead.result is not None
    cells = lead.adversary.leaking_results(lead.adversary.baseline_defense)
    largest = max(cells, key=lambda c: finite(c.advantage.mean))
    if finite(largest.advantage.mean) < finite(lead.result.advantage.mean) + _MUCH_LARGER:
        return ""
    pronoun = "They" if lead.adversary.several else "It"
    return f" {pronoun} can also {wording.can(largest)}."


def _none_found(findings: SettingFindings) -> str:
    """Name the adversaries that stay near their baselines, and those to which no attack applies."""
    safe = {
        a.name: plain([c for c in a.results(findings.baseline_defense) if c.state == "safe"])
        for a in findings.tested
    }
    near = [a for a in findings.tested if safe[a.name]]
    without_attack = [name for name, cells in safe.items() if not cells]
    metrics = {c.metric for cells in safe.values() for c in cells}
    text = (
        f"By all {many(len(metrics), 'measure')}, {listed([a.name for a in near])} {_stay(near)} "
        f"within {findings.margin:g} of a blind guess, over {many(findings.seeds, 'seed')}. "
        "More trees, fewer rows or another adversary may give another result."
    )
    if not without_attack:
        return text
    return f"{text} No attack that ran applies to the view of {listed(without_attack)}."


def _how_to_settle(findings: SettingFindings, adversary: AdversaryFindings | None) -> str:
    """Write how to settle a result: run the missing attacks, or use more seeds."""
    coverage = adversary.coverage.get(findings.baseline_defense) if adversary else None
    if coverage is not None and coverage.missing:
        names = {*coverage.left_out, *(name for name, *_ in coverage.failed)}
        return f"Run {many(len(names), 'more attack')}."
    return f"Use --seeds {_SEEDS_TO_SETTLE}." if findings.seeds < _SEEDS_TO_SETTLE else ""


def _defense(findings: SettingFindings, leaks: int) -> Iterator[Line]:
    """Yield the name, effect, utility change and remaining leaks of the best defense."""
    if findings.baseline_defense != UNDEFENDED:
        text = "Nothing to compare with, because no model was trained without a defense."
        yield Line("BEST DEFENSE", text)
        return
    if findings.leak.kind == "none-found":
        return
    use = findings.recommended_recipe
    if use is None:
        yield Line("BEST DEFENSE", explain_refusal(findings))
        if text := remains(findings, None, leaks):
            yield Line("OTHER LEAKS", text)
        return
    yield Line("BEST DEFENSE", _recommendation(findings, use), command(use))
    if text := _effect(findings, use):
        yield Line("EFFECT", text)
    yield Line("PRICE", describe_utility_change(use.utility_change))
    if text := remains(findings, use, leaks):
        # Without a measured leak, the entry lists results that exclude none.
        leaking = any(c.state == "leaking" for t in use.trials for c in t.results)
        excluded = text == _NOTHING_REMAINS
        yield Line("STILL LEAKS" if leaking or excluded else "NOT EXCLUDED", text)
    strict = findings.stricter
    if strict is not None:
        text = (
            f"This defense exposes fewer persons. {describe_utility_change(strict.utility_change)}"
        )
        yield Line("STRICTER", text, command(strict))


def _recommendation(findings: SettingFindings, use: Recipe) -> str:
    """Describe the quality of the best defense, as a sentence that ends before its name."""
    if use.holds:
        if use.shown:
            return f"Every attack is shown to stay within {findings.margin:g} of its baseline:"
        return "No attack clearly succeeds, but not every leak is excluded:"
    if use.untested:
        return "The best one that ran. Not every attack ran, so that more may leak:"
    before, after = findings.leak.result, _after(findings, use)
    if after is not None and after.state in ("unsettled", "unknown"):
        return "Whether it removes this leak is not settled, and another leak remains:"
    if after is not None and after.state != "leaking":
        return "It removes this leak, but another leak remains (see STILL LEAKS):"
    # For a loss, a larger score is a smaller leak.
    sign = 1 if before is None else measure(before.metric).sign
    if before is not None and after is not None and sign * (before.score - after.score) > 0:
        return "No tested defense removes this leak. This one reduces it:"
    adversary = findings.leak.adversary
    if before is not None and adversary is not None:
        scores = [adversary.result(d.spec, before.metric).score for d in findings.defenses]
        if any(sign * (before.score - score) > 0 for score in scores):
            return (
                "No tested defense is shown to reduce this leak, to keep its claim and to cost no "
                "clear loss. This one reduces another leak:"
            )
    return "No tested defense reduces this leak. This one reduces another one:"


def command(use: Recipe) -> str:
    """Return the notation of a defense, or the options for a defense of another protocol."""
    protocol, defense = wording.split_recipe(use.name)
    return f'-p "{protocol}" -d "{defense}"' if protocol else use.name


def tried_recipes(findings: SettingFindings) -> dict[str, Recipe]:
    """Return recipes by name: first the defenses of the protocol, then those of other protocols."""
    recipes = {recipe.name: recipe for recipe in findings.recommendation.recipes}
    defenses = [d.spec for d in findings.defenses if d.spec in recipes]
    return {name: recipes[name] for name in dict.fromkeys([*defenses, *recipes])}


def explain_refusal(findings: SettingFindings) -> str:
    """Explain why no defense is recommended."""
    if findings.baseline_defense != UNDEFENDED:
        return (
            "Nothing to compare with, because this protocol was not trained without a defense. A "
            "recipe with this protocol is compared on the page of the first protocol."
        )
    unfit, tried = findings.untested.unfit, tried_recipes(findings)
    if not tried and unfit:
        name, why = unfit[0]
        return f"None ran: {name} does not fit this protocol ({why})."
    if not tried:
        return "No defense was tested, because none was requested or none fits."
    names = wording.some([*tried])
    nothing_shown = f"This run does not show which leaks {names} would prevent."
    result = findings.leak.result
    if result is None or findings.leak.adversary is None or findings.leak.kind != "leak":
        return nothing_shown
    place = findings.leak.adversary.threat
    after = [(recipe.result(place, result.metric), name) for name, recipe in tried.items()]
    scored = [(r, name) for r, name in after if r is not None and math.isfinite(r.score)]
    if not scored:
        return nothing_shown
    least, name = min(scored, key=lambda x: x[0].score)
    remaining = (
        f"{wording.short(name)} leaves {wording.value(least, least.score)} instead of "
        f"{wording.amount(result, result.score)} ({wording.describe_baseline(result)})"
    )
    if least.below_baseline:
        return f"No tested defense is shown to help. {remaining}, but {wording.failed(least)}."
    if least.score < result.score:
        seeds = many(findings.seeds, "seed")
        return f"No tested defense is shown to help over {seeds}. {remaining}."
    return f"No tested defense helps. {remaining}."


def _after(findings: SettingFindings, use: Recipe) -> LeakageResult | None:
    """Return the result of the main finding under a defense, None if it was not measured."""
    result, adversary = findings.leak.result, findings.leak.adversary
    if result is None or adversary is None:
        return None
    return use.result(adversary.threat, result.metric)


def _effect(findings: SettingFindings, use: Recipe) -> str:
    """Compare the score of the main finding without and with a defense, in one sentence.

    For example, ``Your server can then reconstruct 3 instead of 83 of 456 rows (best guess: 2).``
    """
    before, after = findings.leak.result, _after(findings, use)
    if before is None or after is None:
        return ""
    if after.state == "not-applicable":
        return "With this defense, no attack of this kind applies."
    remaining, amount = wording.value(after, after.score), wording.amount(before, before.score)
    unchanged = amount == wording.amount(before, after.score)
    scores = amount if unchanged else f"{remaining} instead of {amount}"
    who, phrase = describe_adversary(findings.leak.adversary), measure(before.metric).phrase
    if measure(before.metric).counted_by:
        # The amount names its unit, and the entry above contains the complete phrase.
        phrase = phrase[: phrase.index("{}") + 2]
    can = "can still" if unchanged else "can then"
    guess = wording.value(after, after.baseline)
    result = wording.capital(f"{who} {can} {phrase.format(scores)} (best guess: {guess}).")
    if after.below_baseline:
        return f"{result} {wording.capital(wording.failed(after))}."
    return f"{result} {EFFECT_STATES[after.state]}".rstrip()


#: Sentence about the score that remains under a defense, by its state.
EFFECT_STATES = {
    "leaking": "The leak remains.", "unsettled": "This result is not settled.",
    "unknown": "This is not known, because an attack failed or did not run.",
    "undefined": "A blind guess is already perfect.", "safe": "", "not-applicable": "",
}  # fmt: skip


def describe_utility_change(p: UtilityChange) -> str:
    """Describe a utility change, its certainty, and how to make it more certain."""
    name = measure(p.utility.metric).head
    if p.settled == "same":
        return f"None: {name} is identical in every seed."
    if p.settled == "unknown":
        if not math.isfinite(p.mean_utility):
            return "Not known: no model was trained."
        return "Not known: no seed has a model with this defense and the model to compare it with."
    e = p.change
    text = f"{name} changes by {number(e.mean, 3, signed=True)}"
    if math.isfinite(e.low):
        low, high = (number(x, 3, signed=True) for x in (e.low, e.high))
        text += f" (95% interval {low} to {high})"
    return f"{text}. {_certainty(p)}"


def _certainty(p: UtilityChange) -> str:
    """Describe how certain a utility change is, as a sentence."""
    match p.settled:
        case "equal":
            return f"The change is at most {TOLERANCE:g}."
        case "ok":
            return f"A loss above {TOLERANCE:g} is excluded."
        case "worse":
            return "This is a clear loss."
        case "one":
            return "One seed does not settle this. Use --seeds 3."
    text = f"This is not settled: a loss above {TOLERANCE:g} is possible."
    if p.seeds_needed <= MOST_SEEDS:
        return f"{text} Use --seeds {p.seeds_needed}."
    return f"{text} {MOST_SEEDS} seeds would narrow it to ±{number(p.shown_by_most, 2)}."


def remains(
    findings: SettingFindings, use: Recipe | None, leaks: int = _LEAKS_PER_ADVERSARY
) -> str:
    """Describe the remaining leaks to every adversary under a defense.

    Each adversary is in one of four groups: it can learn something, its attacks scored worse than
    their baseline, its cells are not settled for another reason, or nothing is above the margin.

    Parameters
    ----------
    findings : SettingFindings
        Findings of the setting.
    use : Recipe or None
        The defense. None: leaks to the other adversaries without a defense.
    leaks : int
        Largest number of leaks that are described per adversary. With 0, only the adversaries with
        a leak are named. The main leak is described only if the adversary has no other one.
    """
    if use is None:
        return _further_adversaries(findings, leaks)
    sentences, leaking = list[str](), list[str]()
    failed, doubtful, safe = list[str](), list[str](), list[str]()
    failed_results = list[LeakageResult]()
    for adversary in findings.tested:
        trial = use.at(adversary.threat)
        if trial is None:
            doubtful.append(adversary.name)
            continue
        if trial.leaks:
            leaking.append(adversary.name)
            # The entry about the effect of the defense contains the main leak.
            main_leak = findings.leak.result if adversary == findings.leak.adversary else None
            main_metric = main_leak.metric if main_leak else ""
            further_leaks = [c for c in trial.leaks if c.metric != main_metric]
            first_leaks = (further_leaks or trial.leaks)[:leaks]
            sentences.append(_can(adversary.name, first_leaks, "can still"))
        elif trial.failed:
            failed.append(adversary.name)
            failed_results += trial.failed
        elif all(c.state in SETTLED for c in trial.results):
            safe.append(adversary.name)
        else:
            doubtful.append(adversary.name)
    if sentences and not leaks:
        names = wording.capital(listed(leaking))
        return f"{names} can still learn more than without messages: see the report."
    if len(safe) == len(findings.tested):
        return _NOTHING_REMAINS
    if leaks and failed:
        sentences.append(
            f"For {listed(failed)}, the attacks scored worse than "
            f"{wording.better_guess(failed_results)}, which shows nothing."
        )
    if leaks and doubtful:
        sentences.append(f"For {listed(doubtful)}, the results neither show nor exclude a leak.")
    if safe:
        sentences.append(f"No advantage above the margin is left to {listed(safe)}.")
    return " ".join(sentences)


def _can(name: str, cells: Sequence[LeakageResult], verb: str = "can") -> str:
    """Describe the leaks to one adversary as a sentence."""
    return wording.capital(f"{name} {verb} {' and '.join(wording.can(c) for c in cells)}.")


def _further_adversaries(findings: SettingFindings, leaks: int) -> str:
    """Describe the leaks to all adversaries except the first one, without a defense."""
    sentences = []
    for adversary in (a for a in findings.tested if a != findings.leak.adversary):
        cells = sorted(
            plain(adversary.leaking_results(findings.baseline_defense)),
            key=lambda c: gravity(c.metric),
        )
        if cells and leaks:
            sentences.append(_can(adversary.name, cells[:leaks]))
    return " ".join(sentences)


def _notes(findings: SettingFindings) -> Iterator[Line]:
    """Yield notes on the scores of models and on guarantees that were not kept."""
    u = findings.utility
    if u.fallen:
        undefined, used = measure(u.fallen).head, measure(u.metric).head
        yield Line(
            "NOTE",
            f"{undefined} is undefined in {u.lacking} of {many(u.seeds, 'seed')}, because the "
            f"test rows lack one class. Prices are therefore in {used}.",
        )
    elif u.few:
        yield Line("NOTE", u.few)
    # Whether other messages are protected does not depend on the parameters of a defense.
    for label, code, most_parts, sentence in (
        ("NO GUARANTEE", "void", 0, "No epsilon is kept by {}: other messages lack noise."),
        ("NO GUARANTEE", ActedOnNothing.kind, 0, "{} changed no message of this run."),
        ("REFUTED", REFUTED, 2, "An audit measured a larger epsilon than was spent by {}."),
    ):
        specs = [d.spec for d in findings.defenses if d.void == code]
        names = list(dict.fromkeys(wording.short(spec, most_parts) for spec in specs))
        if names:
            yield Line(label, wording.capital(sentence.format(wording.some(names, 2))))


def untested(findings: SettingFindings) -> str:
    """Describe what this run did not test. A gap is not evidence of safety."""
    gaps = findings.untested
    sentences = ["The run is not finished: continue it with --resume."] * gaps.unfinished
    if gaps.failed_trainings:
        defenses = list(dict.fromkeys(wording.short(spec) for spec, _ in gaps.failed_trainings))
        sentences.append(f"The training failed with {wording.some(defenses, 2)}.")
    for pairs, problem in ((gaps.failed, "failed"), (gaps.no_claim, "returned no claim")):
        if attacks := dict.fromkeys(name.partition("[")[0] for name, _ in pairs):
            noun = "attack" if len(attacks) == 1 else "attacks"
            sentences.append(f"The {noun} {wording.some([*attacks], 2)} {problem}.")
    if gaps.adversaries:
        names = listed([name for name, _ in gaps.adversaries])
        sentences.append(f"No attack was run on {names}.")
    if gaps.defenses:
        verb = "fits" if len(gaps.defenses) == 1 else "fit"
        defenses = [many(len(gaps.defenses), "further defense")]
        sentences.append(f"{defenses[0]} {verb} this protocol and did not run.")
    if (recipe := findings.omitted_recipe) and findings.leak.kind != "none-found":
        sentences.append(f"The recommended recipe ({wording.short(recipe)}) did not run.")
    if gaps.cut:
        searches = dict.fromkeys(name.partition("[")[0] for name in gaps.cut)
        subject = "search of {} stopped at its limit" if len(searches) == 1 else (
            "searches of {} stopped at their limits")  # fmt: skip
        sentences.append(f"The {subject.format(listed([*searches]))} and may find more.")
    return " ".join(sentences)


def _other_setting(findings: SettingFindings) -> Line:
    """Return one entry about a further setting of the run."""
    protocol = findings.setting.protocol.partition("[")[0]
    lead = findings.leak
    if lead.kind != "leak" or lead.result is None or lead.adversary is None:
        return Line("ALSO", f"{protocol}: {leak(findings)}")
    text = f"{protocol}: {lead.adversary.name} can {wording.can(lead.result)}."
    use = findings.recommended_recipe
    if use is None:
        return Line("ALSO", f"{text} No tested defense helps.")
    effect = _effect(findings, use) or "See the report."
    return Line("ALSO", f"{text} With {wording.short(use.name)}: {effect}")


def _attack(result: LeakageResult) -> str:
    """Return the name of the strongest attack."""
    return result.attacks[0].partition("[")[0] if result.attacks else "none"


def describe_adversary(adversary: AdversaryFindings | None) -> str:
    """Return the name of an adversary in words."""
    return adversary.name if adversary else "no adversary"


def _stay(adversaries: Sequence[AdversaryFindings]) -> str:
    """Return the verb that agrees with the adversaries."""
    return "stay" if len(adversaries) > 1 or any(a.several for a in adversaries) else "stays"


@dataclass(frozen=True)
class ScoreColumn:
    """One measure of one adversary."""

    adversary: AdversaryFindings
    metric: str

    @property
    def head(self) -> str:
        """The header of two lines: the role of the adversary and the measure."""
        role = self.adversary.threat.partition("[")[0]
        return f"{role}\n{measure(self.metric).head.lower()}"


def score_columns(findings: SettingFindings, first: str | None = None) -> tuple[ScoreColumn, ...]:
    """Return the measures of a setting, those that leak without a defense first.

    They are followed by measures that leak under the recipe. Measures without a leaking or
    unsettled result are left out. The metric `first` comes before all.
    """
    candidates = [
        ScoreColumn(a, m)
        for a in findings.tested
        for m in a.metrics
        if {a.result(d.spec, m).state for d in findings.defenses}
        & {"leaking", "unsettled", "unknown"}
    ]

    def rank(c: ScoreColumn) -> tuple[bool, bool, bool, int, int]:
        before = c.adversary.result(c.adversary.baseline_defense, c.metric).state == "leaking"
        after = (
            bool(findings.recipe)
            and c.adversary.result(findings.recipe, c.metric).state == "leaking"
        )
        return c.metric != first, not before, not after, *gravity(c.metric)

    return tuple(sorted(candidates, key=rank))


def table(findings: SettingFindings, width: int, first: str | None = None) -> tuple[Table, str]:
    """Return the table of a setting and the lines below it, for a terminal of the given width.

    The lines contain the legend, and a sentence about each adversary whose columns do not fit.
    """
    from rich.table import Table
    from rich.text import Text

    candidates = score_columns(findings, first)
    room = width - _DEFENSE_WIDTH - _FIXED_WIDTH
    shown: list[ScoreColumn] = []
    for column in candidates:
        wide = max(len(line) for line in column.head.split("\n")) + _SYMBOL_WIDTH
        if wide > room:
            break
        shown.append(column)
        room -= wide
    order = {a.threat: i for i, a in enumerate(findings.tested)}
    shown.sort(key=lambda c: order[c.adversary.threat])
    rich_table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    rich_table.add_column("", width=1)
    rich_table.add_column("\ndefense", max_width=_DEFENSE_WIDTH)
    # Without an undefended run, there is no change, and the utility itself is shown.
    compared = findings.defended(UNDEFENDED) is not None
    utility_head = measure(findings.utility.metric).head
    rich_table.add_column(
        f"\nΔ {utility_head}" if compared else f"\n{utility_head}", justify="right", no_wrap=True
    )
    for column in shown:
        rich_table.add_column(column.head, justify="right", no_wrap=True)
    for d in findings.defenses:
        cells = [_format_cell(c, d) for c in shown]
        mark = "→" if findings.recipe == d.spec else ""
        style = "bold" if mark else ""
        name = Text(wording.short(d.spec, most_parts=len(d.parts)))
        utility = (
            _format_utility_change(d) if compared else number(d.utility_change.mean_utility, 3)
        )
        rich_table.add_row(mark, name, utility, *cells, style=style)
    legend = "  ".join(f"{wording.GLYPHS[s]} {wording.WORDS[s]}" for s in _LEGEND)
    more = len(candidates) - len(shown)
    hidden_note = f"  ({many(more, 'column')} more: see the report)" if more else ""
    marked = "→ best defense  " if findings.recipe else ""
    hidden = {c.adversary.threat for c in candidates} - {c.adversary.threat for c in shown}
    sentences = [
        _describe_without_columns(a, findings.baseline_defense)
        for a in findings.tested
        if a.threat in hidden
    ]
    lines = [f"{marked}{legend}  ? price not settled{hidden_note}", *sentences]
    return rich_table, "\n".join(lines)


def _describe_without_columns(adversary: AdversaryFindings, baseline_defense: str) -> str:
    """Describe the gravest leak to an adversary for which the table has no room, as a sentence."""
    leaks = sorted(
        plain(adversary.leaking_results(baseline_defense)), key=lambda c: gravity(c.metric)
    )
    where = (
        "Without a defense"
        if baseline_defense == UNDEFENDED
        else f"With {wording.short(baseline_defense)}"
    )
    if leaks:
        return f"{where}, {adversary.name} can {wording.can(leaks[0])}."
    if all(c.state in SETTLED for c in adversary.results(baseline_defense)):
        return f"{where}, no advantage above the margin is shown for {adversary.name}."
    return f"{where}, the results for {adversary.name} neither show nor exclude a leak."


def _format_utility_change(d: DefenseResult) -> str:
    """Format the utility change of a defense. A question mark shows that it is not settled."""
    if d.spec == UNDEFENDED or not d.utility_change.change.known:
        return ""
    if d.utility_change.settled == "same":
        return "0"
    doubt = "?" if d.utility_change.settled in ("unsettled", "one") else ""
    return number(d.utility_change.change.mean, 3, signed=True) + doubt


def _format_cell(column: ScoreColumn, d: DefenseResult) -> str:
    """Format a score with the coloured symbol of its state."""
    result = column.adversary.result(d.spec, column.metric)
    glyph = wording.GLYPHS[result.state]
    text = wording.value(result, result.score) if result.scores else ""
    return f"{text} [{_COLOURS[result.state]}]{glyph}[/]".strip()
