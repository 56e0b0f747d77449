"""What crossed where sites boost on their own rows and share the trees: NVFlare's and Flower's.

A model comes whole or in parts; what is new in it are the trees beyond those that its receiver, or
who sends it back, was told before.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtrees.audit.model import ModelFile
from fedtrees.audit.read_xgboost import read_xgboost
from fedtrees.capture.operations import Ended
from fedtrees.capture.records import Record
from fedtrees.capture.training import SERVER
from fedtrees.core.errors import DataError
from fedtrees.core.messages import Message
from fedtrees.messages.captured import Intercept, ModelBytes
from fedtrees.messages.horizontal import ClientTrees, GlobalTrees, GrowRequest
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.files.xgboost import base_score_of, learner_of

_MOST_PARTS = 4096


@dataclass(frozen=True, eq=False)
class Sent:
    """One model, or several parts of one, as somebody sent it.

    `record`: The last piece.
    `round`: How many models the server had made before that the site knows of.
    `first`: Trees of the model before the new ones.
    `model`: The new trees; None: nothing was there to be sent yet.
    `scores`: list of float32 array, shape (K,). Base score of each part.
    `size`: int. Bytes.
    """

    record: Record
    round: int
    first: int
    model: ModelFile | None
    scores: list[NDArray[np.float32]] = field(default_factory=list)


class Models:
    """Decodes a capture of models that were shared; iterate over it once.

    `ended`: Once everything was read.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._sent, self.ended = Exchange(records), Ended()

    def __iter__(self) -> Iterator[Record]:
        order = 0
        for sent in self._sent:
            r = sent.record
            for message, why in _messages(sent):
                yield Record(r.run, order, r.sender, r.receivers, message, why)
                order += 1
        self.ended = self._sent.ended


def _messages(sent: Sent) -> Iterator[tuple[Message, str]]:
    """Yield what one model says, in the bench's messages."""
    down = sent.record.sender == SERVER
    if sent.model is not None:
        arrays = arrays_of(sent.model)
        if not down:
            yield ClientTrees(sent.round, **arrays, base_score=sent.scores[0]), "trees of its own"
        elif len(arrays["sizes"]):
            told = GlobalTrees(
                sent.round - 1, **arrays, base_score=sent.scores[0], first=sent.first
            )
            yield told, "what is new in the model"
            if len(sent.scores) > 1:
                for score in sent.scores:
                    yield Intercept(float(score[0])), "where boosting started at one of the sites"
    if down and sent.record.message.asks:
        yield GrowRequest(sent.round), "a site's turn to grow trees"


class Exchange:
    """Cuts models out of a capture; iterate over it once."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records, self.ended = records, Ended()
        self._known: dict[str, list[bytes]] = {}  # trees that each site was sent
        self._round: dict[str, int] = {}  # of what each site was sent last
        self._made, self._last = 0, b""  # models of the server, and the last one

    def __iter__(self) -> Iterator[Sent]:
        parts: dict[tuple[str, tuple[str, ...]], list[bytes]] = {}
        left, why = 0, ""
        for r in self._records:
            if not isinstance(r.message, ModelBytes):
                continue
            left += r.message.data.size
            if why:
                continue
            piece, ends = r.message, (r.sender, r.receivers)
            held = parts.setdefault(ends, [])
            try:
                if not len(held) == piece.part < piece.parts <= _MOST_PARTS:
                    raise DataError(f"part {piece.part} of {piece.parts} is out of its turn")
                held.append(piece.data.tobytes())
                if len(held) < piece.parts:
                    continue
                yield self._down(r, held) if r.sender == SERVER else self._up(r, held)
            except DataError as err:
                why = f"what {r.sender!r} sent: {err}"
                continue
            del parts[ends]
            left -= sum(map(len, held))
        if left:
            self.ended = Ended(left, why or "parts of a model are missing at the end")

    def _down(self, r: Record, parts: Sequence[bytes]) -> Sent:
        """Read what the server tells a site."""
        (site,) = r.receivers or ("",)
        whole = b"".join(parts)
        if not whole:
            self._known[site], self._round[site] = [], 0
            return Sent(r, 0, 0, None)
        if whole != self._last:
            self._made, self._last = self._made + 1, whole
        model, scores = _read(parts)
        before, keys = self._known.get(site, []), _keys(model)
        again = len(parts) == 1 and keys[: len(before)] == before
        self._known[site] = keys if again else before + keys
        self._round[site] = self._made
        new = part_of(model, len(before) if again else 0)
        return Sent(r, self._made, len(before), new, scores)

    def _up(self, r: Record, parts: Sequence[bytes]) -> Sent:
        """Read what a site answers: its new trees, or the model with them at the end."""
        model, scores = _read(parts)
        before, keys = self._known.get(r.sender, []), _keys(model)
        again = 0 < len(before) < len(keys) and keys[: len(before)] == before
        new = part_of(model, len(before) if again else 0)
        return Sent(r, self._round.get(r.sender, 0), len(before), new, scores)


def _read(parts: Sequence[bytes]) -> tuple[ModelFile, list[NDArray[np.float32]]]:
    models, scores = [], []
    for data in parts:
        models.append(read_xgboost(Path("model"), data))
        told = learner_of(data)["learner_model_param"]["base_score"]
        scores.append(np.atleast_1d(base_score_of(told)).astype(np.float32))
    return joined(models), scores


def _keys(model: ModelFile) -> list[bytes]:
    """Return what tells a tree from others."""
    return [
        b"".join(a.tobytes() for a in (t.feature, t.threshold, t.value)) for t in trees_of(model)
    ]


def trees_of(model: ModelFile) -> tuple[Tree, ...]:
    """Return the boosted trees of a model."""
    return model.forest.trees


def part_of(model: ModelFile, first: int) -> ModelFile:
    """Return a model without its first trees."""
    return replace(
        model,
        forest=replace(model.forest, trees=trees_of(model)[first:]),
        statistics=model.statistics[first:],
        raw={name: arrays[first:] for name, arrays in model.raw.items()},
        places=(),
        numbers=(),
    )


def joined(models: Sequence[ModelFile]) -> ModelFile:
    """Return the trees of several models as those of one, which starts where the first one does."""
    first = models[0]
    if len({m.forest.objective for m in models}) > 1:
        raise DataError("models of different objectives")
    return replace(
        first,
        forest=replace(first.forest, trees=tuple(t for m in models for t in trees_of(m))),
        statistics=tuple(s for m in models for s in m.statistics),
        raw={name: [a for m in models for a in m.raw[name]] for name in first.raw},
        places=(),
        numbers=(),
    )


def arrays_of(model: ModelFile) -> dict[str, NDArray[np.generic]]:
    """Return the trees of a model as the array fields of `SharedTrees`."""
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
