"""`python -m fedtrees.benchmarks.papers.frontiers --data-dir FOLDER`: run and print the tables."""

from pathlib import Path
from typing import Any

from fedtrees.benchmarks.papers.study import Table, percent, run_study
from fedtrees.core.guarantee import PureDP
from fedtrees.report import paper
from fedtrees.report.budgets import ordered
from fedtrees.report.frontier import frontiers
from fedtrees.report.rows import load_rows

_DEFENSES = (
    "defense", "AUC", "change", "epsilon spent", "server reads", "`nvflare-hist` client reads",
    "wrong", "`fedtree-hist` client: exact rows", "RA over blind",
)  # fmt: skip
_TREES = ("trees", "AUC", "server reads", "client reads", "wrong")


def tables(rows: Any) -> list[Table]:
    """Return, per dataset, what every defense and every number of trees leaves to read."""
    trees = rows["protocol_params"].str.extract(r"trees=(\d+)")[0].astype(float)
    found = []
    for data in dict.fromkeys(rows.loc[rows["stage"] == "train", "dataset"]):
        mine = rows["dataset"] == data
        here = rows[mine & (trees == 30)]
        lines = [_defense(here, spec) for spec in ordered(set(here["defense_spec"]))]
        found.append((f"{data}: defenses, 30 trees", _DEFENSES, lines))
        bare = mine & (rows["protocol"] == "nvflare-hist") & (rows["defense_spec"] == "none")
        counts = sorted(set(trees[bare & (rows["stage"] == "train")]))
        lines = [_fewer(rows[bare & (trees == n)], int(n)) for n in counts]
        found.append((f"{data}: fewer trees, `nvflare-hist`, no defense", _TREES, lines))
    return found


def _defense(rows: Any, spec: str) -> list[str]:
    """Return the line of a defense; its protocol is the one that it goes with."""
    mine = rows[(rows["defense_spec"] == spec) & (rows["status"] == "ok")]
    undefended = rows[rows["defense_spec"] == "none"]
    name = "nvflare-hist" if "by=server" in spec else "fedtree-hist"
    auc, base = (_auc(part[part["protocol"] == name]) for part in (mine, undefended))
    spent = mine.loc[mine["stage"] == "train", "spent"].iloc[0]
    private = next((g for g in spent if isinstance(g, PureDP)), None)
    client = mine[(mine["protocol"] == "fedtree-hist") & (mine["threat"] == "client")]
    return [
        f"`{spec}`",
        f"{auc.mean():.3f}",
        "" if spec == "none" else f"{(auc - base).mean():+.3f}",
        f"{private.histograms or private.epsilon:g}" if private else "-",
        percent(_best(mine[(mine["protocol"] == name) & (mine["threat"] == "server")])["value"]),
        _read_by_client(mine),
        _worst(mine, "returned_wrong"),
        percent(_best(client, "exact_rows")["value"]),
        percent(_over_blind(client), signed=True),
    ]


def _fewer(rows: Any, trees: int) -> list[str]:
    """Return the line of a number of trees."""
    server = percent(_best(rows[rows["threat"] == "server"])["value"])
    wrong = _worst(rows, "returned_wrong")
    return [str(trees), f"{_auc(rows).mean():.3f}", server, _read_by_client(rows), wrong]


def _read_by_client(rows: Any) -> str:
    seen = rows[(rows["protocol"] == "nvflare-hist") & (rows["threat"] == "client")]
    return percent(_best(seen)["value"])


def _auc(rows: Any) -> Any:
    """Return the AUC by seed."""
    found = rows[(rows["stage"] == "train") & (rows["metric"] == "auc")]
    return found.set_index("seed")["value"]


def _best(rows: Any, metric: str = "returned_right") -> Any:
    """Return the row of the best attack by a metric, one per seed."""
    found = rows[(rows["stage"] == "attack") & (rows["metric"] == metric)]
    return found.sort_values("value", ascending=False).drop_duplicates("seed")


def _over_blind(rows: Any) -> Any:
    best = _best(rows, "ra")
    return best["value"] - best["blind"]


def _worst(rows: Any, metric: str) -> str:
    found = rows.loc[rows["metric"] == metric, "value"].dropna()
    return f"{100 * found.max():.1f}" if len(found) else "-"


def draw(rows: Any, path: Path) -> Path:
    """Draw utility against rows read by the two who see histograms, and write the figure."""
    thirty = rows[rows["protocol_params"].str.contains("trees=30")]
    seers = {("fedtree-hist", "server"), ("nvflare-hist", "client")}
    panels = [
        f
        for f in frontiers(thirty, "returned_right")
        if (f.panel.setting.protocol.partition("[")[0], f.panel.threat) in seers
    ]
    return paper.save(paper.frontier(panels), path)


if __name__ == "__main__":
    folder = run_study("frontiers", tables)
    draw(load_rows(folder), folder / "frontiers.svg")
