"""Prepare the view of an adversary that received the file of a random forest.

The adversary knows the file and some training rows. `fedtrees.audit.attack` runs the attack
`forest-boxes`, or `draft-dp` for private forests, on this view.
"""

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
    model: ModelFile, held: Table, schema: Schema, rows: int, rng: np.random.Generator
) -> View:
    """Return the view of an adversary that has a forest's file and some training rows.

    Parameters
    ----------
    model : ModelFile
        A model whose forest is a `RandomForest`.
    held : Table
        Training rows that the adversary knows.
    schema : Schema
        Columns and classes.
    rows : int
        Number of training rows, including those in `held`.
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
    return replace(view, own=(LocalData.of(held),) if len(held) else ())


def with_groups(schema: Schema, held: Table) -> Schema:
    """Add the one-hot groups to the schema that known rows and column names suggest.

    A group consists of neighbouring columns whose names begin with the same word, and of which
    exactly one is 1 and the remaining ones are 0 in every known row. The blind adversary uses the
    same groups.
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
    by_size, shared = math.gcd(*runs), _shared(forest.trees)
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


def _shared(trees: tuple[ClassTree, ...]) -> NDArray[np.float64]:
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
