"""Compute all findings of a run once: leaks, prices, the recipe and the gaps of each setting.

`findings` is used by the terminal verdict, the report and the JSON output. `trials_of` is used by
the advice, which compares recipes over protocols and tables.
"""

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
from fedtrees.report.cost import Price, Utility, prices, utility_of
from fedtrees.report.coverage import NOT_ASKED, Coverage, Gaps, coverage, role_names
from fedtrees.report.frontier import references
from fedtrees.report.leakage import MARGIN, Cell, Reader, read
from fedtrees.report.recipe import Trial, recommend, recommended
from fedtrees.report.results import UNDEFENDED, Setting, read_json
from fedtrees.report.setting_findings import (
    REFUTED,
    Adversary,
    Defended,
    RunFindings,
    SettingFindings,
    Untested,
    base_of,
    gravest,
)
from fedtrees.report.statistics import panels
from fedtrees.report.tables import Cost, Guarantees, cost_table, guarantee_table
from fedtrees.report.wording import Elsewhere

_CONSTANT = "majority-class"


def findings(rows: pd.DataFrame, folder: Any, margin: float = MARGIN) -> RunFindings:
    """Compute the findings of a run.

    Parameters
    ----------
    rows : DataFrame
        Results as returned by `fedtrees.report.results.load_rows`.
    folder : path
        Folder of the run. Its ``disclosure.json`` lists which party receives which message.
    margin : float
        Largest advantage under a defense that counts as no better than a blind guess.

    Returns
    -------
    findings : RunFindings
        One entry per setting, the gravest leak first.
    """
    here = rows[rows["stage"].isin(["train", "attack"])]
    settings = tuple(sorted(set(here["setting"])))
    gaps = Gaps.of(rows, settings)
    seen = read_json(folder, "disclosure.json") or []
    tables = {s: _read_setting(rows, s, margin) for s in settings}
    per_setting = [_setting_findings(rows, s, tables, gaps, seen, margin) for s in settings]
    if begun_only(folder):
        per_setting = [
            replace(f, untested=replace(f.untested, unfinished=True)) for f in per_setting
        ]
    per_setting.sort(key=lambda f: (f.leak.kind != "leak", *_sort_key(f.leak.cell), str(f.setting)))
    version = ", ".join(sorted({v for v in rows["version"] if v}))
    return RunFindings(tuple(per_setting), margin, version)


def begun_only(folder: Any) -> bool:
    """Return whether a folder contains a run that is not finished.

    A run writes ``disclosure.json`` last. A submission to the leaderboard contains
    ``submission.json`` instead, and only finished runs are submitted.
    """
    present = {path.name for path in Path(folder).glob("*") if path.is_file()}
    return "suite.toml" in present and not present & {"disclosure.json", "submission.json"}


@dataclass(frozen=True)
class _SettingResults:
    """Cells, costs and guarantees of one setting, by threat or by defense."""

    rows: pd.DataFrame
    readers: Mapping[str, Reader]
    defenses: tuple[str, ...]
    costs: Mapping[str, Cost]
    guarantees: Mapping[str, Guarantees]


def _read_setting(rows: pd.DataFrame, setting: Setting, margin: float) -> _SettingResults:
    """Compute the cells, the costs and the guarantees of one setting."""
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
    # A skipped training means that the defense does not fit the protocol.
    fit = trains[trains["status"] != "skipped"]
    return _SettingResults(
        here,
        readers,
        tuple(ordered(set(fit["defense_spec"]))),
        {c.defense: c for c in cost_table(here, setting)},
        {g.defense: g for g in guarantee_table(here, setting)},
    )


def _setting_findings(
    rows: pd.DataFrame,
    setting: Setting,
    tables: Mapping[Setting, _SettingResults],
    gaps: Gaps,
    seen: Sequence[Mapping[str, Any]],
    margin: float,
) -> SettingFindings:
    """Compute the findings of one setting.

    Recipes may use the results of all settings in `tables`.
    """
    table = tables[setting]
    trains = table.rows[table.rows["stage"] == "train"]
    utility = utility_of(trains)
    baselines = {name: e.mean for name, e in references(rows, setting, utility.metric)}
    priced = prices(trains, utility, baselines.get(_CONSTANT, math.nan))
    letters = (_letter(i) for i in range(10**6))
    defenses = tuple(
        Defended(
            spec,
            "0" if spec == UNDEFENDED else next(letters),
            priced[spec],
            table.costs[spec],
            table.guarantees[spec],
            _claim_failure(table, spec),
        )
        for spec in table.defenses
    )
    undefended = next((d.price.mean_utility for d in defenses if d.spec == UNDEFENDED), math.nan)
    return SettingFindings(
        setting,
        int(table.rows["seed"].dropna().nunique()),
        utility,
        undefended,
        baselines,
        _adversaries(setting, table, gaps, seen),
        defenses,
        recommend(
            _trials(setting, tables, utility, baselines.get(_CONSTANT, math.nan), priced),
            recommended(),
        ),
        _collect_untested(setting, table, gaps),
        margin,
    )


def _trials(
    setting: Setting,
    tables: Mapping[Setting, _SettingResults],
    utility: Utility,
    constant: float,
    priced: Mapping[str, Price],
) -> dict[str, list[Trial]]:
    """Return the trials of every recipe for a setting, by name of the recipe.

    Recipes are the defenses of the setting, and other protocols that claim a guarantee
    (`_has_guarantee`) on the same dataset and partition.
    """
    table = tables[setting]
    trials: dict[str, list[Trial]] = {}
    for other, other_table in tables.items():
        if (other.dataset, other.partition) != (setting.dataset, setting.partition):
            continue
        same = other == setting
        if not same and not _has_guarantee(other_table):
            continue
        # A recipe of another protocol is compared with the undefended run of this setting, because
        # this is the run that a user would replace.
        base = None if same else table.rows[table.rows["stage"] == "train"]
        trains = other_table.rows[other_table.rows["stage"] == "train"]
        cost = priced if same else prices(trains, utility, constant, base)
        for spec in other_table.defenses:
            # Doing nothing is not a recipe.
            if same and spec == UNDEFENDED:
                continue
            name = spec if same else _recipe_name(other, spec)
            for threat, reader in table.readers.items():
                # Two protocols can have different roles. Only common adversaries are compared.
                if threat not in other_table.readers:
                    continue
                other_reader = other_table.readers[threat]
                cells = tuple(other_reader.cell(spec, m) for m in reader.metrics)
                trials.setdefault(name, []).append(
                    Trial(threat, cells, cost[spec], _why_untested(other_reader, spec, other_table),
                          other_table.costs[spec].bytes, reader.of(UNDEFENDED))
                )  # fmt: skip
    return trials


def trials_of(rows: pd.DataFrame, *, bare: bool = False) -> dict[str, list[Trial]]:
    """Return the trials of every recipe of a run, over all protocols and tables, by name.

    A protocol without a guarantee and without a defense is not a recipe. The most accurate of these
    protocols on each table is the reference for prices, under the name `UNDEFENDED`. A protocol
    with a defense that trained on no table is left out.

    Parameters
    ----------
    rows : DataFrame
        Results as returned by `fedtrees.report.results.load_rows`.
    bare : bool
        Whether protocols without a guarantee and without a defense are recipes, too, each under its
        name.
    """
    here = rows[rows["stage"].isin(["train", "attack"])]
    tables = {s: _read_setting(rows, s, MARGIN) for s in sorted(set(here["setting"]))}
    trials: dict[str, list[Trial]] = {}
    for place in dict.fromkeys((s.dataset, s.partition) for s in tables):
        at_place = {s: r for s, r in tables.items() if (s.dataset, s.partition) == place}
        plain = {
            s: r for s, r in at_place.items() if not _has_guarantee(r) and UNDEFENDED in r.defenses
        }
        trains = {s: r.rows[r.rows["stage"] == "train"] for s, r in at_place.items()}
        if not plain:
            continue
        utilities = {s: utility_of(trains[s]) for s in plain}
        # Prices are relative to the most accurate model without a defense, so that a recipe cannot
        # look cheap because its protocol is inaccurate anyway.
        best = max(
            plain,
            key=lambda s: (
                utilities[s].sign
                * prices(trains[s], utilities[s], math.nan)[UNDEFENDED].mean_utility
            ),
        )
        utility = utilities[best]
        baselines = {name: e.mean for name, e in references(rows, best, utility.metric)}
        constant = baselines.get(_CONSTANT, math.nan)
        for setting, read_here in at_place.items():
            cost = prices(trains[setting], utility, constant, trains[best])
            for spec in read_here.defenses:
                bare_here = spec == UNDEFENDED and setting in plain
                names = [UNDEFENDED] * (bare_here and setting == best)
                names += [_recipe_name(setting, spec)] * (bare or not bare_here)
                if not cost[spec].by_seed:
                    continue
                for threat, reader in read_here.readers.items():
                    # A recipe has a cell for every measure that any recipe has at this place. A
                    # missing cell would otherwise look like safety.
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


def _recipe_name(setting: Setting, spec: str) -> str:
    """Return the name of a recipe: its protocol, and its defense if there is one."""
    return setting.protocol if spec == UNDEFENDED else Elsewhere(setting.protocol, spec)


def _has_guarantee(table: _SettingResults) -> bool:
    """Return whether the protocol of a setting is a recipe without a defense.

    This is the case if the protocol claims a guarantee. It is also the case if its grid omitted the
    undefended run (`undefended` of `fedtrees.experiments.suite.Grid`), because its results are then
    meant to be compared with another protocol.
    """
    guarantees = table.guarantees.get(UNDEFENDED)
    if guarantees is None:
        return True
    claims = [g for terms in guarantees.claimed or () for g in terms]
    return any(g.kind != NoGuarantee.kind for g in claims)


def _why_untested(reader: Reader, spec: str, setting_results: _SettingResults) -> str:
    """Return why the trial of a defense is no evidence, "" if every applicable attack ran."""
    if _claim_failure(setting_results, spec) == ActedOnNothing.kind:
        return str(Reason("acted-on-nothing"))
    if spec not in reader.coverage:
        return "not attacked"
    spec_coverage: Coverage = reader.coverage[spec]
    return "" if spec_coverage.complete else str(spec_coverage)


def _claim_failure(setting_results: _SettingResults, spec: str) -> str:
    """Return why the claim of a defense failed, "" if it did not.

    "void": the accountant found no finite bound. `REFUTED`: an audit measured more. The kind of
    `ActedOnNothing`: the defense changed no message.
    """
    guarantees = setting_results.guarantees[spec]
    spent = [g for terms in guarantees.spent for g in terms]
    if any(isinstance(g, ActedOnNothing) for g in spent):
        return ActedOnNothing.kind
    bounded = [g.budget for terms in guarantees.claimed for g in terms if g.budget]
    infinite = any(g.budget and math.isinf(g.budget[1]) for g in spent)
    return "void" if bounded and infinite else REFUTED if guarantees.refuted else ""


def _adversaries(
    setting: Setting,
    setting_results: _SettingResults,
    gaps: Gaps,
    seen: Sequence[Mapping[str, Any]],
) -> tuple[Adversary, ...]:
    """Return the attacked adversaries, the gravest leak first, then the remaining roles."""
    words = role_names(setting)
    tested = [
        Adversary(
            threat,
            *adversary_named(threat, words),
            seen_by(threat, setting, seen),
            reader,
            base_of(setting_results.defenses),
        )
        for threat, reader in setting_results.readers.items()
    ]
    tested.sort(key=lambda a: (*_sort_key(a.leading()), a.threat))
    missing = [
        name
        for g in gaps.entries
        for name in g.names
        if (g.setting, g.kind, g.status) == (setting, "threat", NOT_ASKED)
    ]
    rest = [Adversary(n, *adversary_named(n, words), seen_by(n, setting, seen)) for n in missing]
    return (*tested, *rest)


def _collect_untested(setting: Setting, setting_results: _SettingResults, gaps: Gaps) -> Untested:
    """Collect the parts of a setting that were not tested, with reasons."""
    here = [g for g in gaps.entries if g.setting == setting]

    def names(kind: str, status: str) -> tuple[str, ...]:
        group_names = [n for g in here if g.kind == kind and g.status == status for n in g.names]
        return tuple(dict.fromkeys(group_names))

    words = role_names(setting)
    early = [t.early for r in setting_results.readers.values() for t in r.coverage.values()]
    failures = [
        (g.kind, n, str(g.why)) for g in here if g.status in ("failed", "timeout") for n in g.names
    ]
    failed = [(n, why) for kind, n, why in failures if kind == "attack"]
    failed_trainings = [(n, why) for kind, n, why in failures if kind == "defense"]
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
        failed_trainings=tuple(dict.fromkeys(failed_trainings)),
    )


def _sort_key(cell: Cell | None) -> tuple[float, float, float]:
    """Return a sort key of cells that puts the gravest first and a missing cell last."""
    return (math.inf,) * 3 if cell is None else gravest(cell)


def _letter(at: int) -> str:
    """Return the label of a defense: A to Z, then AA and so on."""
    return chr(65 + at) if at < 26 else _letter(at // 26 - 1) + chr(65 + at % 26)
