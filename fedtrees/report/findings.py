"""Compute what a run found, once."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedtrees.core.guarantee import ActedOnNothing, NoGuarantee
from fedtrees.core.reasons import NO_CLAIM, Reason
from fedtrees.report.adversaries import adversary_named, seen_by
from fedtrees.report.budgets import ordered
from fedtrees.report.coverage import Coverage, coverage
from fedtrees.report.found import (
    REFUTED,
    Adversary,
    Defended,
    Findings,
    Found,
    Untested,
    base_of,
    gravest,
)
from fedtrees.report.frontier import references
from fedtrees.report.gaps import NOT_ASKED, Gaps, called
from fedtrees.report.price import Price, Utility, prices, utility_of
from fedtrees.report.recipe import Trial, recommend, recommended
from fedtrees.report.rows import UNDEFENDED, Setting, read_json
from fedtrees.report.said import Elsewhere
from fedtrees.report.states import MARGIN, Cell, Reader, read
from fedtrees.report.tables import Cost, Guarantees, cost_table, guarantee_table
from fedtrees.report.worst import panels

_CONSTANT = "majority-class"


def findings(rows: pd.DataFrame, folder: Any, margin: float = MARGIN) -> Findings:
    """Compute what a run found.

    `rows`: As returned by `fedtrees.report.rows.load_rows`.
    `folder`: path. The run's folder, for who sees what.
    `margin`: Advantage that may be left and still be called down to blind.
    """
    here = rows[rows["stage"].isin(["train", "attack"])]
    settings = tuple(sorted(set(here["setting"])))
    gaps = Gaps.of(rows, settings)
    seen = read_json(folder, "disclosure.json") or []
    tables = {s: _read(rows, s, margin) for s in settings}
    per_setting = [_found(rows, s, tables, gaps, seen, margin) for s in settings]
    if begun_only(folder):
        per_setting = [
            replace(f, untested=replace(f.untested, unfinished=True)) for f in per_setting
        ]
    per_setting.sort(key=lambda f: (f.leak.kind != "leak", *_weight(f.leak.cell), str(f.setting)))
    version = ", ".join(sorted({v for v in rows["version"] if v}))
    return Findings(tuple(per_setting), margin, version)


def begun_only(folder: Any) -> bool:
    """Return whether a folder contains a run that has not come to its end.

    A run writes ``disclosure.json`` last. A submission to the leaderboard has ``submission.json``
    instead, and only finished runs are submitted.
    """
    present = {path.name for path in Path(folder).glob("*") if path.is_file()}
    return "suite.toml" in present and not present & {"disclosure.json", "submission.json"}


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
    table = tables[setting]
    trains = table.rows[table.rows["stage"] == "train"]
    utility = utility_of(trains)
    alone = {name: e.mean for name, e in references(rows, setting, utility.metric)}
    priced = prices(trains, utility, alone.get(_CONSTANT, math.nan))
    letters = (_letter(i) for i in range(10**6))
    defenses = tuple(
        Defended(
            spec,
            "0" if spec == UNDEFENDED else next(letters),
            priced[spec],
            table.costs[spec],
            table.guarantees[spec],
            _void(table, spec),
        )
        for spec in table.defenses
    )
    undefended = next((d.price.mean_utility for d in defenses if d.spec == UNDEFENDED), math.nan)
    return Found(
        setting,
        int(table.rows["seed"].dropna().nunique()),
        utility,
        undefended,
        alone,
        _adversaries(setting, table, gaps, seen),
        defenses,
        recommend(
            _trials(setting, tables, utility, alone.get(_CONSTANT, math.nan), priced), recommended()
        ),
        _untested(setting, table, gaps),
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
    table = tables[setting]
    trials: dict[str, list[Trial]] = {}
    for other, other_table in tables.items():
        if (other.dataset, other.partition) != (setting.dataset, setting.partition):
            continue
        same = other == setting
        if not same and not _guaranteed(other_table):
            continue
        base = None if same else table.rows[table.rows["stage"] == "train"]
        trains = other_table.rows[other_table.rows["stage"] == "train"]
        cost = priced if same else prices(trains, utility, constant, base)
        for spec in other_table.defenses:
            if same and spec == UNDEFENDED:
                continue
            name = spec if same else _named(other, spec)
            for threat, reader in table.readers.items():
                if threat not in other_table.readers:
                    continue
                of = other_table.readers[threat]
                cells = tuple(of.cell(spec, m) for m in reader.metrics)
                trials.setdefault(name, []).append(
                    Trial(threat, cells, cost[spec], _why_untested(of, spec, other_table),
                          other_table.costs[spec].bytes, reader.of(UNDEFENDED))
                )  # fmt: skip
    return trials


def trials_of(rows: pd.DataFrame, *, bare: bool = False) -> dict[str, list[Trial]]:
    """Return how every protocol with its defense fared on every table of a run, by name.

    Protocols that claim no guarantee are no recipe without a defense: the best of them by utility,
    table by table, is what prices are counted against, under the name `UNDEFENDED`. Nor is what
    trained on no table.

    `rows`: As returned by `fedtrees.report.rows.load_rows`. `bare`: All of them are recipes, too,
    each under its own name.
    """
    here = rows[rows["stage"].isin(["train", "attack"])]
    tables = {s: _read(rows, s, MARGIN) for s in sorted(set(here["setting"]))}
    trials: dict[str, list[Trial]] = {}
    for place in dict.fromkeys((s.dataset, s.partition) for s in tables):
        at_place = {s: r for s, r in tables.items() if (s.dataset, s.partition) == place}
        plain = {
            s: r for s, r in at_place.items() if not _guaranteed(r) and UNDEFENDED in r.defenses
        }
        trains = {s: r.rows[r.rows["stage"] == "train"] for s, r in at_place.items()}
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
        for setting, read_here in at_place.items():
            cost = prices(trains[setting], utility, constant, trains[best])
            for spec in read_here.defenses:
                alone_here = spec == UNDEFENDED and setting in plain
                names = [UNDEFENDED] * (alone_here and setting == best)
                names += [_named(setting, spec)] * (bare or not alone_here)
                if not cost[spec].by_seed:
                    continue
                for threat, reader in read_here.readers.items():
                    metrics = dict.fromkeys(
                        m for r in at_place.values() if threat in r.readers
                        for m in r.readers[threat].metrics
                    )  # fmt: skip
                    trial = Trial(
                        f"{setting.dataset} · {threat}",
                        tuple(reader.cell(spec, m) for m in metrics),
                        cost[spec],
                        _why_untested(reader, spec, read_here),
                        read_here.costs[spec].bytes,
                    )
                    for name in names:
                        trials.setdefault(name, []).append(trial)
    return trials


def _named(setting: Setting, spec: str) -> str:
    return setting.protocol if spec == UNDEFENDED else Elsewhere(setting.protocol, spec)


def _guaranteed(table: _Read) -> bool:
    """Return whether the protocol of a setting is a recipe by itself.

    It is if it claims a guarantee without a defense. It is also if its grid omitted the undefended
    run (`undefended` of `fedtrees.bench.suite.Grid`), because its results are then meant to be
    compared with another protocol.
    """
    guarantees = table.guarantees.get(UNDEFENDED)
    if guarantees is None:
        return True
    claims = [g for terms in guarantees.claimed or () for g in terms]
    return any(g.kind != NoGuarantee.kind for g in claims)


def _why_untested(reader: Reader, spec: str, mine: _Read) -> str:
    if _void(mine, spec) == ActedOnNothing.kind:
        return str(Reason("acted-on-nothing"))
    if spec not in reader.coverage:
        return "not attacked"
    spec_coverage: Coverage = reader.coverage[spec]
    return "" if spec_coverage.complete else str(spec_coverage)


def _void(mine: _Read, spec: str) -> str:
    """Return what became of a claim that did not hold, "" where it did."""
    guarantees = mine.guarantees[spec]
    spent = [g for terms in guarantees.spent for g in terms]
    if any(isinstance(g, ActedOnNothing) for g in spent):
        return ActedOnNothing.kind
    bounded = [g.budget for terms in guarantees.claimed for g in terms if g.budget]
    infinite = any(g.budget and math.isinf(g.budget[1]) for g in spent)
    return "void" if bounded and infinite else REFUTED if guarantees.refuted else ""


def _adversaries(
    setting: Setting, mine: _Read, gaps: Gaps, seen: Sequence[Mapping[str, Any]]
) -> tuple[Adversary, ...]:
    words = called(setting)
    tested = [
        Adversary(
            threat,
            *adversary_named(threat, words),
            seen_by(threat, setting, seen),
            reader,
            base_of(mine.defenses),
        )
        for threat, reader in mine.readers.items()
    ]
    tested.sort(key=lambda a: (*_weight(a.leading()), a.threat))
    missing = [
        name
        for g in gaps.found
        for name in g.names
        if (g.setting, g.kind, g.status) == (setting, "threat", NOT_ASKED)
    ]
    rest = [Adversary(n, *adversary_named(n, words), seen_by(n, setting, seen)) for n in missing]
    return (*tested, *rest)


def _untested(setting: Setting, mine: _Read, gaps: Gaps) -> Untested:
    here = [g for g in gaps.found if g.setting == setting]

    def names(kind: str, status: str) -> tuple[str, ...]:
        group_names = [n for g in here if g.kind == kind and g.status == status for n in g.names]
        return tuple(dict.fromkeys(group_names))

    words = called(setting)
    early = [t.early for r in mine.readers.values() for t in r.coverage.values()]
    failed = [(n, str(g.why)) for g in here if g.status in ("failed", "timeout") for n in g.names]
    silent = [(n, str(g.why)) for g in here if g.status == NO_CLAIM for n in g.names]
    unfit = tuple((n, str(g.why)) for g in here if g.kind == "defense" and g.status == "skipped"
                  for n in g.names)  # fmt: skip
    return Untested(
        tuple((adversary_named(n, words)[0], n) for n in names("threat", NOT_ASKED)),
        names("defense", NOT_ASKED),
        names("attack", NOT_ASKED),
        tuple(dict.fromkeys(name for names in early for name in names)),
        tuple(dict.fromkeys(failed)),
        unfit,
        no_claim=tuple(dict.fromkeys(silent)),
    )


def _weight(cell: Cell | None) -> tuple[float, float, float]:
    return (math.inf,) * 3 if cell is None else gravest(cell)


def _letter(at: int) -> str:
    """Return A to Z, then AA: labels of defenses."""
    return chr(65 + at) if at < 26 else _letter(at // 26 - 1) + chr(65 + at % 26)
