"""Compare the attacks of two states of the package.

``python -m fedtrees.benchmarks.papers old_and_new --old FOLDER ... --new FOLDER ...`` pairs the
results of the suite `old_and_new` by seed. Each state has one folder per part or seed. The attacks
in `HEIRS` of the new state also count for the attacks that they replace. The command prints the
change of each attack over tables and defenses, and every attack and defense whose score fell by
more than its interval. It writes a line per table, adversary, defense, attack and score, like the
file next to this module.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd

from fedtrees.benchmarks.papers.study import Study
from fedtrees.benchmarks.papers.tables import Table
from fedtrees.core.specs import written
from fedtrees.report.statistics import t_estimate

#: Scores that are compared, whatever an attack claims.
SCORES = (
    "ra", "exact_rows", "leaf_mass_exact", "v_measure", "label_accuracy", "rank_correlation",
    "column_values", "thresholds", "entries",
)  # fmt: skip
LEAST = 0.003  # Smaller changes are ignored.
#: Attacks that took over the evidence of another attack, which no longer uses it.
HEIRS = {"linear-reconstruction": "split-ordering"}
_TEXT = {"defense_params": str, "protocol_params": str, "attack_params": str}
_PLACE = ["dataset", "protocol", "protocol_params", "threat", "defense_spec", "attack"]
_CELL = [*_PLACE, "metric"]
_DEFENDED = ["protocol", "protocol_params", "threat", "defense_spec"]


def read(folder: Path) -> pd.DataFrame:
    """Return the scores of a run of any release, whose columns have these names in all releases."""
    rows = pd.read_csv(folder / "rows.csv", low_memory=False, dtype=_TEXT)
    if "context" in rows:
        rows = rows.merge(pd.read_csv(folder / "contexts.csv", dtype=_TEXT), on="context")
    rows = rows[(rows["stage"] == "attack") & rows["metric"].isin(SCORES)].fillna(
        {"defense_params": "", "protocol_params": ""}
    )
    pairs = zip(rows["defense"], rows["defense_params"], strict=True)
    return rows.assign(defense_spec=[written(*pair) for pair in pairs])


def pair_scores(old: Iterable[pd.DataFrame], new: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return a line per score and seed, with value and blind baseline, ``_old`` and ``_new``."""
    sides = []
    for parts in (old, new):
        rows = pd.concat(list(parts))
        sides.append(rows[[*_CELL, "seed", "value", "blind"]].drop_duplicates([*_CELL, "seed"]))
    left = sides[1].replace({"attack": HEIRS}).groupby([*_CELL, "seed"], sort=False)
    sides[1] = left.agg({"value": "max", "blind": "max"}).reset_index()
    both = sides[0].merge(sides[1], on=[*_CELL, "seed"], suffixes=("_old", "_new"))
    return both.assign(change=both["value_new"] - both["value_old"])


def summarise(both: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return means over everything but `by`, with the interval of the changes."""
    lines = []
    for key, part in both.groupby(list(by), sort=False):
        change = t_estimate(part["change"])
        numbers = (
            part[name].mean() for name in ("value_old", "value_new", "blind_old", "blind_new")
        )
        fell = change.mean < -LEAST and not change.high >= 0
        lines.append((*key, len(part), *numbers, change.mean, change.low, change.high, fell))
    scores = ["old", "new", "blind_old", "blind_new", "change", "low", "high", "fell"]
    return pd.DataFrame(lines, columns=[*by, "pairs", *scores])


def per_attack(both: pd.DataFrame) -> list[list[str]]:
    """Return a line per attack and score: mean change, worst defense, and number of declines."""
    lines = []
    for (attack, metric), part in both.groupby(["attack", "metric"], sort=False):
        places = summarise(part, _DEFENDED)
        worst = places.loc[places["change"].idxmin()]
        where = f"{worst['protocol']}, {worst['threat']}, `{worst['defense_spec']}`"
        fell = f"{int(places['fell'].sum())} of {len(places)}"
        lines.append(
            [f"`{attack}`", metric, *(f"{part[f'value_{s}'].mean():.3f}" for s in ("old", "new")),
             f"{part['change'].mean():+.3f}", f"{worst['change']:+.3f} ({where})", fell]
        )  # fmt: skip
    return lines


def run(options: Namespace) -> Iterator[Table]:
    """Compare two runs, write all changes, and yield the tables."""
    both = pair_scores(*(map(read, folders) for folders in (options.old, options.new)))
    summarise(both, _CELL).to_csv(options.out, index=False, float_format="%.4f")
    header = ("attack", "score", "old", "new", "change", "worst defense", "fell")
    yield Table("Change of every attack over tables and defenses.", header, per_attack(both))
    places = summarise(both, [*_DEFENDED, "attack", "metric"])
    fallen = places[places["fell"]].sort_values("change")
    header = ("attack", "score", "protocol", "threat", "defense", "old", "new", "95% of the change")
    lines = [
        [f"`{c.attack}`", c.metric, c.protocol, c.threat, f"`{c.defense_spec}`",
         f"{c.old:.3f}", f"{c.new:.3f}", f"[{c.low:+.3f}, {c.high:+.3f}]"]
        for c in fallen.itertuples()
    ]  # fmt: skip
    yield Table(f"{len(fallen)} of {len(places)} scores fell beyond their interval.", header, lines)


STUDIES = {
    "old_and_new": Study(
        "Attacks of two states of the package, paired by seed, with the scores that fell.",
        run,
        {
            "--old": {"nargs": "+", "required": True, "type": Path, "help": "runs of one state"},
            "--new": {"nargs": "+", "required": True, "type": Path, "help": "runs of the other"},
            "--out": {"type": Path, "default": Path("old_and_new.csv"), "help": "all changes"},
        },
    )
}
