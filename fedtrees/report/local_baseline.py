"""Compare the federation under a recipe with parties that each train on their local data only.

A party joins a federation to get a better model. A defense can cost so much accuracy that the model
of the federation is no better than the one that the party trains without the others. The verdict of
a run and the page of advice therefore name both (`compare_with_training_alone`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from fedtrees.core.errors import many
from fedtrees.core.results import ALONE, measure
from fedtrees.report.cost import reference_rows
from fedtrees.report.findings import SettingFindings
from fedtrees.report.recipe import Recipe
from fedtrees.report.results import UNDEFENDED
from fedtrees.report.statistics import Estimate, by_seed, t_estimate
from fedtrees.report.wording import number, split_recipe


@dataclass(frozen=True)
class LocalComparison:
    """Utility of the federation with and without a recipe, and of training on local data only.

    All estimates are means over the seeds on which both the recipe and the local training have a
    result. They are unknown (`Estimate.known`) if there is no such seed.

    Attributes
    ----------
    metric : str
        Key of the utility metric.
    local : Estimate
        Utility if each party with labels trains on its local data, as a mean over the parties. Test
        rows and protocol are those of the federation, and no defense is applied.
    undefended : Estimate
        Utility of the federation without a defense.
    federated : Estimate
        Utility of the federation with the recipe.
    gain : Estimate
        Difference of `federated` and `local`, paired by seed. Positive if the federation is better.
    """

    metric: str
    local: Estimate
    undefended: Estimate
    federated: Estimate
    gain: Estimate

    def to_json(self) -> dict[str, float | bool | str | None]:
        """Return the metric, the three means and the sentence as plain JSON types."""
        means = {"recipe": self.federated, "undefended": self.undefended, "local": self.local}
        return {
            "metric": self.metric,
            **{name: e.mean if e.known else None for name, e in means.items()},
            "joining_costs": self.joining_costs,
            "sentence": self.sentence,
        }

    @property
    def joining_costs(self) -> bool:
        """Whether the federation with the recipe is, on the mean, not better than a single party.

        False if one of the two is not known.
        """
        return self.gain.known and self.gain.mean <= 0

    @property
    def sentence(self) -> str:
        """The comparison as one sentence, "" if training on local data was not measured."""
        if not self.gain.known:
            return ""
        local, undefended, federated = (
            number(e.mean) for e in (self.local, self.undefended, self.federated)
        )
        text = (
            f"A party that trains without the others reaches {measure(self.metric).head} {local} "
            "on average; with this recipe the federation reaches "
            f"{federated}"
        )
        seeds = many(self.gain.n, "seed")
        if not self.joining_costs:
            plain = f", and {undefended} without a defense" if self.undefended.known else ""
            return f"{text}{plain} ({seeds})."
        loss = "gains no accuracy" if local == federated else "costs accuracy"
        return f"{text}, so that joining {loss} ({seeds})."


def compare_with_training_alone(findings: SettingFindings, recipe: Recipe | str) -> LocalComparison:
    """Compare the federation under a recipe with each party's training on its local data only.

    Parameters
    ----------
    findings : SettingFindings
        Findings of the setting that is the reference of the recipe. The local training uses the
        protocol of this setting, without a defense, because nothing is sent that a defense would
        have to protect.
    recipe : Recipe or str
        A recipe of this setting, or its name. If the recipe has another protocol, its model is
        taken from the same run.

    Returns
    -------
    comparison : LocalComparison
        The comparison. Its estimates are unknown if the run lacks one of the results.
    """
    protocol, spec = split_recipe(recipe if isinstance(recipe, str) else recipe.name)
    setting, metric = findings.setting, findings.utility.metric
    sources = [
        other.trains
        for other in findings.run.by_setting.values()
        if (other.setting.dataset, other.setting.partition) == (setting.dataset, setting.partition)
        and other.setting.protocol == (protocol or setting.protocol)
    ]
    defended = _of_defense(sources[0], spec, metric) if sources else {}
    undefended = _of_defense(findings.trains, UNDEFENDED, metric)
    references = reference_rows(findings.run.rows, setting, metric)
    local = by_seed(references[references["protocol"].isin(ALONE)], metric)
    seeds = [s for s in sorted(defended) if s in local]
    sign, bounds = measure(metric).sign, measure(metric).bounds
    return LocalComparison(
        metric,
        t_estimate((local[s] for s in seeds), bounds=bounds),
        t_estimate((undefended.get(s, math.nan) for s in seeds), bounds=bounds),
        t_estimate((defended[s] for s in seeds), bounds=bounds),
        t_estimate(sign * (defended[s] - local[s]) for s in seeds),
    )


def _of_defense(trains: pd.DataFrame, spec: str, metric: str) -> Mapping[int, float]:
    """Return the utility of one defense by seed."""
    return by_seed(trains[trains["defense_spec"] == spec], metric)
