"""Shared steps of all studies: complete the run of a bundled suite, and print its tables."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_composed
from fedtrees.experiments.evaluate import make_defense
from fedtrees.experiments.federation import Federation, federation_of
from fedtrees.experiments.plan import Setting
from fedtrees.experiments.session import Bench, default_workers
from fedtrees.experiments.suite import DataRef, Suite
from fedtrees.protocols.training import Training, train
from fedtrees.report.results import load_rows

Table = tuple[str, Sequence[str], list[list[str]]]  # title, header and lines
TITLE = "Percent, mean ± standard deviation over seeds."


def run_study(name: str, tables: Callable[[Any], Iterable[Table]]) -> Path:
    """Run a study as a command, print its tables, and return the folder of the run."""
    options = options_of(name, "--out", "--jobs")
    folder = run_suite(Suite.load(name), options.out or f"runs/{name}", options)
    for title, header, lines in tables(load_rows(folder)):
        print(f"{title}\n\n{markdown(header, lines)}\n")
    return folder


def options_of(
    name: str,
    *options: str,
    tables: Sequence[str] = ("pima", "stroke"),
    seeds: int = 10,
    **choices: Sequence[str],
) -> Any:
    """Read the command-line options of a study.

    Parameters
    ----------
    name : str
        Module of the study.
    *options : str
        Options in addition to ``--data-dir``.
    tables : sequence of str
        Default of ``--tables``.
    seeds : int
        Default of ``--seeds``.
    **choices : sequence of str
        Positional arguments with their allowed values.
    """
    parser = argparse.ArgumentParser(prog=f"python -m fedtrees.benchmarks.papers.{name}")
    parser.add_argument("--data-dir", default=None)
    for option, among in choices.items():
        parser.add_argument(option, choices=among)
    available: dict[str, dict[str, Any]] = {
        "--out": {},
        "--jobs": {"type": int, "default": default_workers()},
        "--fast": {"action": "store_true"},
        "--tables": {"nargs": "+", "default": list(tables)},
        "--seeds": {"type": int, "default": seeds},
        "--trees": {"type": int, "default": 10},
        "--row-seeds": {"type": int, "default": 2},
        "--depths": {"nargs": "+", "type": int, "default": tuple(range(3, 9))},
    }
    for option in options:
        short = ["-j"] if option == "--jobs" else []
        parser.add_argument(*short, option, **available[option])
    return parser.parse_args()


def run_suite(suite: Suite, out: str, options: Any) -> Path:
    """Run the missing cells of a suite and return its folder.

    Parameters
    ----------
    suite : Suite
        The suite.
    out : str
        Folder of the run. An existing run is continued.
    options : argparse.Namespace
        Provides the number of jobs and the folder of the data sets.
    """
    folder = Path(out)
    bench = Bench(suite, folder, options.jobs, options.data_dir)
    bench.open(resume=folder.exists())
    bench.run(lambda status, label: print(f"{status}: {label}", file=sys.stderr, flush=True))
    return folder


def train_federation(
    data: str,
    protocol: Spec,
    clients: int,
    seed: int,
    data_dir: str | None,
    *,
    partition: Spec | None = None,
    defense: str = "none",
) -> tuple[Training, Federation, Setting]:
    """Train one federation outside any suite.

    Parameters
    ----------
    data : str
        Data set.
    protocol : Spec
        Protocol with its parameters.
    clients : int
        Number of clients.
    seed : int
        Seed of partition and training.
    data_dir : str or None
        Folder of the data sets.
    partition : Spec or None
        Partition, by default ``iid``.
    defense : str
        Defense.
    """
    protocol_object = register.make("protocol", protocol)
    setting = Setting.of(DataRef(data), partition or Spec("iid"), clients, seed, protocol_object)
    federation = federation_of(setting, data_dir)
    guard = make_defense(parse_composed([defense])[0])
    local_data, schema = federation.local_data, federation.schema
    run = train(protocol_object, local_data, schema, defense=guard, seed=seed, noise_from="seed")
    return run, federation, setting


def depth_of(parameters: str) -> str:
    """Return the maximum depth from the parameters of a protocol as results contain them."""
    return dict(p.split("=") for p in parameters.split(","))["max_depth"]


@dataclass(frozen=True)
class Attacked:
    """One attack on one protocol under one defense, over seeds.

    Attributes
    ----------
    data, protocol, parameters, defense, attack : str
        The setting.
    rows : dict of str to DataFrame
        Results by metric.
    """

    data: str
    protocol: str
    parameters: str
    defense: str
    attack: str
    rows: dict[str, Any]

    @property
    def seconds(self) -> str:
        """CPU seconds of the attack."""
        spent = self.rows.get("cpu_seconds")
        return "-" if spent is None else f"{mean(spent['value']):.1f}"

    @property
    def over_blind(self) -> str:
        """Reconstruction accuracy minus that of the blind baseline."""
        ra = self.rows["ra"]
        return percent(ra["value"] - ra["blind"], signed=True)

    def share(
        self, metric: str, column: str = "value", *, signed: bool = False, digits: int = 1
    ) -> str:
        """Return a metric in percent: its value, its blind baseline or its advantage.

        Parameters
        ----------
        metric : str
            Metric.
        column : str
            ``value``, ``blind`` or ``advantage``.
        signed : bool
            Whether to print a plus sign.
        digits : int
            Number of decimal places.
        """
        values = self.rows[metric][column] if metric in self.rows else ()
        return percent(values, signed=signed, digits=digits)


Column = Callable[[Attacked], str]
#: Columns by name. Text from a colon on is not printed, so that names can differ by a prefix.
COLUMNS: dict[str, Column] = {
    "table": lambda c: c.data,
    "depth": lambda c: depth_of(c.parameters),
    "protocol": lambda c: c.protocol,
    "defense": lambda c: c.defense,
    "attack": lambda c: f"`{c.attack}`",
    "RA": lambda c: c.share("ra"),
    "blind": lambda c: c.share("ra", "blind"),
    "advantage": lambda c: c.share("ra", "advantage", signed=True),
    "over blind": lambda c: c.over_blind,
    "exact rows": lambda c: c.share("exact_rows"),
    "blind exact": lambda c: c.share("exact_rows", "blind"),
    "leaf counts": lambda c: c.share("leaf_counts_exact", digits=0),
    "their rows": lambda c: c.share("leaf_mass_exact", digits=0),
    "CPU s": lambda c: c.seconds,
}


def attacked_table(rows: Any, names: Sequence[str], title: str = TITLE, **own: Column) -> Table:
    """Return a table with one line per attack, in the order of the suite.

    Parameters
    ----------
    rows : DataFrame
        Results of the run.
    names : sequence of str
        Names of columns, from `COLUMNS` or from `own`.
    title : str
        Title of the table.
    **own : callable
        Further columns of the study.
    """
    columns = [(COLUMNS | own)[name] for name in names]
    lines = [[column(cell) for column in columns] for cell in attacked_settings(rows)]
    return title, [name.partition(":")[0] for name in names], lines


def attacked_settings(rows: Any) -> Iterator[Attacked]:
    """Yield the attacked settings in the order of the suite."""
    keys = ["dataset", "protocol", "protocol_params", "defense_spec", "attack_spec"]
    for key, part in rows[rows["stage"] == "attack"].groupby(keys, sort=False):
        yield Attacked(*key, dict(iter(part.groupby("metric"))))


def blind_table(rows: Any) -> Table:
    """Return the reconstruction accuracy of every blind guess per table, as means over seeds."""
    blind = rows[(rows["stage"] == "blind") & (rows["metric"] == "ra")]
    lines = [
        [data, guess or "**best**", percent(part["value"])]
        for (data, guess), part in blind.groupby(["dataset", "attack_params"], sort=False)
    ]
    return "Blind guesses, RA:", ("table", "guess", "RA"), lines


def percent(values: Iterable[float], *, signed: bool = False, digits: int = 1) -> str:
    """Format the mean of shares in percent, with the standard deviation if there are several.

    Parameters
    ----------
    values : iterable of float
        Shares. NaN is ignored.
    signed : bool
        Whether to print a plus sign.
    digits : int
        Number of decimal places.
    """
    present = [v for v in values if v == v]
    if not present:
        return "-"
    text = f"{100 * mean(present):{'+' if signed else ''}.{digits}f}"
    return f"{text} ± {100 * stdev(present):.{digits}f}" if len(present) > 1 else text


def markdown(header: Sequence[str], lines: Iterable[list[str]]) -> str:
    """Format a Markdown table."""
    rows = [list(header), ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
