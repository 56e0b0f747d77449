"""Print the findings of the command `fedtrees model audit`."""

from typing import Any

from rich.console import Console
from rich.table import Table as TextTable
from rich.text import Text

from fedtrees.api.model_audit import ModelAudit
from fedtrees.cli.console import console, text_table
from fedtrees.model_audit.attack import AttackResult
from fedtrees.model_audit.audit import Audit
from fedtrees.model_audit.tables import (
    ReportTable,
    attack_table,
    fields_table,
    headline,
    leaves_table,
    settings_text,
    trees_table,
)
from fedtrees.model_audit.verdict import advice, verdict

_FEW = 3  # leaves that are printed without `--details`


def print_audit(result: ModelAudit, details: bool) -> None:
    """Print the findings of an audit as text, with `details` all tables."""
    _print(result.findings, result.attack, result.to_json(), details)
    for line in result.membership.lines() if result.membership else ():
        _paragraph(console(), line)


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
        out.print("For all fields, trees and leaves, use --details.")
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
