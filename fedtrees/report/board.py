"""The page of a leaderboard: frontiers by table and adversary, defenses and attacks by source."""

import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from fedtrees import __version__
from fedtrees.core.columns import measure
from fedtrees.core.counts import many
from fedtrees.core.errors import FedtreesError, short
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_one
from fedtrees.report import said, svg
from fedtrees.report.findings import findings
from fedtrees.report.found import Adversary, Defended, Found
from fedtrees.report.frontier import non_dominated
from fedtrees.report.page_figures import drawn, frontier
from fedtrees.report.rows import UNDEFENDED
from fedtrees.report.states import Cell
from fedtrees.report.style import number
from fedtrees.report.submissions import Submission, merged
from fedtrees.report.web_page import render

_CITED = re.compile(r"((?!As )[A-Z][\w-]+(?:,? (?:and )?[A-Z][\w-]+)*(?: et al\.)?) \(?(\d{4})")
OURS, ELSEWHERE = "fedtrees", "another package"
#: Heads of the table of defenses, what is read after `_READ` of them; which are of numbers.
HEADS = ("Defense", "Adversary", "What", "Read", "Blind", "Advantage", "Δ utility", "Pareto",
         "Seeds", "Strongest attack", "Source", "Table", "Protocol", "Submission")  # fmt: skip
_READ, _NUMBERS = 3, (3, 4, 5, 6, 8)
Text = tuple[str, str]  # and what it is sorted by


def source(kind: str, spec: str) -> str:
    """Return what plug-ins follow: the paper that each one's documentation names first, or none.

    `kind`: ``defense`` or ``attack``. `spec`: One name, or several with ``+``.
    """
    names = [part.name for part in parse_one(spec).parts]
    return "; ".join(dict.fromkeys(_source(kind, name) for name in names)) or "–"


def _source(kind: str, name: str) -> str:
    """Look in the summary, then in the rest, then in what the module says of itself."""
    name = name.removesuffix("-published")  # the same, as its authors' code has it
    try:
        made = register.get(kind, name)
    except FedtreesError:
        return ELSEWHERE
    doc, module = made.__doc__ or "", sys.modules.get(made.__module__)
    for text in (doc.strip().partition("\n\n")[0], doc, getattr(module, "__doc__", None) or ""):
        cited = _CITED.search(" ".join(text.split()))
        if cited:
            return " ".join(cited.groups())
    return OURS if register.is_ours(kind, name) else ELSEWHERE


def board(found: Sequence[Submission], recomputed: int) -> str:
    """Return the leaderboard as one HTML document; the same submissions give the same bytes.

    `recomputed`: How many views of each submission were computed again.

    Raises `StoreError`: two submissions contradict each other.
    """
    rows = merged(found)
    # No folder: who saw what is told by each run's own report.
    settings = sorted(findings(rows, found[0].folder).settings, key=lambda f: f.setting)
    columns = (rows[c] for c in ("setting", "defense_spec", "threat", "submission"))
    owners = defaultdict[tuple[Any, ...], dict[str, None]](dict)
    for *key, name in zip(*columns, strict=True):
        owners[tuple(key)][name] = None
    lines = [line for at, f in enumerate(settings) for line in _lines(f, at, owners)]
    return render(
        "board.html.j2",
        title="Leaderboard",
        facts=f"{many(len(found), 'submission')}, {many(len(settings), 'setting')}, "
        f"{len(rows):,} rows",
        heads=HEADS,
        read=_READ,
        numbers=_NUMBERS,
        lines=lines,
        places=list(_places(settings)),
        attacks=list(_attacks(settings)),
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
            for s in found
        ],
        version=__version__,
    )


def _places(settings: Sequence[Found]) -> Iterator[dict[str, Any]]:
    """Yield every table with the frontiers of its protocols, adversary by adversary."""
    by_place = defaultdict(list)
    for at, f in enumerate(settings):
        by_place[f.setting.dataset, f.setting.partition].append((at, f))
    for place, here in by_place.items():
        figures = []
        for at, f in here:
            for adversary in f.tested:
                made = frontier(f, adversary, at)
                if made is not None:
                    made["front"] = svg.path(_front(f, adversary, made["d"]))
                    protocol = f.setting.protocol.partition("[")[0]
                    who = f"{made['who']}, {protocol}"
                    figures.append((adversary.threat, {**made, "who": who, "sparks": []}))
        figures.sort(key=lambda x: x[0])
        yield {"name": " · ".join(place), "figures": [made for _, made in figures]}


def _front(found: Found, adversary: Adversary, drawing: svg.Drawing) -> list[tuple[float, float]]:
    """Return where the Pareto-optimal ones are drawn."""
    best = pareto(found, adversary, drawn(found, adversary)[0])
    letters = {d.label for d in found.defenses if d.spec in best}
    names = {"0" if name == said.short(UNDEFENDED) else name.partition(" ")[0]: (m.x, m.y)
             for m in drawing.marks for name in m.names}  # fmt: skip
    return sorted({names[letter] for letter in letters if letter in names})


def _lines(found: Found, at: int, owners: Any) -> Iterator[dict[str, Any]]:
    """Yield a line for every adversary and defense, by the measure that leads."""
    named = set[str]()
    for adversary in found.tested:
        metrics = drawn(found, adversary)
        best = pareto(found, adversary, metrics[0]) if metrics else ()
        for d in found.defenses if metrics else ():
            cell = adversary.cell(d.spec, metrics[0])
            first = d.label not in named
            named.add(d.label)
            by = ", ".join(owners[found.setting, d.spec, adversary.threat])
            cells = [*_cells(d, adversary, cell, d.spec in best), *_where(found, d, by)]
            yield {"id": f"m{at}-{d.label}" if first else "", "state": cell.state, "cells": cells}


def _cells(d: Defended, adversary: Adversary, cell: Cell, best: bool) -> list[Text]:
    change, gain, seeds = d.price.change.mean, cell.advantage.mean, len(cell.seeds)
    head, who = measure(cell.metric).head, said.capital(adversary.name)
    return [
        (d.spec, d.spec),
        (who, who),
        (head, head),
        (said.shown(cell), _sorts(cell.score)),
        (said.value(cell, cell.line) if cell.scores else "–", _sorts(cell.line)),
        (number(gain, 3, signed=True), _sorts(gain)),
        (number(change, 3, signed=True), _sorts(change)),
        ("yes" if best else "no", "yes" if best else "no"),
        (str(seeds), str(seeds)),
        (next(iter(cell.attacks), "–"),) * 2,
    ]


def _where(found: Found, d: Defended, by: str) -> list[Text]:
    paper = "–" if d.spec == UNDEFENDED else source("defense", d.spec)
    place = f"{found.setting.dataset} · {found.setting.partition}"
    return [(text, text) for text in (paper, place, found.setting.protocol, by)]


def _sorts(value: float) -> str:
    return f"{value:.9g}" if math.isfinite(value) else ""


def pareto(found: Found, adversary: Adversary, metric: str) -> set[str]:
    """Return the defenses that no other one beats in both utility and advantage.

    A defense takes no part if an attack failed, did not run, returned no claim where no other one
    scored, or scored worse than its baseline: then the measured advantage is only a lower bound of
    the leak.
    """
    covered = adversary.reader.coverage if adversary.reader else {}
    known = []
    for d in found.defenses:
        cell = adversary.cell(d.spec, metric)
        unscored = not cell.scores and cell.state != "gone"
        if cell.below_baseline or unscored or d.spec not in covered or covered[d.spec].missing:
            continue
        if d.price.by_seed:
            gain = max(cell.advantage.mean, 0.0) if cell.scores else 0.0
            known.append((d.spec, d.price.change.mean, gain))
    if not known:
        return set()
    specs, change, gain = zip(*known, strict=True)
    return {s for s, keep in zip(specs, non_dominated(change, gain), strict=True) if keep}


def _attacks(settings: Sequence[Found]) -> Iterator[dict[str, Any]]:
    """Yield, for every attack that was the strongest anywhere, where and how much it read."""
    won = defaultdict(list)
    for f in settings:
        for adversary in f.tested:
            for metric in drawn(f, adversary):
                for d in f.defenses:
                    cell = adversary.cell(d.spec, metric)
                    for attack in cell.attacks[:1]:
                        place = f"{f.setting.dataset}, {adversary.threat}, {said.short(d.spec)}"
                        won[attack].append((cell.advantage.mean, place, measure(metric).head))
    for attack in sorted(won, key=lambda a: (-len(won[a]), a)):
        gain, place, head = max(won[attack], key=lambda x: (x[0], x[1]))
        name = parse_one(attack).parts[0].name
        by, times, where = source("attack", name), str(len(won[attack])), f"{head}: {place}"
        largest = (number(gain, 3, signed=True), _sorts(gain))
        cells = [(attack, attack), (by, by), (times, times), largest, (where, where)]
        yield {"id": "", "state": "", "cells": cells}
