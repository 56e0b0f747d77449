"""Recommend a protocol and a defense for a table, from Python and for the command `recommend`."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from fedtrees.api.advice import Search
from fedtrees.api.bench import Names, remove_files, with_table_written
from fedtrees.api.run import warn_each
from fedtrees.core.errors import UsageError
from fedtrees.core.files import write_listed
from fedtrees.experiments.options import BenchOptions
from fedtrees.report.advice import Advice, Wish
from fedtrees.report.advice import recipe as split_recipe
from fedtrees.report.results import load_rows
from fedtrees.report.statistics import describe_thin_evidence

_PAGE, _HTML = "advice.md", "advice.html"
_ALARMS = "1%FPR"  # the rate of false alarms of `max_membership`
#: Receives the number of cells of a round, and returns a function that is called after each cell.
Log = Callable[[int], Callable[[str, str], None]]


@dataclass(frozen=True, repr=False)
class Recommendation:
    """The result of `fedtrees.recommend`.

    Attributes
    ----------
    folder : Path
        Run folder with the measurements. `fedtrees.Run` reads it.
    advice : Advice
        All compared recipes with their evidence.

    Examples
    --------
    >>> import fedtrees
    >>> result = fedtrees.recommend("breast-cancer", minutes=5)  # doctest: +SKIP
    >>> result.defense  # doctest: +SKIP
    'split-only'
    """

    folder: Path
    advice: Advice = field(repr=False)

    @property
    def protocol(self) -> str | None:
        """Recommended protocol with its parameters, None if no recipe meets the limits."""
        choice = self.advice.choice
        return None if choice is None else split_recipe(choice.name)[0]

    @property
    def defense(self) -> str | None:
        """Recommended defense with its parameters, None if no recipe meets the limits."""
        choice = self.advice.choice
        return None if choice is None else split_recipe(choice.name)[1]

    @property
    def verdict(self) -> str:
        """The recommendation with its reasons, one sentence per line."""
        return "\n".join(self.advice.verdict)

    @property
    def report(self) -> Path:
        """Page with the recommendation and its evidence."""
        return self.folder / _HTML

    @property
    def warnings(self) -> list[str]:
        """Warnings about few seeds and few attacked rows.

        They are about the recommended recipe, or about the nearest one if none meets the limits.
        """
        named = self.advice.choice or self.advice.nearest
        rows = load_rows(self.folder)
        if named is not None:
            protocol, defense = split_recipe(named.name)
            protocols = pd.Series([s.protocol for s in rows["setting"]], index=rows.index)
            rows = rows[(protocols == protocol) & (rows["defense_spec"] == defense)]
        return describe_thin_evidence(rows, remedy="--minutes")

    def to_json(self) -> dict[str, Any]:
        """Return the recommendation as plain JSON types."""
        advice = self.advice
        return {
            "take": advice.choice.name if advice.choice else None,
            "nearest": advice.nearest.name if advice.nearest else None,
            "not": {t.name: t.unmet for t in advice.tried if t.unmet},
            "pages": [str(self.folder / name) for name in (_PAGE, _HTML)],
        }

    def __repr__(self) -> str:
        if self.advice.choice:
            return f"<Recommendation: {self.advice.choice.name}>"
        nearest = self.advice.nearest
        return "<Recommendation: none meets the limits" + (
            f"; nearest: {nearest.name}>" if nearest else ">"
        )

    def _repr_html_(self) -> str:
        """Return the page in a separate frame, for notebooks."""
        page = escape(self.advice.html(), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="600" style="border:0"></iframe>'


def search(
    options: BenchOptions,
    max_exact_rows: str | float,
    max_membership: str | float,
    min_auc: float,
    minutes: float,
    layout: str,
    deployed: str,
    log: Log,
) -> Recommendation:
    """Search a recipe that meets limits, and write two pages about it into the run folder.

    Parameters
    ----------
    options : BenchOptions
        Table, federation and run control.
    max_exact_rows, max_membership, min_auc, minutes, layout, deployed
        As in `recommend`.
    log : callable
        Receives the number of cells of every round (`Log`).

    Raises
    ------
    UsageError
        If a limit is out of range, or as in `fedtrees.api.advice.candidates`.
    """
    member_share, _, alarms = str(max_membership).partition("@")
    if alarms not in ("", _ALARMS):
        raise UsageError(f"--max-membership {max_membership!r}: the rate is {_ALARMS}, or left out")
    rows = parse_share("max-exact-rows", max_exact_rows)
    members = parse_share("max-membership", member_share)
    if not 0 < min_auc < 1:
        raise UsageError(f"--min-auc {min_auc:g}: give a number between 0 and 1")
    if not 0 <= minutes < float("inf"):
        raise UsageError(
            f"--minutes {minutes:g}: give a number of at least 0; with 0, one seed runs without a "
            "time limit"
        )
    wish = Wish(rows, members, min_auc)
    folder, advice = Search(options, wish, 60 * minutes, log, layout, deployed).run()
    write_listed(folder, _PAGE, advice.page().encode())
    write_listed(folder, _HTML, advice.html().encode())
    return Recommendation(folder, advice)


def parse_share(option: str, value: str | float) -> float:
    """Parse a share that is written as ``1%`` or ``0.01``.

    Raises `UsageError` if the text is not a number above 0 and at most 1.
    """
    text = str(value)
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise UsageError(f"--{option} {text!r}: give a share such as 1% or 0.01, above 0")
    return share


def recommend(
    data: Names | pd.DataFrame | tuple[Any, Any] = (),
    *,
    max_exact_rows: str | float = "1%",
    max_membership: str | float = "5%",
    min_auc: float = 0.75,
    minutes: float = 10.0,
    layout: str = "",
    deployed: str = "",
    protocol: Names = (),
    defense: Names = (),
    csv: Names | Path = (),
    target: str = "",
    task: str = "",
    positive: str = "",
    id: str = "",
    client_column: str = "",
    categorical: Names = (),
    keep: Names = (),
    drop: Names = (),
    sep: str = "",
    decimal: str = "",
    missing: Names = (),
    sheet: str = "",
    partition: Names = (),
    clients: int | Sequence[int] = (),
    threat: Names = (),
    jobs: int | None = None,
    output: str | Path = "",
    resume: bool = False,
    time_limit: float | None = None,
    data_dir: str | Path | None = None,
    plugin: Names | Path = (),
    unprotected: bool = False,
) -> Recommendation:
    """Find a protocol and a defense that meet limits on a table, or show that none does.

    Every attack runs on every candidate, on one seed. Candidates that exceed a limit are dropped,
    and the remaining ones run on more seeds while there is time. The function does the same as the
    command ``fedtrees recommend``. A `UserWarning` is given if the recommended recipe was tested on
    few seeds or few rows.

    Parameters
    ----------
    data : str, DataFrame, or (X, y)
        Name of a dataset, or a table, as in `fedtrees.bench`.
    max_exact_rows : str or float, default "1%"
        Largest share of rows of other parties that an attack may reconstruct exactly.
    max_membership : str or float, default "5%"
        Largest share of members that an attack may recognise, at 1% false alarms.
    min_auc : float, default 0.75
        Smallest AUC on test rows.
    minutes : float, default 10
        Total time. 0: one seed, without a time limit.
    layout : {"", "horizontal", "vertical"}
        Whether parties have different rows or different columns. "" for rows.
    deployed : {"", "xgboost", "nvflare", "flower", "secretflow"}
        Consider only protocols and defenses that a system supports. "" for all of them.
    protocol, defense : str or sequence of str, optional
        Protocols and defenses to try, as in `fedtrees.bench`.
    csv : str or sequence of str, optional
        Files of a table, as in `fedtrees.bench`.
    target, task, positive, id, client_column : str, optional
        Target and special columns of `csv`, as in `fedtrees.bench`.
    categorical, keep, drop : str or sequence of str, optional
        Columns of `csv`, as in `fedtrees.bench`.
    sep, decimal : str, optional
        Notation of `csv`, as in `fedtrees.bench`.
    missing : str or sequence of str, optional
        Marks of missing cells, as in `fedtrees.bench`.
    sheet : str, optional
        Sheet of a workbook, as in `fedtrees.bench`.
    partition : str or sequence of str, optional
        Distribution of the rows or columns over the parties, as in `fedtrees.bench`.
    clients : int or sequence of int, optional
        Number of parties with data.
    threat : str or sequence of str, optional
        Adversaries, as in `fedtrees.bench`.
    jobs : int, optional
        Number of processes (default: all cores).
    output : str or Path, optional
        Run folder for the measurements.
    resume : bool, optional
        Continue the run in `output`. Finished cells are not computed again.
    time_limit : float, optional
        Time limit of one training or attack in seconds (0: no limit).
    data_dir : str or Path, optional
        Folder with data files, as in `fedtrees.bench`.
    plugin : str or sequence of str, optional
        Python files with ``@register`` decorators.
    unprotected : bool, optional
        Run attacks of plug-ins even if the system cannot restrict them.

    Returns
    -------
    recommendation : Recommendation
        Protocol, defense, verdict and pages.

    Raises
    ------
    UsageError
        If a name or an option is unknown, a value is out of range, or not exactly one table is
        given.
    DataError
        If the table cannot be used.

    Examples
    --------
    >>> import fedtrees
    >>> result = fedtrees.recommend(
    ...     "breast-cancer", max_exact_rows="1%", min_auc=0.9, minutes=10
    ... )  # doctest: +SKIP
    >>> print(result.verdict)  # doctest: +SKIP
    """
    arguments = dict(locals())
    own_arguments = ("max_exact_rows", "max_membership", "min_auc", "minutes", "layout", "deployed")
    limits = {name: arguments.pop(name) for name in own_arguments}
    with ExitStack() as refused:
        arguments, new = with_table_written(arguments)
        refused.callback(remove_files, new)
        options = BenchOptions(**arguments)
        refused.pop_all()
    result = search(options, **limits, log=_no_log)
    warn_each(result.warnings)
    return result


def _no_log(total: int) -> Callable[[str, str], None]:
    """Return a function that prints nothing."""
    return lambda status, label: None
