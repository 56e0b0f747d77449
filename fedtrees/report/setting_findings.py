"""Data classes for the findings of a run, which the terminal, the page and JSON present.

`fedtrees.report.findings` computes them. `RunFindings` contains one `SettingFindings` per setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fedtrees.core.results import ALONE, measure
from fedtrees.core.specs import parse_one
from fedtrees.report.cost import Price, Utility
from fedtrees.report.leakage import MARGIN, SETTLED, Cell, Reader, gravity, plain
from fedtrees.report.recipe import Candidate, Recommendation, helps
from fedtrees.report.results import UNDEFENDED, Setting
from fedtrees.report.statistics import finite
from fedtrees.report.tables import Cost, Guarantees

REFUTED = "refuted"  # an audit measured more than the claimed bound permits
Kind = Literal["leak", "trace", "none-found", "none-clear", "attack-failed", "unknown", "no-attack"]


def gravest(cell: Cell) -> tuple[float, float, float]:
    """Return a sort key of cells that puts the gravest leak, and the largest advantage, first."""
    return *gravity(cell.metric), -finite(cell.advantage.mean)


@dataclass(frozen=True)
class Adversary:
    """An adversary of a setting, attacked or not.

    Attributes
    ----------
    threat : str
        Threat in the notation of the command line.
    name : str
        Description in words.
    several : bool
        Whether the adversary consists of more than one party.
    sees : tuple of str
        Types of messages that the adversary can read, in words.
    reader : Reader or None
        Cells of the adversary, None if its view was not attacked.
    base : str
        The defense with which other defenses are compared (`base_of`).
    """

    threat: str
    name: str
    several: bool = False
    sees: tuple[str, ...] = ()
    reader: Reader | None = None
    base: str = UNDEFENDED

    @property
    def tested(self) -> bool:
        """Whether the view of the adversary was attacked."""
        return self.reader is not None

    @property
    def metrics(self) -> tuple[str, ...]:
        """Keys of its measures, without those that another measure expresses more clearly."""
        here = self.reader.metrics if self.reader else ()
        return tuple(m for m in here if not {*here} & {*measure(m).beside})

    def cell(self, defense: str, metric: str) -> Cell:
        """Return the cell of a defense and a measure."""
        return self.reader.cell(defense, metric) if self.reader else Cell(metric)

    def leading(self) -> Cell | None:
        """Return the gravest open cell: by class, then severity, then advantage.

        None if none is open.
        """
        return min(self.open(self.base), key=gravest, default=None)

    def open(self, defense: str) -> list[Cell]:
        """Return the open cells under a defense, the gravest first.

        If two measures express the same leak, only the clearer one is returned.
        """
        cells = [c for c in (self.reader.of(defense) if self.reader else ()) if c.state == "open"]
        return sorted(plain(cells), key=gravest)


def base_of(specs: Sequence[str]) -> str:
    """Return the undefended run, or the first defense if the protocol never trains without one."""
    return UNDEFENDED if UNDEFENDED in specs or not specs else specs[0]


@dataclass(frozen=True)
class Defended:
    """Results of one defense in a setting.

    Attributes
    ----------
    spec : str
        Name of the defense.
    label : str
        A letter, or "0" for the undefended run.
    price : Price
        Change in utility.
    cost : Cost
        Traffic, rounds and time.
    guarantees : Guarantees
        Claimed, spent and measured guarantee.
    void : str
        Why a claimed guarantee is not kept: "void" if the accountant found no finite bound,
        `REFUTED`, or the kind of `ActedOnNothing`. "" otherwise.
    """

    spec: str
    label: str
    price: Price
    cost: Cost
    guarantees: Guarantees
    void: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts with their parameters, in the notation of the command line."""
        return tuple(str(p) for p in parse_one(self.spec).parts)


@dataclass(frozen=True)
class Leak:
    """The main finding without a defense: its kind, the adversary and the cell.

    Attributes
    ----------
    kind : str
        "leak": a cell is open. "trace": every cell is settled, and an advantage is above zero but
        below the margin. "none-found": every cell is settled, and no advantage is above zero.
        "none-clear": a cell is not settled. "attack-failed": a cell is not settled, and the
        strongest attack on such cells scored worse than its baseline. "unknown": no cell that is
        not settled has a score, because the attacks failed or returned no claim. "no-attack": there
        is no cell.
    adversary : Adversary or None
        The adversary of the cell.
    cell : Cell or None
        The gravest cell, if the kind refers to one.
    """

    kind: Kind
    adversary: Adversary | None = None
    cell: Cell | None = None


@dataclass(frozen=True)
class Untested:
    """Parts of a setting that were not tested.

    Attributes
    ----------
    adversaries : tuple of (str, str)
        Roles whose view was not attacked: description, and threat for the command line.
    defenses : tuple of str
        Defenses that fit the protocol and did not run.
    attacks : tuple of str
        Attacks that apply and did not run.
    cut : tuple of str
        Attacks that stopped at the limit of their search.
    failed : tuple of (str, str)
        Attacks that failed or ran out of time, with the reason.
    unfit : tuple of (str, str)
        Requested defenses that do not fit the protocol, with the reason.
    unfinished : bool
        Whether the run is not finished.
    no_claim : tuple of (str, str)
        Attacks that ran and returned no claim, with the reason.
    failed_trainings : tuple of (str, str)
        Defenses whose training failed or ran out of time, with the reason.
    """

    adversaries: tuple[tuple[str, str], ...] = ()
    defenses: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    unfit: tuple[tuple[str, str], ...] = ()
    unfinished: bool = False
    no_claim: tuple[tuple[str, str], ...] = ()
    failed_trainings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SettingFindings:
    """All findings of one setting.

    Attributes
    ----------
    setting : Setting
        Dataset, partition and protocol.
    seeds : int
        Number of seeds.
    utility : Utility
        The metric of prices.
    undefended : float
        Mean utility without a defense, NaN if it is not known.
    alone : mapping of str to float
        Mean utility of the references by name: training on local data only, and the constant model.
    adversaries : tuple of Adversary
        The attacked ones first.
    defenses : tuple of Defended
        All defenses that fit, the undefended run first.
    recommendation : Recommendation
        All recipes, the best first.
    untested : Untested
        Gaps of this setting.
    margin : float
        Largest advantage that counts as no better than a blind guess.
    """

    setting: Setting
    seeds: int
    utility: Utility
    undefended: float
    alone: Mapping[str, float]
    adversaries: tuple[Adversary, ...]
    defenses: tuple[Defended, ...]
    recommendation: Recommendation
    untested: Untested
    margin: float = MARGIN

    @property
    def tested(self) -> tuple[Adversary, ...]:
        """The adversaries whose view was attacked."""
        return tuple(a for a in self.adversaries if a.tested)

    def defended(self, spec: str) -> Defended | None:
        """Return the results of a defense, None if it belongs to another setting or did not run."""
        return next((d for d in self.defenses if d.spec == spec), None)

    @cached_property
    def base(self) -> str:
        """The defense with which other defenses are compared (`base_of`)."""
        return base_of([d.spec for d in self.defenses])

    @cached_property
    def leak(self) -> Leak:
        """The main finding without a defense."""
        return _leak(self)

    @cached_property
    def use(self) -> Candidate | None:
        """The recipe that the report names.

        It is the recommended one, or, if no recipe resists all attacks, the best one that helps
        (`helping`). It is None in three cases: there is no undefended run, no cell is open without
        a defense (doing nothing is then sufficient and free), or no recipe helps.
        """
        if self.base != UNDEFENDED or not any(a.open(UNDEFENDED) for a in self.tested):
            return None
        return self.recommendation.choice or next(iter(self.helping), None)

    @cached_property
    def helping(self) -> tuple[Candidate, ...]:
        """The recipes that are shown to help in this setting, without a clear loss.

        The best recipe comes first.
        """
        every = self.recommendation.candidates
        return tuple(c for c in every if c.price.tier < 2 and self._helps(c.name))

    def _helps(self, name: str) -> bool:
        """Return whether a recipe removes a leak of some adversary, or clearly reduces one."""
        candidate = next(c for c in self.recommendation.candidates if c.name == name)
        after = {t.place: t.cells for t in candidate.trials}
        return any(
            helps(a.reader.of(UNDEFENDED), after.get(a.threat, ()), self.margin)
            for a in self.tested
            if a.reader is not None
        )

    @cached_property
    def recipe(self) -> str:
        """Name of the recipe if it is a defense of this setting, "" if it is another protocol."""
        return self.use.name if self.use and self.defended(self.use.name) else ""

    @cached_property
    def stricter(self) -> Candidate | None:
        """A recipe that is shown to expose fewer persons than `use`.

        None if there is no such recipe or `use` exposes no person. A recipe against which attacks
        on persons failed is not shown to expose fewer.
        """
        if self.use is None:
            return None
        exposed = max((c.weight for _, c in self.use.open if _of_person(c)), default=0.0)
        better = [c for c in self.helping if c.left("person") < exposed]
        return min(better, key=lambda c: c.left("person"), default=None)


@dataclass(frozen=True)
class RunFindings:
    """Findings of a run.

    Attributes
    ----------
    settings : tuple of SettingFindings
        The setting with the gravest leak first.
    margin : float
        Largest advantage that counts as no better than a blind guess.
    version : str
        Versions of fedtrees that wrote the rows.
    """

    settings: tuple[SettingFindings, ...]
    margin: float
    version: str = ""


def _of_person(cell: Cell) -> bool:
    """Return whether a cell is about persons."""
    return measure(cell.metric).klass == "person"


def local(findings: SettingFindings) -> float:
    """Return the utility of a model that a party trains on its local data only."""
    return next((findings.alone[name] for name in ALONE if name in findings.alone), math.nan)


def _leak(findings: SettingFindings) -> Leak:
    """Return the main finding without a defense.

    If no cell is open, the kind describes how much is known about the remaining cells.
    """
    leading = [(a, c) for a in findings.tested if (c := a.leading()) is not None]
    if leading:
        adversary, cell = min(leading, key=lambda x: gravest(x[1]))
        return Leak("leak", adversary, cell)
    # No cell is open here. The remaining kinds state how much is known.
    cells = [
        (a, c) for a in findings.tested if a.reader is not None for c in a.reader.of(findings.base)
    ]
    if not any(c.state in ("shut", "unsettled", "unknown") for _, c in cells):
        return Leak("no-attack")
    if all(c.state in SETTLED for _, c in cells):
        traces = [(a, c) for a, c in cells if c.advantage.low > 0]
        if traces:
            # The interval excludes zero, but the advantage is below the margin.
            return Leak("trace", *min(traces, key=lambda x: gravest(x[1])))
        return Leak("none-found")
    scored = [(a, c) for a, c in cells if c.state == "unsettled" and c.scores]
    if not scored:
        return Leak("unknown")  # every attack on these cells failed or returned no claim
    adversary, cell = max(scored, key=lambda x: finite(x[1].advantage.mean))
    return Leak("attack-failed" if cell.below_baseline else "none-clear", adversary, cell)
