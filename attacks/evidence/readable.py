"""Decide whether a view contains boosted trees whose leaves an attack can use."""

from fedtrees.attacks.evidence.clients.released import released_trees
from fedtrees.attacks.evidence.replay import grown_alone
from fedtrees.core.errors import UsageError
from fedtrees.core.messages import Message
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Feature
from fedtrees.core.view import View
from fedtrees.messages.horizontal import (
    GlobalHistogram,
    Histogram,
    LeafSums,
    LeafValues,
    SharedTrees,
)
from fedtrees.messages.lightgbm import FoundSplits
from fedtrees.messages.models import BoostedModel
from fedtrees.trees.boosted.losses import Logistic, Softmax, SquaredError, objective_of

#: Largest number of categories of a feature that trees split by sets: the bits of a word.
MOST_CODES = 64

TREES: tuple[type[Message], ...] = (
    LeafValues,
    LeafSums,
    Histogram,
    GlobalHistogram,
    SharedTrees,
    BoostedModel,
)


def shows(view: View, *kinds: type[Message]) -> bool:
    """Return whether the view contains a readable message of these types from another party.

    A sum that one of the adversary's parties opened counts, because it contains other parties'
    data.
    """
    return any(
        s.opened or s.sender not in view.principals for k in kinds for s, _ in view.messages(k)
    )


def no_trees(view: View, *, numbers: bool = False) -> Reason | None:
    """Return the reason why the adversary sees no usable boosted trees, or None.

    If `numbers` is True, trees of squared error are usable as well.
    """
    splits = "num_leaves" in view.parameters and shows(view, FoundSplits)
    if not (splits or shows(view, *TREES)):
        return Reason("no-trees")
    if grown_alone(view) and not (shows(view, SharedTrees) or released_trees(view)):
        return Reason("trees-of-several")
    if classes_of_leaves(view) is None and not (numbers and squared_error(view)):
        return Reason("other-leaves")
    if any(len(f.categories) > MOST_CODES for f in split_by_sets(view)):
        return Reason("many-categories", most=MOST_CODES)
    return None


def squared_error(view: View) -> bool:
    """Return whether leaf values are Newton steps of squared error."""
    try:
        objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    except UsageError:
        return False
    return isinstance(objective, SquaredError)


def split_by_sets(view: View) -> list[Feature]:
    """Return the features that trees split by sets of categories."""
    if not view.parameters.get("enable_categorical"):
        return []
    return [f for f in view.schema.features if f.kind == "categorical"]


def some_rows(view: View) -> Reason | None:
    """Return the reason why some trees were grown without some rows, None if all contain all."""
    if view.parameters.get("subsample", 1) != 1:
        return Reason("sampled-rows")
    if view.parameters.get("early_stopping_rounds"):
        return Reason("held-out-rows")
    return None


def classes_of_leaves(view: View) -> int | None:
    """Return the number of classes if leaf values are Newton steps of log loss, else None."""
    try:
        objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    except UsageError:
        return None
    if isinstance(objective, Logistic):
        return 2
    return objective.n_classes if isinstance(objective, Softmax) else None
