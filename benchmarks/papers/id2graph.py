"""Replicate the label inference attack ID2Graph of Takahashi et al. (2023), and extend it.

``python -m fedtrees.benchmarks.papers id2graph --data-dir FOLDER`` runs the suite and prints the
tables.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedtrees.benchmarks.papers.study import suite_study
from fedtrees.benchmarks.papers.tables import Table, percent, suite_tables
from fedtrees.report.figures import static
from fedtrees.report.findings import frontiers
from fedtrees.report.results import ordered
from fedtrees.report.statistics import worst_case

#: Tables and protocols of Table 2.
SETTINGS = tuple(
    (data, protocol)
    for data in ("breast-cancer", "phishing", "obesity-7")
    for protocol in ("vertical-forest", "secureboost")
)
HALVES = "shares[clients=2,active=0.5]"
LABELS_ALONE = "shares[clients=2,active=0]"
_DEFENSES = ("table", "protocol", "defense", "AUC", "`id2graph`", "strongest", "`cl`")


def defense_table(rows: Any, partition: str = HALVES) -> Table:
    """Return Figures 8 and 9, or 10: the cost of each defense, and the strongest attack.

    The strongest attack is at least as good as `cl`, because `cl` uses no messages.

    Parameters
    ----------
    rows : DataFrame
        Results of the run.
    partition : str
        Partition of the columns.
    """
    lines = []
    for data, protocol in SETTINGS:
        trained = _of(rows, data, protocol, "", partition)
        local_auc = _alone(rows, data, protocol, partition)
        if len(local_auc):
            lines.append([data, protocol, "*active alone*", percent(local_auc), "", "", ""])
        for spec in ordered(set(trained.loc[trained["stage"] == "train", "defense_spec"])):
            selected = trained[trained["defense_spec"] == spec]
            auc = selected[(selected["stage"] == "train") & (selected["metric"] == "auc")]["value"]
            attack_scores = _scores(rows, data, protocol, "", partition, spec)
            best = worst_case(attack_scores, "v_measure")
            floored = np.maximum(best["value"], best["blind"])
            graph = attack_scores[attack_scores["attack"] == "id2graph"]["value"]
            scores = (auc, graph, floored, best["blind"])
            lines.append([data, protocol, f"`{spec}`", *map(percent, scores)])
    return Table("Defenses. AUC and V-measure, percent.", _DEFENSES, lines)


def _alone(rows: Any, data: str, protocol: str, partition: str) -> Any:
    """Return the AUC of the active party without the other parties, by seed."""
    selected = rows[(rows["stage"] == "reference") & (rows["metric"] == "auc")]
    selected = selected[(selected["dataset"] == data) & (selected["partition"] == partition)]
    return selected.loc[
        (selected["protocol"] == "active-only") & (selected["protocol_params"] == protocol), "value"
    ]


def _of(rows: Any, data: str, protocol: str, params: str, partition: str) -> Any:
    """Select the results of one setting."""
    keys = {"dataset": data, "protocol": protocol, "partition": partition}
    selected = rows["protocol_params"] == params
    for column, value in keys.items():
        selected &= rows[column] == value
    return rows[selected]


def _scores(
    rows: Any, data: str, protocol: str, params: str, partition: str, defense: str = "none"
) -> Any:
    """Return the V-measures of all attacks on one training."""
    selected = _of(rows, data, protocol, params, partition)
    done = (selected["stage"] == "attack") & (selected["status"] == "ok")
    return selected[
        done & (selected["metric"] == "v_measure") & (selected["defense_spec"] == defense)
    ]


def tables(rows: Any) -> list[Table]:
    """Return Figures 5 to 7, Figures 8 and 9, and Figure 10."""
    by_partition = map(partial(defense_table, rows), (HALVES, LABELS_ALONE))
    return [*suite_tables("id2graph", rows), *by_partition]


def draw(rows: Any, path: Path) -> Path:
    """Draw AUC over the strongest attack for Phishing and Obesity, and write the figure."""
    selected = rows[(rows["partition"] == HALVES) & rows["dataset"].isin(["phishing", "obesity-7"])]
    plain = selected[selected["protocol_params"].eq("") | (selected["stage"] == "reference")]
    return static.save(static.frontier(frontiers(plain, "v_measure")), path)


STUDIES = {"id2graph": suite_study("id2graph", tables, figures={"id2graph.svg": draw})}
