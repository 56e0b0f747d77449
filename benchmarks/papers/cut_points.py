"""Compare defenses of cut points.

``python -m fedtrees.benchmarks.papers cut_points --data-dir FOLDER`` runs the suite and prints the
table.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from itertools import product
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.benchmarks.papers.study import SUITE_OPTIONS, Study, run_suite, train_federation
from fedtrees.benchmarks.papers.tables import Table
from fedtrees.core.transcript import Transcript
from fedtrees.experiments.suite import Suite
from fedtrees.messages.horizontal import CUT_MESSAGES, GridRequest
from fedtrees.report.results import load_rows
from fedtrees.trees.cut_points import count_cells

_COLUMNS = (
    "cut points", "AUC", "kB", "values read", "values in sums", "rows right in every bin",
    "exact rows", "rows right to the last bit",
)  # fmt: skip
_BYTES = ("bytes_up", "bytes_down")
Sums = Mapping[tuple[str, str], float]


def table(rows: Any, sums: Sums) -> Table:
    """Tabulate the cost and the leakage of every way to determine cut points.

    Parameters
    ----------
    rows : DataFrame
        Results of the run.
    sums : mapping
        Share of values that the server infers from exact sums, by data set and defense.
    """
    selected = rows[rows["stage"].isin(("train", "attack")) & (rows["status"] == "ok")]
    datasets = list(dict.fromkeys(selected["dataset"]))
    lines = []
    for spec in dict.fromkeys(selected["defense_spec"]):
        cells = [_cells(selected, data, spec, sums) for data in datasets]
        columns = (" / ".join(column) for column in zip(*cells, strict=True))
        lines.append([f"`{spec}`", *columns])
    title = f"{' / '.join(datasets)}: means over {selected['seed'].nunique()} seeds; percent"
    return Table(title, _COLUMNS, lines)


def _cells(rows: Any, data: str, spec: str, sums: Sums) -> list[str]:
    """Return the cells of one data set and defense."""
    part = rows[(rows["dataset"] == data) & (rows["defense_spec"] == spec)]
    if part.empty:
        return [""] * (len(_COLUMNS) - 1)
    value = {metric: group["value"] for metric, group in part.groupby("metric")}
    attacked = part[part["stage"] == "attack"]
    best = {m: group.groupby("seed")["value"].max() for m, group in attacked.groupby("metric")}
    share = sums.get((data, spec))
    is_cut_message = part["metric"].isin(_BYTES) & part["part"].isin(
        [t.__name__ for t in CUT_MESSAGES]
    )
    kilobytes = part.loc[is_cut_message, "value"].sum() / part["seed"].nunique() / 1000
    return [
        f"{value['auc'].mean():.3f}",
        f"{kilobytes:,.0f}",
        _share(best.get("column_values")),
        "-" if share is None else f"{100 * share:.0f}",
        *(_share(best.get(m)) for m in ("returned_right", "exact_rows", "bit_exact_rows")),
    ]


def _share(values: Any) -> str:
    """Format the mean of shares in percent."""
    return "-" if values is None or values.isna().all() else f"{100 * values.mean():.0f}"


def share_inferred_from_sums(transcript: Transcript, X: NDArray[np.float32]) -> float:
    """Return the share of values that the server infers from exact sums on the last grid.

    A cell shows the value of its rows, but not their identity, if it contains a single number with
    as many decimal places as the column has. For example, a cell from 4.95 to 5.04 of a column with
    one decimal place contains only 5.0.
    """
    grid = [d.message for d in transcript if isinstance(d.message, GridRequest)][-1]
    n_inferred = 0
    for f, borders in enumerate(np.split(grid.borders, grid.offsets[1:-1])):
        column = X[:, f][~np.isnan(X[:, f])].astype(np.float64)
        # Decimal places with which all values of the column can be written.
        is_exact = (np.float32(np.round(column, k)) == np.float32(column) for k in range(8))
        places = next((k for k, fits in enumerate(is_exact) if fits.all()), None)
        if places is None or not len(borders):
            continue
        near = np.floor(borders.astype(np.float64) * 10**places)[:, None] + np.arange(-1, 3)
        above = (near / 10**places).astype(np.float32) >= borders[:, None]
        # The first number with that many decimal places in each cell.
        first = near[np.arange(len(near)), above.argmax(axis=1)]
        is_single = np.concatenate([[False], np.diff(first) == 1, [False]])
        n_inferred += int(count_cells(X[:, [f]], [borders])[is_single].sum())
    return n_inferred / int((~np.isnan(X)).sum())


def all_sums(suite: Suite, data_dir: str | None) -> Sums:
    """Return `share_inferred_from_sums` for every `grid-cuts` defense, as means over seeds."""
    mean_shares = {}
    for grid in suite.grids:
        specs = [str(d) for d in grid.defenses if str(d).startswith("grid-cuts")]
        for data, spec in product(grid.data, specs):
            shares = []
            for seed in suite.seeds:
                run, federation, _ = train_federation(
                    data.name, grid.protocols[0], 5, seed, data_dir, defense=spec
                )
                X = np.concatenate([local_data.X for local_data in federation.local_data.values()])
                shares.append(share_inferred_from_sums(run.transcript, X))
            mean_shares[data.name, spec] = mean(shares)
    return mean_shares


def run(options: Namespace) -> Iterator[Table]:
    """Complete the run of the suite and yield its table."""
    suite = Suite.load("cut_points")
    folder = run_suite(suite, options)
    yield table(load_rows(folder), all_sums(suite, options.data_dir))


SUMMARY = "AUC, bytes and leaked values by the way in which cut points are determined."
STUDIES = {"cut_points": Study(SUMMARY, run, SUITE_OPTIONS)}
