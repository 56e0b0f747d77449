"""Draw the figure of the README from a run of the default benchmark.

``python -m fedtrees.benchmarks.readme_figure runs/quick docs/images/frontier.svg`` draws one line
per defense: how many rows the server reconstructs, how many members it recognises, and the AUC of
the model. Values are means over the seeds with 95% intervals of Student's t distribution.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from fedtrees.benchmarks.charts import BarChart, BarPanel, save
from fedtrees.core.errors import UsageError
from fedtrees.core.results import UTILITY, measure
from fedtrees.report.figures.model import COLOURS
from fedtrees.report.findings import DefenseResult, SettingFindings, analyze_run
from fedtrees.report.leakage import LeakageResult
from fedtrees.report.statistics import Estimate, by_seed, mean_of, t_estimate

_THREAT = "server"
_ROWS, _MEMBERS = "exact_rows", "members_1pct"
#: Plain labels of the recipes of the default benchmark: protocol without parameters, and defense.
LABELS = {
    ("fedtree-hist", "none"): "no defense",
    ("fedtree-hist", "split-only"): "clients receive less (split-only)",
    ("fedtree-hist", "secure-sum"): "server receives sums only (secure-sum)",
    ("fedtree-hist", "min-bin[k=5]"): "small groups hidden (min-bin)",
    ("fedtree-hist", "laplace-hist[epsilon=1]"): "noisy histograms (laplace-hist ε=1)",
    ("fedtree-hist", "split-only+secure-sum+dp-grid-cuts[epsilon=1]+hist-rounding[step=0.1]"):
        "four defenses combined",
    ("dp-gbdt", "dp-grid-cuts[epsilon=1]"): "recommended: dp-gbdt and dp-grid-cuts",
}  # fmt: skip


def chart_of(run: Path) -> BarChart:
    """Return the chart of the recipes of a run that `LABELS` names.

    Parameters
    ----------
    run : Path
        Folder of the run.

    Raises
    ------
    UsageError
        If the run contains no recipe of `LABELS`.
    """
    recipes = [
        (LABELS[place], setting, defense)
        for setting in analyze_run(run).settings
        for defense in setting.defenses
        if (place := (setting.setting.protocol.partition("[")[0], defense.spec)) in LABELS
    ]
    if not recipes:
        raise UsageError(f"{run} contains no recipe of the default benchmark; run `fedtrees bench`")
    order = [*LABELS.values()]
    recipes.sort(key=lambda recipe: order.index(recipe[0]))
    total = max(_leak(s, d, _ROWS).rows for _, s, d in recipes)
    panels = [
        _leak_panel(f"rows reconstructed, of\u00a0{total:.0f}", recipes, _ROWS, total),
        _leak_panel(f"patients recognised, of\u00a0{total:.0f}", recipes, _MEMBERS, total),
        _panel("quality of the model (AUC)", [_utility(s, d) for _, s, d in recipes], (0.5, 1.0),
               lambda v: f"{v:.3f}", colour=COLOURS[0]),
    ]  # fmt: skip
    note = "Black mark: a guess without any message. Thin line: 95% interval over the seeds."
    return BarChart([label for label, *_ in recipes], panels, note, label_width=23)


Recipes = Sequence[tuple[str, SettingFindings, DefenseResult]]


def _leak(setting: SettingFindings, defense: DefenseResult, metric: str) -> LeakageResult:
    """Return the result of the strongest attack of the server."""
    return setting.by_threat[_THREAT].result(defense.spec, metric)


def _utility(setting: SettingFindings, defense: DefenseResult) -> Estimate:
    """Return the mean AUC of a defense."""
    trains = setting.trains[setting.trains["defense_spec"] == defense.spec]
    return t_estimate(by_seed(trains, "auc").values(), bounds=UTILITY[0].bounds)


def _leak_panel(title: str, recipes: Recipes, metric: str, total: float) -> BarPanel:
    """Return the panel of a leak, in rows."""
    results = [_leak(s, d, metric) for _, s, d in recipes]
    blind = [total * mean_of(r.blinds) for r in results]
    high = total * measure(metric).bounds[1]
    estimates = [t_estimate([total * s for s in r.scores], bounds=(0.0, high)) for r in results]
    return _panel(title, estimates, (0.0, total), _count, blind)


def _panel(
    title: str,
    estimates: Sequence[Estimate],
    limits: tuple[float, float],
    form: Callable[[float], str],
    blind: Sequence[float] = (),
    colour: str = COLOURS[1],
) -> BarPanel:
    """Return a panel with intervals."""
    return BarPanel(
        title, [e.mean for e in estimates], limits, [form(e.mean) for e in estimates], blind,
        [(e.low, e.high) for e in estimates], colour,
    )  # fmt: skip


def _count(value: float) -> str:
    """Format a number of rows, with one decimal place below 10."""
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:.0f}"


def main() -> None:
    """Draw the figure of a run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run of `fedtrees bench`")
    parser.add_argument("out", type=Path, help="file to write: .svg, .png or .pdf")
    options = parser.parse_args()
    print(save(chart_of(options.run), options.out))


if __name__ == "__main__":
    main()
