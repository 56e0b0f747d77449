"""The `audit` command: what a model that already exists gives away, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.table import Table as TextTable

from fedtrees.audit.attack import AttackResult, attack
from fedtrees.audit.audit import Audit, audit
from fedtrees.audit.exposure import Known
from fedtrees.audit.model import XGBOOST_STATISTICS, read_model, without_statistics
from fedtrees.audit.page import write_page
from fedtrees.audit.rows import Columns, check_sizes, read_rows
from fedtrees.audit.scrub import Scrubbed, scrub
from fedtrees.audit.tables import (
    Shown,
    attack_table,
    fields_table,
    headline,
    leaves_table,
    settings_text,
    trees_table,
)
from fedtrees.audit.verdict import advice, leftovers, to_json, verdict
from fedtrees.cli.inspect import console
from fedtrees.core.errors import UsageError
from fedtrees.data.dataset import Dataset


@dataclass(frozen=True)
class Request:
    """The options of one call, as in `fedtrees audit --help`."""

    model: str
    own: str | None
    truth: str | None
    target: str
    positive: str
    categorical: tuple[str, ...]
    scrub: str | None
    report: str | None
    known: Known
    seed: int
    as_json: bool


def run(request: Request) -> None:
    """Audit the model, attack and scrub it where asked, and print what was found."""
    _check(request)
    found = audit(read_model(request.model), request.known)
    own, truth, notes = _rows(request, found)
    notes += _contradiction(request.known, found)
    attacked = attack(found, own, truth, request.seed) if own or truth else None
    facts = to_json(found, attacked) | {"notes": notes}
    scrubbed = _scrub(request, found, own or truth)
    if scrubbed is not None:
        done, after = scrubbed
        facts["scrub"] = {
            "file": str(done.path),
            "removed": list(XGBOOST_STATISTICS),
            "predictions_unchanged": done.same,
            "not_compared": done.not_compared,
            "points": done.points,
            "leaves_reached": done.leaves_reached,
            "summary": vars(after.summary),
            "assumes": list(after.assumes),
            "says": leftovers(found, after, done),
        }
    if request.report:
        says = facts["scrub"]["says"] if scrubbed is not None else []
        facts["report"] = str(write_page(Path(request.report), found, attacked, says))
    if request.as_json:
        typer.echo(json.dumps(facts, indent=1))
    else:
        _print(found, attacked, facts)


def _check(request: Request) -> None:
    """Refuse, before anything is read, what cannot work."""
    if (request.own or request.truth) and not request.target:
        raise UsageError("--own and --truth need --target COLUMN: the label column of the file")
    described = request.target or request.positive or request.categorical
    if described and not (request.own or request.truth):
        raise UsageError("--target, --positive and --categorical describe --own and --truth")
    for file, ending in ((request.scrub, ".json"), (request.report, ".html")):
        if file and Path(file).suffix != ending:
            raise UsageError(f"{file}: end the name in {ending}")
        if file and not Path(file).absolute().parent.is_dir():
            raise UsageError(f"{file}: there is no folder {Path(file).parent}; make it first")


def _rows(request: Request, found: Audit) -> tuple[Dataset | None, Dataset | None, list[str]]:
    paths = [path for path in (request.own, request.truth) if path]
    if not paths:
        return None, None, []
    check_sizes(request.own, request.truth)
    columns = Columns(target=request.target, categorical=request.categorical,
                      positive=request.positive or None)  # fmt: skip
    tables, notes = read_rows(found.model, paths, columns)
    own = tables[0] if request.own else None
    return own, tables[-1] if request.truth else None, notes


def _contradiction(known: Known, found: Audit) -> list[str]:
    if known.rows is None or found.rows.n in (None, known.rows):
        return []
    return [
        f"--rows says {known.rows}, the leaves add up to {found.rows.n}: trees saw a sample, or "
        "one client's rows, or rows had weights, and then counts are sums of weights"
    ]


def _scrub(request: Request, found: Audit, rows: Dataset | None) -> tuple[Scrubbed, Audit] | None:
    """Write the scrubbed copy and audit it as somebody who knows eta, lambda and N would."""
    if request.scrub is None:
        return None
    done = scrub(found.model, Path(request.scrub), None if rows is None else rows.table.X)
    settings, known = found.settings, request.known
    told = Known(
        rows=known.rows,
        learning_rate=settings.learning_rate if settings else known.learning_rate,
        reg_lambda=settings.reg_lambda if settings else known.reg_lambda,
    )
    return done, audit(without_statistics(found.model), told)


def _print(found: Audit, attacked: AttackResult | None, facts: dict[str, Any]) -> None:
    out = console()
    out.print(headline(found), markup=False)
    out.print()
    for line in verdict(found):
        out.print(f"  * {line}", markup=False, soft_wrap=True)
    for note in facts["notes"]:
        out.print(f"  note: {note}", markup=False, soft_wrap=True)
    out.print()
    for shown in (fields_table(found), trees_table(found), leaves_table(found)):
        if shown.lines:
            out.print(_text_table(shown))
    out.print(f"eta and lambda: {settings_text(found)}", markup=False, soft_wrap=True)
    if attacked is not None and attacked.reason is not None:
        out.print(f"no attack: {attacked.reason}", markup=False, soft_wrap=True)
    elif attacked is not None:
        out.print(_text_table(attack_table(attacked)))
    out.print()
    for line in [*facts.get("scrub", {}).get("says", []), *advice(found, "scrub" in facts)]:
        out.print(line, markup=False, soft_wrap=True)
    if "report" in facts:
        out.print(f"report: {facts['report']}", markup=False, soft_wrap=True)


def _text_table(shown: Shown) -> TextTable:
    table = TextTable(title=shown.title, title_justify="left", title_style="bold",
                      caption=shown.note or None, caption_justify="left")  # fmt: skip
    for k, column in enumerate(shown.columns):
        table.add_column(column, overflow="fold", justify="right" if k in shown.numeric else "left")
    for line in shown.lines:
        table.add_row(*line)
    return table
