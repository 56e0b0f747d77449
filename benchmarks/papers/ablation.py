"""Compare all attacks by the worst-case scores of stored results, without running any of them.

``python -m fedtrees.benchmarks.papers ablation`` reads the submissions of the leaderboard (the
first is the default run), the table of recipes, and the comparison of two states of the package. A
score is *decisive* if the worst-case score of its cell would be lower without the attack.
"""

from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedtrees.benchmarks.papers.study import Study
from fedtrees.benchmarks.papers.tables import Table
from fedtrees.core.registry import register
from fedtrees.metrics.metric import headlines
from fedtrees.report.results import load_rows

ROOT = Path(__file__).parents[1]
SUBMISSIONS = ("default-bench", "numeric-target", "passive-party")
_PLACE = ["dataset", "partition", "protocol", "protocol_params", "defense_spec", "threat"]
#: Means of scores between 0 and 1 that differ by less are counted as equal.
EQUAL = 1e-6
BLIND = "blind baseline"


def scores_of_submissions() -> pd.DataFrame:
    """Return the mean over the seeds of every score, with its blind baseline.

    Returns
    -------
    scores : DataFrame
        Columns ``run``, ``cell``, ``metric``, ``attack``, ``value`` and ``blind``. A score that
        reports show only as a detail is left out.
    """
    shown, parts = {*headlines()}, []
    for name in SUBMISSIONS:
        rows = load_rows(ROOT / "leaderboard" / name)
        scored = rows["metric"].isin(shown) & (rows["status"] == "ok") & (rows["part"] == "")
        rows = rows[(rows["stage"] == "attack") & scored & rows["advantage"].notna()]
        rows = rows.assign(run=name, cell=rows[_PLACE].astype(str).agg(" ".join, axis=1))
        by = ["run", "cell", "metric", "attack"]
        texts = rows.astype(dict.fromkeys(by, str))
        parts.append(texts.groupby(by, as_index=False)[["value", "blind"]].mean())
    return pd.concat(parts, ignore_index=True)


def scores_of_comparison() -> pd.DataFrame:
    """Return the newer scores of ``old_and_new.csv`` in the form of `scores_of_submissions`."""
    rows = pd.read_csv(ROOT / "papers" / "old_and_new.csv").fillna({"protocol_params": ""})
    rows = rows[rows["metric"].isin({*headlines()}) & rows["new"].notna()]
    place = ["dataset", "protocol", "protocol_params", "threat", "defense_spec"]
    cell = rows[place].agg(" ".join, axis=1)
    columns = {"new": "value", "blind_new": "blind"}
    rows = rows.rename(columns=columns).assign(run="old_and_new", cell=cell)
    return rows[["run", "cell", "metric", "attack", "value", "blind"]]


def decisive(scores: pd.DataFrame) -> dict[str, tuple[int, int, int, float]]:
    """Return how often each attack determines a worst-case score.

    Parameters
    ----------
    scores : DataFrame
        As `scores_of_submissions` returns it.

    Returns
    -------
    counts : dict of str to (int, int, int, float)
        By attack: number of scores, scores that no other attack exceeds and that exceed the blind
        baseline, scores that every other attack and the blind baseline stay below, and the largest
        distance to the next one of these.
    """
    best: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for run, cell, metric, attack, value, blind in scores[
        ["run", "cell", "metric", "attack", "value", "blind"]
    ].itertuples(index=False):
        of_attack = best[run, cell, metric]
        of_attack[attack] = max(value, of_attack.get(attack, value))
        of_attack[BLIND] = max(blind, of_attack.get(BLIND, blind))
    counts: dict[str, tuple[int, int, int, float]] = defaultdict(lambda: (0, 0, 0, 0.0))
    for of_attack in best.values():
        for attack in of_attack.keys() - {BLIND}:
            next_best = max(value for name, value in of_attack.items() if name != attack)
            lead = of_attack[attack] - next_best
            is_highest = lead > -EQUAL and of_attack[attack] > of_attack[BLIND] + EQUAL
            n, highest, sole, margin = counts[attack]
            counts[attack] = (
                n + 1, highest + is_highest, sole + (lead > EQUAL), max(margin, lead)
            )  # fmt: skip
    return dict(counts)


def listed_in_recipes() -> dict[str, int]:
    """Return in how many cells of the recipes each attack has a worst-case score above blind."""
    rows = pd.read_csv(ROOT / "papers" / "recipes.csv").fillna({"attacks": "", "advantages": ""})
    counts: dict[str, int] = defaultdict(int)
    for names, advantages in zip(rows["attacks"], rows["advantages"], strict=True):
        values = [float(v) for v in advantages.split()]
        if values and sum(values) > 0:
            for name in {text.partition("[")[0] for text in names.split()}:
                counts[name] += 1
    return dict(counts)


def run(options: Namespace) -> Iterator[Table]:
    """Yield the table of all attacks."""
    submitted, compared = decisive(scores_of_submissions()), decisive(scores_of_comparison())
    recipes = listed_in_recipes()
    lines = []
    for name in register.names("attack"):
        maker = register.get("attack", name)
        if getattr(maker, "blind", False):
            continue
        parts = submitted.get(name, (0, 0, 0, 0.0)), compared.get(name, (0, 0, 0, 0.0))
        margin = 100 * max(part[3] for part in parts)
        kind = "reference" if getattr(maker, "is_reference", False) else "attack"
        counts = [f"{part[i]:,}" for part in parts for i in range(3)]
        lines.append(
            [f"`{name}`", kind, *counts, str(recipes.get(name, 0)), f"{margin:.1f}"]
        )  # fmt: skip
    header = (
        "Attack", "Kind", "Leaderboard: scores", "highest", "sole", "Comparison: scores", "highest",
        "sole", "Recipes", "Largest lead",
    )  # fmt: skip
    yield Table("Worst-case scores by attack, seeds as stored.", header, lines)


STUDIES = {"ablation": Study("Which attacks determine a worst-case score of stored results.", run)}
