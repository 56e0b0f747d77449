"""Write the page of a leaderboard: frontiers by table and adversary, and tables by source."""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fedtrees import __version__
from fedtrees.core.errors import FedtreesError, many, short
from fedtrees.core.registry import register
from fedtrees.core.results import measure
from fedtrees.core.specs import parse_one
from fedtrees.report import wording
from fedtrees.report.adversaries import AdversaryFindings
from fedtrees.report.figures.inline_svg import Drawing
from fedtrees.report.findings import DefenseResult, RunAnalysis, SettingFindings
from fedtrees.report.frontier import non_dominated
from fedtrees.report.leakage import LeakageResult
from fedtrees.report.page_tables import drawn, frontier
from fedtrees.report.results import UNDEFENDED
from fedtrees.report.submissions import Submission, merged
from fedtrees.report.web_page import render
from fedtrees.report.wording import number

_CITED = re.compile(r"((?!As )[A-Z][\w-]+(?:,? (?:and )?[A-Z][\w-]+)*(?: et al\.)?) \(?(\d{4})")
OURS, ELSEWHERE = "fedtrees", "another package"
# Header of the table of defenses. `_READ` is the index of the column "Read", and `_NUMBERS` are the
# indices of the numeric columns.
HEADS = ("Defense", "Adversary", "What", "Read", "Blind", "Advantage", "Δ utility", "Pareto",
         "Seeds", "Strongest attack", "Source", "Table", "Protocol", "Submission")  # fmt: skip
_READ, _NUMBERS = 3, (3, 4, 5, 6, 8)
# A text and the key that the page sorts it by.
Text = tuple[str, str]


def source(kind: str, spec: str) -> str:
    """Return the paper that each plug-in follows, the first one that its documentation cites.

    For several plug-ins, joined by ``+``, the distinct sources are joined by a semicolon. The kind
    is ``defense`` or ``attack``.
    """
    names = [part.name for part in parse_one(spec).parts]
    return "; ".join(dict.fromkeys(_find_source(kind, name) for name in names)) or "–"


def _find_source(kind: str, name: str) -> str:
    """Search the docstring of a plug-in, then the docstring of its module, for a citation.

    The summary of the plug-in is searched first, because it cites the paper that is followed.
    """
    # A variant that follows the authors' code instead of the paper.
    name = name.removesuffix("-published")
    try:
        plugin = register.get(kind, name)
    except FedtreesError:
        return ELSEWHERE
    doc, module = plugin.__doc__ or "", sys.modules.get(plugin.__module__)
    for text in (doc.strip().partition("\n\n")[0], doc, getattr(module, "__doc__", None) or ""):
        cited = _CITED.search(" ".join(text.split()))
        if cited:
            return " ".join(cited.groups())
    return OURS if register.is_ours(kind, name) else ELSEWHERE


def board(submissions: Sequence[Submission], recomputed: int) -> str:
    """Return the leaderboard as one HTML document. The same submissions give the same bytes.

    Parameters
    ----------
    submissions : sequence of Submission
        At least one submission.
    recomputed : int
        Number of views of each submission that were computed again.

    Raises
    ------
    StoreError
        If two submissions contradict each other.
    """
    rows = merged(submissions)
    # The folder of a submission contains no ``disclosure.json``. The report of each run lists which
    # party receives which message.
    settings = list(RunAnalysis(submissions[0].folder, rows).by_setting.values())
    columns = (rows[c] for c in ("setting", "defense_spec", "threat", "submission"))
    owners = defaultdict[tuple[Any, ...], dict[str, None]](dict)
    for *key, name in zip(*columns, strict=True):
        owners[tuple(key)][name] = None
    lines = [line for at, f in enumerate(settings) for line in _defense_lines(f, at, owners)]
    return render(
        "board.html.j2",
        title="Leaderboard",
        facts=f"{many(len(submissions), 'submission')}, {many(len(settings), 'setting')}, "
        f"{len(rows):,} rows",
        heads=HEADS,
        read=_READ,
        numbers=_NUMBERS,
        lines=lines,
        places=list(_places(settings)),
        attacks=list(_strongest_attacks(settings)),
        submissions=[
            (
                s.name,
                s.by,
                s.date[:10] or "–",
                short(s.about.get("fedtrees")),
                len(s.records),
                recomputed,
                s.digest,
            )
            for s in submissions
        ],
        version=__version__,
    )


def _places(settings: Sequence[SettingFindings]) -> Iterator[dict[str, Any]]:
    """Yield every table with the frontiers of its protocols, sorted by adversary."""
    by_place = defaultdict(list)
    for at, f in enumerate(settings):
        by_place[f.setting.dataset, f.setting.partition].append((at, f))
    for place, here in by_place.items():
        figures = []
        for at, f in here:
            for adversary in f.tested:
                figure = frontier(f, adversary, at)
                if figure is not None:
                    front = tuple(_front_coordinates(f, adversary, figure.d))
                    title = f"{figure.who}, {f.setting.protocol.partition('[')[0]}"
                    drawing = replace(figure.d, front=front)
                    figure = replace(figure, who=title, d=drawing, sparks=())
                    figures.append((adversary.threat, figure))
        figures.sort(key=lambda x: x[0])
        yield {"name": " · ".join(place), "figures": [figure for _, figure in figures]}


def _front_coordinates(
    setting_findings: SettingFindings, adversary: AdversaryFindings, drawing: Drawing
) -> list[tuple[float, float]]:
    """Return the coordinates of the Pareto-optimal defenses in a drawing."""
    best = pareto(setting_findings, adversary, drawn(setting_findings, adversary)[0])
    letters = {d.label for d in setting_findings.defenses if d.spec in best}
    names = {"0" if name == wording.short(UNDEFENDED) else name.partition(" ")[0]: (m.x, m.y)
             for m in drawing.marks for name in m.names}  # fmt: skip
    return sorted({names[letter] for letter in letters if letter in names})


def _defense_lines(
    setting_findings: SettingFindings, at: int, owners: Any
) -> Iterator[dict[str, Any]]:
    """Yield one table line per adversary and defense, by the leading measure of the adversary."""
    linked_labels = set[str]()
    for adversary in setting_findings.tested:
        metrics = drawn(setting_findings, adversary)
        best = pareto(setting_findings, adversary, metrics[0]) if metrics else ()
        for d in setting_findings.defenses if metrics else ():
            cell = adversary.result(d.spec, metrics[0])
            first = d.label not in linked_labels
            linked_labels.add(d.label)
            by = ", ".join(owners[setting_findings.setting, d.spec, adversary.threat])
            cells = [
                *_result_cells(d, adversary, cell, d.spec in best),
                *_origin_cells(setting_findings, d, by),
            ]
            yield {"id": f"m{at}-{d.label}" if first else "", "state": cell.state, "cells": cells}


def _result_cells(
    d: DefenseResult, adversary: AdversaryFindings, cell: LeakageResult, best: bool
) -> list[Text]:
    """Return the cells of a line that contain results, with their sort keys."""
    change, gain, seeds = d.utility_change.change.mean, cell.advantage.mean, len(cell.seeds)
    head, adversary_name = measure(cell.metric).head, wording.capital(adversary.name)
    return [
        (d.spec, d.spec),
        (adversary_name, adversary_name),
        (head, head),
        (wording.shown(cell), _sort_key(cell.score)),
        (wording.value(cell, cell.baseline) if cell.scores else "–", _sort_key(cell.baseline)),
        (number(gain, 3, signed=True), _sort_key(gain)),
        (number(change, 3, signed=True), _sort_key(change)),
        ("yes" if best else "no", "yes" if best else "no"),
        (str(seeds), str(seeds)),
        (next(iter(cell.attacks), "–"),) * 2,
    ]


def _origin_cells(setting_findings: SettingFindings, d: DefenseResult, by: str) -> list[Text]:
    """Return the cells of a line that name source, table, protocol and submission."""
    paper = "–" if d.spec == UNDEFENDED else source("defense", d.spec)
    place = f"{setting_findings.setting.dataset} · {setting_findings.setting.partition}"
    return [(text, text) for text in (paper, place, setting_findings.setting.protocol, by)]


def _sort_key(value: float) -> str:
    """Return a number as the text that the page sorts by, "" if there is no number."""
    return f"{value:.9g}" if math.isfinite(value) else ""


def pareto(
    setting_findings: SettingFindings, adversary: AdversaryFindings, metric: str
) -> set[str]:
    """Return the defenses that no other defense beats in both utility and advantage.

    A defense is excluded if its measured advantage is only a lower bound of the leak. This is the
    case if an attack failed, did not run or scored worse than its baseline, or if it returned no
    claim and no other attack scored.
    """
    covered = adversary.coverage
    comparable = []
    for d in setting_findings.defenses:
        cell = adversary.result(d.spec, metric)
        unscored = not cell.scores and cell.state != "not-applicable"
        if cell.below_baseline or unscored or d.spec not in covered or covered[d.spec].missing:
            continue
        if d.utility_change.by_seed:
            gain = max(cell.advantage.mean, 0.0) if cell.scores else 0.0
            comparable.append((d.spec, d.utility_change.change.mean, gain))
    if not comparable:
        return set()
    specs, changes, gains = zip(*comparable, strict=True)
    return {s for s, keep in zip(specs, non_dominated(changes, gains), strict=True) if keep}


def _strongest_attacks(settings: Sequence[SettingFindings]) -> Iterator[dict[str, Any]]:
    """Yield every attack that was the strongest in some cell, with its largest advantage."""
    won = defaultdict(list)
    for f in settings:
        for adversary in f.tested:
            for metric in drawn(f, adversary):
                for d in f.defenses:
                    cell = adversary.result(d.spec, metric)
                    for attack in cell.attacks[:1]:
                        place = f"{f.setting.dataset}, {adversary.threat}, {wording.short(d.spec)}"
                        won[attack].append((cell.advantage.mean, place, measure(metric).head))
    for attack in sorted(won, key=lambda a: (-len(won[a]), a)):
        gain, place, head = max(won[attack], key=lambda x: (x[0], x[1]))
        name = parse_one(attack).parts[0].name
        by, times, place_of_best = source("attack", name), str(len(won[attack])), f"{head}: {place}"
        largest = (number(gain, 3, signed=True), _sort_key(gain))
        cells = [
            (attack, attack),
            (by, by),
            (times, times),
            largest,
            (place_of_best, place_of_best),
        ]
        yield {"id": "", "state": "", "cells": cells}
