"""Studies that the runner executes, and the steps that they share.

A study is a function that yields tables. Most studies complete the run of a bundled suite and
describe their tables in its TOML file (`fedtrees.benchmarks.papers.tables`).
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedtrees.benchmarks.papers.comparisons import Comparison, compare_suite
from fedtrees.benchmarks.papers.tables import Table, suite_tables
from fedtrees.core.claims import Guess
from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_composed
from fedtrees.core.threat import Threat
from fedtrees.experiments.evaluate import build_view, make_defense, with_background
from fedtrees.experiments.federation import Federation, federation_of
from fedtrees.experiments.plan import FederationConfig
from fedtrees.experiments.session import BenchSession, default_workers
from fedtrees.experiments.suite import DataRef, Grid, Suite, parse_seeds
from fedtrees.metrics.metric import Case
from fedtrees.protocols.training import Training, train
from fedtrees.report.results import load_rows

#: Command-line options by name, with their arguments for `argparse`.
Options = Mapping[str, Mapping[str, Any]]
Output = Table | Comparison | str
#: Option of studies that measure many settings.
SETTING: Options = {
    "--setting": {
        "default": "*",
        "help": 'compute only settings of this pattern, for example "*, depth 5"; the setting of a '
        'suite is its data and protocol, for example "pima, flower-bagging*"',
    }
}
#: Options of studies that run a suite.
SUITE_OPTIONS: Options = {
    "--out": {"help": "folder of the run (default: runs/NAME); an existing run is continued"},
    "--jobs": {"type": int, "default": default_workers(), "help": "number of processes"},
    "--seeds": {"help": "a number of seeds, or a list such as 0,1,2 (default: as in the suite)"},
    **SETTING,
}


@dataclass(frozen=True)
class Study:
    """A study of `python -m fedtrees.benchmarks.papers`.

    Attributes
    ----------
    summary : str
        One sentence.
    run : callable
        Function of the parsed options that yields tables, texts and comparisons. The comparisons
        are printed at the end, and written to ``comparison.csv`` in the folder of the run.
    options : mapping
        Options in addition to ``--data-dir``.
    """

    summary: str
    run: Callable[[Namespace], Iterable[Output]]
    options: Options = field(default_factory=dict)


def suite_study(
    name: str,
    tables: Callable[[pd.DataFrame], Iterable[Output]] | None = None,
    *,
    figures: Mapping[str, Callable[[pd.DataFrame, Path], Path]] | None = None,
) -> Study:
    """Return the study of a bundled suite.

    If the suite has ``[[compare]]`` sections, the study yields published values next to ours.

    Parameters
    ----------
    name : str
        Name of the suite.
    tables : callable or None
        Function of the results that yields tables. By default, the tables are those of the file of
        the suite.
    figures : mapping of str to callable
        Functions of the results and of a path that draw figures, by file name in the run folder.
    """

    def run(options: Namespace) -> Iterator[Output]:
        folder = run_suite(Suite.load(name), options)
        rows = load_rows(folder)
        yield from tables(rows) if tables else suite_tables(name, rows)
        yield from compare_suite(name, rows)
        for file, draw in (figures or {}).items():
            yield f"Figure: {draw(rows, folder / file)}"

    return Study(Suite.load(name).description, run, SUITE_OPTIONS)


def run_suite(suite: Suite, options: Namespace, out: str = "") -> Path:
    """Run the missing tasks of a suite, or of the chosen part, and return its folder.

    Parameters
    ----------
    suite : Suite
        The suite.
    options : argparse.Namespace
        `SUITE_OPTIONS` and the folder of the data sets.
    out : str
        Folder of the run, by default that of the options.
    """
    folder = Path(out or options.out or f"runs/{suite.name}")
    seeds = parse_seeds(options.seeds) if options.seeds else ()
    suite = suite.of(_matching_grids(suite, options.setting), seeds)
    bench = BenchSession(suite, folder, options.jobs, options.data_dir)
    bench.open(resume=folder.exists())
    bench.run(lambda status, label: print(f"{status}: {label}", file=sys.stderr, flush=True))
    return folder


def _matching_grids(suite: Suite, pattern: str) -> list[Grid]:
    """Return the grids with those data sets and protocols that match a pattern of settings."""
    grids = []
    for grid in suite.grids:
        pairs = product(grid.data, grid.protocols)
        chosen = [(d, p) for d, p in pairs if fnmatchcase(f"{d.name}, {p}", pattern)]
        if chosen:
            data, protocols = (tuple(dict.fromkeys(axis)) for axis in zip(*chosen, strict=True))
            grids.append(replace(grid, data=data, protocols=protocols))
    if not grids:
        raise UsageError(f"no data set and protocol of {suite.name} match {pattern!r}")
    return grids


def train_federation(
    data: str,
    protocol: Spec,
    clients: int,
    seed: int,
    data_dir: str | None,
    *,
    partition: Spec | None = None,
    defense: str = "none",
    local_data: Callable[[Federation], Mapping[str, LocalData]] = attrgetter("local_data"),
) -> tuple[Training, Federation, FederationConfig]:
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
        Defenses, joined by ``+``.
    local_data : callable
        Function of the federation that returns the training data of its parties.
    """
    protocol_object = register.make("protocol", protocol)
    setting = FederationConfig.of(
        DataRef(data), partition or Spec("iid"), clients, seed, protocol_object
    )
    federation = federation_of(setting, data_dir)
    guard = make_defense(parse_composed([defense])[0])
    run = train(
        protocol_object, local_data(federation), federation.schema,
        defense=guard, seed=seed, noise_from="seed",
    )  # fmt: skip
    return run, federation, setting


def run_attacks(
    trained: tuple[Training, Federation, FederationConfig],
    threat: str,
    attacks: Iterable[Spec],
    seed: int,
) -> Iterator[tuple[Spec, Case, Guess]]:
    """Run several attacks on one training.

    Parameters
    ----------
    trained : tuple
        Result of `train_federation`.
    threat : str
        Threat model.
    attacks : iterable of Spec
        Attacks with their parameters.
    seed : int
        Seed of the background knowledge, and of every attack.

    Yields
    ------
    attack, case, guess : Spec, Case, Guess
        The attack, the adversary and the truth, and the result of the attack.
    """
    training, federation, setting = trained
    roles = dict(setting.roles)
    principals = Threat.parse(threat).principals(roles)
    case = federation.case(roles, principals, seed, threat, training)
    for spec in attacks:
        view = with_background(spec.name, build_view(training, case), case)
        yield spec, case, register.make("attack", spec).run(view, np.random.default_rng(seed))
