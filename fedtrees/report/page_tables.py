"""Compute the tables and the figures on the page of the report.

The template ``report.html.j2`` calls these functions: `score_columns` and `measures_without_leak`
for the scores by adversary and defense, `failed_attacks` for the gaps, `detail_tables` for the
detailed tables, `frontier` for the figures, and `utility_scale` and `forest_scale` for the drawings
of changes in utility.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from fedtrees.core.errors import listed, many
from fedtrees.core.guarantee import ActedOnNothing
from fedtrees.core.results import measure
from fedtrees.report import wording
from fedtrees.report.adversaries import AdversaryFindings, of_protocol, words_of
from fedtrees.report.cost import TOLERANCE, UtilityChange
from fedtrees.report.figures.inline_svg import FrontierFigure, Mark, Scale, draw, spark
from fedtrees.report.findings import DefenseResult, SettingFindings
from fedtrees.report.guarantees import REFUTED, in_words, span
from fedtrees.report.leakage import SETTLED, LeakageResult
from fedtrees.report.results import UNDEFENDED
from fedtrees.report.statistics import finite, mean_of
from fedtrees.report.wording import bytes_text, number, seconds_text

_MOST_SPARKS = 4


def frontier(
    findings: SettingFindings, adversary: AdversaryFindings, at: int
) -> FrontierFigure | None:
    """Return the frontier of one adversary, with small ones for further leaks.

    None if no measure can be drawn. `at` is the index of the setting on the page, from which the
    targets of links are built.
    """
    metrics = drawn(findings, adversary)
    if not metrics:
        return None
    first, *other_metrics = metrics
    leaking = [
        m
        for m in other_metrics
        if any(adversary.result(d.spec, m).state == "leaking" for d in findings.defenses)
    ]
    cell = adversary.result(adversary.baseline_defense, first)
    unit = _unit(cell)
    counted = f", of {cell.rows:,.0f}" if math.isfinite(cell.rows) else ""
    return FrontierFigure(
        wording.capital(adversary.name),
        measure(first).head.lower() + counted,
        measure(findings.utility.metric).head,
        draw(*_marks(findings, adversary, first, at)),
        lambda v: wording.value(cell, v / unit),
        tuple(
            (wording.capital(measure(m).head), spark(*_marks(findings, adversary, m, at)))
            for m in leaking[:_MOST_SPARKS]
        ),
    )


def frontiers(findings: SettingFindings, at: int) -> list[FrontierFigure]:
    """Return the frontiers of all attacked adversaries for which a measure can be drawn."""
    figures = (frontier(findings, adversary, at) for adversary in findings.tested)
    return [figure for figure in figures if figure is not None]


def drawn(findings: SettingFindings, adversary: AdversaryFindings) -> list[str]:
    """Return the measures with a utility change and a score of a defense, the leading one first."""
    lead = adversary.leading()
    metrics = [
        m
        for m in adversary.metrics
        if any(
            d.utility_change.by_seed and adversary.result(d.spec, m).scores
            for d in findings.defenses
        )
    ]
    return sorted(metrics, key=lambda m: lead is None or m != lead.metric)


def _unit(cell: LeakageResult) -> float:
    """Return the factor from a score to the axis.

    It is the number of rows if rows are counted, else 1.
    """
    return cell.rows if math.isfinite(cell.rows) else 1.0


def _marks(
    findings: SettingFindings, adversary: AdversaryFindings, metric: str, at: int
) -> tuple[list[Mark], float]:
    """Return a mark per defense with a utility change and a score, and the baseline's height.

    A defense under which no attack makes a claim is drawn at the baseline.
    """
    unit = _unit(adversary.result(adversary.baseline_defense, metric))
    results = (adversary.result(d.spec, metric) for d in findings.defenses)
    baseline = unit * next((r.baseline for r in results if r.scores), 0.0)
    out = []
    for d in findings.defenses:
        cell = adversary.result(d.spec, metric)
        at_baseline = cell.state == "not-applicable" or bool(cell.no_claim)  # if there is no score
        if not d.utility_change.by_seed or not (cell.scores or at_baseline):
            continue
        score = unit * cell.score if cell.scores else baseline
        e = d.utility_change.change
        say = f"{d.label} {wording.short(d.spec)}. {measure(metric).head}: {wording.shown(cell)}"
        if cell.scores:
            say += f" ({wording.describe_baseline(cell)})"
        if cell.below_baseline or cell.no_claim:
            say += f", {wording.word(cell)}"
        say += f". {measure(findings.utility.metric).head} {wording.change(e)}."
        spread = len(set(cell.scores)) > 1
        out.append(
            Mark(
                e.mean, score, f"{d.label} {wording.short(d.spec)}" if d.spec != UNDEFENDED
                else "no defense", d.label, say, f"#m{at}-{d.label}", cell.state,
                e.low, e.high, unit * min(cell.scores) if spread else math.nan,
                unit * max(cell.scores) if spread else math.nan, d.spec == findings.recipe,
                on_front=not (cell.below_baseline or (cell.no_claim and not cell.scores)),
            )
        )  # fmt: skip
    return out, baseline


def utility_scale(utility_change: UtilityChange) -> Scale | None:
    """Return the horizontal scale of a change in utility by seed.

    None if there are fewer than two seeds or no seed differs.
    """
    values, e = [*utility_change.by_seed.values()], utility_change.change
    if len(values) < 2 or not any(values):
        return None
    ends = [*values, e.low, e.high, -TOLERANCE, TOLERANCE, 0.0]
    return Scale(min(ends), max(ends), 20.0, 310.0)


def forest_scale(findings: SettingFindings) -> Scale:
    """Return the horizontal scale of the intervals of all defenses."""
    intervals = [
        d.utility_change.change
        for d in findings.defenses
        if math.isfinite(d.utility_change.change.low)
    ]
    ends = [-TOLERANCE, TOLERANCE, *(v for k in intervals for v in (k.low, k.high))]
    return Scale(min(ends), max(ends), 3.0, 109.0)


#: Largest number of measures in one table of scores: as many as fit the page, which is 1,180 pixels
#: wide, next to the defense and the change in utility.
_SCORES_PER_TABLE = 9
#: Remarks on a defense whose claim is not kept, by the kind of the failure.
VOID = {"void": "guarantee void", REFUTED: "refuted", ActedOnNothing.kind: "acted on nothing"}


def score_columns(findings: SettingFindings) -> list[tuple[AdversaryFindings, list[str]]]:
    """Return the adversaries with the measures that the table of scores shows.

    A measure is hidden if each of its results is settled.
    """
    shown = [
        (a, [m for m in a.metrics if not _is_settled(findings, a, m)]) for a in findings.tested
    ]
    return [(adversary, metrics) for adversary, metrics in shown if metrics]


def score_tables(findings: SettingFindings) -> list[list[tuple[AdversaryFindings, list[str]]]]:
    """Divide the columns of the table of scores into tables that are not wider than the page.

    The measures of one adversary are in one table, unless they are more than `_SCORES_PER_TABLE`.
    """
    tables: list[list[tuple[AdversaryFindings, list[str]]]] = []
    room = 0
    for adversary, metrics in score_columns(findings):
        for begin in range(0, len(metrics), _SCORES_PER_TABLE):
            part = metrics[begin : begin + _SCORES_PER_TABLE]
            if len(part) > room:
                tables.append([])
                room = _SCORES_PER_TABLE
            tables[-1].append((adversary, part))
            room -= len(part)
    return tables


def measures_without_leak(findings: SettingFindings) -> list[str]:
    """Return one sentence per adversary about measures by which no defense of the table leaks."""
    sentences = []
    for adversary in findings.tested:
        hidden = [m for m in adversary.metrics if _is_settled(findings, adversary, m)]
        if hidden:
            heads = listed([measure(m).head.lower() for m in hidden])
            sentences.append(
                f"Under each defense of this table, {adversary.name} is not better than a guess by "
                f"more than the margin, by {heads}."
            )
    return sentences


def _is_settled(findings: SettingFindings, adversary: AdversaryFindings, metric: str) -> bool:
    """Return whether each result of a measure is settled."""
    return {adversary.result(d.spec, metric).state for d in findings.defenses} <= SETTLED


def describe(result: LeakageResult) -> str:
    """Describe a result of the table of scores for the pointer."""
    e = result.advantage
    if not e.known:
        return wording.word(result)
    return (
        f"{wording.word(result)}: advantage {wording.change(e)}, "
        f"{many(len(result.seeds), 'seed')}, by {', '.join(result.attacks)}"
    )


def baseline(findings: SettingFindings, adversary: AdversaryFindings, metric: str) -> str:
    """Write the baseline of a measure."""
    cells = (adversary.result(d.spec, metric) for d in findings.defenses)
    return next((wording.value(c, c.baseline) for c in cells if c.scores), "–")


def change(d: DefenseResult) -> str:
    """Write the mean change in utility of a defense, "" for the undefended run."""
    if d.spec == UNDEFENDED or not d.utility_change.change.known:
        return ""
    return (
        "0"
        if d.utility_change.settled == "same"
        else number(d.utility_change.change.mean, 3, signed=True)
    )


def failed_attacks(findings: SettingFindings) -> Iterator[tuple[str, str, str]]:
    """Yield adversary, defense and measures for which attacks scored below their baseline.

    Only the undefended run and the recipe are considered, because the sentences of the report are
    about them. The matrix shows the remaining defenses.
    """
    for adversary in findings.tested:
        for spec in dict.fromkeys(
            [findings.baseline_defense, *([findings.recipe] if findings.recipe else [])]
        ):
            cells = [adversary.result(spec, m) for m in adversary.metrics]
            heads = [measure(c.metric).head.lower() for c in cells if c.below_baseline]
            if heads:
                yield adversary.name, spec, listed(heads)


def detail_tables(findings: SettingFindings) -> Iterator[dict[str, Any]]:
    """Yield the long tables that are folded: attacks, columns, messages, guarantees and costs."""
    here, seen = findings.rows, findings.run.disclosure
    for adversary in findings.tested:
        yield _attacks(findings, adversary, here)
    columns = _columns(findings, here)
    if columns:
        yield columns
    crossings = _messages(findings, [e for e in seen if of_protocol(e, findings.setting)])
    if crossings:
        yield {"title": "Who sees what", "note": "messages of a short run; 0 is no defense",
               "rows": crossings, "numbers": (6, 7), "header": ["Message", "Defense", "From", "To",
               "Reveals", "Why", "Count", "Bytes"]}  # fmt: skip
    lines = [[d.spec, *(span(t) or "–" for t in (d.guarantees.claimed, d.guarantees.spent,
              d.guarantees.measured)), in_words(d.guarantees.spent) or "–", d.guarantees.verdict]
             for d in findings.defenses]  # fmt: skip
    yield {"title": "Guarantees", "note": "claimed, spent, measured", "numbers": (), "rows": lines,
           "header": ["Defense", "Claimed", "Spent", "Measured", "Epsilon", "Reading"]}  # fmt: skip
    name = measure(findings.utility.metric).head
    costs = [[d.spec, number(d.utility_change.mean_utility), bytes_text(d.cost.bytes),
              number(d.cost.rounds.mean, 0), seconds_text(d.cost.seconds.mean),
              seconds_text(d.cost.cpu_seconds.mean), number(d.cost.ciphertexts.mean, 0)]
             for d in findings.defenses]  # fmt: skip
    yield {"title": "Cost of training", "note": "traffic, rounds, time", "numbers": range(1, 7),
           "rows": costs, "header": ["Defense", name, "Traffic", "Rounds", "Seconds",
                                     "Processor", "Ciphertexts"]}  # fmt: skip


def _messages(findings: SettingFindings, seen: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return one line per kind of message, joined over the defenses under which it is the same."""
    labels = {d.spec: d.label for d in findings.defenses}
    by_crossing: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for entry in seen:
        if str(entry.get("defense", "")) in labels:
            by_crossing.setdefault(_message_key(entry), []).append(entry)
    kinds = list(dict.fromkeys(key[0] for key in by_crossing))
    return [
        [key[0], _under([str(e["defense"]) for e in entries], labels), *key[1:],
         number(float(entries[0].get("count") or 0), 0), _sizes(entries)]
        for key, entries in sorted(by_crossing.items(), key=lambda x: kinds.index(x[0][0]))
    ]  # fmt: skip


def _message_key(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns by which messages of several defenses are joined."""
    receiver = str(entry.get("to"))
    reader = str(entry.get("readable_by") or receiver) + " (sealed)" * bool(entry.get("sealed"))
    to = receiver if reader == receiver else f"{receiver}, read by {reader}"
    guarded = wording.guarded(entry.get("guards") or ())
    reveals = ", ".join(map(str, entry.get("reveals") or ())) or "nothing of persons"
    why = str(entry.get("why", "")) + (f"; guarded by {guarded}" if guarded else "")
    return words_of(str(entry.get("type", ""))), str(entry.get("from", "")), to, reveals, why


def _under(specs: Sequence[str], labels: Mapping[str, str]) -> str:
    """Write the labels of some defenses, "all" if these are all."""
    return "all" if {*specs} == {*labels} else " ".join(sorted(labels[s] for s in {*specs}))


def _sizes(entries: Sequence[Mapping[str, Any]]) -> str:
    """Write the smallest and the largest number of bytes."""
    sizes = [float(e.get("bytes") or 0) for e in entries]
    ends = dict.fromkeys((bytes_text(min(sizes)), bytes_text(max(sizes))))
    return " to ".join(ends)


def _attacks(
    findings: SettingFindings, adversary: AdversaryFindings, here: pd.DataFrame
) -> dict[str, Any]:
    """Return the table of all attacks of one adversary."""
    of_adversary = here[(here["stage"] == "attack") & (here["threat"] == adversary.threat)
                & (here["status"] == "ok")]  # fmt: skip
    lines = []
    for attack, group in of_adversary.groupby("attack_spec"):
        for metric in adversary.all_metrics:
            measured = group[group["metric"] == metric]
            base = measured[measured["defense_spec"] == findings.baseline_defense]
            if measured.empty:
                continue
            cell = adversary.result(findings.baseline_defense, metric)
            after = (
                measured[measured["defense_spec"] == findings.recipe]
                if findings.recipe
                else measured.iloc[:0]
            )
            head, seconds = wording.capital(measure(metric).head), float(measured["seconds"].mean())
            scores = [_format_mean(cell, x["value"]) for x in (base, after)]
            guesses = [_format_mean(cell, measured[line]) for line in ("blind", "population")]
            lines.append([str(attack), head, *scores, *guesses, seconds_text(seconds)])
    ran = len({line[0] for line in lines})
    lead = adversary.leading()
    strongest = f", strongest is {lead.attacks[0]}" if lead else ""
    return {
        "title": f"Attacks by {adversary.name}", "note": f"{ran} ran{strongest}", "rows": lines,
        "header": [
            "Attack", "Measure", _before(findings), "Recipe", "Blind", "Population", "Time",
        ],
        "numbers": range(2, 7),
    }  # fmt: skip


def _before(findings: SettingFindings) -> str:
    """Return the name of the base defense, "Undefended" if there is none."""
    return (
        "Undefended"
        if findings.baseline_defense == UNDEFENDED
        else wording.short(findings.baseline_defense)
    )


def _format_mean(cell: LeakageResult, values: pd.Series) -> str:
    """Format the mean of some scores."""
    mean = mean_of(values)
    return wording.value(cell, mean) if math.isfinite(mean) else "–"


def _columns(findings: SettingFindings, here: pd.DataFrame) -> dict[str, Any] | None:
    """Return the table of columns of the data set by how well the strongest attack guesses them."""
    specs = [findings.baseline_defense, *([findings.recipe] if findings.recipe else [])]
    ok = here[(here["stage"] == "attack") & (here["status"] == "ok") & (here["part"] != "")]
    keys = [m for m in dict.fromkeys(ok["metric"]) if measure(m).part == "column"]
    lines = []
    for adversary in findings.tested:
        measured = ok[(ok["threat"] == adversary.threat) & ok["metric"].isin(keys[:1])]
        for part, group in measured.groupby("part", sort=False):
            best = [
                group[group["defense_spec"] == s].groupby("seed")["value"].max().mean()
                for s in specs
            ]
            lines.append((str(part), adversary.name, best, group["blind"].mean()))
    if not lines:
        return None
    # The column with the largest difference between score and baseline comes first.
    lines.sort(key=lambda x: -finite(x[2][0] - x[3], -1.0))
    texts = [
        [part, who, *(wording.percent(v) if math.isfinite(v) else "–" for v in (*best, blind))]
        for part, who, best, blind in lines
    ]
    header = [
        "Column",
        "Adversary",
        _before(findings),
        *(["Recipe"] if findings.recipe else []),
        "Blind",
    ]
    # A guess from other rows of the population is not scored by column.
    note = "cells guessed; the population baseline is not known"
    return {"title": "Columns", "note": note, "rows": texts, "header": header,
            "numbers": range(2, len(header))}  # fmt: skip
