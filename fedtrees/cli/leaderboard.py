"""The commands `submit` and `leaderboard`: results of others, checked and shown."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from fedtrees.cli.options import DataDir, Format, Output, RunFolder
from fedtrees.core.errors import StoreError, UsageError

if TYPE_CHECKING:
    from fedtrees.report.submissions import Submission

_PAGE = "index.html"


def submit(
    run: RunFolder,
    out: Annotated[str, typer.Option("-o", "--out", help="Folder to write.")],
    by: Annotated[str, typer.Option(help="Who submits, as the leaderboard shows it.")],
    data_dir: DataDir = None,
    format: Output = Format.TABLE,
) -> None:
    """Write what a leaderboard needs of a finished run: rows, suite, versions, digests.

    Tables of one's own (--csv) are refused: nobody else could check them.
    """
    from fedtrees.report import submissions
    from fedtrees.report.rows import read_text

    suite = read_text(run, submissions.SUITE)
    if suite is None:
        raise UsageError(f"{run} holds no run (no {submissions.SUITE})")
    with TemporaryDirectory() as folder:
        from fedtrees.bench.replay import plan_of

        plan_of(suite, f"{run}/{submissions.SUITE}", Path(folder, "run"), data_dir)
    made = submissions.write(Path(run), Path(out), by)
    _check(made, data_dir, 0, "")
    if format.is_json:
        typer.echo(json.dumps({"folder": out, "rows": len(made.records), "sha256": made.digest}))
    else:
        typer.echo(f"{out}  {len(made.records):,} rows  sha256 {made.digest}")


def leaderboard(
    folder: Annotated[str, typer.Argument(help="Folder of submissions, a folder each.")],
    out: Annotated[str, typer.Option("-o", "--out", help="Folder for the page.")] = "site",
    recompute: Annotated[
        int, typer.Option(help="Views of each submission to compute again; 0: none.")
    ] = 1,
    draw: Annotated[
        str,
        typer.Option(help="Text that draws them, not known before (default: afresh)."),
    ] = "",
    data_dir: DataDir = None,
    format: Output = Format.TABLE,
) -> None:
    """Check submissions, compute a few views of each again, and write the page.

    Refused: what was changed, does not follow or comes out otherwise, cells left out, what
    contradicts another. A view is a training, a blind guess, who can attack, and one attack.
    """
    from fedtrees.core.files import write_text
    from fedtrees.report.board import board
    from fedtrees.report.submissions import merged, read_all

    if recompute < 0:
        raise UsageError(f"--recompute {recompute}: give how many, 0 for none")
    found = read_all(Path(folder))
    merged(found)  # contradictions cost nothing to find
    draw = draw or secrets.token_hex(8)
    wrong = [text for each in found for text in _check(each, data_dir, recompute, draw)]
    for text in wrong:
        print(f"refused: {text}", file=sys.stderr)
    if wrong:
        print(f"drawn by {draw}: --draw {draw} checks the same views", file=sys.stderr)
        raise typer.Exit(4)
    page = board(found, recompute)
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise StoreError(f"cannot make {out}: {err.strerror or err}") from err
    path = write_text(Path(out, _PAGE), page)
    told = {"file": str(path), "submissions": len(found), "recomputed": recompute, "draw": draw}
    typer.echo(json.dumps(told) if format.is_json else f"{path}  drawn by {draw}")


def _check(found: Submission, data_dir: str | None, count: int, draw: str) -> list[str]:
    """Return what does not come out when views are computed again.

    Raises `StoreError`: a cell of its suite is missing, or it has one more.
    """
    from fedtrees.bench.replay import absent, by_cell, differences, drawn, plan_of

    with TemporaryDirectory() as folder:
        bench = plan_of(found.suite, f"{found.folder}/suite.toml", Path(folder, "run"), data_dir)
        told = by_cell(found.records)
        lacking = absent(bench, told)
        if lacking:
            raise StoreError(f"{found.folder} is refused: {lacking}")
        views = drawn(bench, told, count, f"{draw}/{found.digest}")
        return [f"{found.folder}: {text}" for text in differences(bench, told, views)]
