"""Replicate the threshold queries of Li et al. (2022) against SecureBoost.

``python -m fedtrees.benchmarks.papers.secureboost_queries`` runs the suite and prints the tables.
"""

import math
from statistics import mean
from typing import Any

from fedtrees.benchmarks.papers.study import TITLE, Table, percent, run_study
from fedtrees.core.errors import UsageError

#: Li et al. 2022, Tables 5 and 6: table, range, number of the victim's splits, m, and the number of
#: requests by epsilon.
PUBLISHED: tuple[tuple[str, float, float, int, int, dict[float, int]], ...] = (
    ("vehicle scale", -1, 1, 102, 401, {1e-7: 306, 1e-2: 102, 1e-4: 204, 1e-6: 306}),
    ("iris", 0, 10, 15, 401, {1e-2: 30, 1e-1: 15, 1e-4: 30, 1e-6: 45}),
    ("breast cancer", -10, 10, 15, 201, {1e-6: 60}),
    ("breast cancer", -10, 10, 15, 401, {1e-1: 15, 1e-3: 30, 1e-6: 45}),
)

_QUERIES = (
    "protocol", "defense", "answers", "attack",
    "thresholds", "blind", "ranges covered", "width", "records", "requests", "AUC", "CPU s",
)  # fmt: skip
_ORDERS = (
    "protocol", "attack", "bins read", "blind", "rank correlation", "blind", "rank width", "CPU s",
)  # fmt: skip
_READERS = ("split-ordering", "linear-reconstruction")
_FORMULA = ("table", "m", "epsilon", "requests, published", "by formula", "records", "at m = 3")


def published_queries(low: float, high: float, epsilon: float, m: int) -> int:
    """Return how many requests of m records one threshold takes (Li et al. 2022, Sec. 5.2).

    Parameters
    ----------
    low, high : float
        Range of the column.
    epsilon : float
        Width of the interval at which the search ends.
    m : int
        Number of records per request, which divide the range into m - 1 parts.

    Raises
    ------
    UsageError
        If the range is empty, epsilon is not positive, or m is below 3.
    """
    if not low < high or not epsilon > 0 or m < 3:
        raise UsageError(
            f"range [{low}, {high}], epsilon={epsilon}, m={m}: give a range with low < high, "
            "epsilon > 0 and m >= 3"
        )
    # Rounding makes logarithms of powers of m - 1 slightly too large.
    return max(math.ceil(math.log((high - low) / epsilon, m - 1) - 1e-9), 0)


def query_table(rows: Any) -> Table:
    """Return one line per protocol, defense, threat and attack: means over seeds."""
    train = ["protocol", "protocol_params", "defense_spec"]
    auc = rows[(rows["stage"] == "train") & (rows["metric"] == "auc")].groupby(train)["value"]
    utility = {key: part.mean() for key, part in auc}
    lines = []
    for key, part in _select_attacks(rows, "threshold-queries").groupby(
        [*train, "threat", "attack_spec"], sort=False
    ):
        protocol, params, defense, threat, attack = key
        metric = dict(iter(part.groupby("metric")))
        count = {n: f"{metric[n]['value'].mean():.0f}" for n in ("queries", "query_batches")}
        lines.append(
            [
                f"{protocol}[{params}]" if params else protocol,
                defense,
                threat.partition("answers=")[2].rstrip("]"),
                attack,
                percent(metric["thresholds"]["value"]),
                percent(metric["thresholds"]["blind"]),
                percent(metric["ranges_covered"]["value"]),
                percent(metric["threshold_width"]["value"]),
                count["queries"],
                count["query_batches"],
                f"{utility[key[:3]]:.3f}",
                f"{mean(metric['cpu_seconds']['value']):.1f}",
            ]
        )
    return TITLE, _QUERIES, lines


def order_table(rows: Any) -> Table:
    """Return one line per protocol and attack on the order of rows: means over seeds."""
    lines = []
    keys = ["protocol", "protocol_params", "attack_spec"]
    for (protocol, params, attack), part in _select_attacks(rows, *_READERS).groupby(
        keys, sort=False
    ):
        metric = dict(iter(part.groupby("metric")))
        rank, width = metric["rank_correlation"], metric["rank_width"]
        bins = metric.get("bins_read", rank.iloc[:0])
        shares = (bins["value"], bins["blind"], rank["value"], rank["blind"], width["value"])
        seconds = f"{mean(metric['cpu_seconds']['value']):.1f}"
        name = f"{protocol}[{params}]" if params else protocol
        lines.append([name, attack, *map(percent, shares), seconds])
    return TITLE, _ORDERS, lines


def _select_attacks(rows: Any, *attacks: str) -> Any:
    """Select the results of some attacks."""
    done = (rows["stage"] == "attack") & (rows["status"] == "ok")
    return rows[done & (rows["attack"].isin(attacks))]


def formula_table() -> Table:
    """Return the published numbers of requests, those of the formula, and numbers of records."""
    lines = []
    for table, low, high, splits, m, by_epsilon in PUBLISHED:
        for epsilon, published in by_epsilon.items():
            n_requests = splits * published_queries(low, high, epsilon, m)
            # The sides of both ends are known, so that a request with m = 3 contains one new
            # record.
            least = splits * published_queries(low, high, epsilon, 3)
            cells = (published, n_requests, n_requests * m, least)
            lines.append([table, str(m), f"{epsilon:g}", *map(str, cells)])
    return "Li et al. 2022, Tables 5 and 6.", _FORMULA, lines


if __name__ == "__main__":
    run_study(
        "secureboost_queries", lambda rows: [formula_table(), query_table(rows), order_table(rows)]
    )
