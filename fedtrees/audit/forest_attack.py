"""Attack a forest's file as whoever it was released to would."""

import math
import re
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.audit.model import ModelFile
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.schema import OneHot, Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.core.view import View
from fedtrees.messages.models import public_view
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest

#: Blocks of trees are of several clients if they share so many standard deviations more tests than
#: shuffled ones, estimated from so many orders.
SURE, SHUFFLED = 6.0, 50
#: Own rows that may tell one-hot groups: of fewer, columns look like one by chance.
FEWEST = 10
#: What a test that one tree alone has would count.
COMMON = 1000


def attack_on(model: ModelFile) -> Any:
    """Return the attack that reads a forest."""
    return register.make("attack", Spec("forest-boxes" if model.released is None else "draft-dp"))


def view_of_file(
    model: ModelFile, held: Table, schema: Schema, rows: int, rng: np.random.Generator
) -> View:
    """Return what somebody sees who has a forest's file, and rows of the training table.

    `model`: Of a `RandomForest`.
    `held`: Own rows.
    `rows`: Training rows, the own among them.
    """
    assert isinstance(model.forest, RandomForest)
    told = model.parameters
    if model.released is not None:
        known: dict[str, object] = {"trees": len(model.released)}
        if told:
            known |= {"mechanism": told["mechanism"], "epsilon": float(told["epsilon"])}
        view = public_view(model.released, schema, known, rows)
    else:
        view = public_view(model.forest, schema, {}, rows)
        each = trees_of_a_client(model.forest, rng)
        if each < len(model.forest.trees):
            view = replace(view, protocol="local-forests", parameters={"trees": each})
    return replace(view, own=(LocalData.of(held),) if len(held) else ())


def with_groups(schema: Schema, held: Table) -> Schema:
    """Return the schema with the one-hot groups that own rows and names of columns suggest.

    Neighbours whose names begin with the same word, one of which is 1 and the others 0 in every own
    row. The blind adversary knows as much.
    """
    if len(held) < FEWEST:
        return schema
    groups = []
    for _, run in groupby(range(len(schema.names)), lambda j: _word(schema.names[j])):
        columns = list(run)
        X = held.X[:, columns]
        if len(columns) > 1 and np.isin(X, (0, 1)).all() and (X.sum(axis=1) == 1).all():
            groups.append(OneHot(tuple(schema.names[j] for j in columns)))
    return replace(schema, groups=tuple(groups))


def _word(name: str) -> str:
    return re.split(r"\W|_", name, maxsplit=1)[0]


def trees_of_a_client(forest: RandomForest, rng: np.random.Generator) -> int:
    """Return how many trees in a row were grown by one client: all of them if nothing parts them.

    Clients of different sizes differ in draws. Those of one size differ in thresholds, which are
    values of their own rows. Of all divisions into blocks that one is likeliest, with one rate at
    which trees of a block share tests and one for others (a Poisson block model, Karrer and Newman
    2011); trees of one table are in random order, and share no more after shuffling.
    """
    trees = len(forest.trees)
    runs = [len(list(run)) for _, run in groupby(forest.trees, _draws)]
    most, shared = math.gcd(*runs), _shared(forest.trees)
    among = [each for each in range(2, most + 1) if most % each == 0 and each < trees]
    if not among:
        return trees
    place = np.arange(trees)
    each = max(among, key=lambda e: _likelihood(shared, _within(shared, place, e), e))
    parts = np.split(place, np.cumsum(runs)[:-1])
    orders = [np.concatenate([rng.permutation(part) for part in parts]) for _ in range(SHUFFLED)]
    chance = np.array([_within(shared, order, each) for order in orders])
    sure = _within(shared, place, each) - chance.mean() > SURE * chance.std()
    return each if sure else most


def _likelihood(shared: NDArray[np.float64], inside: float, each: int) -> float:
    """Return the log-likelihood of blocks of so many trees, but for a constant, in nats."""
    pairs = np.array([len(shared) * (each - 1), len(shared) * (len(shared) - each)])
    told = np.array([inside, shared.sum() - inside])
    return float((told * np.log(np.maximum(told, 1) / pairs)).sum())


def _within(shared: NDArray[np.float64], order: NDArray[np.int64], each: int) -> float:
    """Return the sum over blocks of so many trees, in an order, of what they share."""
    block = order.reshape(-1, each)
    return float(shared[block[:, :, None], block[:, None, :]].sum())


def _shared(trees: tuple[ClassTree, ...]) -> NDArray[np.float64]:
    """Return how much two trees share in tests, which count for more the fewer trees have them.

    Whole numbers, float64, shape (T, T).
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
    """Return how many rows a tree was grown on, -1 where it does not say."""
    return -1 if tree.counts is None else int(tree.counts[0].sum())
