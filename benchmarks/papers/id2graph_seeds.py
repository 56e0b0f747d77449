"""Infer labels from record identifiers on several trainings: Takahashi et al. (2023), Table 2.

The study runs the attacks of the paper, and some of ours, on the trainings of the suite
`id2graph_table2`, without blind baselines and references. A seed draws the test rows, the columns
of the parties and the trees.
"""

from argparse import Namespace
from collections.abc import Iterator
from functools import cache
from math import nan
from statistics import mean

import numpy as np

from fedtrees.benchmarks.papers.comparisons import read_published
from fedtrees.benchmarks.papers.id2graph_costs import DATA, PARTITION, PROTOCOLS
from fedtrees.benchmarks.papers.study import FAST, Output, Study, train_federation
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.core.threat import Threat
from fedtrees.experiments.evaluate import build_view, score_guess, with_background

THREAT = "passive"
PUBLISHED = ("cl", "union", "union-cl", "id2graph")
#: Further attacks, of which the best one is reported next to `id2graph`. The suite also runs slower
#: ones, such as `label-mixture`.
FURTHER = ("id2graph-published", "spectral")


@cache
def v_measures(data: str, protocol: str, seed: int, data_dir: str | None) -> dict[str, float]:
    """Train a federation, and return the V-measure of each attack in percent."""
    training, federation, setting = train_federation(
        data, PROTOCOLS[protocol], 2, seed, data_dir, partition=PARTITION
    )
    roles = dict(setting.roles)
    principals = Threat.parse(THREAT).principals(roles)
    case = federation.case(roles, principals, seed, THREAT, training)
    measured: dict[str, float] = {}
    for name in (*PUBLISHED, *FURTHER):
        view = with_background(name, build_view(training, case), case)
        guess = register.make("attack", Spec(name)).run(view, np.random.default_rng(seed))
        rows = score_guess(name, guess, case, None)
        (value,) = (row["value"] for row in rows if row["metric"] == "v_measure")
        measured[name] = 100 * value
    return measured


def run(options: Namespace) -> Iterator[Output]:
    """Yield the published V-measures of the available data sets next to ours."""
    seeds = 1 if options.fast else options.seeds
    for c in read_published("id2graph"):
        data, protocol, *attack = c.setting.split(", ")
        if c.item != "Table 2" or data not in DATA:
            continue
        measured = [v_measures(data, protocol, seed, options.data_dir) for seed in range(seeds)]
        values = [by_attack[attack[0] if attack else "cl"] for by_attack in measured]
        strongest = max(mean(by_attack[name] for by_attack in measured) for name in FURTHER)
        yield c.measured(
            values,
            blind=mean(by_attack["cl"] for by_attack in measured) if attack else nan,
            strongest=strongest if attack else nan,
        )  # fmt: skip


STUDIES = {
    "id2graph_seeds": Study(
        "Label inference from record identifiers (Takahashi et al. 2023, Table 2), without the "
        "blind baselines of the suite id2graph_table2.",
        run,
        {"--seeds": {"type": int, "default": 5, "help": "number of seeds"}, **FAST},
    )
}
