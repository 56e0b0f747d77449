"""`python -m fedtrees.benchmarks.papers.id2graph --data-dir FOLDER`: run and print the tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedtrees.benchmarks.papers.study import Table, percent, run_study
from fedtrees.report import paper
from fedtrees.report.budgets import ordered
from fedtrees.report.frontier import frontiers
from fedtrees.report.rows import load_rows
from fedtrees.report.worst import worst_case

#: Of Takahashi et al. 2023, Table 2: V-measure of CL, UNI, UNI+CL and ID2Graph, percent.
PUBLISHED: dict[tuple[str, str], tuple[str, str, str, str]] = {
    ("breast-cancer", "vertical-forest"): (
        "55.4 ± 8.4", "0.0 ± 0.0", "55.4 ± 8.4", "75.1 ± 10.6",
    ),
    ("breast-cancer", "secureboost"): ("55.4 ± 8.4", "0.0 ± 0.0", "55.4 ± 8.4", "73.6 ± 13.3"),
    ("phishing", "vertical-forest"): ("0.1 ± 0.1", "19.6 ± 26.8", "20.2 ± 27.6", "35.2 ± 15.6"),
    ("phishing", "secureboost"): ("0.1 ± 0.1", "19.6 ± 26.8", "20.2 ± 27.6", "34.2 ± 18.3"),
    ("obesity-7", "vertical-forest"): ("25.4 ± 2.9", "0.0 ± 0.0", "25.4 ± 2.9", "61.0 ± 7.9"),
    ("obesity-7", "secureboost"): ("25.4 ± 2.9", "0.0 ± 0.0", "25.4 ± 2.9", "54.9 ± 11.4"),
}  # fmt: skip

#: Trees as the code of Takahashi et al. grows them.
AS_PUBLISHED = {
    "secureboost": "candidates=node-quantiles,pure_leaves=true,multi_output=true",
    "vertical-forest": "max_bin=65534",
}
HALVES = "shares[clients=2,active=0.5]"
LABELS_ALONE = "shares[clients=2,active=0]"
DEFAULTS = {"max_depth": 6, "trees": 5}
_THEIRS = ("cl", "union", "union-cl", "id2graph")
_OURS = ("id2graph-published", "merged-communities", "spectral", "label-mixture")
_VARIED = ("id2graph", "spectral")
_DEFENSES = ("table", "protocol", "defense", "AUC", "`id2graph`", "strongest", "`cl`")


def attack_table(rows: Any) -> Table:
    """Return Table 2: what is published, then ours, for every table and protocol."""
    header = ("table", "protocol", "whose", *(f"`{name}`" for name in (*_THEIRS, *_OURS)))
    lines = []
    for (data, protocol), printed in PUBLISHED.items():
        mine = _scores(rows, data, protocol, AS_PUBLISHED[protocol], HALVES)
        found = {name: percent(part["value"]) for name, part in mine.groupby("attack")}
        found["cl"] = percent(mine.drop_duplicates("seed")["blind"])
        lines.append([data, protocol, "theirs", *printed, *[""] * len(_OURS)])
        cells = [found.get(name, "-") for name in (*_THEIRS, *_OURS)]
        lines.append(["", "", "ours", *cells])
    return "Table 2. V-measure, percent.", header, lines


def variation_table(rows: Any) -> Table:
    """Return Figures 5 to 7: informative columns, depth, number of trees; nothing is defended."""
    header = ("table", "protocol", "what is changed", "`cl`", *(f"`{name}`" for name in _VARIED))
    lines = []
    for data, protocol in PUBLISHED:
        for params, partition, what in _variations(rows, data, protocol):
            mine = _scores(rows, data, protocol, params, partition)
            found = {name: percent(part["value"]) for name, part in mine.groupby("attack")}
            blind = percent(mine.drop_duplicates("seed")["blind"])
            lines.append([data, protocol, what, blind, *(found.get(n, "-") for n in _VARIED)])
    return "Figures 5 to 7. V-measure, percent.", header, lines


def _variations(rows: Any, data: str, protocol: str) -> Iterator[tuple[str, str, str]]:
    """Yield parameters, partition and a name of everything that one table was run with."""
    here = rows[(rows["dataset"] == data) & (rows["protocol"] == protocol)]
    for partition in dict.fromkeys(here["partition"]):
        if "active=" in partition and "named" in partition:
            yield "", partition, "passive: all but the least informative fifth"
        elif "named" in partition:
            yield "", partition, "passive: the most informative fifth"
    for key in ("max_depth", "trees"):
        known = (p for p in dict.fromkeys(here["protocol_params"]) if p.startswith(f"{key}="))
        values = sorted(int(p.partition("=")[2]) for p in known)
        for value in values:
            yield f"{key}={value}", HALVES, f"`{key}={value}`"
        if values:
            yield "", HALVES, f"`{key}={DEFAULTS[key]}`"


def defense_table(rows: Any, partition: str = HALVES) -> Table:
    """Return Figures 8 and 9, or 10: what each defense costs, and leaves of the strongest attack.

    The strongest is floored at `cl`, which whoever attacks has anyway.
    """
    lines = []
    for data, protocol in PUBLISHED:
        trained = _of(rows, data, protocol, "", partition)
        alone = _alone(rows, data, protocol, partition)
        if len(alone):
            lines.append([data, protocol, "*active alone*", percent(alone), "", "", ""])
        for spec in ordered(set(trained.loc[trained["stage"] == "train", "defense_spec"])):
            here = trained[trained["defense_spec"] == spec]
            auc = here[(here["stage"] == "train") & (here["metric"] == "auc")]["value"]
            mine = _scores(rows, data, protocol, "", partition, spec)
            best = worst_case(mine, "v_measure")
            floored = np.maximum(best["value"], best["blind"])
            graph = mine[mine["attack"] == "id2graph"]["value"]
            scores = (auc, graph, floored, best["blind"])
            lines.append([data, protocol, f"`{spec}`", *map(percent, scores)])
    return "Defenses. AUC and V-measure, percent.", _DEFENSES, lines


def _alone(rows: Any, data: str, protocol: str, partition: str) -> Any:
    """Return the AUC of the active party without the others, by seed."""
    here = rows[(rows["stage"] == "reference") & (rows["metric"] == "auc")]
    here = here[(here["dataset"] == data) & (here["partition"] == partition)]
    return here.loc[
        (here["protocol"] == "active-only") & (here["protocol_params"] == protocol), "value"
    ]


def _of(rows: Any, data: str, protocol: str, params: str, partition: str) -> Any:
    keys = {"dataset": data, "protocol": protocol, "partition": partition}
    kept = rows["protocol_params"] == params
    for column, value in keys.items():
        kept &= rows[column] == value
    return rows[kept]


def _scores(
    rows: Any, data: str, protocol: str, params: str, partition: str, defense: str = "none"
) -> Any:
    """Return the V-measures of all attacks on one training."""
    here = _of(rows, data, protocol, params, partition)
    done = (here["stage"] == "attack") & (here["status"] == "ok")
    return here[done & (here["metric"] == "v_measure") & (here["defense_spec"] == defense)]


def tables(rows: Any) -> list[Table]:
    """Return Table 2, Figures 5 to 7, Figures 8 and 9, Figure 10."""
    return [
        attack_table(rows),
        variation_table(rows),
        defense_table(rows),
        defense_table(rows, LABELS_ALONE),
    ]


def draw(rows: Any, path: Path) -> Path:
    """Draw AUC against the strongest attack for phishing and obesity, and write the figure."""
    here = rows[(rows["partition"] == HALVES) & rows["dataset"].isin(["phishing", "obesity-7"])]
    plain = here[here["protocol_params"].eq("") | (here["stage"] == "reference")]
    return paper.save(paper.frontier(frontiers(plain, "v_measure")), path)


if __name__ == "__main__":
    folder = run_study("id2graph", tables)
    draw(load_rows(folder), folder / "id2graph.svg")
