"""The `submit` and `leaderboard` commands: write a submission, and check submissions."""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from fedtrees.cli.console import emit
from fedtrees.cli.options import DataDir, Format, Output, RunFolder, option
from fedtrees.core.errors import StoreError, UsageError
from fedtrees.experiments.options import OUTPUT, RUN

if TYPE_CHECKING:
    from fedtrees.report.submissions import Submission

_PAGE = "index.html"
_TIME_LIMIT = 3600.0  # seconds; five views of the default bench take about one minute


def submit(
    run: RunFolder,
    out: Annotated[str, option(OUTPUT, "FOLDER", "-o", "--output")],
    by: Annotated[str, option(OUTPUT, "NAME")],
    data_dir: DataDir = None,
    format: Output = Format.TABLE,
) -> None:
    """Write the files of a finished run that a leaderboard needs: rows, suite, versions, digests.

    Runs on your tables (--csv) are refused, because other persons could not check them.

    Parameters
    ----------
    out : str
        Folder to write.
    by : str
        Name of the submitter, as the leaderboard shows it.

    Examples
    --------
    The files that others need to check a run::

        fedtrees leaderboard submit runs/quick -o bundles/mine --by 'Ada Example'

    A run on a table in a folder of yours::

        fedtrees leaderboard submit runs/a -o bundles/a --by Ada --data-dir tables
    """
    from fedtrees.report import submissions
    from fedtrees.report.results import read_text

    suite = read_text(run, submissions.SUITE)
    if suite is None:
        raise UsageError(f"{run} contains no run (no {submissions.SUITE})")
    with TemporaryDirectory() as folder:
        from fedtrees.experiments.recompute import plan_of

        plan_of(suite, f"{run}/{submissions.SUITE}", Path(folder, "run"), data_dir)
    bundle = submissions.write(Path(run), Path(out), by)
    _check(bundle, data_dir, 0, "")
    facts = {"folder": out, "rows": len(bundle.records), "sha256": bundle.digest}
    emit(facts, format, f"{out}  {len(bundle.records):,} rows  sha256 {bundle.digest}")


def leaderboard(
    folder: Annotated[str, typer.Argument()],
    out: Annotated[str, option(OUTPUT, "FOLDER", "-o", "--output")] = "site",
    recompute: Annotated[int, option(RUN, "N")] = 1,
    draw: Annotated[str, option(RUN, "TEXT")] = "",
    time_limit: Annotated[float, option(RUN, "SECONDS")] = _TIME_LIMIT,
    accept: Annotated[bool, option(OUTPUT, "", "--accept")] = False,
    data_dir: DataDir = None,
    format: Output = Format.TABLE,
) -> None:
    """Check submissions, compute a few views of each again, and write the page.

    A submission is refused if it was changed, lacks a cell, contains rows that no run writes, gives
    other results when it is computed again, contradicts an earlier submission or adds nothing to
    it. A view consists of a training, its references, a blind guess, the list of applicable
    attacks, and one attack.

    Parameters
    ----------
    folder : str
        Folder that contains a folder per submission.
    out : str, optional
        Folder for the page.
    recompute : int, optional
        Number of views of each submission to compute again (0: none).
    draw : str, optional
        Text from which the views are drawn, unknown before the submission (default: a random one).
    time_limit : float, optional
        Seconds for reading all submissions, and for checking each (0: no limit).
    accept : bool, optional
        Add the submissions to accepted.csv, so that later copies of them are refused.

    Examples
    --------
    Compute one view of each submission again::

        fedtrees leaderboard build bundles

    Check without computing, and write the page elsewhere::

        fedtrees leaderboard build bundles --recompute 0 -o public
    """
    from fedtrees.core.files import write_text
    from fedtrees.report import submissions
    from fedtrees.report.leaderboard import board

    if recompute < 0:
        raise UsageError(f"--recompute {recompute}: give how many, 0 for none")
    if accept and not recompute:
        raise UsageError(
            "--accept: give --recompute 1 or more, because results are accepted after a check only"
        )
    if not 0 <= time_limit < 1e8:
        raise UsageError(f"--time-limit {time_limit:g}: give seconds, 0 for no limit")
    with _within(time_limit, folder):
        bundles = submissions.read_all(Path(folder))
        submissions.merged(bundles)  # raises if two contradict each other
    draw = draw or secrets.token_hex(8)
    wrong: list[str] = []
    for bundle in bundles:
        with _within(time_limit, str(bundle.folder)):
            wrong += _check(bundle, data_dir, recompute, draw)
    for text in wrong:
        print(f"refused: {text}", file=sys.stderr)
    if wrong:
        print(f"drawn by {draw}: --draw {draw} checks the same views", file=sys.stderr)
        raise typer.Exit(4)
    page = board(bundles, recompute)
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise StoreError(f"cannot make {out}: {err.strerror or err}") from err
    path = write_text(Path(out, _PAGE), page)
    if accept:
        submissions.accept(Path(folder), bundles)
    result = {"file": str(path), "submissions": len(bundles), "recomputed": recompute, "draw": draw}
    emit(result, format, f"{path}  drawn by {draw}")


@contextlib.contextmanager
def _within(seconds: float, what: str) -> Iterator[None]:
    """Raise `StoreError` if the block takes longer than the given number of seconds.

    0 sets no limit. The message begins with the second argument.
    """
    from fedtrees.core.limits import TimeLimit, limited

    message = (
        f"{what} is refused: its check takes more than {seconds:g} seconds (--time-limit gives "
        "another limit)"
    )
    begin = time.monotonic()
    try:
        with limited(seconds):
            yield
    except TimeLimit:
        raise StoreError(message) from None
    # A cell inside the block may have interpreted the signal as its local time limit.
    if 0 < seconds < time.monotonic() - begin:
        raise StoreError(message)


def _check(bundle: Submission, data_dir: str | None, count: int, draw: str) -> list[str]:
    """Return the differences between rows of a submission and views that are computed again.

    Raises `StoreError` if a cell of its suite has no row, or a row has no cell.
    """
    from fedtrees.experiments.recompute import describe_missing_cells as absent
    from fedtrees.experiments.recompute import draw_views as drawn
    from fedtrees.experiments.recompute import find_differences as differences
    from fedtrees.experiments.recompute import group_by_cell as by_cell
    from fedtrees.experiments.recompute import plan_of
    from fedtrees.report.results import rename_former_values

    with TemporaryDirectory() as folder:
        source, run = f"{bundle.folder}/suite.toml", Path(folder, "run")
        bench = plan_of(bundle.suite, source, run, data_dir, len(bundle.records))
        cell_rows = by_cell(map(rename_former_values, bundle.records))
        problem = absent(bench, cell_rows)
        if problem:
            raise StoreError(f"{bundle.folder} is refused: {problem}")
        views = drawn(bench, cell_rows, count, f"{draw}/{bundle.digest}")
        return [f"{bundle.folder}: {text}" for text in differences(bench, cell_rows, views)]
