"""`python -m fedtrees.benchmarks.papers.advice --data-dir FOLDER [--cases NAME ...]`: is it so?

Asks for advice on tables that no default was chosen on, then runs what it names on seeds that the
search never saw: every adversary, every attack that applies. What is not confirmed ends with exit
code 1. Of an advice that names nothing the nearest is run.
"""

import argparse
import sys
from pathlib import Path

from fedtrees.api.advice import Search, candidates, narrowed
from fedtrees.bench.options import BenchOptions
from fedtrees.bench.store import Store
from fedtrees.benchmarks.papers.study import markdown, run_suite
from fedtrees.report.advice import Tried, Wish, highest, tried
from fedtrees.report.rows import load_rows
from fedtrees.report.said import percent
from fedtrees.report.style import interval

FRESH = range(100, 105)  # the search begins at 0
HEADER = ("table", "wish", "advice", "figures in advice", "on five fresh seeds", "CPU s")


# Of 600 rows a blind guess rebuilds more than 1% exactly: a wish must leave room for that.
CASES = {
    "phishing": ("phishing[rows=600]", Wish(exact_rows=0.1)),
    "adult": ("adult[rows=600]", Wish(exact_rows=0.05)),
    "obesity": ("obesity[rows=600]", Wish(exact_rows=0.15)),
    "none": ("obesity[rows=600]", Wish()),
}


def figures(found: Tried) -> str:
    """Write a recipe's figures where they are worst: the mean, and the end of its interval."""
    told = []
    for metric, name in (("exact_rows", "rows"), ("members_1pct", "members")):
        cells = [
            c for t in found.candidate.trials for c in t.cells if c.metric == metric and c.scores
        ]
        worst = max(cells, key=lambda c: c.score, default=None)
        told.append(
            f"{name} {percent(worst.score)} (≤ {percent(max(map(highest, cells)))})"
            if worst else f"{name} not measured"
        )  # fmt: skip
    return "; ".join([*told, f"AUC {interval(found.utility)}"])


def wished(wish: Wish) -> str:
    """Write a wish in few characters."""
    rows, members = percent(wish.exact_rows), percent(wish.membership)
    return f"rows {rows}, members {members}, AUC {wish.auc:g}"


def confirmed(
    data: str, wish: Wish, folder: Path, minutes: float, options: argparse.Namespace
) -> list[str]:
    """Ask for advice, run it on fresh seeds; return its line, whose end says what is wrong."""
    given = {"data": data, "data_dir": options.data_dir, "jobs": options.jobs}
    asked = BenchOptions(**given, out=str(folder / "search"))
    folder.mkdir(parents=True, exist_ok=True)
    _, advice = Search(asked, wish, 60 * minutes, lambda total: lambda *_: None).run()
    spent = _cpu_seconds(folder / "search")
    found = advice.choice or advice.nearest
    if found is None:
        return [data, wished(wish), "none", "", "", f"{spent:.0f}", "no recipe tested"]
    suite = narrowed(candidates(asked), [found.name], FRESH)
    rows = load_rows(run_suite(suite, str(folder / "fresh"), options))
    again = next(t for t in tried(rows, wish) if t.name == found.name)
    met = "" if again.broken else "the nearest meets it"
    wrong = again.broken if advice.choice else met
    name = f"`{found.name}`" if advice.choice else f"none; nearest `{found.name}`"
    line = [data, wished(wish), name, figures(found), figures(again), f"{spent:.0f}"]
    return [*line, wrong]


def _cpu_seconds(run: Path) -> float:
    """Return what trainings and attacks of all rounds took, those of recipes that fell too."""
    found = (Store(run).read(path.stem) or {"rows": []} for path in Store(run).cells.glob("*.json"))
    return sum(
        float(row["value"]) for each in found for row in each["rows"]
        if row.get("metric") == "cpu_seconds"
    )  # fmt: skip


def main() -> int:
    """Run the cases, print the table, and what was not confirmed."""
    parser = argparse.ArgumentParser(prog="python -m fedtrees.benchmarks.papers.advice")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--out", default="runs/advice-confirmed")
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--cases", nargs="+", choices=[*CASES], default=[*CASES])
    options = parser.parse_args()
    for name in options.cases:
        if Path(options.out, name).exists():
            parser.error(f"{Path(options.out, name)} is there already; choose another --out")
    lines = []
    for name in options.cases:
        folder = Path(options.out, name)
        lines.append(confirmed(*CASES[name], folder, options.minutes, options))
        print(markdown(HEADER, [lines[-1][:-1]]), lines[-1][-1], file=sys.stderr, flush=True)
    print(markdown(HEADER, [line[:-1] for line in lines]))
    wrong = [f"{line[0]}: {line[-1]}" for line in lines if line[-1]]
    print(*wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
