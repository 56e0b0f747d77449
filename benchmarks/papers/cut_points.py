"""`python -m fedtrees.benchmarks.papers.cut_points --data-dir FOLDER`: run and print the tables."""

from collections.abc import Mapping
from itertools import product
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.bench.suite import Suite
from fedtrees.benchmarks.papers.study import (
    Table,
    markdown,
    options_of,
    run_suite,
    trained,
)
from fedtrees.core.transcript import Transcript
from fedtrees.messages.horizontal import CUT_MESSAGES, GridRequest
from fedtrees.report.rows import load_rows
from fedtrees.trees.grid import count_cells

_COLUMNS = (
    "cut points", "AUC", "kB", "values read", "values in sums", "rows right in every bin",
    "exact rows", "rows right to the last bit",
)  # fmt: skip
_BYTES = ("bytes_up", "bytes_down")
Sums = Mapping[tuple[str, str], float]


def table(rows: Any, sums: Sums) -> Table:
    """Return what every way to settle cut points costs and leaves to read, table by table.

    `rows`: DataFrame. Of the run.
    `sums`: Share of values that exact sums tell the server.
    """
    here = rows[rows["stage"].isin(("train", "attack")) & (rows["status"] == "ok")]
    datasets = list(dict.fromkeys(here["dataset"]))
    lines = []
    for spec in dict.fromkeys(here["defense_spec"]):
        cells = [_cells(here, data, spec, sums) for data in datasets]
        lines.append([f"`{spec}`", *(" / ".join(of) for of in zip(*cells, strict=True))])
    title = f"{' / '.join(datasets)}: means over {here['seed'].nunique()} seeds; percent"
    return title, _COLUMNS, lines


def _cells(rows: Any, data: str, spec: str, sums: Sums) -> list[str]:
    part = rows[(rows["dataset"] == data) & (rows["defense_spec"] == spec)]
    if part.empty:
        return [""] * (len(_COLUMNS) - 1)
    value = {metric: of["value"] for metric, of in part.groupby("metric")}
    attacked = part[part["stage"] == "attack"]
    best = {m: of.groupby("seed")["value"].max() for m, of in attacked.groupby("metric")}
    told = sums.get((data, spec))
    of_cuts = part["metric"].isin(_BYTES) & part["part"].isin([t.__name__ for t in CUT_MESSAGES])
    kilobytes = part.loc[of_cuts, "value"].sum() / part["seed"].nunique() / 1000
    return [
        f"{value['auc'].mean():.3f}",
        f"{kilobytes:,.0f}",
        _share(best.get("column_values")),
        "-" if told is None else f"{100 * told:.0f}",
        *(_share(best.get(m)) for m in ("returned_right", "exact_rows", "bit_exact_rows")),
    ]


def _share(values: Any) -> str:
    return "-" if values is None or values.isna().all() else f"{100 * values.mean():.0f}"


def told_by_sums(transcript: Transcript, X: NDArray[np.float32]) -> float:
    """Return the share of all values that exact sums on the last grid tell whoever opens them.

    A cell tells its rows' value, though not whose it is, where it holds a single number that is
    written with as many decimal places as the column's values are.
    """
    grid = [d.message for d in transcript if isinstance(d.message, GridRequest)][-1]
    told = 0
    for f, borders in enumerate(np.split(grid.borders, grid.offsets[1:-1])):
        column = X[:, f][~np.isnan(X[:, f])].astype(np.float64)
        exact = (np.float32(np.round(column, k)) == np.float32(column) for k in range(8))
        places = next((k for k, fits in enumerate(exact) if fits.all()), None)
        if places is None or not len(borders):
            continue
        near = np.floor(borders.astype(np.float64) * 10**places)[:, None] + np.arange(-1, 3)
        above = (near / 10**places).astype(np.float32) >= borders[:, None]
        first = near[np.arange(len(near)), above.argmax(axis=1)]  # number from every border on
        alone = np.concatenate([[False], np.diff(first) == 1, [False]])
        told += int(count_cells(X[:, [f]], [borders])[alone].sum())
    return told / int((~np.isnan(X)).sum())


def all_sums(suite: Suite, data_dir: str | None) -> Sums:
    """Return what the sums that `grid-cuts` opens tell the server, means over seeds."""
    found = {}
    for grid in suite.grids:
        specs = [str(d) for d in grid.defenses if str(d).startswith("grid-cuts")]
        for data, spec in product(grid.data, specs):
            shares = []
            for seed in suite.seeds:
                run, federation, _ = trained(
                    data.name, grid.protocols[0], 5, seed, data_dir, defense=spec
                )
                X = np.concatenate([held.X for held in federation.local_data.values()])
                shares.append(told_by_sums(run.transcript, X))
            found[data.name, spec] = mean(shares)
    return found


if __name__ == "__main__":
    options = options_of("cut_points", "--out", "--jobs")
    suite = Suite.load("cut_points")
    folder = run_suite(suite, options.out or "runs/cut_points", options)
    title, header, lines = table(load_rows(folder), all_sums(suite, options.data_dir))
    print(f"{title}\n\n{markdown(header, lines)}")
