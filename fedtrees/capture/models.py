"""Decode captures of sites that boost on their local rows and share the trees (NVFlare and Flower).

A model is sent complete or in parts. The new information in it are the trees that its receiver, or
its sender, has not received before.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.collective import Decoding, Ended
from fedtrees.capture.records import Record
from fedtrees.capture.xgboost_training import SERVER
from fedtrees.core.errors import DataError
from fedtrees.core.messages import Message
from fedtrees.messages.captured import Intercept, ModelBytes
from fedtrees.messages.horizontal import ClientTrees, GlobalTrees, GrowRequest
from fedtrees.model_audit.model import ModelFile
from fedtrees.model_audit.readers import read_xgboost
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.files.xgboost import base_score_of, learner_of

_MOST_PARTS = 4096


@dataclass(frozen=True, eq=False)
class SharedModel:
    """One model, or several parts of one, as a party sent it.

    Attributes
    ----------
    record : Record
        The last part.
    round : int
        Number of models of the server that the site had received.
    first : int
        Number of trees in the model before the new ones.
    model : ModelFile or None
        The new trees. None if there was no model to send yet.
    scores : list of float32 array, shape (K,)
        Base score of each part.
    """

    record: Record
    round: int
    first: int
    model: ModelFile | None
    scores: list[NDArray[np.float32]] = field(default_factory=list)


def decode_models(records: Iterable[Record]) -> Decoding:
    """Decode a capture of shared models."""
    models, order = ModelExchange(records).models(), 0
    while True:
        try:
            sent = next(models)
        except StopIteration as stop:
            ended: Ended = stop.value
            return ended
        r = sent.record
        for message, why in _messages(sent):
            yield Record(r.run, order, r.sender, r.receivers, message, why)
            order += 1


def _messages(sent: SharedModel) -> Iterator[tuple[Message, str]]:
    """Yield the messages of the simulated protocol that correspond to one sent model."""
    down = sent.record.sender == SERVER
    if sent.model is not None:
        arrays = arrays_of(sent.model)
        if not down:
            yield ClientTrees(sent.round, **arrays, base_score=sent.scores[0]), "its local trees"
        elif len(arrays["sizes"]):
            update = GlobalTrees(
                sent.round - 1, **arrays, base_score=sent.scores[0], first=sent.first
            )
            yield update, "the new part of the model"
            if len(sent.scores) > 1:
                for score in sent.scores:
                    yield Intercept(float(score[0])), "the base score of one of the sites"
    assert isinstance(sent.record.message, ModelBytes)
    if down and sent.record.message.asks:
        yield GrowRequest(sent.round), "a site's turn to grow trees"


class ModelExchange:
    """Extracts the models from a capture."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = records
        self._known: dict[str, list[bytes]] = {}  # trees that each site has received
        self._round: dict[str, int] = {}  # round of the model that each site received last
        self._made, self._last = 0, b""  # number of the server's models, and the last one

    def models(self) -> Generator[SharedModel, None, Ended]:
        """Yield the models in their order, and return how the decoding ended."""
        parts: dict[tuple[str, tuple[str, ...]], list[bytes]] = {}
        left, why = 0, ""
        for r in self._records:
            if not isinstance(r.message, ModelBytes):
                continue
            left += r.message.data.size
            if why:
                continue
            piece, ends = r.message, (r.sender, r.receivers)
            received_parts = parts.setdefault(ends, [])
            try:
                if not len(received_parts) == piece.part < piece.parts <= _MOST_PARTS:
                    raise DataError(f"part {piece.part} of {piece.parts} is out of its turn")
                received_parts.append(piece.data.tobytes())
                if len(received_parts) < piece.parts:
                    continue
                yield (
                    self._down(r, received_parts)
                    if r.sender == SERVER
                    else self._up(r, received_parts)
                )
            except DataError as err:
                why = f"what {r.sender!r} sent: {err}"
                continue
            del parts[ends]
            left -= sum(map(len, received_parts))
        return Ended.of(left, why or "parts of a model are missing at the end")

    def _down(self, r: Record, parts: Sequence[bytes]) -> SharedModel:
        """Return a model that the server sends to a site."""
        (site,) = r.receivers or ("",)
        data = b"".join(parts)
        if not data:
            self._known[site], self._round[site] = [], 0
            return SharedModel(r, 0, 0, None)
        # The server sends the same model to several sites, which is counted once.
        if data != self._last:
            self._made, self._last = self._made + 1, data
        model, scores = _read(parts)
        before, keys = self._known.get(site, []), _keys(model)
        # A complete model begins with the trees that the site has received before. Parts contain
        # only new trees.
        again = len(parts) == 1 and keys[: len(before)] == before
        self._known[site] = keys if again else before + keys
        self._round[site] = self._made
        new = part_of(model, len(before) if again else 0)
        return SharedModel(r, self._made, len(before), new, scores)

    def _up(self, r: Record, parts: Sequence[bytes]) -> SharedModel:
        """Return the reply of a site: its new trees, or the model with the new trees at the end."""
        model, scores = _read(parts)
        before, keys = self._known.get(r.sender, []), _keys(model)
        again = 0 < len(before) < len(keys) and keys[: len(before)] == before
        new = part_of(model, len(before) if again else 0)
        return SharedModel(r, self._round.get(r.sender, 0), len(before), new, scores)


def _read(parts: Sequence[bytes]) -> tuple[ModelFile, list[NDArray[np.float32]]]:
    """Return the trees of all parts as one model, and the base score of each part."""
    models, scores = [], []
    for data in parts:
        models.append(read_xgboost(Path("model"), data))
        base_score = learner_of(data)["learner_model_param"]["base_score"]
        scores.append(np.atleast_1d(base_score_of(base_score)).astype(np.float32))
    return joined(models), scores


def _keys(model: ModelFile) -> list[bytes]:
    """Return a key for each tree that distinguishes it from all different trees."""
    return [
        b"".join(a.tobytes() for a in (t.feature, t.threshold, t.value)) for t in trees_of(model)
    ]


def trees_of(model: ModelFile) -> tuple[Tree, ...]:
    """Return the boosted trees of a model."""
    return model.boosted.trees


def part_of(model: ModelFile, first: int) -> ModelFile:
    """Return a model without its first trees."""
    return replace(
        model,
        forest=replace(model.boosted, trees=trees_of(model)[first:]),
        statistics=model.statistics[first:],
        raw={name: arrays[first:] for name, arrays in model.raw.items()},
        places=(),
        numbers=(),
    )


def joined(models: Sequence[ModelFile]) -> ModelFile:
    """Return one model with the trees of several models and the base score of the first one.

    Raises `DataError` if the models have different objectives.
    """
    first = models[0]
    if len({m.boosted.objective for m in models}) > 1:
        raise DataError("models of different objectives")
    return replace(
        first,
        forest=replace(first.boosted, trees=tuple(t for m in models for t in trees_of(m))),
        statistics=tuple(s for m in models for s in m.statistics),
        raw={name: [a for m in models for a in m.raw[name]] for name in first.raw},
        places=(),
        numbers=(),
    )


def arrays_of(model: ModelFile) -> dict[str, Any]:
    """Return the trees of a model as the array fields of `SharedTrees`.

    Raises `DataError` if trees were pruned.
    """
    trees = trees_of(model)
    if any((t.right[t.feature >= 0] != t.left[t.feature >= 0] + 1).any() for t in trees):
        raise DataError("trees that were pruned; none are read")

    def end_to_end(arrays: Iterable[NDArray[np.generic]], kind: type) -> NDArray[np.generic]:
        return np.concatenate([np.zeros(0, kind), *arrays]).astype(kind)

    inner = end_to_end((t.feature >= 0 for t in trees), np.bool_)
    return {
        "sizes": np.array([len(t) for t in trees], np.int64),
        "feature": end_to_end((t.feature for t in trees), np.int32),
        "threshold": end_to_end((t.threshold for t in trees), np.float32),
        "left": end_to_end((t.left for t in trees), np.int32),
        "default_left": end_to_end((t.default_left for t in trees), np.bool_),
        "value": np.where(inner, 0, end_to_end((t.value for t in trees), np.float32)),
        **{name: end_to_end(arrays, np.float32) for name, arrays in model.raw.items()},
    }
