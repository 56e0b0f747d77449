"""Collect the results of recipes that `fedtrees.report.recipe.recommend` ranks.

A recipe is a protocol with a defense. `trials_of_setting` collects the recipes that can replace the
undefended run of one setting. `trials_of` collects the recipes of a run over all protocols and
tables, for the advice and for the recommendation of the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fedtrees.core.guarantee import ActedOnNothing
from fedtrees.core.reasons import Reason
from fedtrees.report.adversaries import AdversaryFindings
from fedtrees.report.cost import UtilityChange, utility_changes
from fedtrees.report.findings import RunAnalysis, SettingFindings
from fedtrees.report.recipe import RecipeResult
from fedtrees.report.results import UNDEFENDED, Setting
from fedtrees.report.wording import ProtocolRecipe

Trials = dict[str, list[RecipeResult]]


def trials_of_setting(findings: SettingFindings) -> Trials:
    """Return the results of every recipe for a setting, by name of the recipe.

    Recipes are the defenses of the setting, and other protocols that claim a guarantee
    (`SettingFindings.has_guarantee`) on the same dataset and partition.
    """
    trials: Trials = {}
    for other in _at_place(findings):
        same = other is findings
        if not same and not other.has_guarantee:
            continue
        # A recipe of another protocol is compared with the undefended run of this setting, because
        # this is the run that a user would replace.
        changes_by_defense = findings.utility_change_by_defense if same else utility_changes(
            other.trains, findings.utility, findings.constant_utility, findings.trains
        )  # fmt: skip
        for spec in other.fitting:
            # Doing nothing is not a recipe.
            if same and spec == UNDEFENDED:
                continue
            name = spec if same else _recipe_name(other.setting, spec)
            for threat, adversary in findings.by_threat.items():
                # Two protocols can have different roles. Only common adversaries are compared.
                if threat in other.by_threat:
                    trial = _trial(
                        other,
                        spec,
                        other.by_threat[threat],
                        threat,
                        changes_by_defense,
                        adversary.all_metrics,
                    )
                    undefended = adversary.results(UNDEFENDED)
                    trials.setdefault(name, []).append(replace(trial, undefended=undefended))
    return trials


def trials_of(rows: pd.DataFrame, *, bare: bool = False) -> Trials:
    """Return the results of every recipe of a run, over all protocols and tables, by name.

    A protocol without a guarantee and without a defense is not a recipe. The most accurate of these
    protocols on each table is the reference for utility changes, under the name `UNDEFENDED`. A
    protocol with a defense that trained on no table is left out.

    Parameters
    ----------
    rows : DataFrame
        Results as returned by `fedtrees.report.results.load_rows`.
    bare : bool
        Whether protocols without a guarantee and without a defense are recipes, too, each under its
        name.
    """
    run = RunAnalysis(Path(), rows)
    places: dict[tuple[str, str], list[SettingFindings]] = {}
    for setting, findings in run.by_setting.items():
        places.setdefault((setting.dataset, setting.partition), []).append(findings)
    trials: Trials = {}
    for here in places.values():
        plain = [f for f in here if not f.has_guarantee and UNDEFENDED in f.fitting]
        if not plain:
            continue
        # Prices are relative to the most accurate model without a defense, so that a recipe cannot
        # look cheap because its protocol is inaccurate anyway.
        best = max(
            plain,
            key=lambda f: f.utility.sign * f.utility_change_by_defense[UNDEFENDED].mean_utility,
        )
        for findings in here:
            changes_by_defense = utility_changes(
                findings.trains, best.utility, best.constant_utility, best.trains
            )
            for spec in findings.fitting:
                bare_here = spec == UNDEFENDED and findings in plain
                names = [UNDEFENDED] * (bare_here and findings is best)
                names += [_recipe_name(findings.setting, spec)] * (bare or not bare_here)
                if not changes_by_defense[spec].by_seed:
                    continue
                for threat, adversary in findings.by_threat.items():
                    # A recipe has a result for every measure that any recipe has at this place. A
                    # missing result would otherwise look like safety.
                    same_adversary = [f.by_threat[threat] for f in here if threat in f.by_threat]
                    metrics = dict.fromkeys(m for a in same_adversary for m in a.all_metrics)
                    place = f"{findings.setting.dataset} · {threat}"
                    trial = _trial(findings, spec, adversary, place, changes_by_defense, [*metrics])
                    for name in names:
                        trials.setdefault(name, []).append(trial)
    return trials


def _at_place(findings: SettingFindings) -> list[SettingFindings]:
    """Return the settings with the same dataset and partition, with this one among them."""
    setting = findings.setting
    return [
        f
        for s, f in findings.run.by_setting.items()
        if (s.dataset, s.partition) == (setting.dataset, setting.partition)
    ]


def _trial(
    findings: SettingFindings,
    spec: str,
    adversary: AdversaryFindings,
    place: str,
    changes_by_defense: Mapping[str, UtilityChange],
    metrics: Sequence[str],
) -> RecipeResult:
    """Return the results of one defense against one adversary."""
    return RecipeResult(
        place,
        tuple(adversary.result(spec, m) for m in metrics),
        changes_by_defense[spec],
        _why_untested(findings, spec, adversary),
        findings.costs[spec].bytes,
        threat=adversary.threat,
    )


def _recipe_name(setting: Setting, spec: str) -> str:
    """Return the name of a recipe: its protocol, and its defense if there is one."""
    return setting.protocol if spec == UNDEFENDED else ProtocolRecipe(setting.protocol, spec)


def _why_untested(findings: SettingFindings, spec: str, adversary: AdversaryFindings) -> str:
    """Return why the trial of a defense is no evidence, "" if every applicable attack ran."""
    if findings.guarantees[spec].failure == ActedOnNothing.kind:
        return str(Reason("acted-on-nothing"))
    covered = adversary.coverage.get(spec)
    if covered is None:
        return "not attacked"
    return "" if covered.complete else str(covered)
