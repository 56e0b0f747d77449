"""Reconstruct the rows of all forests of Gorgé et al. (2026), for their Tables I to VII.

As in the code of the authors, every forest counts the first N rows of a table, and a seed draws its
splits and its noise. Each reconstruction is scored for all tables at once, and is stored as one
line of a CSV file, so that an interrupted study continues.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import nan
from pathlib import Path
from time import process_time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.posterior import Question, posterior
from fedtrees.attacks.forests.structure import Noise
from fedtrees.benchmarks.papers.comparisons import Comparison, read_published
from fedtrees.benchmarks.papers.draft_dp_forests import (
    PublishedForests,
    draw_counts,
    guess_errors,
    resize,
    variables,
)
from fedtrees.benchmarks.papers.stored_scores import StoredScores
from fedtrees.blind_baselines.matching import assign, mismatch_counts
from fedtrees.core.schema import Table
from fedtrees.metrics.records import inliers
from fedtrees.trees.forest.random_decision import RandomDecisionForest

#: Share of the default number of moves of the attack. With the published forests of COMPAS and
#: Adult at epsilon 1, 5 and 30, a quarter of the moves takes 1.0 instead of 3.1 CPU seconds, and
#: the mean error of two seeds changes by -0.007 to 0.012.
WORK = 0.25
#: Number of data sets of the same distribution whose errors estimate the probability of an error by
#: chance (Table II), as in the paper.
SAMPLES = 100
#: Number of seeds of Table V, which takes seconds, because no rows are reconstructed.
MODEL_SEEDS = 5
#: Largest estimate of an unknown number of rows, as in the code of the authors.
MOST_ROWS = 400


class Setting(NamedTuple):
    """A forest of the paper and the adversary's knowledge of its number of rows."""

    data: str
    trees: int
    depth: int
    epsilon: float
    rows: int
    row_count_known: bool


#: Trees, depth, epsilon and number of rows that the settings of a table leave out.
_COMMON = {
    "Table III": {"trees": "10", "depth": "5"},
    "Table VII": {"trees": "10", "depth": "5", "epsilon": "5"},
}


def setting_of(c: Comparison) -> Setting | None:
    """Return the setting of a published value, None for Table V, which needs no attack."""
    if not c.item.startswith("Table") or c.item == "Table V":
        return None
    data, *rest = c.setting.split(", ")
    sizes = {"rows": "100"} | _COMMON.get(c.item, {})
    for token in rest:
        number, name = sorted(token.split(" "), key=str.isalpha)
        sizes[name] = number
    trees, depth, rows = (int(sizes[name]) for name in ("trees", "depth", "rows"))
    return Setting(data, trees, depth, float(sizes["epsilon"]), rows, c.item != "Table IV")


@dataclass(frozen=True)
class Attacked:
    """The forest of a setting and the rows that were reconstructed from it.

    Attributes
    ----------
    truth, rest : Table
        Training rows, and all remaining rows of the table.
    model : RandomDecisionForest
        The noisy forest.
    guess : Table
        As many reconstructed rows as there are training rows.
    seconds : float
        CPU seconds of the reconstruction.
    """

    truth: Table
    rest: Table
    model: RandomDecisionForest
    guess: Table
    seconds: float


def attack(published: PublishedForests, setting: Setting, seed: int, work: float) -> Attacked:
    """Draw a forest, and reconstruct its rows."""
    table, schema = published.table(setting.data)
    truth = table.take(np.arange(setting.rows))
    rest = table.take(np.arange(setting.rows, len(table)))
    rng = np.random.default_rng([seed, setting.trees, setting.depth])
    model, forest = draw_counts(
        truth, schema, (setting.trees, setting.depth, setting.epsilon), seed, rng
    )
    n = setting.rows if setting.row_count_known else min(MOST_ROWS, forest.estimated_rows(20))
    noise = Noise.of("truncated-laplace", setting.epsilon, setting.trees)
    begin = process_time()
    answer = posterior(Question(forest, noise, n), np.random.default_rng(seed), work)
    seconds = process_time() - begin
    X = variables(schema).decode(answer.value[:, :-1])
    guess = resize(Table(X, answer.value[:, -1].astype(np.int64)), len(truth), seed)
    return Attacked(truth, rest, model, guess, seconds)


def matched_errors(guess: Table, truth: Table) -> NDArray[np.float64]:
    """Return the share of wrong attributes of each true row in the best matching, shape (n,)."""
    cost = mismatch_counts(truth.X, guess.X, np.zeros(truth.X.shape[1]))
    return np.asarray(cost[np.arange(len(truth)), assign(cost)] / truth.X.shape[1])


def probability_by_chance(
    guess: Table, rest: Table, error: float, rng: np.random.Generator
) -> float:
    """Return the probability of at most this error for rows of the same distribution (Table II).

    It is that of a normal distribution with the mean and deviation of the errors of `SAMPLES` data
    sets that are drawn from the remaining rows.
    """
    from scipy.stats import norm

    errors = [
        matched_errors(guess, rest.take(rng.choice(len(rest), len(guess), replace=False))).mean()
        for _ in range(SAMPLES)
    ]
    return float(norm.cdf(error, np.mean(errors), np.std(errors)))


def scores_of(attacked: Attacked, seed: int) -> dict[str, float]:
    """Return all scores of a reconstruction and of its forest, by their name in the registry."""
    truth, rest, model, guess, seconds = vars(attacked).values()
    wrong, inlier = matched_errors(guess, truth), inliers(truth)
    scores = {"error": wrong.mean(), "exact rows": (wrong == 0).mean(), "worst row": wrong.max()}
    for name, part in (("inliers", wrong[inlier]), ("outliers", wrong[~inlier])):
        scores[f"error, {name}"] = part.mean() if len(part) else nan
        scores[f"exact rows, {name}"] = (part == 0).mean() if len(part) else nan
    rng = np.random.default_rng([seed, len(truth)])
    scores["CDF"] = probability_by_chance(guess, rest, scores["error"], rng)
    scores["seconds"] = seconds
    for name, rows in (("training", truth), ("test", rest)):
        scores[f"accuracy, {name}"] = ((model.predict(rows.X) >= 0.5) == rows.y).mean()
    return {name: float(value) for name, value in scores.items()}


def model_accuracies(published: PublishedForests, data: str, seed: int) -> dict[str, float]:
    """Return the accuracies of a private forest and of scikit-learn's forest (Table V).

    Both have 10 trees of depth 5 and 100 training rows. Epsilon is 30.
    """
    from sklearn.ensemble import RandomForestClassifier

    table, schema = published.table(data)
    train, test = table.take(np.arange(100)), table.take(np.arange(100, len(table)))
    rng = np.random.default_rng([seed, 10, 5])
    private, _ = draw_counts(train, schema, (10, 5, 30.0), seed, rng)
    cart = RandomForestClassifier(n_estimators=10, max_depth=5, random_state=seed)
    cart.fit(train.X, train.y)
    scores: dict[str, float] = {}
    for name, rows in (("training", train), ("test", test)):
        predicted = private.predict(rows.X) >= 0.5
        scores[f"accuracy, {name}, private"] = float((predicted == rows.y).mean())
        scores[f"accuracy, {name}, CART"] = float(cart.score(rows.X, rows.y))
    return scores


def compare_tables(
    published: PublishedForests, items: Iterable[str], work: float, path: Path, pattern: str = "*"
) -> Iterator[Comparison]:
    """Yield the values of Tables I to VII for which there is a result.

    Parameters
    ----------
    published : PublishedForests
        Provides the tables and the number of seeds.
    items : iterable of str
        Tables whose missing results are computed first.
    work : float
        Number of moves of the attack, as a multiple of the default.
    path : Path
        CSV file of finished reconstructions.
    pattern : str
        Pattern of the settings whose missing results are computed.
    """
    cells = [(c, setting_of(c)) for c in read_published("draft_dp")]
    chosen, results = set(items), StoredScores(path, Setting._fields)
    settings = dict.fromkeys(
        setting
        for c, setting in cells
        if setting and c.item in chosen and fnmatchcase(c.setting, pattern)
    )
    for setting in settings:
        # Compile or load the kernels, so that no measured time includes it.
        attack(published, setting, 0, work / 100)
        break
    for seed in range(published.seeds):
        for setting in settings:
            results.complete(
                setting, seed,
                lambda s=setting, k=seed: scores_of(attack(published, s, k, work), k),
            )  # fmt: skip
    models: dict[str, list[dict[str, float]]] = {}
    for c, setting in cells:
        if setting:
            values = results.values(setting, c.score)
        elif c.item == "Table V":
            if c.setting not in models:
                seeds = range(MODEL_SEEDS)
                models[c.setting] = [model_accuracies(published, c.setting, k) for k in seeds]
            values = [scores[c.score] for scores in models[c.setting]]
        else:
            continue
        if values:
            error = setting and c.score == "error"
            blind = guess_errors(published, setting.data)["random"] if error else nan
            yield c.with_values(values, blind=blind)
