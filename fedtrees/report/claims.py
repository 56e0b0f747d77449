"""Read guarantees written inline: what kind they are, and whether one is weaker than another."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["proved", "void", "computational", "structural", "none", "unknown"]

KINDS: dict[Kind, str] = {
    "proved": "bound claimed (DP, mutual information)",
    "void": "bound claimed, but unbounded as spent",
    "computational": "computational",
    "structural": "structural",
    "none": "no claim",
    "unknown": "claim not known",
}
_NUMBER = re.compile(r"(?<==)([0-9.eE+-]+)")
_STRENGTH: tuple[Kind, ...] = ("proved", "void", "computational", "structural", "none", "unknown")


@dataclass(frozen=True)
class Term:
    """One guarantee, e.g. ``pure-dp[epsilon=4,unit=histogram]``."""

    name: str
    params: tuple[tuple[str, str], ...] = ()

    @property
    def kind(self) -> Kind:
        """Which of the five kinds of claim this is."""
        if self.name in ("none", "structural", "computational"):
            return self.name  # type: ignore[return-value]
        words = self.name.replace("_", "-").split("-")
        bounds = {"dp", "ldp", "zcdp", "rdp", "gdp", "mi", "information", "xi"}
        return "proved" if bounds & set(words) else "unknown"

    def number(self, key: str) -> float:
        """Return a numeric parameter, NaN if it is absent or not a number."""
        try:
            return float(dict(self.params)[key])
        except (KeyError, ValueError):
            return math.nan

    @property
    def unit(self) -> str:
        """What neighbouring data sets differ in, "" if the text does not say."""
        return dict(self.params).get("unit", "")


def span(texts: Sequence[str]) -> str:
    """Write guarantees of several runs as one, with a range where only a number differs.

    ``("pure-dp[epsilon=3]", "pure-dp[epsilon=5]")`` is ``pure-dp[epsilon=3..5]``.
    """
    pieces = [_NUMBER.split(t) for t in texts]
    if not texts or len({tuple(p[::2]) for p in pieces}) > 1:
        return " | ".join(texts)
    out = []
    for at, column in enumerate(zip(*pieces, strict=True)):
        distinct = sorted(set(column), key=float) if at % 2 else column[:1]
        out.append(distinct[0] if len(distinct) == 1 else f"{distinct[0]}..{distinct[-1]}")
    return "".join(out)


def parts(text: str) -> tuple[str, ...]:
    """Split a composed guarantee at its plus signs, those inside brackets left alone."""
    found, depth, start = [], 0, 0
    for at, char in enumerate(text + "+"):
        depth += (char == "[") - (char == "]")
        if char == "+" and depth <= 0:
            found.append(text[start:at].strip())
            start = at + 1
    return tuple(p for p in found if p)


def parse(text: str) -> tuple[Term, ...]:
    """Read a guarantee such as ``structural+pure-dp[epsilon=4]``; the empty text has no term."""
    return tuple(_term(p) for p in parts(text))


def _term(text: str) -> Term:
    name, bracket, inside = text.partition("[")
    pairs = inside.rstrip("]").split(",") if bracket else []
    split = (p.partition("=") for p in pairs if p.strip())
    return Term(name.strip(), tuple((k.strip(), v.strip()) for k, _, v in split))


def kind(text: str) -> Kind:
    """Return the strongest kind a guarantee text holds; "unknown" for the empty text."""
    kinds = {t.kind for t in parse(text)} or {"unknown"}
    return next(k for k in _STRENGTH if k in kinds)


def standing(claimed: str, spent: str) -> Kind:
    """Return the kind of a claim, "void" where its accountant found no bound at all."""
    used = _bound(spent)
    if kind(claimed) == "proved" and used and math.isinf(used[1]):
        return "void"
    return kind(claimed)


def compare(claimed: str, spent: str, measured: str) -> str:
    """Say in words how the three guarantees of a defense stand to each other.

    A budget is compared only with a budget of the same name; where the neighbouring units
    differ the text says so, because the numbers then do not mean the same.
    """
    notes = []
    ours, used, seen = _bound(claimed), _bound(spent), _bound(measured)
    if claimed and spent and kind(claimed) != kind(spent):
        notes.append(f"claimed {KINDS[kind(claimed)]}, spent {KINDS[kind(spent)]}")
    elif ours and used:
        notes += _against(ours, used, "spent", "weaker than the claim")
    base = used or ours
    if base and seen:
        notes += _against(base, seen, "measured", "the audit contradicts it")
    if not spent and kind(claimed) == "proved":
        notes.append("not accounted: the claim was not checked against what was spent")
    return "; ".join(notes)


def _bound(text: str) -> tuple[str, float, Term] | None:
    """Return (key, budget, term) of the first bounded term."""
    for term in parse(text):
        for key in ("epsilon", "xi", "rho", "mu"):
            if not math.isnan(term.number(key)):
                return key, term.number(key), term
    return None


def _against(
    base: tuple[str, float, Term], other: tuple[str, float, Term], who: str, verdict: str
) -> list[str]:
    (key, budget, term), (key2, budget2, term2) = base, other
    if key != key2:
        return [f"{who} in {key2}, stated in {key}: not comparable"]
    if math.isinf(budget2) and math.isfinite(budget):
        left = dict(term2.params).get("unprotected", "")
        why = f"; not protected: {left}" if left else ""
        return [f"{who} is unbounded ({key}=inf), the claim does not hold{why}"]
    if term.unit and term2.unit and term.unit != term2.unit:
        return [f"{key}={budget:g} per {term.unit}; {who} {key}={budget2:,g} per {term2.unit}"]
    if budget2 > budget * (1 + 1e-9):
        times = f" ({budget2 / budget:,.4g} times)" if 0 < budget < math.inf else ""
        return [f"{who} {key}={budget2:g} exceeds {key}={budget:g}{times}: {verdict}"]
    return []
