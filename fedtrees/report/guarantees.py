"""Classify privacy guarantees, and compare what was claimed, spent and measured.

A guarantee is *claimed* by a protocol and its defense, *spent* according to the accountant that
composed the noise that was actually drawn, and *measured* as a lower bound by an audit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from fedtrees.core.guarantee import (
    ActedOnNothing,
    ApproximateDP,
    AtLeast,
    Computational,
    Guarantee,
    NoGuarantee,
    PureDP,
    Structural,
    epsilon_in_words,
    join,
    show,
    written,
)
from fedtrees.privacy_audit.bounds import bound_of_counts

Kind = Literal["proved", "void", "computational", "structural", "none", "unknown"]
# None if the run states no guarantee.
Stated = tuple[Guarantee, ...] | None
Bound = tuple[str, float, Guarantee]

KINDS: dict[Kind, str] = {
    "proved": "bound claimed (DP, mutual information)",
    "void": "bound claimed, but unbounded as spent, or refuted",
    "computational": "computational",
    "structural": "structural",
    "none": "no claim",
    "unknown": "claim not known",
}
#: Failure of a claim: an audit measured more than the claimed bound permits.
REFUTED = "refuted"
#: Permitted probability that a correct claim is refuted.
_RISK = 0.05
_STRENGTH: tuple[Kind, ...] = ("proved", "computational", "structural", "none", "unknown")


@dataclass(frozen=True)
class DefenseGuarantees:
    """Guarantees of one defense: as claimed, as composed by an accountant, as measured by an audit.

    Attributes
    ----------
    claimed, spent, measured : tuple of tuple of Guarantee
        The distinct guarantees over all seeds and threats. More than one entry means that they
        differ.
    combined : tuple of Guarantee or None
        The lower bound that the audits of all seeds show together (`combine_audits`), None without
        an audit.
    """

    claimed: tuple[tuple[Guarantee, ...], ...]
    spent: tuple[tuple[Guarantee, ...], ...]
    measured: tuple[tuple[Guarantee, ...], ...]
    combined: Stated = None

    @classmethod
    def of_rows(cls, rows: pd.DataFrame, n_audited: int = 1) -> DefenseGuarantees:
        """Collect the guarantees of one defense from its training and attack rows in a setting.

        `n_audited` is the number of audited defenses of the setting.
        """
        claimed, spent, measured = (
            tuple(sorted({g for g in rows[c] if g}, key=join))
            for c in ("claimed", "spent", "measured")
        )
        # A seed is audited once, and its result is repeated in every row of the seed.
        audits = rows[rows["measured"].map(bool)].drop_duplicates("seed")["measured"]
        return cls(claimed, spent, measured, combine_audits([*audits], n_audited))

    @property
    def _compared(self) -> tuple[Stated, Stated, Stated]:
        """The largest claimed, the largest spent and the measured guarantee of all seeds."""
        return _largest_stated(self.claimed), _largest_stated(self.spent), self.combined

    @property
    def kind(self) -> Kind:
        """The kind of the claim (`standing`)."""
        return standing(*self._compared)

    @property
    def refuted(self) -> bool:
        """Whether an audit measured more than the guarantee permits."""
        return refuted(*self._compared)

    @property
    def verdict(self) -> str:
        """Comparison of the three in words (`compare`), "" if there is nothing to report."""
        differs = any(len(distinct) > 1 for distinct in (self.claimed, self.spent, self.measured))
        remarks = [compare(*self._compared), "differs between seeds or threats" * differs]
        return "; ".join(filter(None, remarks))

    @property
    def claim(self) -> str:
        """The claim as text. A defense that changed no message in a run has no claim."""
        claimed, spent = next(iter(self.claimed), None), next(iter(self.spent), None)
        if any(isinstance(g, ActedOnNothing) for g in spent or ()):
            return ActedOnNothing.kind
        return join(claimed) if claimed else ""

    @property
    def failure(self) -> str:
        """Why a claimed guarantee is not kept, "" if it is.

        "void": the accountant found no finite bound. `REFUTED`: an audit measured more. The kind of
        `ActedOnNothing`: the defense changed no message.
        """
        spent = [g for terms in self.spent for g in terms]
        if any(isinstance(g, ActedOnNothing) for g in spent):
            return ActedOnNothing.kind
        bounded = any(g.budget for terms in self.claimed for g in terms)
        if bounded and any(g.budget and math.isinf(g.budget[1]) for g in spent):
            return "void"
        return REFUTED if self.refuted else ""


def _largest_stated(several: Sequence[tuple[Guarantee, ...]]) -> Stated:
    """Return the guarantee with the largest budget: pooled audits refute only that one."""
    return max(several, key=lambda g: (_bound(g) or ("", 0.0))[1], default=None)


def combine_audits(audits: Sequence[tuple[Guarantee, ...]], n_audited: int = 1) -> Stated:
    """Combine the audits of independent seeds into one lower bound with 95% confidence.

    The largest of k bounds, each with 95% confidence, is wrong with a probability of up to
    ``1 - 0.95**k``. Therefore the numbers of correct guesses are added up over the seeds, whose
    coin flips are independent (Steinke, Nasr and Jagielski 2023, Theorem 5.2). This is more
    powerful than a Bonferroni correction over seeds. The audits of several defenses use the same
    coin flips. The risk of 5% is therefore divided among the defenses (Bonferroni), so that a
    statement about all defenses of a setting holds with 95% confidence.

    Results of earlier versions contain no numbers of guesses. Of these, the j-th largest bound is
    returned, with the smallest j such that j or more of k independent bounds are wrong with at most
    the permitted probability.

    Parameters
    ----------
    audits : sequence of tuple of Guarantee
        Measured guarantees, one for each seed.
    n_audited : int
        Number of audited defenses of the setting.

    Returns
    -------
    combined : tuple of Guarantee or None
        None without an audit. A measured guarantee that is not an `AtLeast` is exact, and the
        largest one is returned.
    """
    bounds = [g[0] for g in audits if isinstance(g[0], AtLeast)]
    if len(bounds) < len(audits) or not bounds:
        return max(audits, key=lambda g: g[0].budget or ("", 0.0), default=None)
    first, risk = bounds[0], _RISK / n_audited
    comparable = {(b.unit, b.delta, len(b.guesses)) for b in bounds}
    if first.guesses and len(comparable) == 1:
        columns = zip(*(map(_read_count, b.guesses) for b in bounds), strict=True)
        counts = [(sum(c for c, _ in column), sum(n for _, n in column)) for column in columns]
        n_canaries = sum(b.canaries for b in bounds)
        options = {"confidence": 1 - risk, "delta": first.delta}
        epsilon = bound_of_counts(counts, n_canaries, **options)
        highest = bound_of_counts([(n, n) for _, n in counts], n_canaries, **options)
        return (replace(first, epsilon=epsilon, most=max(round(highest, 3), 0.0), guesses=(),
                        runs=sum(b.runs for b in bounds), canaries=n_canaries),)  # fmt: skip
    ranked = sorted(bounds, key=lambda b: -b.epsilon)
    for j, bound in enumerate(ranked, 1):
        n_wrong = range(j, len(ranked) + 1)
        chance = sum(math.comb(len(ranked), i) * _RISK**i * (1 - _RISK) ** (len(ranked) - i)
                     for i in n_wrong)  # fmt: skip
        if chance <= risk * (1 + 1e-9):
            return (bound,)
    return (replace(ranked[-1], epsilon=0.0),)


def _read_count(text: str) -> tuple[int, int]:
    """Read the numbers of correct guesses and of guesses, for example ``40of60``."""
    correct, _, guesses = text.partition("of")
    return int(correct), int(guesses)


def span(several: Sequence[tuple[Guarantee, ...]]) -> str:
    """Write the guarantees of several runs as one text, with a range if only a number differs.

    For example, ``pure-dp[epsilon=3]`` and ``pure-dp[epsilon=5]`` become ``pure-dp[epsilon=3..5]``.
    """
    shapes = {tuple((g.kind, *g.stated) for g in guarantees) for guarantees in several}
    terms = (
        [_span_of_term(column) for column in zip(*several, strict=True)] if len(shapes) == 1 else []
    )
    present = [t for t in terms if t is not None]
    return "+".join(present) if len(present) == len(terms) > 0 else " | ".join(map(join, several))


def _span_of_term(column: Sequence[Guarantee]) -> str | None:
    """Write one guarantee of every run, None if the runs differ in more than numbers."""
    if len(set(column)) == 1 and not isinstance(column[0], AtLeast):
        return str(column[0])
    ranges = {}
    for key in column[0].stated:
        values = {g.stated[key] for g in column}
        if len(values) > 1 and not all(isinstance(v, (int, float)) for v in values):
            return None
        ends = dict.fromkeys((show(min(values)), show(max(values))))  # type: ignore[type-var]
        ranges[key] = "..".join(ends)
    if isinstance(column[0], AtLeast):
        delta_text = f", delta={ranges['delta']}" if "delta" in ranges else ""
        limit_text = f" (at most {ranges['most']} could be shown)" if "most" in ranges else ""
        return f"epsilon >= {ranges['epsilon']}{delta_text}{limit_text}"
    return written(column[0].kind, ranges)


def kind(guarantees: Stated) -> Kind:
    """Return the strongest kind among guarantees, "unknown" if nothing is stated."""
    kinds = {_kind_of_term(g) for g in guarantees or ()} or {"unknown"}
    return next(k for k in _STRENGTH if k in kinds)


def _kind_of_term(g: Guarantee) -> Kind:
    """Return the kind of one guarantee."""
    # Differential privacy of the cut points does not bound the leak of a model that is trained on
    # them.
    if g.budget:
        return "structural" if _of_cuts(g) else "proved"
    named: dict[type[Guarantee], Kind] = {
        Computational: "computational", Structural: "structural", NoGuarantee: "none"
    }  # fmt: skip
    return next(
        (name for guarantee_type, name in named.items() if isinstance(g, guarantee_type)), "unknown"
    )


def standing(claimed: Stated, spent: Stated, measured: Stated = None) -> Kind:
    """Return the kind of a claim.

    It is "void" instead of "proved" if the accountant found no finite bound or an audit refutes it.
    """
    used = _bound(spent)
    unbounded = used is not None and math.isinf(used[1])
    if kind(claimed) == "proved" and (unbounded or refuted(claimed, spent, measured)):
        return "void"
    return kind(claimed)


def refuted(claimed: Stated, spent: Stated, measured: Stated) -> bool:
    """Return whether an audit measured a larger budget than the accountant composed.

    If no accountant ran, the measured budget is compared with the claimed one.
    """
    base, seen = _budget_for_outsiders(_bound(spent) or _bound(claimed)), _bound(measured)
    return bool(base and seen and _exceeds(base, seen))


def _budget_for_outsiders(bound: Bound | None) -> Bound | None:
    """Return the budget against outsiders, because the auditor only receives the released model."""
    outsider = 0.0 if bound is None else getattr(bound[2], "outsider", 0.0)
    return (bound[0], outsider, bound[2]) if bound is not None and outsider else bound


def _exceeds(base: Bound, other: Bound) -> bool:
    """Return whether another budget of the same name and unit is larger."""
    unit, unit2 = (getattr(b[2], "unit", "") for b in (base, other))
    comparable = base[0] == other[0] and (not unit or not unit2 or unit == unit2)
    # The factor tolerates rounding errors of the composition.
    return comparable and other[1] > base[1] * (1 + 1e-9)


def compare(claimed: Stated, spent: Stated, measured: Stated) -> str:
    """Describe how the claimed, the spent and the measured guarantee of a defense are related.

    Two budgets are compared only if they have the same name. If their units of neighbouring data
    sets differ (for example, a record and a party), the text states both units, because the numbers
    have different meanings.

    Parameters
    ----------
    claimed, spent, measured : tuple of Guarantee or None
        The three guarantees, None if a run states nothing.

    Returns
    -------
    text : str
        Remarks, joined by semicolons. "" if there is none.
    """
    notes = []
    claim, used, seen = _bound(claimed), _bound(spent), _bound(measured)
    if claimed and spent and kind(claimed) != kind(spent):
        notes.append(f"claimed {KINDS[kind(claimed)]}, spent {KINDS[kind(spent)]}")
    elif claim and used:
        notes += _compare_budgets(claim, used, "spent", "weaker than the claim")
    # The spent budget is preferred, because it is computed from the noise that was really drawn.
    base = _budget_for_outsiders(used or claim)
    if base and seen:
        notes += _compare_budgets(base, seen, "measured", "the audit contradicts it")
        measurable = getattr(seen[2], "most", 0.0)
        if 0 < measurable < base[1] < math.inf and not _exceeds(base, seen):
            notes.append(f"no more than {seen[0]}={measurable:g} could have been measured")
    if (
        claim
        and used
        and seen
        and seen[1] > claim[1]
        and claim[0] == seen[0]
        and used[1] > claim[1]
    ):
        unit = getattr(claim[2], "unit", "record")
        notes.append(
            f"the audit shows {seen[0]}={seen[1]:g} per record, not {claim[1]:g} per {unit}"
        )
    if not spent and kind(claimed) == "proved":
        notes.append("not accounted: the claim was not compared with the noise of the run")
    return "; ".join(notes)


def _bound(guarantees: Stated) -> Bound | None:
    """Return (key, budget, guarantee) of the first guarantee with a budget.

    A budget that covers only cut points is used if there is no other one.
    """
    # False sorts before True, so that guarantees of cut points come last.
    bounded = sorted((g for g in guarantees or () if g.budget), key=_of_cuts)
    return next(((*g.budget, g) for g in bounded if g.budget), None)


def in_words(guarantees: Sequence[tuple[Guarantee, ...]], *, brief: bool = False) -> str:
    """Explain each finite epsilon: against which adversaries, and which neighbouring relation.

    Parameters
    ----------
    guarantees : sequence of tuple of Guarantee
        Guarantees of one or several runs. Of several runs, the one with the largest epsilon is
        described.
    brief : bool
        Whether to name only the suitable neighbouring relation, and to omit other coalitions and
        the epsilon of the cut points.
    """
    columns = zip(*guarantees, strict=True) if len({len(s) for s in guarantees}) == 1 else ()
    phrases = []
    for column in columns:
        bounded = [g for g in column if isinstance(g, PureDP | ApproximateDP)]
        largest = max(bounded, key=lambda g: g.epsilon, default=None)
        if largest is not None and math.isfinite(largest.epsilon):
            if brief and _of_cuts(largest):  # the epsilon of the model includes them
                continue
            phrases.append(epsilon_in_words(largest, brief=brief))
    return "; ".join(phrases)


def _of_cuts(g: Guarantee) -> bool:
    """Return whether a guarantee covers the cut points only."""
    return getattr(g, "unit", "") == "cuts"


def _compare_budgets(base: Bound, other: Bound, who: str, verdict: str) -> list[str]:
    """Compare a second budget with a base budget in words.

    The list is empty if the second budget is not larger.
    """
    (key, budget, term), (key2, budget2, term2) = base, other
    if key != key2:
        return [f"{who} in {key2}, stated in {key}: not comparable"]
    if math.isinf(budget2) and math.isfinite(budget):
        unprotected = getattr(term2, "unprotected", ())
        reason = f"; not protected: {'+'.join(unprotected)}" if unprotected else ""
        return [f"{who} is unbounded ({key}=inf), so that the claim is not kept{reason}"]
    unit, unit2 = (getattr(t, "unit", "") for t in (term, term2))
    if unit and unit2 and unit != unit2:
        return [f"{key}={budget:g} per {unit}; {who} {key}={budget2:,g} per {unit2}"]
    if _exceeds(base, other):
        times = f" ({budget2 / budget:,.4g} times)" if 0 < budget < math.inf else ""
        return [f"{who} {key}={budget2:g} exceeds {key}={budget:g}{times}: {verdict}"]
    return []
