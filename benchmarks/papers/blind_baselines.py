"""Check two properties of the blind baselines and print the tables.

``python -m fedtrees.benchmarks.papers blind_baselines --data-dir FOLDER`` checks that other guesses
without a transcript do not exceed the blind baseline, and that no attack on rows scores below it.
The differences are means over seeds, with a tolerance of `MARGIN`.
"""

import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from fedtrees.benchmarks.papers.study import SUITE_OPTIONS, Study, run_suite
from fedtrees.benchmarks.papers.tables import Table, percent
from fedtrees.blind_baselines.conditional import own_columns_of
from fedtrees.core.claims import Claim, Labels, Records
from fedtrees.core.schema import Schema
from fedtrees.core.schema import Table as Rows
from fedtrees.core.threat import Threat
from fedtrees.experiments.federation import federation_of
from fedtrees.experiments.plan import Task, build_plan
from fedtrees.experiments.suite import Suite
from fedtrees.metrics.labels import LabelScores
from fedtrees.metrics.metric import Case, Metric
from fedtrees.metrics.victims_rows import RecordMetric
from fedtrees.report.results import load_rows

NAME = "blind_baselines"
#: Tolerance, in units of reconstruction accuracy and of the V-measure, which are between 0 and 1.
MARGIN = 0.003
#: Score that is compared, by metric.
DECIDES: dict[type[Metric[Any]], str] = {RecordMetric: "ra", LabelScores: "v_measure"}
_KEY = ["dataset", "partition", "protocol", "defense_spec", "threat", "attack"]


def row_guesses(schema: Schema, y: NDArray[np.int64], rng: np.random.Generator) -> dict[str, Rows]:
    """Return rows guessed from the schema and the number of rows of each class.

    Parameters
    ----------
    schema : Schema
        Declared ranges and categories.
    y : int64 array, shape (n,)
        Labels of the true rows. Guesses contain them in random order.
    rng : numpy.random.Generator
        Randomness of the guesses.

    Returns
    -------
    guesses : dict of str to Table
        ``schema marginals``: values that are spread evenly over each range, and equally frequent
        categories, in random order. ``class prior``: numbers concentrated in the lower part of
        their ranges (Beta(2, 5)), as is common in practice.
    """
    n, d = len(y), len(schema.features)
    ends = [f.declared_range or (f.low or 0.0, f.high or f.low or 0.0) for f in schema.features]
    low, high = np.array(ends, dtype=np.float64).reshape(d, 2).T
    # Evenly spaced quantiles in random order give exact marginals without sampling error.
    place = np.stack([(rng.permutation(n) + 0.5) / n for _ in range(d)], axis=1)
    codes = np.minimum(np.floor(place * (high - low + 1)), high - low)
    guesses = {}
    for name, quantile in (("schema marginals", place), ("class prior", beta.ppf(place, 2, 5))):
        X = low + np.where(schema.categorical, codes, quantile * (high - low))
        guesses[name] = Rows(X, rng.permutation(y))
    return guesses


def label_guesses(X: NDArray[np.float64], count: int, seed: int) -> dict[str, NDArray[np.int64]]:
    """Cluster rows by K-means on the first principal component, and by a Gaussian mixture.

    Parameters
    ----------
    X : float64 array, shape (n, c)
        Columns of the adversary.
    count : int
        Number of clusters.
    seed : int
        Seed of the initialisations.
    """
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.mixture import GaussianMixture
    from sklearn.preprocessing import StandardScaler

    Z = StandardScaler().fit_transform(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = PCA(1, random_state=seed).fit_transform(Z)
        component = KMeans(count, n_init=10, random_state=seed).fit_predict(first)
        mixture = GaussianMixture(count, n_init=3, random_state=seed).fit_predict(Z)
    return {
        "PC1 K-means": component.astype(np.int64),
        "Gaussian mixture": mixture.astype(np.int64),
    }


def guesses_in(case: Case, seed: int) -> dict[str, tuple[type[Metric[Any]], Claim]]:
    """Return the guesses that are compared with the baseline of a case, with their metric."""
    view, guesses = case.blind_view(), dict[str, tuple[type[Metric[Any]], Claim]]()
    rows = case.victims_rows
    if rows is not None and view.rows is None:
        tables = row_guesses(case.schema, rows.y, np.random.default_rng([seed, 1]))
        guesses |= {name: (RecordMetric, Records(table)) for name, table in tables.items()}
    if LabelScores().truth(case) is not None:
        ids, X = own_columns_of(view)
        clusters = label_guesses(X, max(len(case.schema.classes), 2), seed)
        guesses |= {name: (LabelScores, Labels(ids, c)) for name, c in clusters.items()}
    return guesses


def over_baseline(cell: Task, data_dir: str | None, line: Mapping[str, float]) -> dict[str, float]:
    """Return by how much each guess exceeds the blind baseline of one cell.

    Parameters
    ----------
    cell : Task
        A blind task of the bench.
    data_dir : str or None
        Folder of the data sets.
    line : mapping of str to float
        Blind baseline by score.
    """
    roles, seed = dict(cell.federation_config.roles), cell.federation_config.seed
    principals = Threat.parse(cell.threat).principals(roles)
    case = federation_of(cell.federation_config, data_dir).case(
        roles, principals, seed, cell.threat
    )
    over = {}
    for name, (metric, claim) in guesses_in(case, seed).items():
        scored = metric().score([claim], metric().truth(case))
        score = next(s.value for s in scored if s.name == DECIDES[metric])
        if score is not None:
            over[name] = score - line[DECIDES[metric]]
    return over


def tabulate_guesses(suite: Suite, rows: Any, data_dir: str | None) -> Table:
    """Tabulate by how much the possible guesses exceed the baseline.

    Parameters
    ----------
    suite : Suite
        Suite of the study.
    rows : DataFrame
        Results of its run.
    data_dir : str or None
        Folder of the data sets.
    """
    blind = rows[(rows["stage"] == "blind") & (rows["attack_params"] == "")]
    differences: dict[tuple[str, str, str, str], list[float]] = {}
    for cell in build_plan(suite).blind:
        s = cell.federation_config
        place = (s.data.name, s.partition_text, cell.threat)
        selected = blind[
            (blind["dataset"] == place[0])
            & (blind["partition"] == place[1])
            & (blind["threat"] == place[2])
            & (blind["seed"] == s.seed)
        ]
        line = dict(zip(selected["metric"], selected["value"], strict=True))
        for name, over in over_baseline(cell, data_dir, line).items():
            differences.setdefault((*place, name), []).append(over)
    header = ("table", "partition", "threat", "guess", "over the baseline", "")
    lines = [
        [*key, percent(over, signed=True), "above" if mean(over) > MARGIN else ""]
        for key, over in differences.items()
    ]
    return Table("Guesses without a transcript, points:", header, lines)


def tabulate_attacks(rows: Any) -> Table:
    """Tabulate reconstruction accuracy or V-measure of attacks against the blind baseline."""
    done = rows[(rows["stage"] == "attack") & (rows["status"] == "ok")]
    lines = []
    for key, part in done.groupby(_KEY, sort=False):
        scores = dict(iter(part.groupby("metric")))
        # Attacks without a row or label claim are not compared.
        name = next((score for score in DECIDES.values() if score in scores), None)
        if name is None:
            continue
        score, chosen = scores[name], part[part["part"] == "submits_blind"]
        gap = score["value"] - score["blind"]
        lines.append([
            *map(str, key), name, percent(score["value"]), percent(score["blind"]),
            percent(gap, signed=True),
            percent(chosen["value"], digits=0).partition(" ")[0] if len(chosen) else "-",
            "below" if mean(gap) < -MARGIN else "",
        ])  # fmt: skip
    header = (
        "table", "partition", "protocol", "defense", "threat", "attack", "score", "value", "blind",
        "over blind", "submits blind", "",
    )  # fmt: skip
    return Table("Attacks, percent, mean ± standard deviation over seeds:", header, lines)


def run(options: Namespace) -> Iterator[Table]:
    """Complete the run of the suite and yield both tables."""
    suite = Suite.load(NAME)
    rows = load_rows(run_suite(suite, options))
    yield tabulate_guesses(suite, rows, options.data_dir)
    yield tabulate_attacks(rows)


SUMMARY = "No guess without a transcript exceeds the blind baseline, and no attack is below it."
STUDIES = {NAME: Study(SUMMARY, run, SUITE_OPTIONS)}
