"""The `recommend` command: find a recipe that meets the user's limits on the user's table."""

import sys
from typing import Annotated, Any

from fedtrees.cli.bench import Log
from fedtrees.cli.console import emit
from fedtrees.cli.options import Format, Output, option, with_bench_options
from fedtrees.core.supported import SYSTEMS, name_versions
from fedtrees.experiments.options import DEFENSE, FEDERATION, RUN, BenchOptions, print_warnings


@with_bench_options(
    "protocol", "defense", "data", "csv", "target", "task", "positive", "id", "client_column",
    "categorical", "keep", "drop", "sep", "decimal", "missing", "sheet", "partition", "clients",
    "threat", "jobs", "output", "resume", "time_limit", "data_dir", "plugin", "unprotected",
)  # fmt: skip
def recommend(
    *,
    max_exact_rows: Annotated[str, option(DEFENSE, "SHARE")] = "guess+1%",
    max_membership: Annotated[str, option(DEFENSE, "SHARE")] = "5%",
    max_membership_auc: Annotated[float, option(DEFENSE, "NUMBER")] = 0.55,
    min_auc: Annotated[float, option(DEFENSE, "NUMBER")] = 0.75,
    minutes: Annotated[float, option(RUN, "MINUTES")] = 10.0,
    layout: Annotated[str, option(FEDERATION, "LAYOUT")] = "",
    deployed: Annotated[str, option(FEDERATION, "SYSTEM")] = "",
    format: Output = Format.TABLE,
    **options: Any,
) -> None:
    """Find a protocol and a defense that meet your limits on your table, or show that none does.

    Every attack runs on every candidate, on one seed. Candidates that exceed a limit are dropped,
    and the remaining ones run on more seeds while there is time. The result is written to
    advice.html and advice.md in the run folder.

    Parameters
    ----------
    max_exact_rows : str, optional
        Largest share of rows of other parties that an attack may reconstruct exactly (guess+1%: one
        percentage point more than a guess).
    max_membership : str, optional
        Largest share of members that an attack may recognise, at 1% false alarms.
    max_membership_auc : float, optional
        Largest AUC of membership tests (0.5 is a random guess).
    min_auc : float, optional
        Smallest AUC on test rows.
    minutes : float, optional
        Total time (0: one seed, without a time limit).
    layout : str, optional
        Parties have different rows (horizontal) or different columns (vertical).
    deployed : str, optional
        Consider only what a system supports: xgboost, nvflare, flower, secretflow.

    Examples
    --------
    At most 1% of the rows reconstructed, and an AUC of 0.8, in ten minutes::

        fedtrees recommend --csv patients.csv --target outcome --min-auc 0.8

    Parties that have different columns of the same patients::

        fedtrees recommend --data breast-cancer --layout vertical --minutes 20
    """
    from fedtrees.api.recommend import search
    from fedtrees.isolation.kernels import report_compilation

    if deployed in SYSTEMS:
        print(f"{deployed}: {name_versions(SYSTEMS[deployed])}", file=sys.stderr)
    limits = (max_exact_rows, max_membership, max_membership_auc, min_auc)
    with report_compilation(Log(0).compiled):
        result = search(BenchOptions(**options), *limits, minutes, layout, deployed, Log)
    print_warnings(result.warnings)
    pages = f"page  {result.report}, and advice.md in the same folder"
    lines = [*result.advice.verdict, pages]
    if result.advice.end.command:
        lines += [*result.advice.next_steps[:-1], f"    {result.advice.end.command}"]
    emit(result.to_json(), format, "\n".join(lines))
