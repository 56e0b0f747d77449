"""Results of a benchmark in Python: rows, leaks, verdict, figures and tables of a run folder."""

import shutil
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import pandas as pd

from fedtrees.core.errors import StoreError
from fedtrees.core.results import COLUMNS
from fedtrees.report.leakage import MARGIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedtrees.report.findings import RunAnalysis


@dataclass(frozen=True)
class RunLeak:
    """A leak of a run without a defense.

    Attributes
    ----------
    dataset, partition, protocol : str
        The setting.
    threat : str
        The adversary in the notation of the command line.
    metric : str
        Key of the score, for example ``"exact_rows"``.
    score, blind : float
        Mean score of the strongest attack, and of the blind baseline.
    advantage : float
        Mean share of the gap between baseline and perfect score that the attack closes.
    low, high : float
        Ends of the 95% interval of the advantage (Student's t over seeds), NaN for one seed.
    seeds : int
        Number of seeds.
    attack : str
        The strongest attack of the first seed.
    sentence : str
        Ability of the adversary, with the baseline in brackets.

    Examples
    --------
    >>> import fedtrees
    >>> for leak in fedtrees.Run("runs/quick").leaks:  # doctest: +SKIP
    ...     print(leak)
    """

    dataset: str
    partition: str
    protocol: str
    threat: str
    metric: str
    score: float
    blind: float
    advantage: float
    low: float
    high: float
    seeds: int
    attack: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.dataset}, {self.protocol}, {self.threat}: {self.sentence}"


@dataclass(frozen=True)
class BestDefense:
    """The defense that the verdict of a run names.

    Attributes
    ----------
    protocol, defense : str
        The recipe with its parameters.
    resists : bool
        Whether no attack of the run exceeds a blind guess by more than the margin.
    utility_change : float
        Mean change of the utility metric against the undefended run, paired by seed.
    low, high : float
        Ends of the 95% interval of the change (Student's t over seeds), NaN for one seed.

    Examples
    --------
    >>> import fedtrees
    >>> fedtrees.Run("runs/quick").best  # doctest: +SKIP
    """

    protocol: str
    defense: str
    resists: bool
    utility_change: float
    low: float
    high: float


@dataclass(frozen=True, repr=False)
class Run:
    """The results in a run folder.

    Parameters
    ----------
    folder : str or Path
        Folder that `fedtrees bench` or `fedtrees.bench` has written.
    margin : float
        Largest advantage under a defense that counts as no better than a blind guess.

    Examples
    --------
    >>> import fedtrees
    >>> run = fedtrees.Run("runs/quick")
    >>> run
    <Run runs/quick>
    >>> print(run.verdict)  # doctest: +SKIP
    """

    folder: Path
    margin: float = MARGIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))

    def __repr__(self) -> str:
        return f"<Run {self.folder}>"

    @cached_property
    def _analysis(self) -> "RunAnalysis":
        """The rows of the run and the results that are derived from them."""
        from fedtrees.report.findings import analyze_run

        return analyze_run(self.folder, None, self.margin)

    @property
    def frame(self) -> pd.DataFrame:
        """The rows as a DataFrame, one per cell and metric. Guarantees are texts."""
        from fedtrees.core.guarantee import join

        rows = self._analysis.rows[[column.name for column in COLUMNS]].copy()
        for column in (c.name for c in COLUMNS if c.kind == "guarantee"):
            rows[column] = [join(g) if g else "" for g in rows[column]]
        return rows

    @property
    def verdict(self) -> str:
        """The verdict of the run, with one entry per decision of a reader."""
        from fedtrees.report.verdict import verdict

        return str(verdict(self._analysis))

    @property
    def leaks(self) -> list[RunLeak]:
        """The leaks without a defense, the gravest one of each setting first.

        A `UserWarning` is given if the run has few seeds or few attacked rows.
        """
        from fedtrees.report.statistics import mean_of
        from fedtrees.report.wording import can

        self._warn_about_thin_evidence()
        leaks = []
        for setting in self._analysis.settings:
            for adversary in setting.tested:
                for result in adversary.leaking_results(setting.baseline_defense):
                    place, mean = setting.setting, result.advantage
                    leaks.append(
                        RunLeak(
                            dataset=place.dataset,
                            partition=place.partition,
                            protocol=place.protocol,
                            threat=adversary.threat,
                            metric=result.metric,
                            score=result.score,
                            blind=mean_of(result.blinds),
                            advantage=mean.mean,
                            low=mean.low,
                            high=mean.high,
                            seeds=mean.n,
                            attack=next(iter(result.strongest), ""),
                            sentence=can(result),
                        )
                    )
        return leaks

    @property
    def best(self) -> BestDefense | None:
        """The defense that the verdict names for the setting with the gravest leak.

        None if nothing leaks without a defense, if there is no undefended run, or if no defense
        helps. A `UserWarning` is given if the run has few seeds or few attacked rows.
        """
        from fedtrees.report.wording import split_recipe

        self._warn_about_thin_evidence()
        for setting in self._analysis.settings[:1]:
            if setting.recommended_recipe is not None:
                protocol, defense = split_recipe(setting.recommended_recipe.name)
                change = setting.recommended_recipe.utility_change.change
                return BestDefense(
                    protocol or setting.setting.protocol, defense, setting.recommended_recipe.holds,
                    change.mean, change.low, change.high,
                )  # fmt: skip
        return None

    def _warn_about_thin_evidence(self) -> None:
        """Warn about few seeds and few attacked rows."""
        from fedtrees.report.statistics import describe_thin_evidence

        # The warning points to the line of the user, which is two calls above.
        warn_each(describe_thin_evidence(self._analysis.rows), stacklevel=3)

    def _repr_html_(self) -> str:
        """Return the report in a separate frame, for notebooks."""
        from html import escape

        from fedtrees.report.page import render_report as render

        page = escape(render(self._analysis), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="900" style="border:0"></iframe>'

    @overload
    def figure(self, path: None = None, **options: Any) -> "Figure": ...
    @overload
    def figure(self, path: str | Path, **options: Any) -> Path: ...
    def figure(self, path: str | Path | None = None, **options: Any) -> "Figure | Path":
        """Return the frontier as a matplotlib figure, or write it to a file.

        A `UserWarning` is given if the run has few seeds or few attacked rows, or if the default
        metric can surprise: adversaries have different ones, or nothing leaks to an adversary.

        Parameters
        ----------
        path : str or Path, optional
            File to write, ending in ``.html``, ``.svg``, ``.png`` or ``.pdf``.
        **options
            The options of ``fedtrees plot``: ``data``, ``threat``, ``protocol`` and ``defense``
            select what is shown, each as a text or a list of texts. ``metric`` and ``utility`` are
            the measures on the axes, ``width`` is ``"column"`` or ``"page"``, and ``labels`` is a
            dict of texts by name, for example ``{"breast-cancer": "WDBC"}``.

        Returns
        -------
        figure : matplotlib.figure.Figure or Path
            The figure, or the written file.
        """
        from fedtrees.report.figures.plot import frontier_of, plot
        from fedtrees.report.findings import describe_weaknesses

        chosen, options = _chosen(options)
        metric, utility = options.pop("metric", None), options.pop("utility", None)
        drawn = (
            frontier_of(self.folder, metric, utility, chosen=chosen, **options)
            if path is None
            else plot(self.folder, path, metric, utility, chosen=chosen, **options)
        )
        warn_each(describe_weaknesses([self.folder], metric, chosen))
        return drawn

    @overload
    def table(self, path: None = None, **options: Any) -> pd.DataFrame: ...
    @overload
    def table(self, path: str | Path, **options: Any) -> Path: ...
    def table(self, path: str | Path | None = None, **options: Any) -> pd.DataFrame | Path:
        """Return the numbers of the table for a paper, or write the table to a file.

        A `UserWarning` is given in the same cases as by `figure`.

        Parameters
        ----------
        path : str or Path, optional
            File to write, ending in ``.tex``, ``.csv`` or ``.md``.
        **options
            ``data``, ``threat``, ``protocol``, ``defense``, ``metric``, ``utility`` and
            ``labels``, with the same meaning as for `figure`.

        Returns
        -------
        table : DataFrame or Path
            The numbers, or the written file.
        """
        from fedtrees.report.findings import describe_weaknesses
        from fedtrees.report.paper_table import table_of, write_table

        chosen, options = _chosen(options)
        table = table_of([self.folder], chosen=chosen, **options)
        warn_each(describe_weaknesses([self.folder], options.get("metric"), chosen))
        return table.frame() if path is None else write_table(table, path)

    def report(self) -> Path:
        """Write the HTML report into the run folder, and return its path.

        Returns
        -------
        path : Path
            The written file.
        """
        from fedtrees.report.page import write_page

        return write_page(self._analysis)

    def save(self, path: str | Path) -> "Run":
        """Copy the run folder. The command line can read the copy, too.

        Parameters
        ----------
        path : str or Path
            New folder. It must not exist.

        Returns
        -------
        run : Run
            The run in the new folder, with the same `margin`.

        Raises
        ------
        StoreError
            If the path exists or cannot be written.
        """
        if Path(path).exists():
            raise StoreError(f"{path} is there already; give another path, or remove it first")
        try:
            return Run(Path(shutil.copytree(self.folder, path)), self.margin)
        except (OSError, shutil.Error) as error:
            raise StoreError(f"cannot write {path}: {error}; make room or permission") from error


def warn_each(notes: Iterable[str], stacklevel: int = 2) -> None:
    """Give each note as a `UserWarning`. The stack level is that of the calling function."""
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=stacklevel + 1)


def _chosen(options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Split options into the selection of rows to show and the remaining options."""
    from fedtrees.experiments.options import parse_texts
    from fedtrees.report.results import Selection

    keys = ("data", "threat", "protocol", "defense")
    chosen = Selection(*(parse_texts(options.get(key), key) for key in keys))
    return chosen, {k: v for k, v in options.items() if k not in keys}
