"""Measure which defenses of histograms protect rows, and their cost in AUC.

``python -m fedtrees.benchmarks.papers frontiers --data-dir FOLDER`` runs the suite, prints the
tables and draws the frontiers.
"""

from pathlib import Path
from typing import Any

from fedtrees.benchmarks.papers.study import suite_study
from fedtrees.benchmarks.papers.tables import Table, percent
from fedtrees.core.guarantee import PureDP
from fedtrees.report.figures import static
from fedtrees.report.findings import frontiers
from fedtrees.report.results import ordered

_DEFENSES = (
    "defense", "AUC", "change", "epsilon spent", "server reads", "`nvflare-hist` client reads",
    "wrong", "`fedtree-hist` client: exact rows", "RA over blind",
)  # fmt: skip
_TREES = ("trees", "AUC", "server reads", "client reads", "wrong")


def tables(rows: Any) -> list[Table]:
    """Return two tables per data set: defenses, and the number of trees without a defense."""
    trees = rows["protocol_params"].str.extract(r"trees=(\d+)")[0].astype(float)
    result_tables = []
    for data in dict.fromkeys(rows.loc[rows["stage"] == "train", "dataset"]):
        of_data = rows["dataset"] == data
        selected = rows[of_data & (trees == 30)]
        lines = [_defense(selected, spec) for spec in ordered(set(selected["defense_spec"]))]
        result_tables.append(Table(f"{data}: defenses, 30 trees", _DEFENSES, lines))
        undefended = (
            of_data & (rows["protocol"] == "nvflare-hist") & (rows["defense_spec"] == "none")
        )
        counts = sorted(set(trees[undefended & (rows["stage"] == "train")]))
        lines = [_fewer(rows[undefended & (trees == n)], int(n)) for n in counts]
        title = f"{data}: fewer trees, `nvflare-hist`, no defense"
        result_tables.append(Table(title, _TREES, lines))
    return result_tables


def _defense(rows: Any, spec: str) -> list[str]:
    """Return the line of a defense, with the protocol to which the defense applies."""
    results = rows[(rows["defense_spec"] == spec) & (rows["status"] == "ok")]
    undefended = rows[rows["defense_spec"] == "none"]
    name = "nvflare-hist" if "by=server" in spec else "fedtree-hist"
    auc, base = (_auc(part[part["protocol"] == name]) for part in (results, undefended))
    spent = results.loc[results["stage"] == "train", "spent"].iloc[0]
    private = next((g for g in spent if isinstance(g, PureDP)), None)
    client = results[(results["protocol"] == "fedtree-hist") & (results["threat"] == "client")]
    return [
        f"`{spec}`",
        f"{auc.mean():.3f}",
        "" if spec == "none" else f"{(auc - base).mean():+.3f}",
        f"{private.histograms or private.epsilon:g}" if private else "-",
        percent(
            _best(results[(results["protocol"] == name) & (results["threat"] == "server")])["value"]
        ),
        _read_by_client(results),
        _worst(results, "returned_wrong"),
        percent(_best(client, "exact_rows")["value"]),
        percent(_over_blind(client), signed=True),
    ]


def _fewer(rows: Any, trees: int) -> list[str]:
    """Return the line of a number of trees."""
    server = percent(_best(rows[rows["threat"] == "server"])["value"])
    wrong = _worst(rows, "returned_wrong")
    return [str(trees), f"{_auc(rows).mean():.3f}", server, _read_by_client(rows), wrong]


def _read_by_client(rows: Any) -> str:
    """Format the share of rows that a client of `nvflare-hist` reads."""
    results = rows[(rows["protocol"] == "nvflare-hist") & (rows["threat"] == "client")]
    return percent(_best(results)["value"])


def _auc(rows: Any) -> Any:
    """Return the AUC by seed."""
    aucs = rows[(rows["stage"] == "train") & (rows["metric"] == "auc")]
    return aucs.set_index("seed")["value"]


def _best(rows: Any, metric: str = "returned_right") -> Any:
    """Return the row of the best attack by a metric, one per seed."""
    scores = rows[(rows["stage"] == "attack") & (rows["metric"] == metric)]
    return scores.sort_values("value", ascending=False).drop_duplicates("seed")


def _over_blind(rows: Any) -> Any:
    """Return the reconstruction accuracy above the blind baseline, by seed."""
    best = _best(rows, "ra")
    return best["value"] - best["blind"]


def _worst(rows: Any, metric: str) -> str:
    """Format the largest value of a metric in percent."""
    values = rows.loc[rows["metric"] == metric, "value"].dropna()
    return f"{100 * values.max():.1f}" if len(values) else "-"


def draw(rows: Any, path: Path) -> Path:
    """Draw utility over rows read by the adversaries that see histograms, and write the figure."""
    # All defenses were run with 30 trees.
    thirty = rows[rows["protocol_params"].str.contains("trees=30")]
    seers = {("fedtree-hist", "server"), ("nvflare-hist", "client")}
    panels = [
        f
        for f in frontiers(thirty, "returned_right")
        if (f.panel.setting.protocol.partition("[")[0], f.panel.threat) in seers
    ]
    return static.save(static.frontier(panels), path)


STUDIES = {"frontiers": suite_study("frontiers", tables, figures={"frontiers.svg": draw})}
