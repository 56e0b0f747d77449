"""Write the findings of a run as one HTML page that needs no network.

The functions compute the texts, `page_figures` and `page_tables` the figures and tables. The
template is ``report.html.j2``.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedtrees.core.columns import measure
from fedtrees.core.counts import listed, many
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_one
from fedtrees.report import said
from fedtrees.report.claims import in_words, span
from fedtrees.report.found import Adversary, Defended, Findings, Found, local
from fedtrees.report.page_figures import frontier, price_plot
from fedtrees.report.page_tables import Seen, folds, matrix, untested
from fedtrees.report.recipe import Candidate
from fedtrees.report.rows import UNDEFENDED
from fedtrees.report.states import Cell, gravity, plain
from fedtrees.report.style import bytes_text, number
from fedtrees.report.verdict_text import command as typed
from fedtrees.report.verdict_text import leak, refused
from fedtrees.report.web_page import render

_SLOTS = ("rows", "guess", "certain")  # kinds of facts on the tile of an adversary (`Measure.slot`)
_MOST_SEEN = 4


@dataclass(frozen=True)
class Method:
    """How to reproduce a run: the command, the suite and the versions of the software."""

    command: str
    suite: str
    versions: str


def page(found: Findings, rows: pd.DataFrame, method: Method, seen: Seen = ()) -> str:
    """Return the report as one HTML document. The same run gives the same bytes.

    Parameters
    ----------
    found : Findings
        Findings of the run.
    rows : DataFrame
        Results as returned by `fedtrees.report.rows.load_rows`.
    method : Method
        How to reproduce the run.
    seen : sequence of mapping
        Entries of ``disclosure.json``: which party receives which message.
    """
    pages = [_setting(f, rows, at, seen) for at, f in enumerate(found.settings)]
    tables = sorted({f.setting.dataset for f in found.settings})
    title = f"{said.some(tables, 3)}: privacy findings" if tables else "privacy findings"
    return render(
        "report.html.j2",
        title=title,
        pages=pages,
        glossary=_glossary(found),
        command=method.command,
        suite=method.suite,
        versions=method.versions,
        version=found.version or "of unknown version",
    )


def _setting(found: Found, rows: pd.DataFrame, at: int, seen: Seen) -> dict[str, Any]:
    """Return the contents of the page of one setting."""
    recipe = _recipe(found)
    return {
        "tab": found.setting.protocol.partition("[")[0],
        "where": _where(found),
        "headline": _headline(found),
        "note": _note(found),
        "margin": f"{found.margin:g}",
        "utility": measure(found.utility.metric).head,
        "tiles": [_tile(found, a) for a in found.adversaries],
        "recipe": recipe,
        "refused": "" if recipe else refused(found),
        "frontiers": [f for a in found.tested if (f := frontier(found, a, at))],
        "matrix": matrix(found),
        "untested": list(untested(found)),
        "folds": list(folds(found, rows, seen)),
    }


def _where(found: Found) -> str:
    """Return the line that names the setting, its seeds, and the utility without a defense."""
    name = measure(found.utility.metric).head
    s = found.setting
    parts = [s.dataset, s.partition, s.protocol, many(found.seeds, "seed")]
    if math.isfinite(found.undefended):
        local_utility = local(found)
        text = f"{name} {number(found.undefended)} undefended"
        parts.append(
            text
            + (f", {number(local_utility)} training alone" if math.isfinite(local_utility) else "")
        )
    return " · ".join(parts)


def _headline(found: Found) -> str:
    """Write one sentence: the leak, the leak that the recipe leaves, and the price."""
    lead = found.leak
    if lead.kind != "leak" or lead.cell is None or lead.adversary is None:
        return leak(found)
    cell = lead.cell
    base = "Undefended" if found.base == UNDEFENDED else f"With {said.short(found.base)}"
    text = f"{base}, {lead.adversary.name} can " + measure(cell.metric).phrase.format(
        said.amount(cell, cell.score)
    )
    use = found.use
    if use is None:
        if found.base != UNDEFENDED:
            return f"{text}."
        tried = any(d.spec != UNDEFENDED for d in found.defenses)
        return f"{text}; {'nothing that was tried helps' if tried else 'no defense was tried'}."
    after = _after(use, lead.adversary, cell.metric)
    if after is None:
        return f"{text}."
    remaining = "nothing" if after.state == "gone" else said.value(after, after.score)
    price = use.price.settled
    cost = {
        "same": "at no price", "equal": "at no price beyond 0.01", "ok": "at no loss beyond 0.01",
        "worse": f"for {said.change(use.price.change)} of {measure(found.utility.metric).head}",
    }.get(price, "at a price that is not settled")  # fmt: skip
    return f"{text}; {said.short(use.name)} leaves {remaining}, {cost}."


def _after(use: Candidate, adversary: Adversary, metric: str) -> Cell | None:
    """Return the cell of a measure under the recipe, None if it was not measured."""
    trial = use.at(adversary.threat)
    return trial.cell(metric) if trial else None


def _note(found: Found) -> str:
    """Write notes about useless models and about the metric of prices."""
    lost = [d.spec for d in found.defenses if d.price.collapsed]
    parts = []
    if lost:
        parts.append(f"Under {said.some(lost)} the model is no better than the constant one.")
    u = found.utility
    if u.fallen:
        parts.append(
            f"{measure(u.fallen).head} is undefined in {u.lacking} of {many(u.seeds, 'seed')}: a "
            f"held-out set lacks one class. Prices are in {measure(u.metric).head}."
        )
    elif u.few:
        parts.append(u.few)
    return " ".join(parts)


def _tile(found: Found, adversary: Adversary) -> dict[str, Any]:
    """Return the contents of the tile of one adversary."""
    seen = adversary.sees[:_MOST_SEEN]
    sees = listed(list(seen)) + (", and more" if len(adversary.sees) > _MOST_SEEN else "")
    out: dict[str, Any] = {"name": said.capital(adversary.name), "sees": sees if seen else ""}
    if not adversary.tested:
        say = f"Its view was not attacked in this run. Add --threat {adversary.threat}."
        return {**out, "facts": [], "why": ("Not tested", say)}
    facts = [_fact(found, adversary, c) for c in _three(adversary)]
    why = ("Nothing to read", "No attack that ran has anything to say of this view.")
    return {**out, "facts": facts, "why": why}


def _three(adversary: Adversary) -> list[Cell]:
    """Return up to three cells: the leading one, and the gravest cell of each slot.

    Open cells come first.
    """
    assert adversary.reader is not None
    cells = [c for c in adversary.reader.of(adversary.base) if c.scores]
    best = []
    for slot in _SLOTS:
        of_slot = [c for c in cells if measure(c.metric).slot == slot]
        if of_slot:
            best.append(min(of_slot, key=lambda c: (c.state != "open", gravity(c.metric))))
    lead = adversary.leading()
    # The leading measure can have no slot.
    if lead is not None and lead not in best:
        best.append(lead)
    return sorted(best, key=lambda c: (c is not lead, c.state != "open"))[: len(_SLOTS)]


def _fact(found: Found, adversary: Adversary, cell: Cell) -> dict[str, Any]:
    """Return one fact of a tile: a score without and with the recipe, and its baseline."""
    after = _after(found.use, adversary, cell.metric) if found.use else None
    share = measure(cell.metric).decimals is None
    to = after.score if after is not None and after.scores else None
    counted = math.isfinite(cell.rows)
    of = f"of {cell.rows:,.0f}, {said.line(cell)}" if counted else said.line(cell)
    return {
        "head": said.capital(measure(cell.metric).head),
        "state": cell.state,
        "before": said.value(cell, cell.score),
        "after": None if after is None else said.shown(after),
        "after_state": after.state if after else "",
        "of": of,
        "at": _clip(cell.score) if share else None,
        "to": _clip(to) if share and to is not None else None,
        "blind_at": _clip(cell.line) if share else 0.0,
    }


def _clip(value: float) -> float:
    """Return a share, limited to the range from 0 to 1."""
    return min(max(value, 0.0), 1.0)


def _recipe(found: Found) -> dict[str, Any] | None:
    """Return the contents of the section about the recipe, None if there is no recipe."""
    use = found.use
    if use is None:
        return None
    protocol, defense = said.parted(use.name)
    parts = [(protocol, _about("protocol", protocol))] if protocol else []
    parts += [(str(p), _about("defense", p.name)) for p in parse_one(defense).parts]
    e = use.price.change
    base = found.defended(UNDEFENDED)
    defended = found.defended(use.name)
    line = typed(use)
    traffic = bytes_text(use.bytes)
    if base is not None and math.isfinite(base.cost.bytes):
        traffic += f" instead of {bytes_text(base.cost.bytes)}"
    return {
        "title": "Switch this on" if use.holds else "What eases it, and does not stop it",
        "parts": parts,
        "command": line if protocol else f'-d "{line}"',
        "change": number(e.mean, 3, signed=True),
        "interval": said.interval(use.price.change),
        "plot": price_plot(use.price),
        "settled": said.settled(use.price),
        "tag": use.price.settled,
        "traffic": traffic,
        "guarantee": _guarantee(defended) if defended else "see that protocol's own page",
        "remains": list(_remains(found, use)),
    }


def _guarantee(defended: Defended) -> str:
    """Describe the spent guarantee of a defense, its meaning, and the result of an audit."""
    text = span(defended.guarantees.spent) or span(defended.guarantees.claimed) or "none"
    meaning = in_words(defended.guarantees.spent)
    text += f" ({meaning})" if meaning else ""
    measured = span(defended.guarantees.measured)
    text += f"; measured {measured}" if measured else ""
    return f"{text}: {defended.void}" if defended.void else text


def _about(kind: str, name: str) -> str:
    """Return the first line of a plug-in's docstring, without references to papers."""
    try:
        plugin = register.get(kind, parse_one(name).parts[0].name)
    # The plug-in belongs to another release or to a file that is not loaded.
    except Exception:
        return ""
    first = (plugin.__doc__ or "").strip().partition("\n")[0].replace("`", "")
    return re.sub(r" \([^()]*\d{4}[^()]*\)", "", first)


def _remains(found: Found, use: Candidate) -> Iterator[tuple[str, str]]:
    """Yield each adversary with a sentence about what it can learn in spite of the recipe."""
    for adversary in found.adversaries:
        name = said.capital(adversary.name)
        trial = use.at(adversary.threat)
        if not adversary.tested or trial is None:
            yield name, "was not tested."
            continue
        cells = plain([c for c in trial.cells if c.state == "open"])
        cells.sort(key=lambda c: gravity(c.metric))
        failed = [c for c in trial.cells if c.below_baseline]
        doubt = [c for c in trial.cells if c.state in ("unsettled", "unknown") and c not in failed]
        if cells:
            yield name, f"can still {listed([said.can(c) for c in cells])}."
        elif doubt:
            yield name, f"reads nothing that is clear; not settled: {_heads(doubt)}."
        elif not failed:
            yield name, f"reads nothing beyond {found.margin:g} of a blind guess, by every measure."
        if failed:
            yield (
                name,
                f"({_heads(failed)}): the attack did worse than a blind guess, so that "
                "nothing is shown.",
            )


def _heads(cells: list[Cell]) -> str:
    """List the names of the measures of some cells."""
    return listed([*dict.fromkeys(measure(c.metric).head.lower() for c in cells)])


def _glossary(found: Findings) -> list[tuple[str, str]]:
    """Return the terms of the page with their explanations."""
    used = dict.fromkeys(
        m for f in found.settings for a in f.tested if a.reader for m in a.reader.metrics
    )
    words = [
        ("Blind guess", "The best of several guesses by the same adversary with an empty "
         "transcript. An adversary without rows is also compared with the population baseline, "
         "which knows other rows of the population, as its attacks do."),
        *((said.capital(measure(m).head), _explained(m)) for m in used
          if _explained(m).lower() != f"{measure(m).head}."),
        ("Read ●", "The advantage over the better baseline is above the margin in the mean (of "
         "persons: one row or more), and above zero in every seed or with its whole interval."),
        ("Within the margin ■", "The mean advantage is at least minus the margin, and the upper "
         "end of its 95% t interval lies below the margin; three seeds or more; every applicable "
         "attack finished."),
        ("Not settled ◆", "Neither is shown. More seeds settle it, unless the attack did worse "
         "than a blind guess: then the attack failed, and nothing is shown about the defense."),
        ("Recipe", "What holds against every adversary of the run; where nothing does, what leaves "
         "least: rows and labels first, then guesses, then facts about groups; ties by price."),
    ]  # fmt: skip
    return words


def _explained(metric: str) -> str:
    """Return the explanation of a measure."""
    definition = measure(metric)
    return definition.explained or f"{said.capital(definition.name)}."
