"""Attack a forest's file as whoever it was released to would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np

from fedtrees.attacks.forests.attack import DraftDP
from fedtrees.attacks.leaves.attack import ForestBoxes
from fedtrees.audit.model import ModelFile
from fedtrees.core.guess import Guess
from fedtrees.core.holding import Holding
from fedtrees.core.schema import Schema, Table
from fedtrees.core.view import View
from fedtrees.messages.models import public_view
from fedtrees.trees.forest.random_decision import RandomDecisionForest
from fedtrees.trees.forest.random_forest import RandomForest


def attack_on(model: ModelFile) -> DraftDP | ForestBoxes:
    """Return the attack that reads a forest."""
    return ForestBoxes() if model.released is None else DraftDP()


def view_of_file(model: ModelFile, held: Table, schema: Schema, rows: int) -> View:
    """Return what somebody sees who has a forest's file, and rows of the training table.

    Parameters
    ----------
    model : ModelFile
        Of a `RandomForest`.
    held : Table
        Own rows.
    schema : Schema
    rows : int
        Training rows, the own among them.
    """
    assert isinstance(model.forest, RandomForest)
    told = model.parameters
    if model.released is not None:
        known: dict[str, object] = {"trees": len(model.released)}
        if told:
            known |= {"mechanism": told["mechanism"], "epsilon": float(told["epsilon"])}
        view = public_view(model.released, _binary(model.released, held, schema), known, rows)
    else:
        view = public_view(model.forest, schema, {}, rows)
        each = list(_draws(model.forest))
        if len(each) > 1 and len(set(each)) == 1 and each[0] > 1:
            view = replace(view, protocol="local-forests", parameters={"trees": each[0]})
    return replace(view, own=(Holding.of(held),) if len(held) else ())


def guessed(model: ModelFile, view: View, rng: np.random.Generator) -> Guess | str:
    """Return what the attack finds, or why it does not apply."""
    attack = attack_on(model)
    return attack.inapplicable(view) or attack.run(view, rng)


def _binary(forest: RandomDecisionForest, held: Table, schema: Schema) -> Schema:
    """Declare columns of zeros and ones, as own rows and tests tell them."""
    feature, threshold = forest.splits.feature, forest.splits.threshold
    features = list(schema.features)
    for j, f in enumerate(features):
        zeros_and_ones = len(held) > 0 and np.isin(held.X[:, j], (0, 1)).all()
        if not f.categories and zeros_and_ones and (threshold[feature == j] == 1).all():
            features[j] = replace(f, kind="categorical", categories=("0", "1"))
    return replace(schema, features=tuple(features))


def _draws(forest: RandomForest) -> Iterator[int]:
    """Yield how many trees in a row have as many draws: those of one client, if sizes differ."""
    totals = [-1 if t.counts is None else int(t.counts[0].sum()) for t in forest.trees]
    for _, run in groupby(totals):
        yield len(list(run))
