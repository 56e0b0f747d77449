"""`python -m fedtrees.benchmarks.papers.cut_points --data-dir FOLDER`: run and print the tables."""

from __future__ import annotations

from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.bench.suite import Suite
from fedtrees.benchmarks.papers.study import (
    Table,
    markdown,
    options_of,
    percent,
    run_suite,
    trained,
)
from fedtrees.core.guarantee import join
from fedtrees.core.transcript import Transcript
from fedtrees.messages.cuts import CUT_MESSAGES, GridRequest
from fedtrees.report.rows import load_rows
from fedtrees.trees.grid import count_cells

_COLUMNS = (
    "how cut points are settled", "AUC", "kB for it", "spent", "values read from summaries",
    "rows right in every bin", "exact rows", "rows right to the last bit", "blind exact rows",
)  # fmt: skip
_BYTES = [f"bytes_{way}:{t.__name__}" for way in ("up", "down") for t in CUT_MESSAGES]


def tables(rows: Any) -> list[Table]:
    """Return, per dataset, what every way to settle cut points costs and leaves to read."""
    found = []
    for data in dict.fromkeys(rows["dataset"]):
        here = rows[(rows["dataset"] == data) & rows["stage"].isin(("train", "attack"))]
        lines = [_line(part, spec) for spec, part in here.groupby("defense_spec", sort=False)]
        found.append((str(data), _COLUMNS, lines))
    return found


def _line(rows: Any, spec: str) -> list[str]:
    trained = rows[rows["stage"] == "train"]
    attacked = rows[rows["stage"] == "attack"]
    seeds = trained["seed"].nunique()
    kilobytes = trained.loc[trained["metric"].isin(_BYTES), "value"].sum() / seeds / 1000
    best = attacked[attacked["metric"] == "exact_rows"].groupby("seed")["blind"].max()
    return [
        f"`{spec}`",
        f"{mean(trained.loc[trained['metric'] == 'auc', 'value']):.3f}",
        f"{kilobytes:,.0f}",
        join(trained["spent"].iloc[0]),
        *(
            percent(_best(attacked, metric))
            for metric in ("column_values", "returned_right", "exact_rows", "bit_exact_rows")
        ),
        percent(best),
    ]


def _best(attacked: Any, metric: str) -> Any:
    """Return the best attack's score of each seed."""
    return attacked[attacked["metric"] == metric].groupby("seed")["value"].max()


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


def sums_table(suite: Suite, data_dir: str | None) -> Table:
    """Return what the sums that `grid-cuts` opens tell the server."""
    lines = []
    for grid in suite.grids:
        for data in grid.data:
            for defense in map(str, grid.defenses):
                if defense.startswith("grid-cuts"):
                    shares = []
                    for seed in suite.seeds:
                        run, federation, _ = trained(
                            data.name, grid.protocols[0], 5, seed, data_dir, defense=defense
                        )
                        X = np.concatenate([h.X for h in federation.holdings.values()])
                        shares.append(told_by_sums(run.transcript, X))
                    lines.append([data.name, f"`{defense}`", percent(shares)])
    return "What exact sums tell the server", ("table", "cut points", "values told"), lines


if __name__ == "__main__":
    options = options_of("cut_points", "--out", "--jobs")
    suite = Suite.load("cut_points")
    folder = run_suite(suite, options.out or "runs/cut_points", options)
    for title, header, lines in [
        *tables(load_rows(folder)),
        sums_table(suite, options.data_dir),
    ]:
        print(f"{title}\n\n{markdown(header, lines)}\n")
