"""Whether a view shows boosted trees whose leaves can be read."""

from __future__ import annotations

from fedtrees.attacks.evidence.grid import MOST_CODES
from fedtrees.core.errors import UsageError
from fedtrees.core.messages import Message
from fedtrees.core.schema import Feature
from fedtrees.core.view import View
from fedtrees.messages.boosting import GlobalHistogram, Histogram, LeafSums, LeafValues
from fedtrees.messages.models import BoostedModel
from fedtrees.messages.shared_trees import SharedTrees
from fedtrees.trees.boosted.losses import Logistic, Softmax, objective_of

TREES: tuple[type[Message], ...] = (
    LeafValues,
    LeafSums,
    Histogram,
    GlobalHistogram,
    SharedTrees,
    BoostedModel,
)


def shows(view: View, *kinds: type[Message]) -> bool:
    """Tell whether somebody else's message of one of these types can be read in the view.

    A sum that a principal opened is other people's too.
    """
    return any(
        s.opened or s.sender not in view.principals for k in kinds for s, _ in view.messages(k)
    )


def no_trees(view: View) -> str | None:
    """Return why the principals see no boosted trees, None if they do."""
    if not shows(view, *TREES):
        return "the protocol shares neither leaf values nor histograms"
    if "intercept" in view.parameters and not shows(view, SharedTrees):
        return "the model's trees are those of several clients; `fedtrees audit` tells them apart"
    if classes_of_leaves(view) is None:
        return "it needs leaves that are Newton steps of log loss"
    if any(len(f.categories) > MOST_CODES for f in split_by_sets(view)):
        return f"it follows splits by sets of at most {MOST_CODES} categories"
    return None


def split_by_sets(view: View) -> list[Feature]:
    """Return the features that trees split by sets of categories."""
    if not view.parameters.get("enable_categorical"):
        return []
    return [f for f in view.schema.features if f.kind == "categorical"]


def some_rows(view: View) -> str | None:
    """Return why not all rows are in every tree, None if they are."""
    if view.parameters.get("subsample", 1) != 1:
        return "every tree is grown on a sample of the rows"
    if view.parameters.get("early_stopping_rounds"):
        return "some rows are held out of all trees"
    return None


def classes_of_leaves(view: View) -> int | None:
    """Return of how many classes leaves are Newton steps of log loss; None if they are not."""
    try:
        objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    except UsageError:
        return None
    if isinstance(objective, Logistic):
        return 2
    return objective.n_classes if isinstance(objective, Softmax) else None
