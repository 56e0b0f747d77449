"""What a run found, as the terminal, the page and JSON write it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fedtrees.core.columns import measure
from fedtrees.core.rows import ALONE
from fedtrees.core.specs import parse_one
from fedtrees.report.intervals import finite
from fedtrees.report.price import Price, Utility
from fedtrees.report.recipe import Candidate, Recommendation, helps
from fedtrees.report.rows import UNDEFENDED, Setting
from fedtrees.report.states import MARGIN, SETTLED, Cell, Reader, gravity, plain
from fedtrees.report.tables import Cost, Guarantees

REFUTED = "refuted"  # a bound, by an audit
Kind = Literal["leak", "trace", "none-found", "none-clear", "attack-failed", "unknown", "no-attack"]


def gravest(cell: Cell) -> tuple[float, float, float]:
    return *gravity(cell.metric), -finite(cell.advantage.mean)


@dataclass(frozen=True)
class Adversary:
    """One threat of a setting.

    `name`: In words. `several`: Whether it is more than one party. `sees`: Kinds of messages that
    it reads, in words. `reader`: Its cells; None where its view was not attacked. `base`: The
    defense that others stand beside (`base_of`).
    """

    threat: str
    name: str
    several: bool = False
    sees: tuple[str, ...] = ()
    reader: Reader | None = None
    base: str = UNDEFENDED

    @property
    def tested(self) -> bool:
        """Whether its view was attacked."""
        return self.reader is not None

    @property
    def metrics(self) -> tuple[str, ...]:
        """By what it is judged, without what another measure tells more plainly."""
        here = self.reader.metrics if self.reader else ()
        return tuple(m for m in here if not {*here} & {*measure(m).beside})

    def cell(self, defense: str, metric: str) -> Cell:
        """Return a cell of it."""
        return self.reader.cell(defense, metric) if self.reader else Cell(metric)

    def leading(self) -> Cell | None:
        """Return what it reads most: open cells by class, then severity, then advantage."""
        return min(self.open(self.base), key=gravest, default=None)

    def open(self, defense: str) -> list[Cell]:
        """Return what it reads under a defense, each thing once, the worst first."""
        cells = [c for c in (self.reader.of(defense) if self.reader else ()) if c.state == "open"]
        return sorted(plain(cells), key=gravest)


def base_of(specs: Sequence[str]) -> str:
    """Return the undefended run, or the first that trained where none does without a defense."""
    return UNDEFENDED if UNDEFENDED in specs or not specs else specs[0]


@dataclass(frozen=True)
class Defended:
    """One defense of a setting.

    `label`: A letter, "0" of the undefended run. `void`: Whether a bound that was claimed is
    none as spent, or refuted, or nothing was acted on.
    """

    spec: str
    label: str
    price: Price
    cost: Cost
    guarantees: Guarantees
    void: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts as they are typed."""
        return tuple(str(p) for p in parse_one(self.spec).parts)


@dataclass(frozen=True)
class Leak:
    """The main finding without a defense: its kind, the adversary and the cell.

    `kind`: "leak", an open cell; "trace", everything settled and an advantage below the margin that
    is above zero; "none-found", everything settled; "none-clear", a cell is not settled;
    "attack-failed", and in all such cells the attack scored worse than its baseline; "unknown", all
    such cells lack the result of an attack; "no-attack", there is no cell.
    """

    kind: Kind
    adversary: Adversary | None = None
    cell: Cell | None = None


@dataclass(frozen=True)
class Untested:
    """What a reader could still ask for.

    `adversaries`: Names of roles whose view was not attacked, with the threat to give. `defenses`:
    Names of defenses that fit and did not run. `cut`: Attacks that stopped at a limit. `failed`:
    Attacks that failed, and why. `no_claim`: Attacks that ran and returned no claim, and why.
    `unfit`: Defenses that were asked for and do not fit, and why.
    `unfinished`: Whether the run has not come to its end.
    """

    adversaries: tuple[tuple[str, str], ...] = ()
    defenses: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    unfit: tuple[tuple[str, str], ...] = ()
    unfinished: bool = False
    no_claim: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Found:
    """Everything that is said of one setting."""

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
        """Return one defense, None where it is not of this setting."""
        return next((d for d in self.defenses if d.spec == spec), None)

    @cached_property
    def base(self) -> str:
        """The defense that others stand beside: none, where the protocol trains without."""
        return base_of([d.spec for d in self.defenses])

    @cached_property
    def leak(self) -> Leak:
        """What leads undefended."""
        return _leak(self)

    @cached_property
    def use(self) -> Candidate | None:
        """The recipe: one that holds, else of those that help the one that leaves least.

        None where nothing is open without it: no defense leaves the same for free.
        """
        if self.base != UNDEFENDED or not any(a.open(UNDEFENDED) for a in self.tested):
            return None
        return self.recommendation.choice or next(iter(self.helping), None)

    @cached_property
    def helping(self) -> tuple[Candidate, ...]:
        """The recipes of this setting that are shown to help, the best first."""
        every = self.recommendation.candidates
        return tuple(c for c in every if c.price.tier < 2 and self._helps(c.name))

    def _helps(self, name: str) -> bool:
        candidate = next(c for c in self.recommendation.candidates if c.name == name)
        after = {t.place: t.cells for t in candidate.trials}
        return any(
            helps(a.reader.of(UNDEFENDED), after.get(a.threat, ()), self.margin)
            for a in self.tested
            if a.reader is not None
        )

    @cached_property
    def recipe(self) -> str:
        """The recipe where it is a defense of this setting, else ""."""
        return self.use.name if self.use and self.defended(self.use.name) else ""

    @cached_property
    def stricter(self) -> Candidate | None:
        """A recipe that is shown to expose fewer persons than `use`, at a higher price.

        None if `use` exposes none. A recipe against which the attacks on persons failed is not
        shown to expose fewer.
        """
        if self.use is None:
            return None
        exposed = max((c.weight for _, c in self.use.open if _of_person(c)), default=0.0)
        better = [c for c in self.helping if c.left("person") < exposed]
        return min(better, key=lambda c: c.left("person"), default=None)


@dataclass(frozen=True)
class Findings:
    """A run: its settings, the leakiest first, and how much is not settled."""

    settings: tuple[Found, ...]
    margin: float
    version: str = ""


def _of_person(cell: Cell) -> bool:
    return measure(cell.metric).klass == "person"


def local(found: Found) -> float:
    """Return the utility of training with nobody else."""
    return next((found.alone[name] for name in ALONE if name in found.alone), math.nan)


def _leak(found: Found) -> Leak:
    """Return the main finding without a defense; if nothing is open, how much is known."""
    leading = [(a, c) for a in found.tested if (c := a.leading()) is not None]
    if leading:
        adversary, cell = min(leading, key=lambda x: gravest(x[1]))
        return Leak("leak", adversary, cell)
    cells = [(a, c) for a in found.tested if a.reader is not None for c in a.reader.of(found.base)]
    if not any(c.state in ("shut", "unsettled", "unknown") for _, c in cells):
        return Leak("no-attack")
    if all(c.state in SETTLED for _, c in cells):
        traces = [(a, c) for a, c in cells if c.advantage.low > 0]
        if traces:
            return Leak("trace", *min(traces, key=lambda x: gravest(x[1])))
        return Leak("none-found")
    scored = [(a, c) for a, c in cells if c.state == "unsettled" and c.scores]
    if not scored:
        return Leak("unknown")  # every attack on these cells failed or returned no claim
    adversary, cell = max(scored, key=lambda x: finite(x[1].advantage.mean))
    return Leak("attack-failed" if cell.below_baseline else "none-clear", adversary, cell)
