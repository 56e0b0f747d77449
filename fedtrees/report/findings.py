"""Data classes for the findings of a run, which the terminal, the page and JSON present.

`RunAnalysis` contains the rows of a run and one `SettingFindings` per dataset, partition and
protocol. A `SettingFindings` contains one `AdversaryFindings` per adversary and one `DefenseResult`
per defense. Everything is computed from the rows on demand and only once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from fedtrees.core.errors import UsageError, check_margin, did_you_mean, listed
from fedtrees.core.guarantee import NoGuarantee
from fedtrees.core.reasons import NO_CLAIM
from fedtrees.core.results import ALONE, UTILITY, measure
from fedtrees.core.specs import joined_names, parse_one
from fedtrees.report.adversaries import AdversaryFindings, adversary_named, seen_by
from fedtrees.report.cost import (
    TrainingCost,
    Utility,
    UtilityChange,
    references,
    training_cost,
    utility_changes,
    utility_of,
)
from fedtrees.report.coverage import NOT_ASKED, Coverage, Gaps, coverage, layout_of, role_names
from fedtrees.report.frontier import Frontier, over_budgets, panel_frontier
from fedtrees.report.guarantees import DefenseGuarantees
from fedtrees.report.leakage import MARGIN, SETTLED, LeakageResult, gravity_key
from fedtrees.report.recipe import Recipe, Recommendation, helps, recommend, recommended
from fedtrees.report.results import (
    UNDEFENDED,
    Panel,
    Selection,
    Setting,
    load_rows,
    ordered,
    read_json,
    read_suite,
)
from fedtrees.report.statistics import attack_metrics, describe_thin_evidence, finite, panels
from fedtrees.report.wording import ProtocolRecipe, short, some

Kind = Literal["leak", "trace", "none-found", "none-clear", "attack-failed", "unknown", "no-attack"]
_CONSTANT = "majority-class"

#: Metric of the frontiers of a figure or a table: that of the gravest leak of each adversary.
VERDICT = "verdict"


@dataclass(frozen=True)
class DefenseResult:
    """Results of one defense in a setting.

    Attributes
    ----------
    spec : str
        Name of the defense.
    label : str
        A letter, or "0" for the undefended run.
    utility_change : UtilityChange
        Change in utility.
    cost : TrainingCost
        Traffic, rounds and time.
    guarantees : DefenseGuarantees
        Claimed, spent and measured guarantee.
    """

    spec: str
    label: str
    utility_change: UtilityChange
    cost: TrainingCost
    guarantees: DefenseGuarantees

    @property
    def void(self) -> str:
        """Why a claimed guarantee is not kept, "" if it is (`DefenseGuarantees.failure`)."""
        return self.guarantees.failure

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts with their parameters, in the notation of the command line."""
        return tuple(str(p) for p in parse_one(self.spec).parts)


@dataclass(frozen=True)
class Leak:
    """The main finding without a defense: its kind, the adversary and the result.

    Attributes
    ----------
    kind : str
        - "leak": a result is leaking (`fedtrees.report.leakage` defines the states of results).
        - "trace": every result is settled, and an advantage is above zero but below the margin.
        - "none-found": every result is settled, and no advantage is above zero.
        - "none-clear": a result is not settled.
        - "attack-failed": a result is not settled, and the strongest attack on such results scored
          worse than its baseline.
        - "unknown": no result that is not settled has a score, because the attacks failed or
          returned no claim.
        - "no-attack": there is no result.
    adversary : AdversaryFindings or None
        The adversary of the result.
    result : LeakageResult or None
        The gravest result, if the kind refers to one.
    """

    kind: Kind
    adversary: AdversaryFindings | None = None
    result: LeakageResult | None = None


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


@dataclass(frozen=True, eq=False)
class SettingFindings:
    """All findings of one setting.

    Attributes
    ----------
    run : RunAnalysis
        The run that contains the setting. Recipes of other protocols are taken from it.
    setting : Setting
        Dataset, partition and protocol.
    """

    run: RunAnalysis = field(repr=False)
    setting: Setting

    @property
    def margin(self) -> float:
        """Largest advantage that counts as no better than a blind guess."""
        return self.run.margin

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The rows of the setting."""
        return self.run.rows[self.run.rows["setting"] == self.setting]

    @cached_property
    def trains(self) -> pd.DataFrame:
        """The training rows."""
        return self.rows[self.rows["stage"] == "train"]

    @cached_property
    def seeds(self) -> int:
        """Number of seeds."""
        return int(self.rows["seed"].dropna().nunique())

    @cached_property
    def utility(self) -> Utility:
        """The metric of utility changes."""
        return utility_of(self.trains)

    @cached_property
    def reference_utility(self) -> Mapping[str, float]:
        """Mean utility of the references: training on local data only, and the constant model."""
        estimates = references(self.run.rows, self.setting, self.utility.metric)
        return {name: e.mean for name, e in estimates}

    @property
    def constant_utility(self) -> float:
        """Utility of the constant model, NaN if it is not known."""
        return self.reference_utility.get(_CONSTANT, math.nan)

    @property
    def local_utility(self) -> float:
        """Utility of a model that a party trains on its local data only, NaN if not known."""
        return next(
            (self.reference_utility[name] for name in ALONE if name in self.reference_utility),
            math.nan,
        )

    @cached_property
    def specs(self) -> tuple[str, ...]:
        """All defenses with a training or an attack, also those that do not fit the protocol."""
        here = self.rows[self.rows["stage"].isin(["train", "attack"])]
        return tuple(ordered({*here["defense_spec"]}))

    @cached_property
    def fitting(self) -> tuple[str, ...]:
        """The defenses that fit the protocol: those whose training was not skipped."""
        fit = self.trains[self.trains["status"] != "skipped"]
        return tuple(ordered({*fit["defense_spec"]}))

    @cached_property
    def baseline_defense(self) -> str:
        """The undefended run, or the first defense if the protocol never trains without one."""
        return (
            next(iter(self.fitting), UNDEFENDED) if UNDEFENDED not in self.fitting else UNDEFENDED
        )

    @cached_property
    def guarantees(self) -> Mapping[str, DefenseGuarantees]:
        """The guarantees by defense."""
        here = self.rows[self.rows["stage"].isin(["train", "attack"])]
        n_audited = max(here.loc[here["measured"].map(bool), "defense_spec"].nunique(), 1)
        return {
            spec: DefenseGuarantees.of_rows(here[here["defense_spec"] == spec], n_audited)
            for spec in self.specs
        }

    @cached_property
    def costs(self) -> Mapping[str, TrainingCost]:
        """The costs of training by defense."""
        return {
            spec: training_cost(self.trains[self.trains["defense_spec"] == spec])
            for spec in self.specs
        }

    @cached_property
    def utility_change_by_defense(self) -> Mapping[str, UtilityChange]:
        """The change in utility by defense."""
        return utility_changes(self.trains, self.utility, self.constant_utility)

    @cached_property
    def defenses(self) -> tuple[DefenseResult, ...]:
        """Results of all defenses that fit, the undefended run first."""
        letters = (_letter(i) for i in range(len(self.fitting)))
        return tuple(
            DefenseResult(
                spec,
                "0" if spec == UNDEFENDED else next(letters),
                self.utility_change_by_defense[spec],
                self.costs[spec],
                self.guarantees[spec],
            )
            for spec in self.fitting
        )

    def defended(self, spec: str) -> DefenseResult | None:
        """Return the results of a defense, None if it belongs to another setting or did not run."""
        return next((d for d in self.defenses if d.spec == spec), None)

    @property
    def undefended(self) -> float:
        """Mean utility without a defense, NaN if it is not known."""
        return next(
            (d.utility_change.mean_utility for d in self.defenses if d.spec == UNDEFENDED), math.nan
        )

    def coverage(self, threat: str, spec: str) -> Coverage:
        """Return which attacks apply to a defense under a threat, and how they ended."""
        adversary_rows, attacks = (
            self.rows[
                (self.rows["stage"] == stage)
                & (self.rows["threat"] == threat)
                & (self.rows["defense_spec"] == spec)
            ]
            for stage in ("adversary", "attack")
        )
        return coverage(adversary_rows, attacks)

    @cached_property
    def by_threat(self) -> Mapping[str, AdversaryFindings]:
        """The adversaries whose view was attacked, by threat."""
        adversaries = {}
        for panel in panels(self.rows):
            attacks = self.rows[
                (self.rows["stage"] == "attack") & (self.rows["threat"] == panel.threat)
            ]
            covered = {
                spec: self.coverage(panel.threat, spec)
                for spec in dict.fromkeys(attacks["defense_spec"])
            }
            adversaries[panel.threat] = self._adversary(panel.threat, attacks, covered)
        return adversaries

    def _adversary(
        self, threat: str, attacks: pd.DataFrame, covered: Mapping[str, Coverage]
    ) -> AdversaryFindings:
        """Return an adversary with its description."""
        name, several = adversary_named(threat, role_names(self.setting))
        sees = seen_by(threat, self.setting, self.run.disclosure)
        return AdversaryFindings(
            threat, attacks, covered, self.margin, name, several, sees, self.baseline_defense
        )

    @cached_property
    def tested(self) -> tuple[AdversaryFindings, ...]:
        """The adversaries whose view was attacked, the gravest leak first."""
        return tuple(
            sorted(self.by_threat.values(), key=lambda a: (*_sort_key(a.leading()), a.threat))
        )

    @cached_property
    def adversaries(self) -> tuple[AdversaryFindings, ...]:
        """The attacked adversaries, then the remaining roles of the protocol."""
        missing = [
            name
            for g in self.run.gaps.entries
            for name in g.names
            if (g.setting, g.kind, g.status) == (self.setting, "threat", NOT_ASKED)
        ]
        return (*self.tested, *(self._adversary(n, self.rows.iloc[:0], {}) for n in missing))

    @property
    def has_guarantee(self) -> bool:
        """Whether the protocol of the setting is a recipe without a defense.

        This is the case if the protocol claims a guarantee. It is also the case if its grid omitted
        the undefended run (`undefended` of `fedtrees.experiments.suite.Grid`), because its results
        are then meant to be compared with another protocol.
        """
        undefended = self.guarantees.get(UNDEFENDED)
        if undefended is None:
            return True
        return any(g.kind != NoGuarantee.kind for terms in undefended.claimed for g in terms)

    @cached_property
    def recommendation(self) -> Recommendation:
        """All recipes, the best first."""
        from fedtrees.report.trials import trials_of_setting

        return recommend(trials_of_setting(self), recommended())

    @cached_property
    def leak(self) -> Leak:
        """The main finding without a defense."""
        return _leak(self)

    @cached_property
    def recommended_recipe(self) -> Recipe | None:
        """The recipe that the report recommends.

        It is `Recommendation.choice`, or, if no recipe resists all attacks, the best one that helps
        (`helping`). It is None in three cases: there is no undefended run, no result is leaking
        without a defense (doing nothing is then sufficient and free), or no recipe helps.
        """
        if self.baseline_defense != UNDEFENDED or not any(
            a.leaking_results(UNDEFENDED) for a in self.tested
        ):
            return None
        return self.recommendation.choice or next(iter(self.helping), None)

    @property
    def has_numeric_target(self) -> bool:
        """Whether the target is a number, so that no model has an AUC."""
        return self.utility.metric in ("r2", "rmse")

    @cached_property
    def omitted_recipe(self) -> ProtocolRecipe | None:
        """The recipe that the documentation recommends, if it fits this setting and did not run.

        It has another protocol, so that a run of named protocols does not contain it. It fits if
        both protocols distribute the table alike and the target has classes.
        """
        name, here = recommended(), (self.setting.dataset, self.setting.partition)
        ran = {
            (s.protocol, spec)
            for s, findings in self.run.by_setting.items()
            if (s.dataset, s.partition) == here
            for spec in findings.specs
        }
        fits = layout_of(self.setting.protocol) == layout_of(name.protocol)
        classes = not self.has_numeric_target
        return name if fits and classes and (name.protocol, name.defense) not in ran else None

    @cached_property
    def helping(self) -> tuple[Recipe, ...]:
        """The recipes that are shown to remove or reduce a leak here, without a clear loss.

        The best recipe comes first.
        """
        return tuple(
            c for c in self.recommendation.recipes if c.utility_change.tier < 2 and self._helps(c)
        )

    def _helps(self, recipe: Recipe) -> bool:
        """Return whether a recipe removes a leak of some adversary, or clearly reduces one."""
        after = {t.place: t.results for t in recipe.trials}
        return any(
            helps(a.results(UNDEFENDED), after.get(a.threat, ()), self.margin) for a in self.tested
        )

    @cached_property
    def recipe(self) -> str:
        """Name of the recipe if it is a defense of this setting, "" if it is another protocol."""
        return (
            self.recommended_recipe.name
            if self.recommended_recipe and self.defended(self.recommended_recipe.name)
            else ""
        )

    @cached_property
    def stricter(self) -> Recipe | None:
        """A recipe that is shown to expose fewer persons than `recommended_recipe`.

        None if there is no such recipe or `recommended_recipe` exposes no person. A recipe against
        which attacks on persons failed is not shown to expose fewer.
        """
        if self.recommended_recipe is None:
            return None
        of_persons = [
            r.weight
            for _, r in self.recommended_recipe.leaking_results
            if measure(r.metric).klass == "person"
        ]
        better = [
            c for c in self.helping if c.remaining_leak("person") < max(of_persons, default=0.0)
        ]
        return min(better, key=lambda c: c.remaining_leak("person"), default=None)

    @cached_property
    def untested(self) -> Untested:
        """Gaps of this setting, with reasons."""
        here = [g for g in self.run.gaps.entries if g.setting == self.setting]

        def names(kind: str, status: str) -> tuple[str, ...]:
            group = [n for g in here if g.kind == kind and g.status == status for n in g.names]
            return tuple(dict.fromkeys(group))

        def reasons(kind: str, *statuses: str) -> tuple[tuple[str, str], ...]:
            pairs = [
                (n, str(g.why))
                for g in here
                if g.kind == kind and g.status in statuses
                for n in g.names
            ]
            return tuple(dict.fromkeys(pairs))

        words = role_names(self.setting)
        early = [c.early for a in self.by_threat.values() for c in a.coverage.values()]
        return Untested(
            tuple((adversary_named(n, words)[0], n) for n in names("threat", NOT_ASKED)),
            names("defense", NOT_ASKED),
            names("attack", NOT_ASKED),
            tuple(dict.fromkeys(name for group in early for name in group)),
            reasons("attack", "failed", "timeout"),
            reasons("defense", "skipped"),
            self.run.unfinished,
            reasons("attack", NO_CLAIM),
            reasons("defense", "failed", "timeout"),
        )


@dataclass(frozen=True, eq=False)
class RunAnalysis:
    """The rows of a run, and the results that are derived from them on demand.

    Attributes
    ----------
    folder : Path
        Folder of the run. Its ``disclosure.json`` lists which party receives which message.
    rows : DataFrame
        Results as returned by `load_rows`.
    metric, utility : str or None
        Keys of the metrics of the frontiers. None: the first one of each panel. The metric can also
        be `VERDICT`: that of the verdict for each adversary.
    margin : float
        Largest advantage under a defense that counts as no better than a blind guess.
    """

    folder: Path
    rows: pd.DataFrame = field(repr=False)
    metric: str | None = None
    utility: str | None = None
    margin: float = MARGIN

    def __post_init__(self) -> None:
        check_margin(self.margin)
        metrics = attack_metrics(self.rows)
        trained = set(self.rows.loc[self.rows["stage"] == "train", "metric"])
        utilities = [m.key for m in UTILITY if m.key in trained]
        if self.metric not in (None, VERDICT, *metrics):
            hint = (
                f"; it measures the model, give --utility {self.metric}"
                if self.metric in utilities
                else did_you_mean(str(self.metric), metrics)
            )
            raise UsageError(
                f"no attack of this run reports an advantage for {self.metric!r}{hint}"
            )
        if self.utility is not None and self.utility not in utilities:
            hint = (
                f"; it measures a leak, give --metric {self.utility}"
                if self.utility in metrics
                else did_you_mean(self.utility, utilities)
            )
            raise UsageError(f"no model of this run was scored by {self.utility!r}{hint}")

    @cached_property
    def by_setting(self) -> Mapping[Setting, SettingFindings]:
        """The findings of every setting with a training or an attack, by setting."""
        here = self.rows[self.rows["stage"].isin(["train", "attack"])]
        return {s: SettingFindings(self, s) for s in sorted({*here["setting"]})}

    @cached_property
    def settings(self) -> tuple[SettingFindings, ...]:
        """The findings of every setting, the gravest leak first."""

        def key(f: SettingFindings) -> tuple[object, ...]:
            return f.leak.kind != "leak", *_sort_key(f.leak.result), str(f.setting)

        return tuple(sorted(self.by_setting.values(), key=key))

    @property
    def version(self) -> str:
        """Versions of fedtrees that wrote the rows."""
        return ", ".join(sorted({v for v in self.rows["version"] if v}))

    @cached_property
    def disclosure(self) -> list[dict[str, Any]]:
        """The entries of ``disclosure.json``: which party receives which message."""
        return read_json(self.folder, "disclosure.json") or []

    def table_options(self, dataset: str) -> tuple[str, ...]:
        """Return the options of the command line that name a table of the run.

        For example, ``("--csv", "patients.csv", "--target", "ill")``. They are read from
        ``suite.toml``. Without this file, the table is taken for one of the catalogue.

        Parameters
        ----------
        dataset : str
            Name of the table in results.
        """
        grids = read_suite(self.folder).get("grid", ())
        tables = [table for grid in grids for table in grid.get("data", ())]
        spec = next((t for t in tables if isinstance(t, dict) and t.get("name") == dataset), None)
        if spec is None:
            return ("--data", dataset)
        return tuple(
            text
            for key, value in spec.items()
            if key != "name"
            for text in (
                f"--{key.replace('_', '-')}",
                joined_names(value) if isinstance(value, list) else str(value),
            )
        )

    @cached_property
    def unfinished(self) -> bool:
        """Whether the run is not finished."""
        return is_unfinished(self.folder)

    @cached_property
    def panels(self) -> tuple[Panel, ...]:
        """Every attacked pair of setting and threat."""
        return panels(self.rows)

    @cached_property
    def frontiers(self) -> tuple[Frontier, ...]:
        """The frontier of every panel, in the requested metric and utility."""
        return tuple(
            panel_frontier(
                self.by_setting[p.setting],
                p.threat,
                self.leading_metric(p.threat) if self.metric == VERDICT else self.metric,
                self.utility,
            )
            for p in self.panels
        )

    def leading_metric(self, threat: str) -> str | None:
        """Return the metric of the gravest leak of an adversary in any setting.

        The verdict reports this leak. None if nothing leaks to the adversary.
        """
        adversaries = (f.by_threat.get(threat) for f in self.by_setting.values())
        leaks = [leak for a in adversaries if a is not None and (leak := a.leading()) is not None]
        return min(leaks, key=gravity_key).metric if leaks else None

    def describe_default_metric(self) -> list[str]:
        """Return warnings about measures that were chosen by default and that can surprise.

        The first one is given if panels show different measures, because each shows the gravest
        leak of its adversary. The second one is given if nothing leaks to an adversary, so that its
        panels show the first measure of the run. The list is empty if the user chose a metric.
        """
        if self.metric != VERDICT:
            return []
        shown = {f.panel.threat: f.metric for f in self.frontiers}
        leading = {t: m for t in shown if (m := self.leading_metric(t)) is not None}
        notes = []
        if len({*leading.values()}) > 1:
            pairs = listed([f"{metric} for {threat}" for threat, metric in leading.items()])
            notes.append(
                "the panels show different measures, the gravest leak of each adversary: "
                f"{pairs}. Choose one with --metric to compare adversaries"
            )
        if without := [t for t in shown if t not in leading]:
            metrics = listed(sorted({shown[t] for t in without}))
            notes.append(
                f"no leak to {listed(without)} was found, so that {metrics} is shown. "
                "Choose another measure with --metric"
            )
        return notes

    def describe_missing_points(self) -> list[str]:
        """Return warnings about defenses without a point in a figure, with the reasons."""
        missing: dict[tuple[Setting, str, str], list[str]] = {}
        for frontier in self.frontiers:
            setting, threat = frontier.panel.setting, frontier.panel.threat
            for point in (p for p in frontier.points if not p.drawn):
                why = (
                    "no model was trained"
                    if not point.utility.known
                    else f"no attack that ran applies to {threat}"
                    if point.untouched
                    else f"no attack by {threat} has a score for {frontier.metric}"
                )
                missing.setdefault((setting, threat, why), []).append(point.defense)
        attacked = {panel.setting for panel in self.panels}
        for setting, findings in self.by_setting.items():
            if setting not in attacked:
                missing[setting, "", "no attack ran"] = [*findings.specs]
        return [
            f"a figure has no point for {setting.protocol} with {some([*map(short, defenses)])}, "
            f"because {why}"
            for (setting, _, why), defenses in missing.items()
        ]

    @cached_property
    def over_budgets(self) -> tuple[Frontier, ...]:
        """Frontiers of protocols that were run with several values of a parameter."""
        return over_budgets(self.frontiers)

    @cached_property
    def gaps(self) -> Gaps:
        """Defenses, threats and attacks that were not run or failed."""
        return Gaps.of(self.rows, tuple(self.by_setting))


def analyze_run(
    folder: str | Path, metric: str | None = None, margin: float | None = None
) -> RunAnalysis:
    """Load a run.

    Parameters
    ----------
    folder : str or Path
        Folder of the run.
    metric : str or None
        Attack metric to show.
    margin : float or None
        Margin of the states, None for the default.
    """
    margin = MARGIN if margin is None else margin
    return RunAnalysis(Path(folder), load_rows(folder), metric, margin=margin)


def describe_weaknesses(
    runs: Sequence[str | Path], metric: str | None = None, chosen: Selection | None = None
) -> list[str]:
    """Return warnings about the evidence of a figure or a table.

    They are about few seeds, few rows, the default measure and defenses without a result.

    Parameters
    ----------
    runs : sequence of path
        Run folders.
    metric : str or None
        Attack metric that the user chose. None: that of the verdict.
    chosen : Selection or None
        Datasets, threats and protocols that are shown. None: all.
    """
    notes: list[str] = []
    for run in runs:
        rows = (chosen or Selection()).of(load_rows(run))
        notes += describe_thin_evidence(rows)
        analysis = RunAnalysis(Path(run), rows, metric or VERDICT)
        notes += [*analysis.describe_default_metric(), *analysis.describe_missing_points()]
    return [*dict.fromkeys(notes)]


def frontiers(
    rows: pd.DataFrame, metric: str | None = None, utility: str | None = None
) -> tuple[Frontier, ...]:
    """Compute the frontier of every (dataset, partition, protocol, threat).

    Parameters
    ----------
    rows : DataFrame
        Results as returned by `load_rows`.
    metric : str or None
        Attack metric whose advantage is the leak. Default: the first headline metric of each panel.
    utility : str or None
        Training metric. Default: the first metric of `UTILITY` that the setting has.
    """
    run = RunAnalysis(Path(), rows)
    return tuple(
        panel_frontier(run.by_setting[p.setting], p.threat, metric, utility) for p in run.panels
    )


def is_unfinished(folder: str | Path) -> bool:
    """Return whether a folder contains a run that is not finished.

    A run writes ``disclosure.json`` last. A submission to the leaderboard contains
    ``submission.json`` instead, and only finished runs are submitted.
    """
    present = {path.name for path in Path(folder).glob("*") if path.is_file()}
    return "suite.toml" in present and not present & {"disclosure.json", "submission.json"}


def _leak(findings: SettingFindings) -> Leak:
    """Return the main finding without a defense.

    If no result is leaking, the kind describes how much is known about the remaining results.
    """
    leading = [(a, r) for a in findings.tested if (r := a.leading()) is not None]
    if leading:
        return Leak("leak", *min(leading, key=lambda x: gravity_key(x[1])))
    # No result is leaking here. The remaining kinds state how much is known.
    results = [(a, r) for a in findings.tested for r in a.results(findings.baseline_defense)]
    if not any(r.state in ("safe", "unsettled", "unknown") for _, r in results):
        return Leak("no-attack")
    if all(r.state in SETTLED for _, r in results):
        traces = [(a, r) for a, r in results if r.advantage.low > 0]
        if traces:
            # The interval excludes zero, but the advantage is below the margin.
            return Leak("trace", *min(traces, key=lambda x: gravity_key(x[1])))
        return Leak("none-found")
    scored = [(a, r) for a, r in results if r.state == "unsettled" and r.scores]
    if not scored:
        return Leak("unknown")  # every attack on these results failed or returned no claim
    adversary, result = max(scored, key=lambda x: finite(x[1].advantage.mean))
    return Leak("attack-failed" if result.below_baseline else "none-clear", adversary, result)


def _sort_key(result: LeakageResult | None) -> tuple[float, float, float]:
    """Return a sort key of results that puts the gravest first and a missing result last."""
    return (math.inf,) * 3 if result is None else gravity_key(result)


def _letter(at: int) -> str:
    """Return the label of a defense: A to Z, then AA and so on."""
    return chr(65 + at) if at < 26 else _letter(at // 26 - 1) + chr(65 + at % 26)
