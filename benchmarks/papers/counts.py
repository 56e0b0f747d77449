"""`python -m fedtrees.benchmarks.papers.counts --data-dir FOLDER`: what hides counts, and its cost.

Two tables, printed and stored with every measurement: leaves of the first tree whose counts are
certain, and likely ones that are right, by step and clients in a sum; and what defenses of
histograms cost in AUC and leave of leaves and rows, with bins ignored and read.
"""

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev

from fedtrees.benchmarks.papers.counts_frontier import Line, cost
from fedtrees.benchmarks.papers.counts_leaves import SUMS, read
from fedtrees.benchmarks.papers.study import markdown, options_of

#: German Credit is not among the bundled tables; a sample of Adult is as large, as mixed (8 of 14
#: columns are categories), and labelled as unevenly. It misses values, German does not.
TABLES = ("breast-cancer", "pima", "adult[rows=1000]")
STEPS = tuple(Line(f"hist-rounding[step={s}]") for s in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0))
UNROUNDED, PADDED = Line("none"), Line("none", random_rows=10)
FRONTIER = (
    UNROUNDED,
    *(STEPS[k] for k in (1, 3, 4, 6)),
    *(Line(f"hist-rounding[step={s},random=true]") for s in (0.3, 0.5)),
    *(Line(f"laplace-hist[epsilon={e}]") for e in (16.0, 64.0)),
    Line("min-bin[k=2]"),
    PADDED,
    Line("hist-rounding[step=0.1]", (("base_score", 0.02),)),
    Line("none", protocol="dp-gbdt[epsilon=4.0,trees=50,noise=distributed]"),
)


BySeed = dict[int, float]
Of = Callable[..., BySeed]  # a measure's values, of a line or of another


@dataclass(frozen=True)
class Found:
    """One measurement: of a table, a defense and a seed."""

    data: str
    defense: str
    seed: int
    measure: str
    value: float


def measured(
    data: str, lines: Iterable[Line], seeds: int, row_seeds: int, data_dir: str | None
) -> Iterator[Found]:
    """Yield what is measured of some defenses: rows on the first ``row_seeds`` alone."""
    for line, seed in product(lines, range(seeds)):
        print(f"{data}, {line.name}, seed {seed}", file=sys.stderr, flush=True)
        values: dict[str, float | None] = {}
        if not line.protocol and line != UNROUNDED:
            parts = read(data, line, seed, data_dir)
            for n, part in zip(SUMS.values(), parts, strict=True):
                values |= {f"certain, {n}": part.certain, f"likely, {n}": part.likely}
            values["wrong"] = sum(part.wrong for part in parts)
        if line in FRONTIER:
            found = cost(data, line, seed, data_dir, rows=seed < row_seeds)
            values |= {"auc": found.auc, "read": found.read, "ignored": found.ignored}
            values |= {"blind": found.blind, "among": found.among}
        for measure, value in values.items():
            if value is not None:
                yield Found(data, line.name, seed, measure, value)


def by_seed(found: Iterable[Found]) -> dict[tuple[str, str, str], BySeed]:
    """Return what was measured, by table, defense and measure."""
    values: dict[tuple[str, str, str], BySeed] = {}
    for f in found:
        values.setdefault((f.data, f.defense, f.measure), {})[f.seed] = f.value
    return values


#: What a column says of a table: its name, and how a cell is written.
COLUMNS: dict[str, Callable[[Of], str]] = {
    "AUC": lambda of: _change(of("auc"), of("auc", UNROUNDED)),
    "leaves": lambda of: f"{_mean(of('likely, 3'))} / {_mean(of('likely, 1'))}",
    "RA": lambda of: f"{_percent(of('ignored'))} / {_percent(of('read'))}",
}


def text_of(found: Sequence[Found]) -> str:
    """Write the tables as Markdown."""
    values = by_seed(found)
    tables = list(dict.fromkeys(f.data for f in found))

    def of(data: str, line: Line) -> Of:
        return lambda measure, other=line: values.get((data, other.name, measure), {})

    steps = [
        [line.name, *(c for data in tables for c in _leaves(of(data, line)))] for line in STEPS
    ]
    frontier = [
        [line.name, *(write(of(data, line)) for data in tables for write in COLUMNS.values())]
        for line in FRONTIER
    ]
    wrong = sum(sum(v.values()) for (*_, m), v in values.items() if m == "wrong")
    off = [stdev(v.values()) for (*_, m), v in values.items() if m == "read" and len(v) > 1]
    parts = (
        f"Leaves of the first tree, certain / likely right; {wrong:.0f} certain are wrong.",
        markdown(("defense", *(f"{d}: {who}" for d in tables for who in SUMS)), steps),
        "AUC against no rounding, ± standard error; leaves right, of the secure sum / of one "
        "client; RA of the secure sum's server in percent, bins ignored / read (standard "
        f"deviations up to {100 * max(off, default=0.0):.1f}).",
        markdown(("defense", *(f"{d}: {name}" for d in tables for name in COLUMNS)), frontier),
        *(_beside(data, of(data, UNROUNDED), of(data, PADDED)) for data in tables),
    )
    return "\n\n".join(parts) + "\n"


def _leaves(of: Of) -> list[str]:
    parts = ([of(f"{k}, {n}") for k in ("certain", "likely")] for n in SUMS.values())
    return [" / ".join(map(_mean, part)) for part in parts]


def _beside(data: str, plain: Of, padded: Of) -> str:
    return (
        f"{data}: blind RA {_percent(plain('blind'))}; of real rows among all that are read, "
        f"random ones added, {_percent(padded('among'))}."
    )


def _change(seen: BySeed, base: BySeed) -> str:
    gains = [value - base[seed] for seed, value in seen.items() if seed in base]
    if not gains:
        return "-"
    error = f" ± {stdev(gains) / len(gains) ** 0.5:.3f}" if len(gains) > 1 else ""
    return f"{mean(gains):+.3f}{error}"


def _mean(seen: BySeed) -> str:
    return f"{mean(seen.values()):.2f}" if seen else "-"


def _percent(seen: BySeed) -> str:
    return f"{100 * mean(seen.values()):.1f}" if seen else "-"


def store(found: Sequence[Found], folder: Path) -> None:
    """Write the tables and every measurement behind them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "counts.md").write_text(text_of(found), encoding="utf-8")
    with (folder / "counts.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("table", "defense", "seed", "measure", "value"))
        writer.writerows((f.data, f.defense, f.seed, f.measure, f"{f.value:.6f}") for f in found)


def main() -> None:
    """Run the study, print its tables and store them."""
    options = options_of("counts", "--out", "--seeds", "--row-seeds", "--tables", tables=TABLES)
    lines = tuple(dict.fromkeys((*STEPS, *FRONTIER)))
    found: list[Found] = []
    for data in options.tables:
        found += measured(data, lines, options.seeds, options.row_seeds, options.data_dir)
        store(found, Path(options.out or "runs/counts"))
    print(text_of(found))


if __name__ == "__main__":
    main()
