"""Measure which defenses hide class counts, and at which cost.

``python -m fedtrees.benchmarks.papers counts --data-dir FOLDER`` prints two tables and stores them
with every measurement. The first contains the leaves of the first tree whose counts are certain,
and whose most probable counts are right, by rounding step and number of clients in a sum. The
second contains the AUC that histogram defenses cost, and the leaves and rows that an attack still
recovers if it ignores or uses bins.
"""

import csv
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev

from fedtrees.benchmarks.papers.counts_measurements import (
    SUMS,
    DefenseSetting,
    infer_leaf_counts,
    measure_cost,
)
from fedtrees.benchmarks.papers.study import Study
from fedtrees.benchmarks.papers.tables import markdown

#: German Credit is not bundled. A sample of Adult has the same size, a similar mixture (8 of 14
#: columns are categorical) and a similar imbalance of labels. In contrast to German Credit, it has
#: missing values.
TABLES = ("breast-cancer", "pima", "adult[rows=1000]")
STEPS = tuple(
    DefenseSetting(f"hist-rounding[step={s}]") for s in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
)
UNROUNDED, PADDED = DefenseSetting("none"), DefenseSetting("none", random_rows=10)
FRONTIER = (
    UNROUNDED,
    *(STEPS[k] for k in (1, 3, 4, 6)),
    *(DefenseSetting(f"hist-rounding[step={s},random=true]") for s in (0.3, 0.5)),
    *(DefenseSetting(f"laplace-hist[epsilon={e}]") for e in (16.0, 64.0)),
    DefenseSetting("min-bin[k=2]"),
    PADDED,
    DefenseSetting("hist-rounding[step=0.1]", (("base_score", 0.02),)),
    DefenseSetting("none", protocol="dp-gbdt[epsilon=4.0,trees=50,noise=distributed]"),
)


BySeed = dict[int, float]
Of = Callable[..., BySeed]  # returns the values of a measure, of a line or of another line


@dataclass(frozen=True)
class Measurement:
    """One measurement of a table, a defense and a seed."""

    data: str
    defense: str
    seed: int
    measure: str
    value: float


def measure_lines(
    data: str, lines: Iterable[DefenseSetting], seeds: int, row_seeds: int, data_dir: str | None
) -> Iterator[Measurement]:
    """Yield the measurements of some defenses.

    Parameters
    ----------
    data : str
        Data set.
    lines : iterable of DefenseSetting
        Defenses.
    seeds : int
        Number of seeds.
    row_seeds : int
        Number of seeds on which the attack on rows is run.
    data_dir : str or None
        Folder of the data sets.
    """
    for line, seed in product(lines, range(seeds)):
        print(f"{data}, {line.name}, seed {seed}", file=sys.stderr, flush=True)
        values: dict[str, float | None] = {}
        # Counts are inferred from the first tree of the default protocol only.
        if not line.protocol and line != UNROUNDED:
            parts = infer_leaf_counts(data, line, seed, data_dir)
            for n, part in zip(SUMS.values(), parts, strict=True):
                values |= {f"certain, {n}": part.certain, f"likely, {n}": part.likely}
            values["wrong"] = sum(part.wrong for part in parts)
        if line in FRONTIER:
            result = measure_cost(data, line, seed, data_dir, rows=seed < row_seeds)
            values |= {"auc": result.auc, "read": result.read, "ignored": result.ignored}
            values |= {"blind": result.blind, "among": result.among}
        for measure, value in values.items():
            if value is not None:
                yield Measurement(data, line.name, seed, measure, value)


def by_seed(measurements: Iterable[Measurement]) -> dict[tuple[str, str, str], BySeed]:
    """Group measurements by table, defense and measure."""
    values: dict[tuple[str, str, str], BySeed] = {}
    for f in measurements:
        values.setdefault((f.data, f.defense, f.measure), {})[f.seed] = f.value
    return values


#: Columns of the second table: the name, and a function that formats a cell.
COLUMNS: dict[str, Callable[[Of], str]] = {
    "AUC": lambda of: _change(of("auc"), of("auc", UNROUNDED)),
    "leaves": lambda of: f"{_mean(of('likely, 3'))} / {_mean(of('likely, 1'))}",
    "RA": lambda of: f"{_percent(of('ignored'))} / {_percent(of('read'))}",
}


def text_of(measurements: Sequence[Measurement]) -> str:
    """Format the tables as Markdown."""
    values = by_seed(measurements)
    tables = list(dict.fromkeys(f.data for f in measurements))

    def of(data: str, line: DefenseSetting) -> Of:
        return lambda measure, other=line: values.get((data, other.name, measure), {})

    steps = [
        [line.name, *(c for data in tables for c in _leaves(of(data, line)))] for line in STEPS
    ]
    frontier = [
        [line.name, *(write(of(data, line)) for data in tables for write in COLUMNS.values())]
        for line in FRONTIER
    ]
    wrong = sum(sum(v.values()) for (*_, m), v in values.items() if m == "wrong")
    deviations = [stdev(v.values()) for (*_, m), v in values.items() if m == "read" and len(v) > 1]
    parts = (
        f"Leaves of the first tree, certain / likely right; {wrong:.0f} certain are wrong.",
        markdown(("defense", *(f"{d}: {who}" for d in tables for who in SUMS)), steps),
        "AUC against no rounding, ± standard error; leaves right, of the secure sum / of one "
        "client; RA of the secure sum's server in percent, bins ignored / read (standard "
        f"deviations up to {100 * max(deviations, default=0.0):.1f}).",
        markdown(("defense", *(f"{d}: {name}" for d in tables for name in COLUMNS)), frontier),
        *(_describe_baseline(data, of(data, UNROUNDED), of(data, PADDED)) for data in tables),
    )
    return "\n\n".join(parts) + "\n"


def _leaves(of: Of) -> list[str]:
    """Format the certain and the most probable counts of one line."""
    parts = ([of(f"{k}, {n}") for k in ("certain", "likely")] for n in SUMS.values())
    return [" / ".join(map(_mean, part)) for part in parts]


def _describe_baseline(data: str, plain: Of, padded: Of) -> str:
    """Return the sentence about the blind baseline and random rows."""
    return (
        f"{data}: blind RA {_percent(plain('blind'))}; of real rows among all that are read, "
        f"random ones added, {_percent(padded('among'))}."
    )


def _change(seen: BySeed, base: BySeed) -> str:
    """Format the mean difference from a baseline, paired by seed, with its standard error."""
    gains = [value - base[seed] for seed, value in seen.items() if seed in base]
    if not gains:
        return "-"
    error = f" ± {stdev(gains) / len(gains) ** 0.5:.3f}" if len(gains) > 1 else ""
    return f"{mean(gains):+.3f}{error}"


def _mean(seen: BySeed) -> str:
    return f"{mean(seen.values()):.2f}" if seen else "-"


def _percent(seen: BySeed) -> str:
    return f"{100 * mean(seen.values()):.1f}" if seen else "-"


def store(measurements: Sequence[Measurement], folder: Path) -> None:
    """Write the tables and every measurement."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "counts.md").write_text(text_of(measurements), encoding="utf-8")
    with (folder / "counts.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("table", "defense", "seed", "measure", "value"))
        writer.writerows(
            (f.data, f.defense, f.seed, f.measure, f"{f.value:.6f}") for f in measurements
        )


def run(options: Namespace) -> Iterator[str]:
    """Measure all defenses, store the measurements after each data set and yield the tables."""
    lines = tuple(dict.fromkeys((*STEPS, *FRONTIER)))
    measurements: list[Measurement] = []
    for data in options.tables:
        measurements += measure_lines(
            data, lines, options.seeds, options.row_seeds, options.data_dir
        )
        store(measurements, Path(options.out))
    yield text_of(measurements)


STUDIES = {
    "counts": Study(
        "Class counts that histogram defenses hide, and the AUC that they cost.",
        run,
        {
            "--out": {"default": "runs/counts", "help": "folder of the results"},
            "--tables": {"nargs": "+", "default": TABLES, "help": "data sets"},
            "--seeds": {"type": int, "default": 10, "help": "number of seeds"},
            "--row-seeds": {"type": int, "default": 2, "help": "seeds of the attack on rows"},
        },
    )
}
