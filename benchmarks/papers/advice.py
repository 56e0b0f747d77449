"""Confirm recommendations on fresh seeds.

``python -m fedtrees.benchmarks.papers advice --data-dir FOLDER [--cases NAME ...]`` asks for a
recommendation on tables that were not used to choose any default. It then runs the recommended
setting against every adversary and every applicable attack, on seeds that the search did not use.
The exit code is 1 if a recommendation is not confirmed, and the reasons are printed. If there is no
recommendation, the nearest setting is run.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from fedtrees.api.recommend import Search, candidates, narrowed
from fedtrees.benchmarks.papers.study import SUITE_OPTIONS, Study, run_suite
from fedtrees.benchmarks.papers.tables import Table, markdown
from fedtrees.core.errors import UsageError
from fedtrees.experiments.options import BenchOptions
from fedtrees.experiments.store import Store
from fedtrees.report.limits import Tried, Wish, highest, tried
from fedtrees.report.results import load_rows
from fedtrees.report.wording import mean_and_interval, percent

FRESH = range(100, 105)  # The search uses seeds from 0 on.
HEADER = ("table", "wish", "advice", "figures in advice", "on five fresh seeds", "CPU s")


# On 600 rows, a blind guess reconstructs more than 1% of the rows exactly. A wish must be less
# strict than that.
CASES = {
    "phishing": ("phishing[rows=600]", Wish(exact_rows=0.1)),
    "adult": ("adult[rows=600]", Wish(exact_rows=0.05)),
    "obesity": ("obesity[rows=600]", Wish(exact_rows=0.15)),
    "none": ("obesity[rows=600]", Wish()),
}


def figures(tried: Tried) -> str:
    """Format the worst figures of a recipe: the mean, and the upper end of its interval."""
    descriptions = []
    for metric, name in (("exact_rows", "rows"), ("members_1pct", "members")):
        cells = [
            c for t in tried.candidate.trials for c in t.results if c.metric == metric and c.scores
        ]
        worst = max(cells, key=lambda c: c.score, default=None)
        descriptions.append(
            f"{name} {percent(worst.score)} (≤ {percent(max(map(highest, cells)))})"
            if worst else f"{name} not measured"
        )  # fmt: skip
    return "; ".join([*descriptions, f"AUC {mean_and_interval(tried.utility)}"])


def format_wish(wish: Wish) -> str:
    """Format a wish in a few characters."""
    rows, members = percent(wish.exact_rows), percent(wish.membership)
    return f"rows {rows}, members {members}, AUC {wish.auc:g}"


def confirm_recommendation(
    data: str, wish: Wish, folder: Path, minutes: float, options: Namespace
) -> list[str]:
    """Ask for a recommendation and run it on fresh seeds.

    Parameters
    ----------
    data : str
        Data set.
    wish : Wish
        Requirements of the recommendation.
    folder : Path
        Folder for the runs.
    minutes : float
        Time limit of the search.
    options : argparse.Namespace
        Options of the command line.

    Returns
    -------
    line : list of str
        Line of the table. An additional last cell describes why the recommendation is not
        confirmed. It is empty if it is.
    """
    shared_options = {"data": data, "data_dir": options.data_dir, "jobs": options.jobs}
    search_options = BenchOptions(**shared_options, output=str(folder / "search"))
    folder.mkdir(parents=True, exist_ok=True)
    _, advice = Search(search_options, wish, 60 * minutes, lambda total: lambda *_: None).run()
    spent = _cpu_seconds(folder / "search")
    recipe = advice.choice or advice.nearest
    if recipe is None:
        return [data, format_wish(wish), "none", "", "", f"{spent:.0f}", "no recipe tested"]
    suite = narrowed(candidates(search_options), [recipe.name], FRESH)
    rows = load_rows(run_suite(suite, options, str(folder / "fresh")))
    fresh = next(t for t in tried(rows, wish) if t.name == recipe.name)
    contradiction = "" if fresh.broken else "the nearest meets it"
    wrong = fresh.broken if advice.choice else contradiction
    name = f"`{recipe.name}`" if advice.choice else f"none; nearest `{recipe.name}`"
    line = [data, format_wish(wish), name, figures(recipe), figures(fresh), f"{spent:.0f}"]
    return [*line, wrong]


def _cpu_seconds(run: Path) -> float:
    """Return the CPU seconds of all trainings and attacks, including those of rejected recipes."""
    cells = (Store(run).read(path.stem) or {"rows": []} for path in Store(run).cells.glob("*.json"))
    return sum(
        float(row["value"]) for cell in cells for row in cell["rows"]
        if row.get("metric") == "cpu_seconds"
    )  # fmt: skip


def run(options: Namespace) -> Iterator[Table]:
    """Run the cases and yield the table. Exit with an error if one is not confirmed."""
    out = Path(options.out or "runs/advice-confirmed")
    # Existing results would be mixed with new ones.
    for name in options.cases:
        if (out / name).exists():
            raise UsageError(f"{out / name} exists; choose another --out")
    lines = []
    for name in options.cases:
        lines.append(confirm_recommendation(*CASES[name], out / name, options.minutes, options))
        print(markdown(HEADER, [lines[-1][:-1]]), lines[-1][-1], file=sys.stderr, flush=True)
    yield Table("Recommendations and their confirmation.", HEADER, [line[:-1] for line in lines])
    if wrong := [f"{line[0]}: {line[-1]}" for line in lines if line[-1]]:
        sys.exit("\n".join(wrong))


STUDIES = {
    "advice": Study(
        "Recommended settings, run against every attack on fresh seeds.",
        run,
        {
            **SUITE_OPTIONS,
            "--minutes": {"type": float, "default": 8.0, "help": "time limit of each search"},
            "--cases": {"nargs": "+", "choices": [*CASES], "default": [*CASES], "help": "cases"},
        },
    )
}
