"""Score the published attacks of TimberStrike on several trainings: Tables 4 to 9 and Figure 10.

The suites `timberstrike_table4`, `timberstrike_table6`, `timberstrike_table8` and
`timberstrike_figure10` also run our attacks and all blind baselines, which takes most of their
time. This study only runs the attacks of Di Gennaro et al. (2025) on the same trainings, so that
it measures more seeds. A seed draws the test rows, the partition, the noise and the trees. Each
result is stored as one line of a CSV file, so that an interrupted study continues.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from math import nan
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np

from fedtrees.benchmarks.papers.comparisons import read_published
from fedtrees.benchmarks.papers.stored_scores import StoredScores
from fedtrees.benchmarks.papers.study import SETTING, Output, Study, run_attacks, train_federation
from fedtrees.blind_baselines.matching import matched_accuracy, mismatch_counts
from fedtrees.blind_baselines.rows import Tolerance
from fedtrees.core.claims import EveryRecord
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.experiments.suite import Suite
from fedtrees.metrics.records import sorted_rows

#: Suites by the table of all columns, and the table of the most important columns.
SUITES = {
    "Table 4": ("timberstrike_table4", "Table 5"),
    "Table 6": ("timberstrike_table6", "Table 7"),
    "Table 8": ("timberstrike_table8", "Table 9"),
    "Figure 10": ("timberstrike_figure10", ""),
}
THREAT = "client[index=2]"
ATTACKS = {
    "RA": Spec("timberstrike-published"),
    "RA (F-TP)": Spec("timberstrike-published", {"random_leaf": True}),
}
#: Our attack, which takes most of the time and is therefore optional.
STRONGEST = {"strongest": Spec("timberstrike", {"scope": "union"})}


class Run(NamedTuple):
    """A training of a suite."""

    data: str
    partition: Spec
    protocol: Spec
    clients: int
    defense: str


def runs(item: str) -> dict[str, Run]:
    """Return the training of each setting of a table or figure."""
    trainings: dict[str, Run] = {}
    grid = Suite.load(SUITES[item][0]).grids[0]
    partition = grid.partitions[0]
    for protocol in grid.protocols:
        for clients in grid.clients:
            for defense in grid.defenses:
                parts = [f"{protocol.name}, depth {protocol.params['max_depth']}"]
                parts += [f"epsilon {spec.params['epsilon']:g}" for spec in defense.parts]
                parts += [f"{clients} clients"] if item == "Figure 10" else []
                run = Run(grid.data[0].name, partition, protocol, clients, str(defense))
                trainings[", ".join(parts)] = run
    return trainings


def accuracies(
    run: Run, seed: int, data_dir: str | None, attacks: Mapping[str, Spec] = ATTACKS
) -> dict[str, float]:
    """Train a federation, and return the accuracy of each attack in percent.

    Returns
    -------
    accuracies : dict of str to float
        By score. The ending ``_top`` marks the score of the most important columns.
    """
    trained = train_federation(
        run.data, run.protocol, run.clients, seed, data_dir,
        partition=run.partition, defense=run.defense,
    )  # fmt: skip
    local_data, measured = trained[1].local_data, dict[str, float]()
    attacked = run_attacks(trained, THREAT, attacks.values(), seed)
    for score, (_, case, guess) in zip(attacks, attacked, strict=True):
        (claim,) = (c for c in guess.claims if isinstance(c, EveryRecord))
        # As in the metric `ra_union`: the rows of all parties, those of the adversary first.
        names = sorted(local_data, key=lambda party: party not in case.principals)
        truth = Table.concat([local_data[party].table for party in names])
        rows = claim.table
        if claim.owner is not None:
            # As in the metric `ra_owner`: the rows of the largest party that the attack names.
            parties = sorted(set(claim.owner) & set(local_data))
            name = max(parties, key=lambda party: len(local_data[party]))
            truth = local_data[name].table
            rows = rows.take(np.array(claim.owner) == name)
        measured[score] = reconstruction_accuracy(rows, truth, case.schema)
        measured[f"{score}_top"] = reconstruction_accuracy(rows, truth, case.schema, case.top)
    return measured


def reconstruction_accuracy(
    guess: Table, truth: Table, schema: Schema, columns: Sequence[str] = ()
) -> float:
    """Return the reconstruction accuracy of some columns and the label, in percent.

    It equals `ra` and `ra_top` of `score_records`, which also computes other distances of rows in
    three times the time. Without `columns`, all columns count.
    """
    tolerance = Tolerance.of(truth, schema)
    counted = guess.take(np.arange(min(len(guess), len(truth))))
    A, B = sorted_rows(truth), sorted_rows(counted)
    chosen = [schema.names.index(name) for name in columns or schema.names] + [len(schema.names)]
    cost = mismatch_counts(A[:, chosen], B[:, chosen], tolerance.width[chosen])
    return 100 * matched_accuracy(cost, len(chosen))


def complete(
    item: str, options: Namespace, results: StoredScores, attacks: Mapping[str, Spec] = ATTACKS
) -> None:
    """Compute the missing results of a table or figure."""
    published = {c.setting for c in read_published("timberstrike") if c.item == item}
    chosen = {setting for setting in published if fnmatchcase(setting, options.setting)}
    for seed in range(options.seeds):
        for setting, run in runs(item).items():
            if setting in chosen:
                results.complete(
                    (item, setting), seed,
                    lambda r=run, k=seed: accuracies(r, k, options.data_dir, attacks),
                )  # fmt: skip


def run_study(options: Namespace) -> Iterator[Output]:
    """Complete the chosen tables, and yield all published values that have a result."""
    options.out.mkdir(parents=True, exist_ok=True)
    results, strongest = (
        StoredScores(options.out / name, ("item", "setting"))
        for name in ("accuracies.csv", "strongest.csv")
    )
    for item in options.item or SUITES:
        complete(item, options, results)
        if options.strongest:
            complete(item, options, strongest, STRONGEST)
    places = {item: (item, "") for item in SUITES}
    places |= {top: (item, "_top") for item, (_, top) in SUITES.items() if top}
    for c in read_published("timberstrike"):
        if c.item not in places or c.score not in ATTACKS:
            continue
        item, ending = places[c.item]
        values = results.values((item, c.setting), c.score + ending)
        best = strongest.values((item, c.setting), "strongest" + ending)
        if values:
            yield c.with_values(values, strongest=mean(best) if best and c.score == "RA" else nan)


STUDIES = {
    "timberstrike_seeds": Study(
        "Only the published attacks of Di Gennaro et al. (2025), Tables 4 to 9 and Figure 10, on "
        "several trainings.",
        run_study,
        {
            "--out": {
                "type": Path,
                "default": Path("runs/timberstrike_seeds"),
                "help": "folder of results, which is continued",
            },
            "--item": {
                "choices": tuple(SUITES),
                "action": "append",
                "help": "compute only this table, with that of the most important columns",
            },
            "--strongest": {"action": "store_true", "help": "also run our attack"},
            "--seeds": {"type": int, "default": 3, "help": "number of seeds"},
        }
        | SETTING,
    )
}
