"""The report of a run: findings put into one page that loads nothing."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedtrees.core.columns import measure
from fedtrees.core.counts import listed, many
from fedtrees.core.guarantee import ActedOnNothing
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_one
from fedtrees.report import said, svg
from fedtrees.report.claims import span
from fedtrees.report.findings import (
    REFUTED,
    Adversary,
    Defended,
    Findings,
    Found,
    local,
    of_protocol,
    words_of,
)
from fedtrees.report.intervals import finite, mean_of
from fedtrees.report.price import TOLERANCE, Price
from fedtrees.report.recipe import Candidate
from fedtrees.report.rows import UNDEFENDED
from fedtrees.report.states import Cell, gravity, plain
from fedtrees.report.style import bytes_text, number, seconds_text
from fedtrees.report.verdict_text import command as typed
from fedtrees.report.verdict_text import leak, refused
from fedtrees.report.web_page import render

_VOID = {"void": "guarantee void", REFUTED: "refuted", ActedOnNothing.kind: "acted on nothing"}
_SLOTS = ("rows", "guess", "certain")  # of the facts of a tile
_MOST_SPARKS = 4
_MOST_SEEN = 4


@dataclass(frozen=True)
class Method:
    """How a run is made again: the command, the suite, the versions."""

    command: str
    suite: str
    versions: str


Seen = Sequence[Mapping[str, Any]]


def page(found: Findings, rows: pd.DataFrame, method: Method, seen: Seen = ()) -> str:
    """Return the report as one HTML document; the same run gives the same bytes.

    `seen`: Who saw what (``disclosure.json``).
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
        "frontiers": [f for a in found.tested if (f := _frontier(found, a, at))],
        "matrix": _matrix(found),
        "untested": list(_untested(found)),
        "folds": list(_folds(found, rows, seen)),
    }


def _where(found: Found) -> str:
    name = measure(found.utility.metric).head
    s = found.setting
    parts = [s.dataset, s.partition, s.protocol, many(found.seeds, "seed")]
    if math.isfinite(found.undefended):
        alone = local(found)
        text = f"{name} {number(found.undefended)} undefended"
        parts.append(text + (f", {number(alone)} training alone" if math.isfinite(alone) else ""))
    return " · ".join(parts)


def _headline(found: Found) -> str:
    """One sentence: the leak, what the recipe leaves, the price."""
    lead = found.leak
    if lead.kind != "leak" or lead.cell is None or lead.adversary is None:
        return leak(found)
    cell = lead.cell
    text = f"Undefended, {lead.adversary.name} can " + measure(cell.metric).phrase.format(
        said.amount(cell, cell.score)
    )
    use = found.use
    if use is None:
        tried = any(d.spec != UNDEFENDED for d in found.defenses)
        return f"{text}; {'nothing that was tried helps' if tried else 'no defense was tried'}."
    after = _after(use, lead.adversary, cell.metric)
    if after is None:
        return f"{text}."
    what = "nothing" if after.state == "gone" else said.value(after, after.score)
    price = use.price.settled
    cost = {
        "same": "at no price", "equal": "at no price beyond 0.01", "ok": "at no loss beyond 0.01",
        "worse": f"for {said.change(use.price.change)} of {measure(found.utility.metric).head}",
    }.get(price, "at a price that is not settled")  # fmt: skip
    return f"{text}; {said.short(use.name)} leaves {what}, {cost}."


def _after(use: Candidate, adversary: Adversary, metric: str) -> Cell | None:
    trial = use.at(adversary.threat)
    return trial.cell(metric) if trial else None


def _note(found: Found) -> str:
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
    return " ".join(parts)


def _tile(found: Found, adversary: Adversary) -> dict[str, Any]:
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
    """Return the worst cell of each slot, what is read most first."""
    assert adversary.reader is not None
    cells = [c for c in adversary.reader.of(UNDEFENDED) if c.scores]
    best = []
    for slot in _SLOTS:
        mine = [c for c in cells if measure(c.metric).slot == slot]
        if mine:
            best.append(min(mine, key=lambda c: (c.state != "open", gravity(c.metric))))
    lead = adversary.leading()
    return sorted(best, key=lambda c: (c is not lead, c.state != "open"))


def _fact(found: Found, adversary: Adversary, cell: Cell) -> dict[str, Any]:
    after = _after(found.use, adversary, cell.metric) if found.use else None
    share = measure(cell.metric).decimals is None
    to = after.score if after is not None and after.scores else None
    counted = math.isfinite(cell.rows)
    of = f"of {cell.rows:,.0f}, {said.line(cell)}" if counted else said.line(cell)
    return {
        "head": said.capital(measure(cell.metric).head),
        "state": cell.state,
        "before": said.value(cell, cell.score),
        "after": None if after is None else _shown(after),
        "after_state": after.state if after else "",
        "of": of,
        "at": _clip(cell.score) if share else None,
        "to": _clip(to) if share and to is not None else None,
        "blind_at": _clip(cell.line) if share else 0.0,
    }


def _shown(cell: Cell) -> str:
    """Write a cell: its score, or the word that says why there is none."""
    if cell.scores:
        return said.value(cell, cell.score)
    return {"gone": "none", "unknown": "failed", "undefined": "–"}.get(cell.state, "–")


def _clip(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _recipe(found: Found) -> dict[str, Any] | None:
    use = found.use
    if use is None:
        return None
    protocol, defense = said.parted(use.name)
    parts = [(protocol, _about("protocol", protocol))] if protocol else []
    parts += [(str(p), _about("defense", p.name)) for p in parse_one(defense).parts]
    e = use.price.change
    base = found.defended(UNDEFENDED)
    mine = found.defended(use.name)
    line = typed(use)
    traffic = bytes_text(use.bytes)
    if base is not None and math.isfinite(base.cost.bytes):
        traffic += f" instead of {bytes_text(base.cost.bytes)}"
    return {
        "title": "Switch this on" if use.holds else "What eases it, and does not stop it",
        "parts": parts,
        "command": line if protocol else f'-d "{line}"',
        "change": number(e.mean, 3, signed=True),
        "interval": _interval(use.price),
        "plot": _price_plot(use.price),
        "settled": said.settled(use.price),
        "tag": use.price.settled,
        "traffic": traffic,
        "guarantee": _guarantee(mine) if mine else "see that protocol's own page",
        "remains": list(_remains(found, use)),
    }


def _interval(price: Price) -> str:
    e = price.change
    if not math.isfinite(e.low):
        return ""
    return f"[{number(e.low, 3, signed=True)}, {number(e.high, 3, signed=True)}]"


def _price_plot(price: Price) -> dict[str, Any] | None:
    values = [*price.by_seed.values()]
    e = price.change
    if len(values) < 2 or not any(values):
        return None
    ends = [*values, e.low, e.high, -TOLERANCE, TOLERANCE, 0.0]
    at = svg.Scale(min(ends), max(ends), 20.0, 310.0)
    ticks = [(at(v), number(v, 2, signed=True) if v else "0") for v in (-TOLERANCE, 0.0, TOLERANCE)]
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


def _guarantee(defended: Defended) -> str:
    text = span(defended.guarantees.spent) or span(defended.guarantees.claimed) or "none"
    measured = span(defended.guarantees.measured)
    text += f"; measured {measured}" if measured else ""
    return f"{text}: {defended.void}" if defended.void else text


def _about(kind: str, name: str) -> str:
    """Return the first line of a plug-in's documentation."""
    try:
        made = register.get(kind, parse_one(name).parts[0].name)
    except Exception:  # of another release, or of a file that is not loaded
        return ""
    first = (made.__doc__ or "").strip().partition("\n")[0]
    return re.sub(r" \([^()]*\d{4}[^()]*\)", "", first)


def _remains(found: Found, use: Candidate) -> Iterator[tuple[str, str]]:
    for adversary in found.adversaries:
        name = said.capital(adversary.name)
        trial = use.at(adversary.threat)
        if not adversary.tested or trial is None:
            yield name, "was not tested."
            continue
        cells = plain([c for c in trial.cells if c.state == "open"])
        cells.sort(key=lambda c: gravity(c.metric))
        doubt = [c for c in trial.cells if c.state in ("unsettled", "unknown")]
        if cells:
            yield name, f"can still {listed([said.can(c) for c in cells])}."
        elif doubt:
            heads = dict.fromkeys(measure(c.metric).head.lower() for c in doubt)
            yield name, f"reads nothing that is clear; not settled: {listed([*heads])}."
        else:
            yield name, f"reads nothing beyond {found.margin:g} of a blind guess, by every measure."


# --- figures


def _frontier(found: Found, adversary: Adversary, at: int) -> dict[str, Any] | None:
    if adversary.reader is None:
        return None
    lead = adversary.leading()
    metrics = [m for m in adversary.metrics if _drawable(found, adversary, m)]
    if not metrics:
        return None
    first = lead.metric if lead and lead.metric in metrics else metrics[0]
    leaking = [
        m
        for m in metrics
        if m != first and any(adversary.cell(d.spec, m).state == "open" for d in found.defenses)
    ]
    rest = leaking[:_MOST_SPARKS]
    cell = adversary.cell(UNDEFENDED, first)
    unit = _unit(cell)
    drawing = svg.draw(_marks(found, adversary, first, at), unit * _line(adversary, found, first))
    counted = math.isfinite(cell.rows)
    what = measure(first).head.lower() + (f", of {cell.rows:,.0f}" if counted else "")
    return {
        "who": said.capital(adversary.name),
        "what": what,
        "utility": measure(found.utility.metric).head,
        "d": drawing,
        "front": svg.path(drawing.front),
        "x_ticks": [(x, number(v, 2, signed=True) if v else "0") for x, v in drawing.x_ticks],
        "y_ticks": [(y, said.value(cell, v / unit)) for y, v in drawing.y_ticks],
        "sparks": [_spark(found, adversary, m, at) for m in rest],
    }


def _unit(cell: Cell) -> float:
    """Return what one of a score is: of counted rows all of them."""
    return cell.rows if math.isfinite(cell.rows) else 1.0


def _drawable(found: Found, adversary: Adversary, metric: str) -> bool:
    return any(d.price.by_seed and adversary.cell(d.spec, metric).scores for d in found.defenses)


def _spark(found: Found, adversary: Adversary, metric: str, at: int) -> dict[str, Any]:
    unit = _unit(adversary.cell(UNDEFENDED, metric))
    line = unit * _line(adversary, found, metric)
    drawing = svg.spark(_marks(found, adversary, metric, at), line)
    return {
        "head": said.capital(measure(metric).head),
        "d": drawing,
        "front": svg.path(drawing.front),
    }


def _line(adversary: Adversary, found: Found, metric: str) -> float:
    cells = (adversary.cell(d.spec, metric) for d in found.defenses)
    return next((c.line for c in cells if c.scores), 0.0)


def _marks(found: Found, adversary: Adversary, metric: str, at: int) -> list[svg.Mark]:
    out = []
    for d in found.defenses:
        cell = adversary.cell(d.spec, metric)
        if not d.price.by_seed or not (cell.scores or cell.state == "gone"):
            continue
        unit = _unit(adversary.cell(UNDEFENDED, metric))
        score = unit * (cell.score if cell.scores else _line(adversary, found, metric))
        e = d.price.change
        say = f"{d.label} {said.short(d.spec)}. {measure(metric).head}: {_shown(cell)}"
        if cell.scores:
            say += f" ({said.line(cell)})"
        say += f". {measure(found.utility.metric).head} {said.change(e)}."
        spread = len(set(cell.scores)) > 1
        out.append(
            svg.Mark(
                e.mean, score, f"{d.label} {said.short(d.spec)}" if d.spec != UNDEFENDED
                else "no defense", d.label, say, f"#m{at}-{d.label}", cell.state,
                e.low, e.high, unit * min(cell.scores) if spread else math.nan,
                unit * max(cell.scores) if spread else math.nan, d.spec == found.recipe,
            )
        )  # fmt: skip
    return out


# --- tables


def _matrix(found: Found) -> dict[str, Any] | None:
    groups, blind, columns = [], [], list[tuple[Adversary, str, bool]]()
    idle: list[str] = []
    for adversary in found.tested:
        assert adversary.reader is not None
        shown = [m for m in adversary.metrics if _shown_column(found, adversary, m)]
        hidden = [m for m in adversary.metrics if m not in shown]
        if hidden:
            heads = listed([measure(m).head.lower() for m in hidden])
            idle.append(f"{said.capital(adversary.name)} reads nothing by {heads}.")
        if not shown:
            continue
        groups.append({"name": said.capital(adversary.name),
                       "heads": [said.capital(measure(m).head) for m in shown]})  # fmt: skip
        for k, m in enumerate(shown):
            columns.append((adversary, m, k == 0))
            cells = [adversary.cell(d.spec, m) for d in found.defenses]
            text = next((said.value(c, c.line) for c in cells if c.scores), "–")
            blind.append((text, k == 0))
    if not columns:
        return None
    rows = [_row(found, d, columns) for d in found.defenses]
    told = (many(len(idle), "measure or attack", "measures and attacks") + " with nothing to read, "
            "and why", idle)  # fmt: skip
    return {"groups": groups, "rows": rows, "blind": blind, "idle": told if idle else None}


def _shown_column(found: Found, adversary: Adversary, metric: str) -> bool:
    states = {adversary.cell(d.spec, metric).state for d in found.defenses}
    return bool(states & {"open", "unsettled", "unknown"})


def _row(
    found: Found, d: Defended, columns: Sequence[tuple[Adversary, str, bool]]
) -> dict[str, Any]:
    e, bare = d.price.change, d.spec == UNDEFENDED
    change = "" if bare or not e.known else number(e.mean, 3, signed=True)
    return {
        "label": d.label,
        "name": "no defense" if bare else d.spec,
        "recipe": d.spec == found.recipe,
        "void": _VOID.get(d.void, ""),
        "change": "0" if d.price.settled == "same" and not bare else change,
        "interval": _interval(d.price),
        "forest": None if bare else _forest(found, d.price),
        "cells": [_matrix_cell(a, a.cell(d.spec, m), first) for a, m, first in columns],
    }


def _matrix_cell(adversary: Adversary, cell: Cell, first: bool) -> dict[str, Any]:
    word = said.WORDS[cell.state]
    e = cell.advantage
    title = word
    if e.known:
        title += f": advantage {said.change(e)}, {many(len(cell.seeds), 'seed')}"
        title += f", by {', '.join(cell.attacks)}"
    return {"state": cell.state, "text": _shown(cell), "word": word, "title": title, "first": first}


def _forest(found: Found, price: Price) -> dict[str, Any] | None:
    e = price.change
    if not math.isfinite(e.low) or price.settled == "same":
        return None
    known = [d.price.change for d in found.defenses if math.isfinite(d.price.change.low)]
    ends = [-TOLERANCE, TOLERANCE, *(v for k in known for v in (k.low, k.high))]
    at = svg.Scale(min(ends), max(ends), 3.0, 109.0)
    return {"band": (at(-TOLERANCE), at(TOLERANCE)), "zero": at(0.0), "low": at(e.low),
            "high": at(e.high), "mean": at(e.mean)}  # fmt: skip


def _untested(found: Found) -> Iterator[tuple[str, str, str]]:
    told = found.untested
    for name, threat in told.adversaries:
        yield f"{said.capital(name)}.", "No view of this role was attacked.", f"--threat {threat}"
    for name, why in told.unfit:
        yield f"{name}.", f"It does not fit here: {why}.", ""
    for name, why in told.failed:
        yield f"{name} failed.", f"{why}. A failed attack is no defense.", ""
    if told.attacks:
        yield f"{many(len(told.attacks), 'attack')} that apply.", f"{listed([*told.attacks])}.", ""
    if told.defenses:
        yield (f"{many(len(told.defenses), 'defense')} that fit.",
               f"{listed([*told.defenses])}.", "")  # fmt: skip
    if told.cut:
        yield ("Longer searches.", f"{listed([*told.cut])} stopped at a limit; without it they may "
               "read more.", "")  # fmt: skip
    if found.seeds < 10:
        yield (f"More than {many(found.seeds, 'federation')}.", "Fewer than three settle nothing; "
               "ten settle differences of about 0.01.", "--seeds 10")  # fmt: skip
    yield ("Collusion, knowledge from outside, attacks not yet written.",
           "Only a bounded guarantee speaks of those.", "")  # fmt: skip


def _folds(found: Found, rows: pd.DataFrame, seen: Seen) -> Iterator[dict[str, Any]]:
    here = rows[rows["setting"] == found.setting]
    for adversary in found.tested:
        yield _attacks(found, adversary, here)
    columns = _columns(found, here)
    if columns:
        yield columns
    crossings = [_crossing(e) for e in seen if of_protocol(e, found.setting)]
    if crossings:
        yield {"title": "Who sees what", "note": "every kind of message, from a short run",
               "rows": crossings, "numbers": (6, 7), "header": ["Message", "Defense", "From", "To",
               "Reveals", "Why", "Count", "Bytes"]}  # fmt: skip
    lines = [[d.spec, *(span(t) or "–" for t in (d.guarantees.claimed, d.guarantees.spent,
              d.guarantees.measured)), d.guarantees.verdict] for d in found.defenses]  # fmt: skip
    yield {"title": "Guarantees", "note": "claimed, spent, measured", "numbers": (), "rows": lines,
           "header": ["Defense", "Claimed", "Spent", "Measured", "Reading"]}  # fmt: skip
    name = measure(found.utility.metric).head
    costs = [[d.spec, number(d.price.mean_utility), bytes_text(d.cost.bytes),
              number(d.cost.rounds.mean, 0), seconds_text(d.cost.seconds.mean),
              seconds_text(d.cost.cpu_seconds.mean), number(d.cost.ciphertexts.mean, 0)]
             for d in found.defenses]  # fmt: skip
    yield {"title": "Cost of training", "note": "traffic, rounds, time", "numbers": range(1, 7),
           "rows": costs, "header": ["Defense", name, "Traffic", "Rounds", "Seconds",
                                     "Processor", "Ciphertexts"]}  # fmt: skip


def _crossing(entry: Mapping[str, Any]) -> list[str]:
    receiver = str(entry.get("to"))
    reader = str(entry.get("readable_by") or receiver) + " (sealed)" * bool(entry.get("sealed"))
    to = receiver if reader == receiver else f"{receiver}, read by {reader}"
    guarded = said.guarded(entry.get("guards") or ())
    reveals = ", ".join(map(str, entry.get("reveals") or ())) or "nothing of persons"
    why = str(entry.get("why", "")) + (f"; guarded by {guarded}" if guarded else "")
    return [words_of(str(entry.get("type", ""))), str(entry.get("defense", "")),
            str(entry.get("from", "")), to, reveals, why,
            number(float(entry.get("count") or 0), 0),
            bytes_text(float(entry.get("bytes") or 0))]  # fmt: skip


def _attacks(found: Found, adversary: Adversary, here: pd.DataFrame) -> dict[str, Any]:
    assert adversary.reader is not None
    mine = here[(here["stage"] == "attack") & (here["threat"] == adversary.threat)
                & (here["status"] == "ok")]  # fmt: skip
    lines = []
    for attack, group in mine.groupby("attack_spec"):
        for metric in adversary.reader.metrics:
            told = group[group["metric"] == metric]
            base = told[told["defense_spec"] == UNDEFENDED]
            if told.empty:
                continue
            cell = adversary.cell(UNDEFENDED, metric)
            after = told[told["defense_spec"] == found.recipe] if found.recipe else told.iloc[:0]
            head, seconds = said.capital(measure(metric).head), float(told["seconds"].mean())
            scores = [_of(cell, x["value"]) for x in (base, after)]
            blind = _of(cell, told["blind"])
            lines.append([str(attack), head, *scores, blind, seconds_text(seconds)])
    ran = len({line[0] for line in lines})
    lead = adversary.leading()
    strongest = f", strongest is {lead.attacks[0]}" if lead else ""
    return {
        "title": f"Attacks by {adversary.name}", "note": f"{ran} ran{strongest}", "rows": lines,
        "header": ["Attack", "Measure", "Undefended", "Recipe", "Blind", "Time"],
        "numbers": range(2, 6),
    }  # fmt: skip


def _of(cell: Cell, values: pd.Series) -> str:
    mean = mean_of(values)
    return said.value(cell, mean) if math.isfinite(mean) else "–"


def _columns(found: Found, here: pd.DataFrame) -> dict[str, Any] | None:
    """Return which columns leak: what the worst attack reads of each."""
    specs = [UNDEFENDED, *([found.recipe] if found.recipe else [])]
    ok = here[(here["stage"] == "attack") & (here["status"] == "ok") & (here["part"] != "")]
    keys = [m for m in dict.fromkeys(ok["metric"]) if measure(m).part == "column"]
    lines = []
    for adversary in found.tested:
        told = ok[(ok["threat"] == adversary.threat) & ok["metric"].isin(keys[:1])]
        for part, group in told.groupby("part", sort=False):
            best = [
                group[group["defense_spec"] == s].groupby("seed")["value"].max().mean()
                for s in specs
            ]
            lines.append((str(part), adversary.name, best, group["blind"].mean()))
    if not lines:
        return None
    lines.sort(key=lambda x: -finite(x[2][0] - x[3], -1.0))
    texts = [
        [part, who, *(said.percent(v) if math.isfinite(v) else "–" for v in (*best, blind))]
        for part, who, best, blind in lines
    ]
    header = ["Column", "Adversary", "Undefended", *(["Recipe"] if found.recipe else []), "Blind"]
    return {"title": "Columns that leak", "note": "cells guessed, by column", "rows": texts,
            "header": header, "numbers": range(2, len(header))}  # fmt: skip


def _glossary(found: Findings) -> list[tuple[str, str]]:
    used = dict.fromkeys(
        m for f in found.settings for a in f.tested if a.reader for m in a.reader.metrics
    )
    words = [
        ("Blind guess", "The best of several guesses by the same adversary with an empty "
         "transcript; whoever holds no rows also stands beside what other rows tell."),
        *((said.capital(measure(m).head), _explained(m)) for m in used
          if _explained(m).lower() != f"{measure(m).head}."),
        ("Read ●", "The advantage over blind is above the margin in the mean (of persons: one row "
         "or more), and above zero in every seed or with its whole interval."),
        ("Within the margin ■", "The upper end of the 95% t interval of the advantage lies below "
         "the margin; three seeds or more; every applicable attack finished."),
        ("Not settled ◆", "Neither can be said. More seeds settle it."),
        ("Recipe", "What holds against every adversary of the run; where nothing does, what leaves "
         "least: rows and labels first, then guesses, then facts about groups; ties by price."),
    ]  # fmt: skip
    return words


def _explained(metric: str) -> str:
    told = measure(metric)
    return told.explained or f"{said.capital(told.name)}."
