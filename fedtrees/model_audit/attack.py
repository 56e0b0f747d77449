"""Attack a model file with known rows, and score the attack next to the blind baseline.

The adversary has the model file and some training rows, and reconstructs further training rows.
Boosted trees are attacked with `timberstrike`, random forests with `forest-boxes`, and private
forests with `draft-dp`. The module prepares the view of the adversary, which contains the model and
the known rows.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.observations.reading import read_boosting as evidence_of_view
from fedtrees.attacks.reconstruction.targets import Moments
from fedtrees.attacks.timberstrike import Options, reconstruct, reconstruct_numbers
from fedtrees.blind_baselines.guesses import blind_guesses
from fedtrees.core.claims import LeafCounts, Records
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, OneHot, Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.core.streams import Streams
from fedtrees.core.view import View
from fedtrees.data.dataset import Dataset
from fedtrees.messages.models import public_view
from fedtrees.metrics.leaf_counts import (
    LeafCountMetric,
    blind_leaf_counts,
    score_leaf_counts,
    true_leaf_counts,
)
from fedtrees.metrics.metric import advantage
from fedtrees.metrics.victims_rows import RecordMetric, VictimsRows
from fedtrees.model_audit.audit import Audit
from fedtrees.model_audit.exposure import TreeExposure
from fedtrees.model_audit.leaf_counts import sums_of
from fedtrees.model_audit.model import ModelFile
from fedtrees.model_audit.rows import MOST_TARGETS, OWN_SHARE
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import LOGISTIC, SQUARED_ERROR
from fedtrees.trees.files.categories import sets_to_thresholds
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest

#: Blocks of trees are assigned to several clients if the tests that they share exceed those in
#: shuffled orders by `SURE` standard deviations, estimated from `SHUFFLED` orders.
SURE, SHUFFLED = 6.0, 50
#: Smallest number of known rows from which one-hot groups are inferred. With fewer rows, unrelated
#: columns look like a group by chance.
FEWEST = 10
#: Weight of a test that occurs in a single tree. The weights are integers so that sums are exact.
COMMON = 1000


def attack_on(model: ModelFile) -> Any:
    """Return the attack for a forest: `draft-dp` for private forests, else `forest-boxes`."""
    return register.make("attack", Spec("forest-boxes" if model.released is None else "draft-dp"))


def view_of_file(
    model: ModelFile, known_rows: Table, schema: Schema, rows: int, rng: np.random.Generator
) -> View:
    """Return the view of an adversary that has a forest's file and some training rows.

    Parameters
    ----------
    model : ModelFile
        A model whose forest is a `RandomForest`.
    known_rows : Table
        Training rows that the adversary knows.
    schema : Schema
        Columns and classes.
    rows : int
        Number of training rows, including those in `known_rows`.
    rng : numpy.random.Generator
        Randomness of the shuffled orders in `trees_of_a_client`.

    Returns
    -------
    view : View
    """
    assert isinstance(model.forest, RandomForest)
    parameters = model.parameters
    if model.released is not None:
        public_parameters: dict[str, object] = {"trees": len(model.released)}
        if parameters:
            public_parameters |= {
                "mechanism": parameters["mechanism"],
                "epsilon": float(parameters["epsilon"]),
            }
        view = public_view(model.released, schema, public_parameters, rows)
    else:
        view = public_view(model.forest, schema, {}, rows)
        each = trees_of_a_client(model.forest, rng)
        if each < len(model.forest.trees):
            view = replace(view, protocol="local-forests", parameters={"trees": each})
    return replace(view, local_data=(LocalData.of(known_rows),) if len(known_rows) else ())


def with_groups(schema: Schema, known_rows: Table) -> Schema:
    """Add the one-hot groups to the schema that known rows and column names suggest.

    A group consists of neighbouring columns whose names begin with the same word, and of which
    exactly one is 1 and the remaining ones are 0 in every known row. The blind adversary uses the
    same groups.
    """
    if len(known_rows) < FEWEST:
        return schema
    groups = []
    for _, run in groupby(range(len(schema.names)), lambda j: _word(schema.names[j])):
        columns = list(run)
        X = known_rows.X[:, columns]
        if len(columns) > 1 and np.isin(X, (0, 1)).all() and (X.sum(axis=1) == 1).all():
            groups.append(OneHot(tuple(schema.names[j] for j in columns)))
    return replace(schema, groups=tuple(groups))


def _word(name: str) -> str:
    """Return the first word of a column name."""
    return re.split(r"\W|_", name, maxsplit=1)[0]


def trees_of_a_client(forest: RandomForest, rng: np.random.Generator) -> int:
    """Return how many consecutive trees each client grew, or all trees if nothing separates them.

    Clients with different numbers of rows differ in the number of draws. Clients of equal size
    differ in thresholds, which are values of their local rows. The function selects the division
    into blocks with the highest likelihood if trees share tests at one rate within blocks and at
    another rate between blocks (a Poisson block model, Karrer and Newman 2011). Trees of one table
    are in random order. The division is therefore accepted only if the trees share fewer tests
    after shuffling.
    """
    trees = len(forest.trees)
    runs = [len(list(run)) for _, run in groupby(forest.trees, _draws)]
    by_size, shared = math.gcd(*runs), _shared_test_weights(forest.trees)
    among = [each for each in range(2, by_size + 1) if by_size % each == 0 and each < trees]
    if not among:
        return trees
    place = np.arange(trees)
    each = max(among, key=lambda e: _likelihood(shared, _within(shared, place, e), e))
    parts = np.split(place, np.cumsum(runs)[:-1])
    orders = [np.concatenate([rng.permutation(part) for part in parts]) for _ in range(SHUFFLED)]
    chance = np.array([_within(shared, order, each) for order in orders])
    sure = _within(shared, place, each) - chance.mean() > SURE * chance.std()
    return each if sure else by_size


def _likelihood(shared: NDArray[np.float64], inside: float, each: int) -> float:
    """Return the log-likelihood of blocks of `each` trees in nats, up to an additive constant."""
    pairs = np.array([len(shared) * (each - 1), len(shared) * (len(shared) - each)])
    shared_counts = np.array([inside, shared.sum() - inside])
    return float((shared_counts * np.log(np.maximum(shared_counts, 1) / pairs)).sum())


def _within(shared: NDArray[np.float64], order: NDArray[np.int64], each: int) -> float:
    """Return the weight of the tests that trees of the same block share.

    `order` is divided into consecutive blocks of `each` trees.
    """
    block = order.reshape(-1, each)
    return float(shared[block[:, :, None], block[:, None, :]].sum())


def _shared_test_weights(trees: tuple[ClassTree, ...]) -> NDArray[np.float64]:
    """Return the weight of the tests that two trees share, float64, shape (T, T).

    A test has a higher weight the fewer trees contain it. The values are integers.
    """
    tree = np.repeat(np.arange(len(trees)), [len(t) for t in trees])
    feature = np.concatenate([t.feature for t in trees])
    tests = np.stack([feature, np.concatenate([t.threshold for t in trees])], axis=1)
    of, which = np.unique(tests[feature >= 0], axis=0, return_inverse=True)
    has = np.zeros((len(trees), len(of)))
    has[tree[feature >= 0], which.ravel()] = 1
    weight = COMMON // np.maximum(has.sum(axis=0), 1)
    return np.asarray((has * weight) @ has.T) * (1 - np.eye(len(trees)))


def _draws(tree: ClassTree) -> int:
    """Return how many rows were drawn for a tree, -1 if its counts are not known."""
    return -1 if tree.counts is None else int(tree.counts[0].sum())


@dataclass(frozen=True)
class Score:
    """One metric of an attack, next to the best guess of the same adversary without the model."""

    metric: str
    score: float
    blind: float
    advantage: float | None


@dataclass(frozen=True, eq=False)
class AttackResult:
    """Result of an attack on the model, or the reason why no attack applies.

    If there is a reason, all remaining fields are empty.
    """

    reason: Reason | None
    threat: str = ""  # the adversary, in words
    targets: int = 0  # number of rows that the attack tries to reconstruct
    known_rows: int = 0  # number of training rows that the adversary knows
    scores: tuple[Score, ...] = ()
    trees: int = 0  # number of trees that the attack read
    seconds: float = 0.0
    # Number of reconstructed rows. If there are more targets, the remaining rows are blind guesses.
    rebuilt: int = 0
    name: str = "TimberStrike"


def attack(
    audit: Audit,
    own_data: Dataset | None,
    truth: Dataset | None,
    seed: int = 0,
    options: Options | None = None,
) -> AttackResult:
    """Attack the model and score the reconstructed rows.

    Boosted trees are attacked with `timberstrike`, random forests with `forest-boxes`, and private
    random decision forests with `draft-dp`.

    Parameters
    ----------
    audit : Audit
        Audit of the model file.
    own_data : Dataset or None
        Training rows that the adversary knows.
    truth : Dataset or None
        Training rows that the adversary tries to reconstruct. At least one of `own_data` and
        `truth` is required. If only one is given, the adversary knows a random fifth of it and
        reconstructs the remaining rows.
    seed : int
        Seed of the split, of the attack and of the blind guesses.
    options : Options, optional
        Options of `timberstrike`. Forest attacks do not use them.

    Returns
    -------
    result : AttackResult

    Raises
    ------
    UsageError
        If neither `own_data` nor `truth` is given.
    DataError
        If no target rows remain, or if there are too many to match them in reasonable time.
    """
    if own_data is None and truth is None:
        raise UsageError("no rows to attack with: give training rows as `own_data` or as `truth`")
    if isinstance(audit.model.forest, RandomForest):
        return _forest_attack(audit, own_data, truth, Streams(seed).child("audit"))
    evidence = evidence_of(audit)
    if isinstance(evidence, Reason):
        return AttackResult(evidence)
    streams = Streams(seed).child("audit")
    schema = _given(own_data, truth).schema
    known_rows, sought, threat = _parts(own_data, truth, streams.rng("own-rows"))
    if audit.sources.kind != "one":
        clients = _victims(evidence, audit, known_rows, part=own_data is None or truth is None)
    else:
        rows = audit.rows.total or len(known_rows) + len(sought)
        threat += "" if audit.rows.total else ", and who knows how many rows there are"
        clients = [(evidence[0].change(n_rows=rows), audit.trees[0])]
    if not clients:
        return AttackResult(Reason("audited-own-rows"))
    began = time.perf_counter()
    rng = streams.rng("attack")
    options = options or Options()
    if schema.classes:
        guesses = [reconstruct(e, known_rows, schema, options, rng) for e, _ in clients]
    else:
        parts = (known_rows, schema, Moments(), options, rng)
        guesses = [reconstruct_numbers(e, *parts) for e, _ in clients]
    seconds = time.perf_counter() - began
    rebuilt = Table.concat([r.table for g in guesses for r in g.all(Records)])
    if len(rebuilt) > len(sought):  # a metric matches at most as many rows as there are targets
        rebuilt = rebuilt.take(np.sort(rng.choice(len(rebuilt), len(sought), replace=False)))
    scores = _row_scores(rebuilt, known_rows, sought, schema, streams.rng("blind"))
    counts = guesses[0].first(LeafCounts)
    single_binary = len(clients) == 1 and len(schema.classes) == 2
    if single_binary and counts is not None and _grown_on(*clients[0], known_rows, sought):
        scores.append(_leaf_score(clients[0][0].trees[0], counts, known_rows, sought))
    trees = max(int(g.notes["trees_read"]) for g in guesses)
    return AttackResult(
        None,
        threat,
        len(sought),
        len(known_rows),
        tuple(scores),
        trees,
        seconds,
        rebuilt=len(rebuilt),
    )


def _forest_attack(
    audit: Audit, own_data: Dataset | None, truth: Dataset | None, streams: Streams
) -> AttackResult:
    """Attack a random forest. The remaining behaviour is that of `attack`."""
    schema = _given(own_data, truth).schema
    known_rows, sought, threat = _parts(own_data, truth, streams.rng("own-rows"))
    if audit.model.released is not None:
        schema = with_groups(schema, known_rows)
    began = time.perf_counter()
    rng = streams.rng("attack")
    view = view_of_file(audit.model, known_rows, schema, len(known_rows) + len(sought), rng)
    reads = attack_on(audit.model)
    reason = reads.inapplicable(view)
    if reason is not None:
        return AttackResult(reason)
    guess = reads.run(view, rng)
    seconds = time.perf_counter() - began
    rebuilt = Table.concat([r.table for r in guess.all(Records)])
    if len(rebuilt) > len(sought):
        rebuilt = rebuilt.take(np.sort(rng.choice(len(rebuilt), len(sought), replace=False)))
    scores = _row_scores(rebuilt, known_rows, sought, schema, streams.rng("blind"))
    return AttackResult(
        None,
        f"{threat}, and who knows how many rows there are",
        len(sought),
        len(known_rows),
        tuple(scores),
        len(audit.trees),
        seconds,
        rebuilt=len(rebuilt),
        name=reads.name,
    )


def _row_scores(
    reconstructed: Table, known_rows: Table, sought: Table, schema: Schema, rng: np.random.Generator
) -> list[Score]:
    """Score reconstructed rows next to blind guesses. There are no scores without rows."""
    if not len(reconstructed):
        return []
    blind = blind_guesses(known_rows, schema, len(sought), rng)
    # The attack returned fewer rows than there are targets. Blind guesses replace the missing ones,
    # so that attack and baseline are scored on the same number of rows.
    if len(reconstructed) < len(sought) and "bootstrap" in blind:
        more = blind["bootstrap"].take(np.arange(len(sought) - len(reconstructed)))
        reconstructed = Table.concat([reconstructed, more])
    metric, truth = RecordMetric(), VictimsRows(sought, schema, (), len(sought))
    lines = metric.best_of({k: metric.score([Records(g)], truth) for k, g in blind.items()})
    values = {s.name: s.value for s in metric.score([Records(reconstructed)], truth)}
    scores = []
    for m in metric.measures:
        if m.slot:
            value, line = values[m.key], lines[m.key].value
            assert value is not None
            scores.append(Score(m.key, value, line, advantage(value, line)))
    return scores


def _victims(
    evidence: Sequence[BoostingObservations], audit: Audit, known_rows: Table, part: bool
) -> list[tuple[BoostingObservations, TreeExposure]]:
    """Return the clients to attack, each with its first tree, whose leaves count its rows.

    The choice uses only the adversary's rows and the file. A client whose leaves contain exactly
    the adversary's rows is not attacked. If these rows are a known share of a table (`part`), and
    they can be a part of the rows of exactly one client, only this client is attacked, with the
    adversary's rows among its rows.
    """
    firsts = [t for t in audit.trees if t.base_score is not None]
    if audit.sources.kind == "turns":  # the file contains no first tree of the other clients
        firsts = [audit.trees[0]]
    inside, candidates = [], []
    for one, first in zip(evidence, firsts, strict=True):
        n = _per_leaf(one, known_rows)
        if np.array_equal(n, first.n):
            continue
        candidates.append((one, first))
        n_pos = _per_leaf(one, known_rows.take(np.flatnonzero(known_rows.y == 1)))
        fits = first.exact & (n_pos <= first.n_pos) & (n - n_pos <= first.n - first.n_pos)
        if part and fits.all() and round(OWN_SHARE * int(first.n.sum())) == len(known_rows):
            inside.append((one.change(includes_own="all"), first))
    return inside if len(inside) == 1 else candidates


def _per_leaf(evidence: BoostingObservations, table: Table) -> NDArray[np.int64]:
    """Return how many rows are in each leaf of the first tree, int64, shape (J,)."""
    tree = evidence.trees[0]
    leaf = Forest((tree,), np.zeros(1, dtype=np.float32)).apply(table.X)[:, 0]
    return np.asarray(np.bincount(leaf, minlength=len(tree))[tree.leaves])


def _grown_on(
    evidence: BoostingObservations, first: TreeExposure, known_rows: Table, sought: Table
) -> bool:
    """Return whether the counts of the first tree are those of the given rows."""
    rows = Table.concat([known_rows, sought]) if evidence.observed.own_inside else sought
    counted = first.counted
    same = np.array_equal(_per_leaf(evidence, rows)[counted], first.n[counted])
    return same and evidence.row_counts.n_rows == len(rows)


def _given(own_data: Dataset | None, truth: Dataset | None) -> Dataset:
    """Return the training rows if they are given, else the adversary's rows."""
    data = truth or own_data
    assert data is not None
    return data


def _parts(
    own_data: Dataset | None, truth: Dataset | None, rng: np.random.Generator
) -> tuple[Table, Table, str]:
    """Return the adversary's rows, the target rows, and a description of the adversary."""
    data = _given(own_data, truth)
    if own_data is not None and truth is not None:
        sought = _without(truth.table, own_data.table)
        known_rows, threat = own_data.table, "an adversary with the model and the rows of --own"
    else:
        order = rng.permutation(len(data.table))
        count = round(OWN_SHARE * len(order))
        known_rows, sought = data.table.take(order[:count]), data.table.take(order[count:])
        threat = (
            f"an adversary with the model and a random fifth of the rows of {data.name}, "
            "for example another client"
        )
    if len(sought) > MOST_TARGETS:
        raise DataError(
            f"{len(sought)} rows to look for; more than {MOST_TARGETS} cannot be matched in "
            "reasonable time: give random parts of the table as --truth and as --own"
        )
    if not len(sought):
        raise DataError("no rows are left to search for: --truth contains only rows of --own")
    return known_rows, sought, threat


def _without(truth: Table, own_rows: Table) -> Table:
    """Return the rows of `truth` that are not in `own_rows`.

    Each row of `own_rows` removes one equal row, so that duplicates are counted.
    """
    keys, own_keys = (
        [(row.tobytes(), float(y)) for row, y in zip(t.X, t.y, strict=True)]
        for t in (truth, own_rows)
    )
    left = Counter(own_keys)
    keep = np.ones(len(truth), dtype=bool)
    for i, key in enumerate(keys):
        if left[key]:
            left[key] -= 1
            keep[i] = False
    return truth.take(keep)


def _leaf_score(tree: Tree, guess: LeafCounts, known_rows: Table, sought: Table) -> Score:
    """Score the first tree's counts: the share of rows in leaves with both classes right."""
    one = Forest((tree,), np.zeros(1, dtype=np.float32))
    nodes, known_nodes = (one.apply(t.X)[:, 0] for t in (sought, known_rows))
    true = true_leaf_counts(0, nodes, sought.y, tree.leaves)
    blind = blind_leaf_counts(
        true_leaf_counts(0, known_nodes, known_rows.y, tree.leaves), len(sought)
    )
    got, line = (score_leaf_counts([g], [true]).leaf_mass_exact for g in (guess, blind))
    fact = next(m.key for m in LeafCountMetric.measures if m.slot)
    return Score(fact, got, line, advantage(got, line))


def evidence_of(audit: Audit) -> list[BoostingObservations] | Reason:
    """Return the input of TimberStrike for each client, or the reason why there is none."""
    model, settings = audit.model, audit.settings
    if not isinstance(model.forest, Forest):
        return Reason("audited-no-log-loss")
    numbers = model.forest.objective.name == SQUARED_ERROR.name
    if numbers and not audit.rows.complete:
        return Reason("audited-no-log-loss")
    ordered = sets_to_thresholds(model.forest, model.categories)
    if ordered is None:
        return Reason("audited-categories")
    if settings is None:
        return Reason("audited-no-settings")
    trees, start = _trees(audit, ordered), model.forest.base_margin
    has_sums = all(t.h is not None for t in trees)
    if not has_sums and not audit.trees[0].counted.any():
        return Reason("audited-no-counts")
    if model.library == "lightgbm":
        base = audit.trees[0].base_score
        if base is None:
            return Reason("audited-no-labels")
        start = LOGISTIC.base_margin(base)
        moved = (trees[0].value - start[0]) * (trees[0].feature < 0)
        trees[0] = replace(trees[0], value=moved.astype(np.float32))
    settings_of_view = {"learning_rate": settings.learning_rate, "reg_lambda": settings.reg_lambda}
    forest = Forest(tuple(trees), start, model.forest.objective)
    width = 1 + max(int(t.feature.max()) for t in trees)
    columns = tuple(Feature(f"column {k}") for k in range(width))
    classes = () if numbers else tuple(map(str, range(max(2, len(start)))))
    schema = Schema(columns, "label", classes)
    view = public_view(forest, schema, {**settings_of_view, "min_child_weight": 0.0}, 0)
    common = evidence_of_view(view)
    if common is None:
        return Reason("audited-no-tree")
    common = common.change(n_rows=None, cuts=None)
    if audit.sources.kind == "bagging":
        return [_of_client(common, audit, c + 1) for c in range(audit.sources.clients)]
    firsts = sum(t.base_score is not None for t in audit.trees)
    if audit.sources.kind == "turns":  # only the first client's first tree starts from one score
        foreign = tuple(name != audit.sources.names[0] for name in audit.sources.names)
        n_rows = audit.trees[0].rows
        return [common.change(foreign=foreign, includes_own="none", n_rows=n_rows)]
    # Further first trees were grown in parallel to the first one, not after it. Their leaf values
    # therefore do not depend on its predictions.
    if firsts > len(start):
        return [common.change(trees=common.trees[: len(start)])]
    return [common]


def _of_client(common: BoostingObservations, audit: Audit, client: int) -> BoostingObservations:
    """Return the trees in the order in which they changed the margins of one client's rows.

    In each round, the client's trees come first, because it grew them before it received the trees
    of the other clients. Its first trees start from its local base score, later trees from the base
    score of the model.
    """
    names = audit.sources.names
    starts = [t.at for t in audit.trees if t.base_score is not None]
    block = starts[1] - starts[0]
    per_round = block * audit.sources.clients
    is_client = [name == f"client {client}" for name in names]
    order = sorted(range(len(names)), key=lambda t: (t // per_round, not is_client[t], t))
    first = audit.trees[starts[client - 1]]
    assert first.base_score is not None  # as `starts` shows
    margin = LOGISTIC.base_margin(first.base_score)
    shift = np.atleast_1d(np.float32(common.base_margin)) - margin
    return common.change(
        trees=tuple(common.trees[t] for t in order),
        base_margin=margin[0],
        n_rows=first.rows,
        foreign=tuple(not is_client[t] for t in order),
        restart=(block, shift),
        includes_own="none",
    )


def _trees(audit: Audit, forest: Forest) -> list[Tree]:
    """Return the trees with the sums of hessians of their leaves, from the file or computed.

    `forest` is the forest of the model with thresholds in place of splits by categories.
    """
    model = audit.model
    out = []
    for tree, statistics in zip(forest.trees, model.statistics, strict=True):
        sums, h = sums_of(tree, statistics, audit.settings), None
        if sums is not None:
            h = np.zeros(len(tree))  # the attack reads only the entries of leaves
            h[tree.leaves] = sums.h
        out.append(replace(tree, h=h, g=None))
    return out
