"""The `audit` command: find leaks in an existing model file, and remove avoidable ones."""

from typing import Annotated

import typer

from fedtrees.cli.console import emit
from fedtrees.cli.options import (
    Decimal,
    Details,
    Format,
    Missing,
    Output,
    Sep,
    Sheet,
    columns_of,
    option,
)
from fedtrees.experiments.options import DATA, FEDERATION, OUTPUT, RUN


def audit(
    model: Annotated[
        str, typer.Argument(help="A model file: XGBoost JSON or UBJ, LightGBM text, or .npz.")
    ],
    own: Annotated[
        str | None, option(DATA, "FILE", "CSV file of training rows that the adversary has.")
    ] = None,
    truth: Annotated[
        str | None, option(DATA, "FILE", "CSV file of training rows to look for.")
    ] = None,
    data: Annotated[
        str | None,
        option(
            DATA,
            "FILE",
            "CSV file of all training rows, to test whether they can be "
            "distinguished from --reserve.",
        ),
    ] = None,
    reserve: Annotated[
        str | None,
        option(DATA, "FILE", "CSV file of rows of the same population, not trained on."),
    ] = None,
    min_child_weight: Annotated[
        float | None,
        option(FEDERATION, "NUMBER", "Parameter min_child_weight of the training, for --data."),
    ] = None,
    target: Annotated[str, option(DATA, "COLUMN", "Target column of these files.")] = "",
    positive: Annotated[str, option(DATA, "CLASS", "Positive class in these files.")] = "",
    categorical: Annotated[
        list[str] | None,
        option(
            DATA,
            "COLUMN",
            "Text columns of these files (repeat, or separate by commas): NAME, or "
            "NAME=first|second|... in the order of the codes if the model does not state its "
            "categories.",
        ),
    ] = None,
    sep: Sep = "",
    decimal: Decimal = "",
    missing: Missing = None,
    sheet: Sheet = "",
    scrub: Annotated[
        str | None,
        option(
            OUTPUT,
            "COPY",
            "New .json file for a copy without the statistics that prediction does not need.",
        ),
    ] = None,
    report: Annotated[
        str | None,
        option(OUTPUT, "FILE", "Write the findings as a page (.html).", "--report"),
    ] = None,
    rows: Annotated[
        int | None,
        option(
            FEDERATION,
            "N",
            "Number of training rows, if known. Counts that are computed from leaf values only "
            "then assume that the first tree was trained on all rows without an L1 penalty.",
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        option(
            FEDERATION, "NUMBER", "Learning rate of the training, if known (default: inferred)."
        ),
    ] = None,
    reg_lambda: Annotated[
        float | None,
        option(
            FEDERATION,
            "NUMBER",
            "Parameter lambda of the training, if known (default: inferred from statistics).",
        ),
    ] = None,
    seed: Annotated[int, option(RUN, "N", "Seed of the attack.")] = 0,
    details: Details = False,
    format: Output = Format.TABLE,
) -> None:
    """Show what a model file reveals about its training rows. Scrub it, and attack it.

    Counts are printed only if they are certain. --own and --truth score an attack. --data and
    --reserve measure whether training rows can be recognised.
    """
    from fedtrees.api.model_audit import audit as audit_model
    from fedtrees.cli.audit_report import print_audit

    result = audit_model(
        model, own=own, truth=truth, data=data, reserve=reserve, target=target, positive=positive,
        min_child_weight=min_child_weight, categorical=columns_of(categorical), sep=sep,
        decimal=decimal, missing=missing, sheet=sheet, scrub=scrub, report=report, rows=rows,
        learning_rate=learning_rate, reg_lambda=reg_lambda, seed=seed,
    )  # fmt: skip
    emit(result.to_json, format, lambda: print_audit(result, details))
