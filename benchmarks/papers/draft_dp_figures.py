"""Errors of an adversary that knows a part of the rows: Figures 12 and 13 of Gorgé et al. (2026).

The figures print no values. The published ones are means of the result files of the authors, with
five seeds (Figure 12) and ten seeds (Figure 13). As in their experiments, all forests have 10 trees
of depth 5. A finished seed of a setting is stored as one line of a CSV file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from math import nan
from pathlib import Path
from statistics import mean

import numpy as np

from fedtrees.attacks.forests.posterior import Question, posterior
from fedtrees.attacks.forests.solvers import Enumeration
from fedtrees.attacks.forests.structure import Noise
from fedtrees.benchmarks.papers.comparisons import Comparison, read_published
from fedtrees.benchmarks.papers.draft_dp_forests import (
    PublishedForests,
    draw_counts,
    draw_forest,
    train_network,
    variables,
)
from fedtrees.benchmarks.papers.stored_scores import StoredScores
from fedtrees.blind_baselines.conditional import nearest_guesses
from fedtrees.core.schema import Table
from fedtrees.metrics.records import row_errors

TREES, DEPTH = 10, 5
#: Number of training rows of a forest of which each is unknown in turn.
TARGETS = 100


def known_attributes(
    published: PublishedForests, data: str, known: int, seed: int, work: float
) -> dict[str, float]:
    """Return the errors of unknown attributes if some attributes of each row are known (Figure 12).

    Parameters
    ----------
    published : PublishedForests
        Provides the tables.
    data : str
        Data set, whose first 100 rows are the training rows.
    known : int
        Number of known attributes. A one-hot group is one attribute.
    seed : int
        Seed of the forest, and of the attributes.
    work : float
        Number of moves of the attack, as a multiple of the default.

    Returns
    -------
    errors : dict of str to float
        Errors of `draft-dp`, and of the best guess from the remaining rows of the table (blind).
    """
    table, schema = published.table(data)
    truth, rest = table.take(np.arange(100)), table.take(np.arange(100, len(table)))
    rng, coded = np.random.default_rng([seed, TREES, DEPTH]), variables(schema)
    _, forest = draw_counts(truth, schema, (TREES, DEPTH, 5.0), seed, rng)
    groups = np.random.default_rng(seed).permutation(len(coded))[:known].tolist()
    columns = np.sort([c for g in groups for c in coded.columns[g]]).astype(np.int64)
    levels = coded.encode(truth.X)
    question = Question(
        forest, Noise.of("truncated-laplace", 5.0, TREES), 100,
        known_levels={g: levels[:, g] for g in groups},
    )  # fmt: skip
    answer = posterior(question, np.random.default_rng(seed), work)
    guess = Table(coded.decode(answer.value[:, :-1]), answer.value[:, -1].astype(np.int64))
    exact, rng = np.zeros(truth.X.shape[1] + 1), np.random.default_rng(seed)
    blind = nearest_guesses(rest, schema, columns, truth.X[:, columns], exact, rng).values()
    all_rows = np.ones(100, dtype=bool)
    errors = [
        row_errors(g, truth, all_rows, columns.tolist())["row_error"] for g in (guess, *blind)
    ]
    return {"error": errors[0], "blind": min(errors[1:])}


def informed(
    published: PublishedForests, data: str, rows: int, epsilon: float, seed: int
) -> dict[str, float]:
    """Return the mean errors of the unknown row if all other rows are known (Figure 13).

    Parameters
    ----------
    published : PublishedForests
        Provides the tables.
    data : str
        Data set.
    rows : int
        Number of training rows.
    epsilon : float
        Privacy budget.
    seed : int
        Seed of rows, forest and noise.

    Returns
    -------
    errors : dict of str to float
        Errors of Equation 20, of ``mode=informed`` (strongest), of the most frequent row (blind),
        and of the network of Balle et al. (NaN without torch).
    """
    truth, rest, forest = draw_forest(published, data, TREES, DEPTH, epsilon, rows, seed)
    coded = forest.variables.encode(truth.X)
    known = np.column_stack([coded, truth.y]).astype(np.int16)
    every, noise = Enumeration.of(forest), Noise.of("truncated-laplace", epsilon, TREES)
    counts = forest.counts(coded, truth.y)
    common = [np.bincount(column).argmax() for column in coded.T]
    guesses: dict[str, list[object]] = {"error": [], "strongest": [], "blind": []}
    residuals = []
    for i in range(TARGETS):
        other_rows = np.delete(known, i, axis=0)
        other_counts = counts - forest.counts(coded[i : i + 1], truth.y[i : i + 1])
        residuals.append(forest.noisy - other_counts)
        question = Question(forest, noise, 1, other_rows)
        guesses["error"].append(every.most_likely_row(question, other_counts)[0][:-1])
        guesses["strongest"].append(every.missing_row(noise, other_rows, other_counts)[0][:-1])
        guesses["blind"].append(common)
    X = truth.X[:TARGETS]
    errors = {
        name: float((forest.variables.decode(np.array(part)) != X).mean())
        for name, part in guesses.items()
    }
    errors["error, network"] = nan
    if find_spec("torch"):
        read = train_network(forest, rest, epsilon, seed)
        errors["error, network"] = float((read(np.stack(residuals)) != X).mean())
    return errors


def _scores(
    published: PublishedForests, setting: str, seed: int, work: float
) -> Mapping[str, float]:
    """Compute a setting such as ``compas, 2 known`` or ``adult, 20000 rows, epsilon 5``."""
    data, number, *rest = setting.split(", ")
    size = int(number.partition(" ")[0])
    if not rest:
        return known_attributes(published, data, size, seed, work)
    return informed(published, data, size, float(rest[0].partition(" ")[2]), seed)


def compare_figures(
    published: PublishedForests, item: str, work: float, folder: Path, pattern: str
) -> Iterator[Comparison]:
    """Yield the values of Figure 12 or 13 for which there is a result.

    Parameters
    ----------
    published : PublishedForests
        Provides the tables and the number of seeds.
    item : str
        ``Figure 12`` or ``Figure 13``.
    work : float
        Number of moves of the attack, as a multiple of the default.
    folder : Path
        Folder of the CSV file of finished seeds.
    pattern : str
        Pattern of the settings whose missing results are computed.
    """
    cells = [c for c in read_published("draft_dp") if c.item == item]
    results = StoredScores(folder / f"{item.lower().replace(' ', '_')}.csv", ("setting",))
    for seed in range(published.seeds):
        for setting in dict.fromkeys(c.setting for c in cells):
            if fnmatchcase(setting, pattern):
                results.complete(
                    (setting,), seed,
                    lambda s=setting, k=seed: _scores(published, s, k, work),
                )  # fmt: skip
    for c in cells:
        if values := results.values((c.setting,), c.score):
            baseline = mean(results.values((c.setting,), "blind"))
            c = c.with_values(values, blind=baseline)
            if c.item == "Figure 13" and c.score == "error":
                c = replace(c, strongest=mean(results.values((c.setting,), "strongest")))
            yield c
