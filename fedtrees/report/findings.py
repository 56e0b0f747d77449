"""What a run found, computed once: the terminal, the page and JSON only write it."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from fedtrees.core.columns import measure
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import ActedOnNothing, NoGuarantee
from fedtrees.core.reasons import Reason
from fedtrees.core.rows import ALONE
from fedtrees.core.specs import parse_one
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import PUBLIC
from fedtrees.report.budgets import ordered
from fedtrees.report.coverage import Coverage, coverage
from fedtrees.report.frontier import references
from fedtrees.report.gaps import NOT_ASKED, Gaps, called
from fedtrees.report.intervals import finite
from fedtrees.report.price import Price, Utility, prices, utility_of
from fedtrees.report.recipe import Candidate, Recommendation, Trial, helps, recommend
from fedtrees.report.rows import UNDEFENDED, Setting, read_json
from fedtrees.report.said import Elsewhere
from fedtrees.report.states import MARGIN, Cell, Reader, gravity, plain, read
from fedtrees.report.tables import Cost, Guarantees, cost_table, guarantee_table
from fedtrees.report.worst import panels

_CONSTANT = "majority-class"
REFUTED = "refuted"  # a bound, by an audit
_MOST_SEEN = 4
Kind = Literal["leak", "trace", "none-found", "none-clear", "unknown", "no-attack"]


@dataclass(frozen=True)
class Adversary:
    """One threat of a setting.

    `name`: In words. `several`: Whether it is more than one party. `sees`: Kinds of messages that
    it reads, in words. `reader`: Its cells; None where its view was not attacked.
    """

    threat: str
    name: str
    several: bool = False
    sees: tuple[str, ...] = ()
    reader: Reader | None = None

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

    def leading(self, defense: str = UNDEFENDED) -> Cell | None:
        """Return what it reads most: open cells by class, then severity, then advantage."""
        return min(self.open(defense), key=_gravity, default=None)

    def open(self, defense: str) -> list[Cell]:
        """Return what it reads under a defense, each thing once, the worst first."""
        cells = [c for c in (self.reader.of(defense) if self.reader else ()) if c.state == "open"]
        return sorted(plain(cells), key=_gravity)


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
    """What leads undefended: of which kind it is, whose, and by which cell."""

    kind: Kind
    adversary: Adversary | None = None
    cell: Cell | None = None


@dataclass(frozen=True)
class Untested:
    """What a reader could still ask for.

    `adversaries`: Names of roles whose view was not attacked, with the threat to give. `defenses`:
    Names of defenses that fit and did not run. `cut`: Attacks that stopped at a limit. `failed`:
    Attacks that failed, and why. `unfit`: Defenses that were asked for and do not fit, and why.
    """

    adversaries: tuple[tuple[str, str], ...] = ()
    defenses: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    unfit: tuple[tuple[str, str], ...] = ()


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
    def leak(self) -> Leak:
        """What leads undefended."""
        return _leak(self)

    @cached_property
    def use(self) -> Candidate | None:
        """The recipe: one that holds, else of those that help the one that leaves least.

        None where nothing is open without it: no defense leaves the same for free.
        """
        if not any(a.open(UNDEFENDED) for a in self.tested):
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
        """A recipe that leaves fewer persons exposed than the one to use, at a higher price."""
        if self.use is None or self.use.left("person") <= 0:
            return None
        better = [c for c in self.helping if c.left("person") < self.use.left("person")]
        return min(better, key=lambda c: c.left("person"), default=None)


@dataclass(frozen=True)
class Findings:
    """A run: its settings, the leakiest first, and how much is not settled."""

    settings: tuple[Found, ...]
    margin: float
    version: str = ""


def findings(rows: pd.DataFrame, folder: Any, margin: float = MARGIN) -> Findings:
    """Compute what a run found.

    Parameters
    ----------
    rows : DataFrame
        As returned by `fedtrees.report.rows.load_rows`.
    folder : path
        The run's folder, for who sees what.
    margin : float
        Advantage that may be left and still be called down to blind.
    """
    here = rows[rows["stage"].isin(["train", "attack"])]
    settings = tuple(sorted(set(here["setting"])))
    gaps = Gaps.of(rows, settings)
    seen = read_json(folder, "disclosure.json") or []
    tables = {s: _read(rows, s, margin) for s in settings}
    found = [_found(rows, s, tables, gaps, seen, margin) for s in settings]
    found.sort(key=lambda f: (f.leak.kind != "leak", *_weight(f.leak.cell), str(f.setting)))
    version = ", ".join(sorted({v for v in rows["version"] if v}))
    return Findings(tuple(found), margin, version)


@dataclass(frozen=True)
class _Read:
    """The numbers of one setting, before anything is said of them."""

    rows: pd.DataFrame
    readers: Mapping[str, Reader]
    defenses: tuple[str, ...]
    costs: Mapping[str, Cost]
    guarantees: Mapping[str, Guarantees]


def _read(rows: pd.DataFrame, setting: Setting, margin: float) -> _Read:
    here = rows[rows["setting"] == setting]
    readers = {}
    for panel in panels(here):
        attacks = here[(here["stage"] == "attack") & (here["threat"] == panel.threat)]
        exposed = here[(here["stage"] == "adversary") & (here["threat"] == panel.threat)]
        covered = {
            spec: coverage(exposed[exposed["defense_spec"] == spec],
                           attacks[attacks["defense_spec"] == spec])
            for spec in dict.fromkeys(attacks["defense_spec"])
        }  # fmt: skip
        readers[panel.threat] = read(attacks, covered, margin)
    trains = here[here["stage"] == "train"]
    fit = trains[trains["status"] != "skipped"]
    return _Read(
        here,
        readers,
        tuple(ordered(set(fit["defense_spec"]))),
        {c.defense: c for c in cost_table(here, setting)},
        {g.defense: g for g in guarantee_table(here, setting)},
    )


def _found(
    rows: pd.DataFrame,
    setting: Setting,
    tables: Mapping[Setting, _Read],
    gaps: Gaps,
    seen: Sequence[Mapping[str, Any]],
    margin: float,
) -> Found:
    mine = tables[setting]
    trains = mine.rows[mine.rows["stage"] == "train"]
    utility = utility_of(trains)
    alone = {name: e.mean for name, e in references(rows, setting, utility.metric)}
    priced = prices(trains, utility, alone.get(_CONSTANT, math.nan))
    letters = (_letter(i) for i in range(10**6))
    defenses = tuple(
        Defended(
            spec,
            "0" if spec == UNDEFENDED else next(letters),
            priced[spec],
            mine.costs[spec],
            mine.guarantees[spec],
            _void(mine, spec),
        )
        for spec in mine.defenses
    )
    undefended = next((d.price.mean_utility for d in defenses if d.spec == UNDEFENDED), math.nan)
    return Found(
        setting,
        int(mine.rows["seed"].dropna().nunique()),
        utility,
        undefended,
        alone,
        _adversaries(setting, mine, gaps, seen),
        defenses,
        recommend(_trials(setting, tables, utility, alone.get(_CONSTANT, math.nan), priced)),
        _untested(setting, mine, gaps),
        margin,
    )


def _trials(
    setting: Setting,
    tables: Mapping[Setting, _Read],
    utility: Utility,
    constant: float,
    priced: Mapping[str, Price],
) -> dict[str, list[Trial]]:
    """Return every recipe for a setting: its own defenses, and other protocols with a guarantee."""
    mine = tables[setting]
    found: dict[str, list[Trial]] = {}
    for other, theirs in tables.items():
        if (other.dataset, other.partition) != (setting.dataset, setting.partition):
            continue
        same = other == setting
        if not same and not _guaranteed(theirs):
            continue
        base = None if same else mine.rows[mine.rows["stage"] == "train"]
        trains = theirs.rows[theirs.rows["stage"] == "train"]
        cost = priced if same else prices(trains, utility, constant, base)
        for spec in theirs.defenses:
            if same and spec == UNDEFENDED:
                continue
            name = spec if same else _named(other, spec)
            for threat, reader in mine.readers.items():
                if threat not in theirs.readers:
                    continue
                of = theirs.readers[threat]
                cells = tuple(of.cell(spec, m) for m in reader.metrics)
                found.setdefault(name, []).append(
                    Trial(threat, cells, cost[spec], _why_untested(of, spec, theirs),
                          theirs.costs[spec].bytes)
                )  # fmt: skip
    return found


def trials_of(rows: pd.DataFrame, margin: float = MARGIN) -> dict[str, list[Trial]]:
    """Return how every protocol with its defense fared on every table of a run, by name.

    Protocols that claim no guarantee are no recipe without a defense: the best of them by utility,
    table by table, is what prices are counted against, under the name `UNDEFENDED`. Nor is what
    trained on no table.

    `rows`: As returned by `fedtrees.report.rows.load_rows`.
    """
    here = rows[rows["stage"].isin(["train", "attack"])]
    tables = {s: _read(rows, s, margin) for s in sorted(set(here["setting"]))}
    trials: dict[str, list[Trial]] = {}
    for place in dict.fromkeys((s.dataset, s.partition) for s in tables):
        mine = {s: r for s, r in tables.items() if (s.dataset, s.partition) == place}
        plain = {s: r for s, r in mine.items() if not _guaranteed(r) and UNDEFENDED in r.defenses}
        trains = {s: r.rows[r.rows["stage"] == "train"] for s, r in mine.items()}
        if not plain:
            continue
        utilities = {s: utility_of(trains[s]) for s in plain}
        best = max(
            plain,
            key=lambda s: (
                utilities[s].sign
                * prices(trains[s], utilities[s], math.nan)[UNDEFENDED].mean_utility
            ),
        )
        utility = utilities[best]
        alone = {name: e.mean for name, e in references(rows, best, utility.metric)}
        constant = alone.get(_CONSTANT, math.nan)
        for setting, read_here in mine.items():
            cost = prices(trains[setting], utility, constant, trains[best])
            for spec in read_here.defenses:
                bare = spec == UNDEFENDED and setting in plain
                if (bare and setting != best) or not cost[spec].by_seed:
                    continue
                name = UNDEFENDED if bare else _named(setting, spec)
                for threat, reader in read_here.readers.items():
                    metrics = dict.fromkeys(
                        m for r in mine.values() if threat in r.readers
                        for m in r.readers[threat].metrics
                    )  # fmt: skip
                    trials.setdefault(name, []).append(
                        Trial(
                            f"{setting.dataset} · {threat}",
                            tuple(reader.cell(spec, m) for m in metrics),
                            cost[spec],
                            _why_untested(reader, spec, read_here),
                            read_here.costs[spec].bytes,
                        )
                    )
    return trials


def _named(setting: Setting, spec: str) -> str:
    return setting.protocol if spec == UNDEFENDED else Elsewhere(setting.protocol, spec)


def _guaranteed(mine: _Read) -> bool:
    """Tell whether a protocol claims anything by itself."""
    stated = mine.guarantees.get(UNDEFENDED)
    claims = [g for terms in (stated.claimed if stated else ()) for g in terms]
    return any(g.kind != NoGuarantee.kind for g in claims)


def _why_untested(reader: Reader, spec: str, mine: _Read) -> str:
    if _void(mine, spec) == ActedOnNothing.kind:
        return str(Reason("acted-on-nothing"))
    if spec not in reader.coverage:
        return "not attacked"
    told: Coverage = reader.coverage[spec]
    return "" if told.complete else str(told)


def _void(mine: _Read, spec: str) -> str:
    """Return what became of a claim that did not hold, "" where it did."""
    stated = mine.guarantees[spec]
    spent = [g for terms in stated.spent for g in terms]
    if any(isinstance(g, ActedOnNothing) for g in spent):
        return ActedOnNothing.kind
    bounded = [g.budget for terms in stated.claimed for g in terms if g.budget]
    infinite = any(g.budget and math.isinf(g.budget[1]) for g in spent)
    return "void" if bounded and infinite else REFUTED if stated.refuted else ""


def _adversaries(
    setting: Setting, mine: _Read, gaps: Gaps, seen: Sequence[Mapping[str, Any]]
) -> tuple[Adversary, ...]:
    words = called(setting)
    tested = [
        Adversary(threat, *adversary_named(threat, words), _sees(threat, setting, seen), reader)
        for threat, reader in mine.readers.items()
    ]
    tested.sort(key=lambda a: (*_weight(a.leading()), a.threat))
    missing = [
        name
        for g in gaps.found
        for name in g.names
        if (g.setting, g.kind, g.status) == (setting, "threat", NOT_ASKED)
    ]
    rest = [Adversary(n, *adversary_named(n, words), _sees(n, setting, seen)) for n in missing]
    return (*tested, *rest)


def adversary_named(threat: str, words: Mapping[str, tuple[str, str]]) -> tuple[str, bool]:
    """Return an adversary in words and whether it is several."""
    try:
        parsed = Threat.parse(threat)
    except UsageError:  # of another release
        return f"the adversary {threat!r}", False
    parts = []
    for part in parsed.parts:
        one, several = words.get(part.name, (f"the party {part.name!r}", f"{part.name} parties"))
        count = part.params.get("count", 1)
        parts.append(one if count == 1 else f"{count} {several}")
    told = {"queries": parsed.queries, "labels": parsed.labels, "attributes": parsed.attributes}
    besides = [f"{n} {what}" for what, n in told.items() if n]
    text = " and ".join(parts) + (f" (with {', '.join(besides)})" if besides else "")
    count = sum(int(p.params.get("count", 1)) for p in parsed.parts)  # type: ignore[call-overload]
    return text, count > 1


def _sees(threat: str, setting: Setting, seen: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the kinds of messages that a threat reads in the undefended run, in words."""
    try:
        roles = {p.name for p in Threat.parse(threat).parts}
    except UsageError:
        return ()
    found = []
    for entry in seen:
        if not of_protocol(entry, setting) or str(entry.get("defense")) != UNDEFENDED:
            continue
        reader = str(entry.get("readable_by") or entry.get("to"))
        if reader in roles and entry.get("reveals") and not entry.get("sealed"):
            found.append(words_of(str(entry.get("type", ""))))
    return tuple(dict.fromkeys(found)) or (("the finished model",) if roles == {PUBLIC} else ())


def of_protocol(entry: Mapping[str, Any], setting: Setting) -> bool:
    """Tell whether a crossing is of a setting's protocol, of whatever parameters."""
    name = str(entry.get("protocol", "")).partition("[")[0]
    return name == setting.protocol.partition("[")[0]


def words_of(message: str) -> str:
    """Return a message's type in words: ``LeafValues`` is ``leaf values``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", message).lower()


def _untested(setting: Setting, mine: _Read, gaps: Gaps) -> Untested:
    here = [g for g in gaps.found if g.setting == setting]

    def names(kind: str, status: str) -> tuple[str, ...]:
        found = [n for g in here if g.kind == kind and g.status == status for n in g.names]
        return tuple(dict.fromkeys(found))

    words = called(setting)
    early = [t.early for r in mine.readers.values() for t in r.coverage.values()]
    failed = [(n, str(g.why)) for g in here if g.status in ("failed", "timeout") for n in g.names]
    unfit = tuple((n, str(g.why)) for g in here if g.kind == "defense" and g.status == "skipped"
                  for n in g.names)  # fmt: skip
    return Untested(
        tuple((adversary_named(n, words)[0], n) for n in names("threat", NOT_ASKED)),
        names("defense", NOT_ASKED),
        names("attack", NOT_ASKED),
        tuple(dict.fromkeys(name for names in early for name in names)),
        tuple(dict.fromkeys(failed)),
        unfit,
    )


def _leak(found: Found) -> Leak:
    """Return what leads undefended; where nothing is open, how much is known."""
    leading = [(a, c) for a in found.tested if (c := a.leading()) is not None]
    if leading:
        adversary, cell = min(leading, key=lambda x: _gravity(x[1]))
        return Leak("leak", adversary, cell)
    cells = [(a, c) for a in found.tested if a.reader is not None for c in a.reader.of(UNDEFENDED)]
    if not cells:
        return Leak("no-attack")
    if all(c.state in ("shut", "gone", "undefined") for _, c in cells):
        traces = [(a, c) for a, c in cells if c.advantage.low > 0]
        if traces:
            return Leak("trace", *min(traces, key=lambda x: _gravity(x[1])))
        return Leak("none-found")
    doubtful = [(a, c) for a, c in cells if c.state in ("unsettled", "unknown")]
    return Leak("none-clear", *max(doubtful, key=lambda x: finite(x[1].advantage.mean)))


def _gravity(cell: Cell) -> tuple[float, float, float]:
    return *gravity(cell.metric), -finite(cell.advantage.mean)


def _weight(cell: Cell | None) -> tuple[float, float, float]:
    return (math.inf,) * 3 if cell is None else _gravity(cell)


def _letter(at: int) -> str:
    """Return A to Z, then AA: labels of defenses."""
    return chr(65 + at) if at < 26 else _letter(at // 26 - 1) + chr(65 + at % 26)


def local(found: Found) -> float:
    """Return the utility of training with nobody else."""
    return next((found.alone[name] for name in ALONE if name in found.alone), math.nan)
