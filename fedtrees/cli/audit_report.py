"""Run an audit of a model file for the command `audit`, and print its findings."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table as TextTable
from rich.text import Text

from fedtrees.audit.attack import AttackResult, attack
from fedtrees.audit.audit import Audit, audit
from fedtrees.audit.exposure import Known
from fedtrees.audit.model import without_statistics
from fedtrees.audit.page import write_page
from fedtrees.audit.readers import XGBOOST_STATISTICS, read_model
from fedtrees.audit.rows import Columns, check_sizes, read_rows
from fedtrees.audit.scrub import Scrubbed, scrub
from fedtrees.audit.tables import (
    ReportTable,
    attack_table,
    check_labels,
    fields_table,
    headline,
    leaves_table,
    settings_text,
    trees_table,
)
from fedtrees.audit.verdict import advice, leftovers, to_json, verdict
from fedtrees.cli.console import console, text_table
from fedtrees.core.errors import UsageError
from fedtrees.data.dataset import Dataset

_FEW = 3  # leaves that are printed without `--details`


@dataclass(frozen=True)
class Show:
    """Format of the output: JSON, one screen, or all tables."""

    as_json: bool
    details: bool = False


@dataclass(frozen=True)
class MembershipFiles:
    """Files for the membership test of `audit`.

    Attributes
    ----------
    data : str or None
        CSV file of all training rows.
    reserve : str or None
        CSV file of rows of the same population that were not used in training.
    min_child_weight : float or None
        The parameter of the training, if known.
    """

    data: str | None = None
    reserve: str | None = None
    min_child_weight: float | None = None


def run(
    model: str,
    own_file: str | None,
    truth: str | None,
    columns: Columns,
    copy: str | None,
    report: str | None,
    background: Known,
    seed: int,
    show: Show,
    files: MembershipFiles = MembershipFiles(),
) -> None:
    """Audit a model file, attack and scrub it if requested, and print the findings.

    Parameters
    ----------
    model : str
        Model file.
    own_file, truth : str or None
        CSV files of training rows: those that the adversary has, and those to look for.
    columns : Columns
        How to read these files.
    copy : str or None
        File for a copy without unnecessary statistics.
    report : str or None
        File for a page with the findings.
    background : Known
        Facts about the training that the user states.
    seed : int
        Seed of the attack.
    show : Show
        Format of the output.
    files : MembershipFiles
        CSV files of the membership test.
    """
    _check_membership(files, columns)
    _check_different(("--own", own_file), ("--truth", truth))
    _check_different(("--data", files.data), ("--reserve", files.reserve))
    _check(own_file or files.data, truth, columns, {copy: ".json", report: ".html"})
    audit_result = audit(read_model(model), background)
    own_rows, truth_rows, notes = _rows(own_file, truth, columns, audit_result)
    check_labels(audit_result, [rows for rows in (own_rows, truth_rows) if rows is not None])
    notes += _contradiction(background, audit_result)
    attacked = attack(audit_result, own_rows, truth_rows, seed) if own_rows or truth_rows else None
    facts = to_json(audit_result, attacked) | {"notes": notes}
    remarks = []
    if copy is not None:
        scrubbed, after = _scrub(copy, background, audit_result, own_rows or truth_rows)
        remarks = leftovers(audit_result, after, scrubbed)
        facts["scrub"] = {
            "file": str(scrubbed.path),
            "removed": list(XGBOOST_STATISTICS),
            "predictions_unchanged": scrubbed.same,
            "not_compared": scrubbed.not_compared,
            "points": scrubbed.points,
            "leaves_reached": scrubbed.leaves_reached,
            "summary": vars(after.summary),
            "assumes": list(after.assumes),
            "says": remarks,
        }
    membership = None
    if files.data and files.reserve:
        from fedtrees.audit.membership import measure_membership

        membership, membership_notes = measure_membership(
            audit_result, files.data, files.reserve, columns, seed, files.min_child_weight
        )
        facts["membership"], facts["notes"] = membership.to_json(), [*notes, *membership_notes]
    if report:
        facts["report"] = str(write_page(Path(report), audit_result, attacked, remarks))
    if show.as_json:
        typer.echo(json.dumps(facts, indent=1))
    else:
        _print(audit_result, attacked, facts, show.details)
        for line in membership.lines() if membership else ():
            _paragraph(console(), line)


def _check_different(first: tuple[str, str | None], second: tuple[str, str | None]) -> None:
    """Raise `UsageError` if two options name the same file, whose rows would be in both parts."""
    (option, path), (other, same) = first, second
    if path and same and Path(path).resolve() == Path(same).resolve():
        raise UsageError(f"{option} and {other} are both {path}; give files of different rows")


def _check_membership(files: MembershipFiles, columns: Columns) -> None:
    """Raise `UsageError` if the options of the membership test are incomplete."""
    if bool(files.data) != bool(files.reserve):
        raise UsageError("--data and --reserve go together: rows trained on, and others")
    if files.data and not columns.target:
        raise UsageError("--data and --reserve need --target COLUMN: the label column")
    if files.min_child_weight is not None and not files.data:
        raise UsageError("--min-child-weight describes a training: give --data and --reserve")


def _check(
    own_file: str | None, truth: str | None, columns: Columns, endings: dict[str | None, str]
) -> None:
    """Raise `UsageError` for options that cannot work, before any file is read."""
    if (own_file or truth) and not columns.target:
        raise UsageError("--own and --truth need --target COLUMN: the label column of the file")
    if (columns.target or columns.positive or columns.categorical) and not (own_file or truth):
        raise UsageError("--target, --positive and --categorical describe --own and --truth")
    for file, ending in endings.items():
        if file and Path(file).suffix != ending:
            raise UsageError(f"{file}: end the name in {ending}")
        if file and not Path(file).absolute().parent.is_dir():
            raise UsageError(f"{file}: there is no folder {Path(file).parent}; make it first")


def _rows(
    own_file: str | None, truth: str | None, columns: Columns, audit_result: Audit
) -> tuple[Dataset | None, Dataset | None, list[str]]:
    """Read the adversary's rows and the rows to look for."""
    paths = [path for path in (own_file, truth) if path]
    if not paths:
        return None, None, []
    check_sizes(own_file, truth)
    tables, notes = read_rows(audit_result.model, paths, columns)
    return tables[0] if own_file else None, tables[-1] if truth else None, notes


def _contradiction(background: Known, audit_result: Audit) -> list[str]:
    """Return a note if the stated number of rows differs from the sum over the leaves."""
    if background.rows is None or audit_result.rows.n in (None, background.rows):
        return []
    return [
        f"--rows says {background.rows}, the leaves add up to {audit_result.rows.n}: trees saw a "
        "sample, or one client's rows, or rows had weights, and then counts are sums of weights"
    ]


def _scrub(
    copy: str, background: Known, audit_result: Audit, rows: Dataset | None
) -> tuple[Scrubbed, Audit]:
    """Write the scrubbed copy, and audit it as an adversary that knows eta, lambda and N."""
    scrubbed = scrub(audit_result.model, Path(copy), None if rows is None else rows.table.X)
    settings = audit_result.settings or background
    assumed = replace(
        background, learning_rate=settings.learning_rate, reg_lambda=settings.reg_lambda
    )
    return scrubbed, audit(without_statistics(audit_result.model), assumed)


def _print(
    audit_result: Audit, attacked: AttackResult | None, facts: dict[str, Any], details: bool
) -> None:
    """Print the findings as text."""
    out = console()
    out.print(headline(audit_result), markup=False)
    out.print()
    for at, line in enumerate(verdict(audit_result)):
        _paragraph(out, line if details or not at else line.short, "  * ")
    for note in facts["notes"]:
        _paragraph(out, f"note: {note}", "  ")
    out.print()
    tables = (fields_table(audit_result), trees_table(audit_result), leaves_table(audit_result))
    for shown in tables if details else (leaves_table(audit_result, _FEW),):
        if shown.lines:
            out.print(_text_table(shown, plain=not details))
    if details:
        _paragraph(out, f"eta and lambda: {settings_text(audit_result)}")
    if attacked is not None and attacked.reason is not None:
        _paragraph(out, f"no attack: {attacked.reason}")
    elif attacked is not None:
        out.print(_text_table(attack_table(attacked)))
    out.print()
    todo = advice(audit_result, "scrub" in facts)
    scrubbed = facts.get("scrub", {}).get("says", [])
    for line in [*scrubbed, *(todo if details else [t.short for t in todo])]:
        _paragraph(out, line)
    if not details:
        out.print("All of it, every field, tree and leaf: --details")
    if "report" in facts:
        out.print(f"report: {facts['report']}", markup=False, soft_wrap=True)


def _paragraph(out: Console, text: str, begin: str = "") -> None:
    """Print a text that is wrapped to the console, with aligned lines."""
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
