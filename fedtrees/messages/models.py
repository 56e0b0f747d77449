"""Released models as messages: what a checkpoint keeps, and what whoever is `public` gets."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError
from fedtrees.core.messages import Message, Reveal, load_families
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import PUBLIC
from fedtrees.core.view import Seen, View
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import named_objective
from fedtrees.trees.routing import joined_sets

_ALWAYS = {
    "feature": np.int32,
    "threshold": np.float32,
    "left": np.int32,
    "right": np.int32,
    "default_left": np.bool_,
    "value": np.float32,
}
_STATISTICS = ("g", "h", "gain")
_OPTIONAL = (*_STATISTICS, "categories")
_MODEL = frozenset({Reveal.MODEL, Reveal.THRESHOLDS})


@dataclass(frozen=True, eq=False)
class BoostedModel(Message):
    """A boosted forest, its trees end to end, as `fedtrees.trees.boosted.forest` has them.

    Attributes
    ----------
    base_margin : float32 array, shape (K,)
    sizes : int64 array, shape (T,)
        Nodes of each tree.
    feature, threshold, left, right, default_left, value : array, shape (n_nodes,)
    g, h, gain : array, shape (n_nodes,), or None
        Statistics of the training rows, where the model keeps them.
    categories : bool array, shape (n_nodes, width), or None
        Where the threshold is NaN: the categories that go right, by code.
    """

    discloses: ClassVar[frozenset[Reveal]] = _MODEL | {Reveal.LABELS, Reveal.COUNTS}
    verbatim: ClassVar[frozenset[str]] = frozenset({"threshold"})
    objective: str
    base_margin: NDArray[np.float32]
    sizes: NDArray[np.int64]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    value: NDArray[np.float32]
    g: NDArray[np.float64] | None = None
    h: NDArray[np.float64] | None = None
    gain: NDArray[np.float32] | None = None
    categories: NDArray[np.bool_] | None = None

    @property
    def reveals(self) -> frozenset[Reveal]:
        """Labels and counts only with statistics."""
        bare = all(getattr(self, name) is None for name in _STATISTICS)
        return _MODEL if bare else self.discloses

    def model(self) -> Forest:
        """Return the forest.

        Raises `DataError` if the arrays do not fit the sizes.
        """
        names = [n for n in (*_ALWAYS, *_OPTIONAL) if getattr(self, n) is not None]
        ends = np.concatenate([[0], np.cumsum(self.sizes)])
        if any(len(getattr(self, n)) != ends[-1] for n in names):
            raise DataError(f"node arrays do not fit {ends[-1]} nodes in {len(self.sizes)} trees")
        trees = tuple(
            Tree(**{n: getattr(self, n)[a:b] for n in names}) for a, b in pairwise(ends.tolist())
        )
        return Forest(
            trees, self.base_margin, named_objective(self.objective, len(self.base_margin))
        )


def public_view(model: Any, schema: Schema, parameters: Mapping[str, Any], n_rows: int) -> View:
    """Return what somebody sees who was handed a model, and nothing else.

    `parameters`: What is known of its training.
    `n_rows`: Rows it was trained on.
    """
    told = Seen(0, "owner", (PUBLIC,), as_message(model), "the released model")
    return View(
        principals=(PUBLIC,),
        roles={PUBLIC: PUBLIC},
        own=(),
        schema=schema,
        protocol="",
        parameters=parameters,
        n_rows=n_rows,
        defense=Composition(),
        seen=(told,),
    )


@singledispatch
def as_message(model: Any) -> Message:
    """Return a model as the message that tells it; families register theirs, or it says so itself.

    Raises `DataError` if it has no ``as_message()``.
    """
    load_families()
    if as_message.dispatch(type(model)) is not as_message.dispatch(object):
        return as_message(model)
    if not hasattr(model, "as_message"):
        raise DataError(f"a {type(model).__name__} cannot be told: it has no as_message()")
    message: Message = model.as_message()
    return message


@as_message.register
def _boosted(model: Forest) -> Message:
    sizes = np.array([len(t) for t in model.trees], dtype=np.int64)
    arrays: dict[str, Any] = {}
    for name, kind in _ALWAYS.items():
        arrays[name] = np.concatenate([np.zeros(0, kind), *(getattr(t, name) for t in model.trees)])
    for name in _STATISTICS:
        parts = [getattr(t, name) for t in model.trees]
        known = bool(parts) and all(p is not None for p in parts)
        arrays[name] = np.concatenate(parts) if known else None
    categories = joined_sets(model.trees)
    if categories.shape[1]:
        arrays["categories"] = categories
    return BoostedModel(model.objective.name, model.base_margin, sizes, **arrays)
