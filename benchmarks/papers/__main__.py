"""Run a study: `python -m fedtrees.benchmarks.papers NAME [options]`.

``--list`` prints the names of all studies and their measured durations. A study prints its tables
as Markdown. Studies that run a suite continue the run in ``runs/NAME``.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from fedtrees.benchmarks.papers.comparisons import (
    Comparison,
    comparison_tables,
    published_lines,
    write_comparisons,
)
from fedtrees.benchmarks.papers.study import Study, suite_study
from fedtrees.benchmarks.papers.tables import table_sections
from fedtrees.core.errors import FedtreesError, UsageError, did_you_mean
from fedtrees.experiments.suite import bundled_suites

PROGRAM = "python -m fedtrees.benchmarks.papers"
_SINGLE = (
    "ablation", "advice", "blind_baselines", "captures", "counts", "cut_points", "draft_dp",
    "evidence_fields", "evidence_read", "frontiers", "id2graph",
    "power", "recipes", "sacroml_peer", "study_figures", "tableak", "timberstrike_seeds",
    "timberstrike_utility",
)  # fmt: skip
#: Studies of each module of this package, whose `STUDIES` define them. All other studies are suites
#: with `[[table]]` sections.
MODULES = {name: (name,) for name in _SINGLE} | {
    "id2graph_tables": ("id2graph_seeds", "id2graph_table3"),
    "regression": ("regression", "secureboost_queries"),
    "timberstrike": (
        "timberstrike", "timberstrike_table4", "timberstrike_table6", "timberstrike_table8",
        "timberstrike_figure10",
    ),
    "timberstrike_first_trees": (
        "timberstrike_recovery", "timberstrike_late", "timberstrike_chains",
    ),
}  # fmt: skip


def study_names() -> list[str]:
    """Return the names of all studies."""
    names = {name for studies in MODULES.values() for name in studies}
    return sorted(names | {name for name in bundled_suites() if table_sections(name)})


def find_study(name: str) -> Study:
    """Return a study by name. Raises `UsageError` if there is none."""
    for module, studies in MODULES.items():
        if name in studies:
            study: Study = import_module(f"{__package__}.{module}").STUDIES[name]
            return study
    names = study_names()
    if name not in names:
        raise UsageError(f"unknown study {name!r}{did_you_mean(name, names)}")
    return suite_study(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one study, or list all of them. Returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = ArgumentParser(prog=PROGRAM, description="Run a study and print its tables.")
    parser.add_argument("--list", action="store_true", help="print all studies and their durations")
    parser.add_argument("name", nargs="?", metavar="NAME", help="study; NAME --help: its options")
    if not arguments or arguments[0].startswith("-"):
        if not parser.parse_args(arguments).list:
            parser.error("give the name of a study, or --list")
        durations: dict[str, list[str]] = {}
        for line in published_lines("durations.csv"):
            durations.setdefault(line["study"], []).append(f"{line['minutes']} ({line['run']})")
        for name in study_names():
            minutes = "; ".join(durations.get(name, ["not measured"]))
            print(f"{name}: {find_study(name).summary} Minutes on two cores: {minutes}")
        return 0
    name, *rest = arguments
    try:
        study = find_study(name)
        parser = ArgumentParser(prog=f"{PROGRAM} {name}", description=study.summary)
        parser.add_argument("--data-dir", help="folder of the data sets")
        for option, settings in study.options.items():
            short = ["-j"] if option == "--jobs" else []
            parser.add_argument(*short, option, **settings)
        options = parser.parse_args(rest)
        comparisons = []
        for output in study.run(options):
            if isinstance(output, Comparison):
                comparisons.append(output)
            else:
                print(output, flush=True)
        if comparisons:
            folder = Path(getattr(options, "out", None) or f"runs/{name}")
            folder.mkdir(parents=True, exist_ok=True)
            write_comparisons(name, comparisons, folder / "comparison.csv")
            print(*comparison_tables(comparisons), sep="\n")
    except FedtreesError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
