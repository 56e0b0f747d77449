"""The `recommend` command: find a recipe that meets the user's limits on the user's table."""

import sys
from typing import Annotated, Any

from fedtrees.cli.bench import Log
from fedtrees.cli.console import emit
from fedtrees.cli.options import Format, Output, option, with_bench_options
from fedtrees.core.errors import UsageError
from fedtrees.core.supported import SYSTEMS, name_versions
from fedtrees.experiments.options import DEFENSE, FEDERATION, RUN, BenchOptions

_PAGE, _HTML = "advice.md", "advice.html"
_ALARMS = "1%FPR"  # the rate of false alarms for `--max-membership`


@with_bench_options(
    "protocol", "defense", "data", "csv", "target", "task", "positive", "id", "client_column",
    "categorical", "keep", "drop", "sep", "decimal", "missing", "sheet", "partition", "clients",
    "threat", "jobs", "output", "resume", "time_limit", "data_dir", "plugin", "unprotected",
)  # fmt: skip
def recommend(
    *,
    max_exact_rows: Annotated[
        str,
        option(
            DEFENSE,
            "SHARE",
            "Largest share of rows of other parties that an attack may reconstruct exactly.",
        ),
    ] = "1%",
    max_membership: Annotated[
        str,
        option(
            DEFENSE,
            "SHARE",
            "Largest share of members that an attack may recognise, at 1% false alarms.",
        ),
    ] = "5%",
    min_auc: Annotated[float, option(DEFENSE, "NUMBER", "Smallest AUC on held-out rows.")] = 0.75,
    minutes: Annotated[
        float, option(RUN, "MINUTES", "Total time (0: one seed, without a time limit).")
    ] = 10.0,
    layout: Annotated[
        str,
        option(
            FEDERATION,
            "LAYOUT",
            "Parties have different rows (horizontal) or different columns (vertical).",
        ),
    ] = "",
    deployed: Annotated[
        str,
        option(
            FEDERATION,
            "SYSTEM",
            "Consider only what a system supports: xgboost, nvflare, flower, secretflow.",
        ),
    ] = "",
    format: Output = Format.TABLE,
    **given: Any,
) -> None:
    """Find a protocol and a defense that meet your limits on your table, or show that none does.

    Every attack runs on every candidate, on one seed. Candidates that exceed a limit are dropped,
    and the remaining ones run on more seeds while there is time. The result is written to
    advice.html and advice.md in the run folder.
    """
    from fedtrees.api.advice import Search
    from fedtrees.core.files import write_listed
    from fedtrees.report.advice import Wish

    member_share, _, alarms = max_membership.partition("@")
    if alarms not in ("", _ALARMS):
        raise UsageError(f"--max-membership {max_membership!r}: the rate is {_ALARMS}, or left out")
    rows, members = share("max-exact-rows", max_exact_rows), share("max-membership", member_share)
    if not 0 < min_auc < 1:
        raise UsageError(f"--min-auc {min_auc:g}: give a number between 0 and 1")
    if not 0 <= minutes < float("inf"):
        raise UsageError(f"--minutes {minutes:g}: give minutes, 0 for one seed")
    if deployed in SYSTEMS:
        print(f"{deployed}: {name_versions(SYSTEMS[deployed])}", file=sys.stderr)
    options = BenchOptions(**given)
    wish = Wish(rows, members, min_auc)
    folder, advice = Search(options, wish, 60 * minutes, Log, layout, deployed).run()
    write_listed(folder, _PAGE, advice.page().encode())
    write_listed(folder, _HTML, advice.html().encode())
    facts = {
        "take": advice.choice.name if advice.choice else None,
        "nearest": advice.nearest.name if advice.nearest else None,
        "not": {t.name: t.unmet for t in advice.tried if t.unmet},
        "pages": [str(folder / name) for name in (_PAGE, _HTML)],
    }
    pages = f"page  {folder / _HTML}, and {_PAGE} in the same folder"
    emit(facts, format, "\n".join([*advice.verdict, pages]))


def share(option: str, text: str) -> float:
    """Parse a share that is written as ``1%`` or ``0.01``.

    Raises `UsageError` if the text is not a number above 0 and at most 1.
    """
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise UsageError(f"--{option} {text!r}: give a share such as 1% or 0.01, above 0")
    return value
