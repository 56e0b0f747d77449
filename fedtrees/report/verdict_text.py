"""The verdict of a run in at most 120 words: a line for each thing that a reader decides on."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedtrees.core.columns import measure
from fedtrees.core.counts import listed, many
from fedtrees.core.guarantee import ActedOnNothing
from fedtrees.report import said
from fedtrees.report.claims import in_words
from fedtrees.report.found import REFUTED, Adversary, Findings, Found, Leak
from fedtrees.report.intervals import finite
from fedtrees.report.price import Price
from fedtrees.report.recipe import Candidate
from fedtrees.report.rows import UNDEFENDED
from fedtrees.report.states import SETTLED, Cell, gravity, plain, upper

MOST_WORDS = 120
_FAR = 0.25  # advantage beyond what leads that is said beside it
_MOST_LEFT = 2  # things that are named of what remains, an adversary


@dataclass(frozen=True)
class Line:
    """One line: what it is about, in a word, and the sentence."""

    key: str
    text: str

    @property
    def words(self) -> int:
        """How many words it has."""
        return len(self.text.split()) + 1


@dataclass(frozen=True)
class Verdict:
    """What a run says: the leakiest setting's lines, and the others in a line each."""

    setting: str
    lines: tuple[Line, ...]

    @property
    def words(self) -> int:
        """How many words it has, the setting's line aside."""
        return sum(line.words for line in self.lines)

    def __str__(self) -> str:
        return "\n".join([self.setting, *(f"{x.key:9} {x.text}" for x in self.lines)])


def verdict(found: Findings) -> Verdict:
    """Say what a run found, in at most `MOST_WORDS` words."""
    if not found.settings:
        return Verdict("", (Line("LEAK", "Not known: no model was trained."),))
    first, *rest = found.settings
    lines = _in_room(first)
    also = [_also(f) for f in rest]
    room = MOST_WORDS - sum(x.words for x in lines)
    for at, line in enumerate(also):
        more = Line("ALSO", f"{many(len(also) - at, 'setting')} more in the report.")
        last = at == len(also) - 1
        if line.words + (0 if last else more.words) > room:
            lines += [more] if more.words <= room else []
            break
        lines.append(line)
        room -= line.words
    return Verdict(str(first.setting), tuple(lines))


def _in_room(found: Found) -> list[Line]:
    """Return the lines of a setting, with as much of what is left as there is room for."""
    lines: list[Line] = []
    for limit, more in ((_MOST_LEFT, True), (1, True), (1, False), (0, False)):
        lines = list(_lines(found, limit, more))
        if sum(x.words for x in lines) <= MOST_WORDS:
            break
    room = MOST_WORDS - sum(x.words for x in lines)
    return [*lines, *(line for line in _epsilon(found) if line.words <= room)]


def _epsilon(found: Found) -> Iterator[Line]:
    """Yield what the epsilon of the recommended defense means, if a finite one was spent."""
    spec = None if found.use is None else said.parted(found.use.name)[1]
    defended = next((d for d in found.defenses if d.spec == spec), None)
    text = in_words(defended.guarantees.spent) if defended is not None else ""
    if text:
        yield Line("EPSILON", f"{said.capital(text)}.")


def _lines(found: Found, most: int, more: bool) -> Iterator[Line]:
    yield from _collapse(found)
    yield Line("LEAK", leak(found, more))
    yield from _use(found, most)
    yield from _notes(found)
    if text := untested(found):
        yield Line("UNTESTED", text)


def _collapse(found: Found) -> Iterator[Line]:
    """A model that says nothing any more is said first: what it does not leak is no merit."""
    lost = [d.spec for d in found.defenses if d.price.collapsed]
    if lost:
        name = measure(found.utility.metric).head
        are = "is" if len(lost) == 1 else "are"
        text = (
            f"The model under {said.some(lost, 2)} {are} no better than the constant one ({name})."
        )
        yield Line("COLLAPSED", text)


def leak(found: Found, more: bool = False) -> str:
    """Say what leads undefended, or how much is known where nothing does.

    `more`: With what the same adversary reads far more of.
    """
    text = _leak(found, more)
    if found.base == UNDEFENDED:
        return text
    return f"With {said.short(found.base)}, {text[0].lower()}{text[1:]}"


def _leak(found: Found, more: bool) -> str:
    lead = found.leak
    who = said_of(lead.adversary)
    match lead.kind, lead.cell:
        case "no-attack", _:
            if failed := found.untested.failed:
                names = listed([name for name, _ in failed])
                return f"Not known: of the attacks that apply none finished ({names})."
            return "Not known: no attack that ran applies to what these adversaries see."
        case "none-found", _:
            return _none_found(found)
        case "trace", Cell() as cell:
            return (
                f"A trace: {who} can {said.can(cell)}, by {_attack(cell)}; below the margin of "
                f"{found.margin:g}."
            )
        case "unknown", _:
            left = found.untested
            failed, silent = (
                said.some(list(dict.fromkeys(name.partition("[")[0] for name, _ in of)))
                for of in (left.failed, left.no_claim)
            )
            parts = [f"attacks failed ({failed})"] * bool(failed)
            parts += [f"attacks returned no claim ({silent})"] * bool(silent)
            why = " and ".join(parts) or "attacks that apply did not run"
            return f"Not known: {why}, and no other attack shows a leak."
        case "attack-failed", Cell() as cell:
            guess, head = said.value(cell, cell.score), measure(cell.metric).head.lower()
            return (
                f"Nothing is shown: by every measure that is not settled, attacks did worse than "
                f"their baseline. The best, {_attack(cell)} by {who}, has {head} {guess} "
                f"({said.line(cell)})."
            )
        case "none-clear", Cell() as cell:
            unsure = replace(cell.advantage, high=upper(cell))
            return (
                f"None clear, none ruled out: {who} may {said.can(cell)}, advantage "
                f"{said.change(unsure)}{_to_settle(found, lead.adversary)}."
            )
        case _, Cell() as cell:
            addition = _more(lead) if more else ""
            return f"{said.capital(who)} can {said.can(cell)}, by {_attack(cell)}{addition}."
    raise AssertionError(lead)


def _more(lead: Leak) -> str:
    """Say what the same adversary reads by far more of than of what leads."""
    assert lead.adversary is not None
    assert lead.cell is not None
    cells = lead.adversary.open(lead.adversary.base)
    largest = max(cells, key=lambda c: finite(c.advantage.mean))
    if finite(largest.advantage.mean) < finite(lead.cell.advantage.mean) + _FAR:
        return ""
    return f", and {said.can(largest)}"


def _none_found(found: Found) -> str:
    """Say who stays near blind, by how many measures, and whom no attack that ran reads."""
    shut = {
        a.name: plain([c for c in a.reader.of(found.base) if c.state == "shut"])
        for a in found.tested
        if a.reader is not None
    }
    near = [a for a in found.tested if shut[a.name]]
    rest = [name for name, cells in shut.items() if not cells]
    by = {c.metric for cells in shut.values() for c in cells}
    text = (
        f"None found: {listed([a.name for a in near])} {_stay(near)} within {found.margin:g} of a "
        f"blind guess by all {many(len(by), 'measure')}, over {many(found.seeds, 'seed')}."
    )
    return f"{text} No attack that ran reads the view of {listed(rest)}." if rest else text


def _to_settle(found: Found, adversary: Adversary | None) -> str:
    """Say what would settle what it may read: the attacks that did not run, or more seeds."""
    reader = adversary.reader if adversary else None
    coverage = reader.coverage.get(found.base) if reader else None
    if coverage is not None and coverage.missing:
        names = {*coverage.left_out, *(name for name, *_ in coverage.failed)}
        return f"; {many(len(names), 'attack')} more to run"
    return "; run 10 seeds" if found.seeds < 10 else ""


def _use(found: Found, most: int) -> Iterator[Line]:
    if found.base != UNDEFENDED:
        yield Line("USE", "Nothing to compare with: without a defense nothing was trained.")
        return
    if found.leak.kind == "none-found":
        yield Line("USE", "Nothing to stop here. More trees, fewer rows or another adversary may "
                          "differ.")  # fmt: skip
        return
    use = found.use
    if use is None:
        yield Line("USE", refused(found))
        if text := remains(found, None, most):
            yield Line("REMAINS", text)
        return
    sure = use.price.tier == 0 and not use.failed
    key = "EASES" if not use.holds else "USE" if sure else "MAYBE"
    yield Line(key, command(use))
    if text := _effect(found, use):
        yield Line("EFFECT", text)
    yield Line("PRICE", price(use.price))
    if text := remains(found, use, most):
        yield Line("REMAINS", text)
    strict = found.stricter
    if strict is not None:
        yield Line("STRICTER", f"{strict.name}: {price(strict.price)}")


def command(use: Candidate) -> str:
    """Return what to type: a defense as it is, another protocol with its option."""
    protocol, defense = said.parted(use.name)
    return f'-p "{protocol}" -d "{defense}"' if protocol else use.name


def refused(found: Found) -> str:
    """Say why no defense is named."""
    unfit = found.untested.unfit
    tried = [d.spec for d in found.defenses if d.spec != UNDEFENDED]
    if not tried and unfit:
        name, why = unfit[0]
        return f"None ran: {name} does not fit this protocol ({why})."
    if not tried:
        return "No defense was tried: none was asked for, or none fits."
    unshown = f"Nothing here shows what {said.some(tried)} would stop."
    cell = found.leak.cell
    if cell is None or found.leak.adversary is None or found.leak.kind != "leak":
        return unshown
    after = [(found.leak.adversary.cell(d, cell.metric), d) for d in tried]
    finite_after = [x for x in after if math.isfinite(x[0].score)]
    if not finite_after:
        return unshown
    least, name = min(finite_after, key=lambda x: x[0].score)
    left = (
        f"{name} leaves {said.value(least, least.score)} of {said.value(cell, cell.score)} "
        f"({said.line(cell)})."
    )
    if least.below_baseline:
        return f"Nothing is shown to help: {left[:-1]}, but {said.failed(least)}."
    if least.score < cell.score:
        return f"Nothing is shown to help over {many(found.seeds, 'seed')}: {left}"
    return f"Nothing tried helps: {left}"


def _effect(found: Found, use: Candidate) -> str:
    """Write how a recipe changes the score of the leak that the verdict names."""
    cell, who = found.leak.cell, found.leak.adversary
    if cell is None or who is None:
        return ""
    trial = use.at(who.threat)
    after = trial.cell(cell.metric) if trial else None
    if after is None:
        return ""
    head = said.capital(measure(cell.metric).head)
    if after.state == "gone":
        return f"{head}: {said.value(cell, cell.score)} → nothing to read."
    left = f"{head}: {said.value(cell, cell.score)} → {said.value(after, after.score)}"
    if after.below_baseline:
        return f"{left} ({said.failed(after)})."
    return f"{left}." if after.state == "shut" else f"{left} ({WORDS_LEFT[after.state]})."


WORDS_LEFT = {
    "open": "the leak stays", "unsettled": "not settled", "unknown": "not known",
    "undefined": "a blind guess is perfect",
}  # fmt: skip


def price(p: Price) -> str:
    """Write a price."""
    name = measure(p.utility.metric).head
    if p.settled == "same":
        return f"None: {name} identical in every seed."
    return f"{name} {said.change(p.change)}; {said.settled(p)}."


def remains(found: Found, use: Candidate | None, most: int = _MOST_LEFT) -> str:
    """Write what every adversary can still do under a recipe.

    Each adversary is in one of four groups: it can read something; its attacks did worse than their
    baseline; something else is not settled; nothing is above the margin.

    Parameters
    ----------
    found : Found
        The setting.
    use : Candidate or None
        The recipe. None: what the other adversaries can do without a defense.
    most : int
        How many leaks are written of each adversary. 0: only how many adversaries have one.
    """
    if use is None:
        return _of_others(found, most)
    leaks, failed, doubtful, quiet = [], list[str](), list[str](), list[str]()
    for adversary in found.tested:
        trial = use.at(adversary.threat)
        if trial is None:
            doubtful.append(adversary.name)
            continue
        cells = plain([c for c in trial.cells if c.state == "open"])
        cells.sort(key=lambda c: gravity(c.metric))
        if cells:
            can = " and ".join(said.can(c) for c in cells[:most])
            leaks.append(f"{adversary.name} can {can}")
        elif any(c.below_baseline for c in trial.cells):
            failed.append(adversary.name)
        elif all(c.state in SETTLED for c in trial.cells):
            quiet.append(adversary.name)
        else:
            doubtful.append(adversary.name)
    if leaks and not most:
        return f"{many(len(leaks), 'adversary', 'adversaries')} can read more: see the report."
    if len(quiet) == len(found.tested):
        return "Nothing above the margin."
    parts = [said.capital("; ".join(leaks)) + "."] * bool(leaks)
    if most:
        if failed:
            parts.append(f"Nothing shown (attacks did worse than a blind guess): {listed(failed)}.")
        parts += [f"Not settled: {listed(doubtful)}."] * bool(doubtful)
    parts += [f"Below the margin: {listed(quiet)}."] * bool(quiet)
    return " ".join(parts)


def _of_others(found: Found, most: int) -> str:
    parts = []
    for adversary in (a for a in found.tested if a != found.leak.adversary):
        cells = sorted(plain(adversary.open(found.base)), key=lambda c: gravity(c.metric))
        if cells and most:
            can = " and ".join(said.can(c) for c in cells[:most])
            parts.append(f"{adversary.name} can {can}")
    return said.capital("; ".join(parts)) + "." if parts else ""


def _notes(found: Found) -> Iterator[Line]:
    u = found.utility
    if u.fallen:
        fallen, used = measure(u.fallen).head, measure(u.metric).head
        yield Line(
            "NOTE",
            f"{fallen} is undefined in {u.lacking} of {many(u.seeds, 'seed')} (a held-out set "
            f"lacks one class); prices are in {used}.",
        )
    elif u.few:
        yield Line("NOTE", u.few)
    for what, why in (("No guarantee as spent", ("void", ActedOnNothing.kind)),
                      ("More was measured than spent", (REFUTED,))):  # fmt: skip
        void = [said.short(d.spec) for d in found.defenses if d.void in why]
        if void:
            yield Line("NOTE", f"{what}: {said.some(void, 2)}.")


def untested(found: Found) -> str:
    """Say what a reader could still ask for."""
    gaps = found.untested
    parts = ["the rest of this run (--resume)"] if gaps.unfinished else []
    if gaps.failed:
        names = dict.fromkeys(name.partition("[")[0] for name, _ in gaps.failed)
        parts.append(f"attacks that failed ({said.some([*names], 2)})")
    if gaps.no_claim:
        names = dict.fromkeys(name.partition("[")[0] for name, _ in gaps.no_claim)
        parts.append(f"attacks that returned no claim ({said.some([*names], 2)})")
    if gaps.adversaries:
        parts.append(listed([name for name, _ in gaps.adversaries]))
    if gaps.defenses:
        parts.append(f"{many(len(gaps.defenses), 'defense')} that fit")
    if gaps.cut:
        names = dict.fromkeys(name.partition("[")[0] for name in gaps.cut)
        whose = "its" if len(names) == 1 else "their"
        parts.append(f"{listed([*names])} beyond {whose} search limit")
    return said.capital("; ".join(parts)) + "." if parts else ""


def _also(found: Found) -> Line:
    where = found.setting.protocol.partition("[")[0]
    lead = found.leak
    if lead.kind != "leak" or lead.cell is None or lead.adversary is None:
        return Line("ALSO", f"{where}: {leak(found)}")
    text = f"{where}: {lead.adversary.name} can {said.can(lead.cell)}"
    use = found.use
    if use is None:
        return Line("ALSO", f"{text}; nothing tried helps.")
    return Line(
        "ALSO", f"{text}; {said.short(use.name)}: {_effect(found, use) or 'see the report.'}"
    )


def _attack(cell: Cell) -> str:
    return cell.attacks[0].partition("[")[0] if cell.attacks else "no attack"


def said_of(adversary: Adversary | None) -> str:
    """Return an adversary in words."""
    return adversary.name if adversary else "nobody"


def _stay(adversaries: Sequence[Adversary]) -> str:
    return "stay" if len(adversaries) > 1 or any(a.several for a in adversaries) else "stays"
