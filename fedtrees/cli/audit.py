"""The `audit` command: find leaks in an existing model file, and remove avoidable ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtrees.cli.console import console, emit, text_table
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

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as TextTable

    from fedtrees.api.model_audit import ModelAudit
    from fedtrees.model_audit.tables import ReportTable

_FEW = 3  # leaves that are printed without `--details`


def audit(
    model: Annotated[str, typer.Argument()],
    own: Annotated[str | None, option(DATA, "FILE")] = None,
    truth: Annotated[str | None, option(DATA, "FILE")] = None,
    data: Annotated[str | None, option(DATA, "FILE")] = None,
    reserve: Annotated[str | None, option(DATA, "FILE")] = None,
    min_child_weight: Annotated[float | None, option(FEDERATION, "NUMBER")] = None,
    target: Annotated[str, option(DATA, "COLUMN")] = "",
    positive: Annotated[str, option(DATA, "CLASS")] = "",
    categorical: Annotated[list[str] | None, option(DATA, "COLUMN")] = None,
    sep: Sep = "",
    decimal: Decimal = "",
    missing: Missing = None,
    sheet: Sheet = "",
    scrub: Annotated[str | None, option(OUTPUT, "COPY")] = None,
    report: Annotated[str | None, option(OUTPUT, "FILE", "--report")] = None,
    rows: Annotated[int | None, option(FEDERATION, "N")] = None,
    learning_rate: Annotated[float | None, option(FEDERATION, "NUMBER")] = None,
    reg_lambda: Annotated[float | None, option(FEDERATION, "NUMBER")] = None,
    seed: Annotated[int, option(RUN, "N")] = 0,
    details: Details = False,
    format: Output = Format.TABLE,
) -> None:
    """Show what a model file reveals about its training rows. Scrub it, and attack it.

    Counts are printed only if they are certain. --own and --truth score an attack. --data and
    --reserve measure whether training rows can be recognised.

    Parameters
    ----------
    model : str
        A model file: XGBoost JSON or UBJ, LightGBM text, or .npz.
    own : str, optional
        CSV file of training rows that the adversary has.
    truth : str, optional
        CSV file of training rows to look for.
    data : str, optional
        CSV file of all training rows, to test whether they can be distinguished from --reserve.
    reserve : str, optional
        CSV file of rows of the same population, not trained on.
    min_child_weight : float, optional
        Parameter min_child_weight of the training, for --data.
    target : str, optional
        Target column of these files.
    positive : str, optional
        Positive class in these files.
    categorical : sequence of str, optional
        Text columns of these files (repeat, or separate by commas): NAME, or NAME=first|second|...
        in the order of the codes if the model does not state its categories.
    scrub : str, optional
        New .json file for a copy without the statistics that prediction does not need.
    report : str, optional
        Write the findings as a page (.html).
    rows : int, optional
        Number of training rows, if known. Counts that are computed from leaf values only then
        assume that the first tree was trained on all rows without an L1 penalty.
    learning_rate : float, optional
        Learning rate of the training, if known (default: inferred).
    reg_lambda : float, optional
        Parameter lambda of the training, if known (default: inferred from statistics).
    seed : int, optional
        Seed of the attack.

    Examples
    --------
    Findings as a page for the data protection officer::

        fedtrees model audit model.json --report audit.html

    A copy without the statistics that prediction does not need::

        fedtrees model audit model.json --scrub published.json
    """
    from fedtrees.api.model_audit import audit as audit_model

    result = audit_model(
        model, own=own, truth=truth, data=data, reserve=reserve, target=target, positive=positive,
        min_child_weight=min_child_weight, categorical=columns_of(categorical), sep=sep,
        decimal=decimal, missing=missing, sheet=sheet, scrub=scrub, report=report, rows=rows,
        learning_rate=learning_rate, reg_lambda=reg_lambda, seed=seed,
    )  # fmt: skip
    emit(result.to_json, format, lambda: _print_audit(result, details))


def _print_audit(result: ModelAudit, details: bool) -> None:
    """Print the findings of an audit as text, with `details` all tables."""
    from fedtrees.model_audit import tables
    from fedtrees.model_audit.verdict import advice, verdict

    findings, attacked, facts = result.findings, result.attack, result.to_json()
    out = console()
    out.print(tables.headline(findings), markup=False)
    out.print()
    for at, line in enumerate(verdict(findings)):
        _paragraph(out, line if details or not at else line.short, "  * ")
    for note in facts["notes"]:
        _paragraph(out, f"note: {note}", "  ")
    out.print()
    shown_tables = [tables.leaves_table(findings, _FEW)]
    if details:
        makers = (tables.fields_table, tables.trees_table, tables.leaves_table)
        shown_tables = [make_table(findings) for make_table in makers]
    for shown in shown_tables:
        if shown.lines:
            out.print(_text_table(shown, plain=not details))
    if details:
        _paragraph(out, f"eta and lambda: {tables.settings_text(findings)}")
    if attacked is not None and attacked.reason is not None:
        _paragraph(out, f"no attack: {attacked.reason}")
    elif attacked is not None:
        out.print(_text_table(tables.attack_table(attacked)))
    out.print()
    todo = advice(findings, "scrub" in facts)
    scrubbed = facts.get("scrub", {}).get("says", [])
    for line in [*scrubbed, *(todo if details else [t.short for t in todo])]:
        _paragraph(out, line)
    if not details:
        out.print("For all fields, trees and leaves, use --details.")
    if "report" in facts:
        out.print(f"report: {facts['report']}", markup=False, soft_wrap=True)
    for sentence in result.membership.lines() if result.membership else ():
        _paragraph(out, sentence)


def _paragraph(out: Console, text: str, begin: str = "") -> None:
    """Print a text that is wrapped to the console, with aligned lines."""
    from rich.text import Text

    for at, line in enumerate(Text(text).wrap(out, max(out.width - len(begin), 20))):
        out.print(Text(begin if at == 0 else " " * len(begin)) + line)


def _text_table(shown: ReportTable, plain: bool = False) -> TextTable:
    """Return a table of the audit as a table for the terminal."""
    style: dict[str, Any] = {"caption": shown.note or None, "caption_justify": "left"}
    style |= {"box": None, "pad_edge": False} if plain else {}
    table = text_table(shown.title, shown.columns, shown.lines, **style)
    for k in shown.numeric:
        table.columns[k].justify = "right"
    return table
