"""Do messages carry what somebody holds, as it stands or in another guise? What `check` looks for.

A message says by its tags that it *reveals* something about rows; one that carries values of rows
themselves names the fields (`Message.verbatim`). Everything else that crosses is searched, in every
field of every message, for held columns and rows: as they are, in part or permuted, under a scale
and a shift, in other bytes (narrower, wider, several to a number, in texts), mixed into one number
row by row, or one by one over many messages. Values of the searched table have 24 random bits each,
so that none is there by chance.

What is found is there; what is hidden on purpose, by a cipher of one's own, is not found.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.schema import Schema
from fedtrees.core.sealed import Sealed
from fedtrees.core.transcript import Delivery, Transcript

Floats = NDArray[np.float64]

ENOUGH = 3  # values of a column that are there exactly; one is by chance in 1 of 250 long runs
SCALED = 5  # the same under a round scale, and ten times what is expected
LEAST = 10  # rows of a part of a column that is recognised whatever its scale
MOST_PART = 400  # elements of what is compared with parts of columns
MOST_SLICES = 16  # of an array, along each axis
MOST_OF_A_KIND = 4  # messages of one type and sender whose arrays are compared one by one
NEAR = 2e-3  # of the range: a column that was rounded to 8 or more bits
CLOSE = 0.008  # of the range, over the rows: of a part of a column; 1.6 % of numbers are near one
COARSE = 2**12  # whole numbers of so small a range are further off than that
LINEAR = 1e-6  # share of the variance that a sum of columns may leave
_SCALES = [*(2.0**k for k in range(64)), *(10.0**k for k in range(1, 16))]
_NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, eq=False)
class Column:
    """A column of somebody's rows whose values nobody could have by chance."""

    party: str
    name: str
    values: Floats  # shape (n,)

    @cached_property
    def sorted(self) -> Floats:
        """The values, ascending, each once."""
        return np.unique(self.values)

    @cached_property
    def pairs(self) -> tuple[Floats, Floats]:
        """One of two values, and what the other is more; not of those near by."""
        wide = self.sorted[None, :] - self.sorted[:, None]
        first, last = np.nonzero(np.abs(wide) > 0.1 * np.ptp(self.sorted))
        return self.sorted[first], wide[first, last]

    @cached_property
    def scaled(self) -> Floats:
        """The values times every scale, as whole numbers, (scales, n); NaN where of few bits."""
        whole = np.rint(np.multiply.outer(_SCALES, self.values))
        return np.where(np.abs(whole) > 2**13, whole, np.nan)


@dataclass(frozen=True, eq=False)
class Payload:
    """What all messages of one type from one sender carry in one field, as it crossed."""

    where: str
    readers: frozenset[str]
    parts: tuple[Any, ...]

    @cached_property
    def readings(self) -> list[NDArray[np.float32]]:
        """All numbers, and what their bytes are as floats: ascending, each once."""
        return [np.unique(numbers) for numbers in _readings(self.parts)]

    @cached_property
    def whole(self) -> Floats:
        """The large whole numbers, ascending, each once."""
        numbers = _joined(self.parts)
        whole = np.unique(numbers[np.isfinite(numbers)])
        return whole[(np.rint(whole) == whole) & (np.abs(whole) > 2**10)]


def held_values(
    transcript: Transcript,
    local_data: Mapping[str, LocalData],
    schema: Schema,
    kinds: tuple[type[Message], ...] = (),
) -> list[str]:
    """Return which fields carry held values that their messages do not declare, a text each.

    `local_data`: Of every party; columns of few values are not searched for.
    `kinds`: Search in these alone, and not for parts of columns under any scale, which takes most
    of the time; none: in all.
    """
    found: list[str] = []
    every = [_Searched.of(name, held, schema) for name, held in local_data.items()]
    for payload in _payloads(transcript, kinds):
        for searched in every:
            if payload.readers - {searched.party} and (what := searched.within(payload, not kinds)):
                found.append(f"{payload.where} carries {what} of {searched.party}")
                break
    return found


def _payloads(transcript: Transcript, kinds: tuple[type[Message], ...]) -> Iterator[Payload]:
    """Yield what crossed; not what a party noted of what it had opened, nor declared fields."""
    crossed: dict[tuple[str, str, str], list[Any]] = defaultdict(list)
    readers: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    seen: set[int] = set()
    for d in transcript:
        if d.receivers == (d.sender,) or (kinds and type(d.message) not in kinds):
            continue
        for name, value in _fields(d):
            key = (type(d.message).__name__, d.sender, name)
            readers[key] |= {*d.receivers}
            if id(d.message) not in seen:
                crossed[key].append(value)
        seen.add(id(d.message))
    for (kind, sender, name), parts in crossed.items():
        where = f"{kind}.{name} from {sender}"
        yield Payload(where, frozenset(readers[kind, sender, name]), tuple(parts))


def _fields(delivery: Delivery) -> Iterator[tuple[str, Any]]:
    message = delivery.message
    for item in fields(message):
        value = getattr(message, item.name)
        if item.name not in type(message).verbatim and value is not None:
            yield item.name, value.payload if isinstance(value, Sealed) else value


@dataclass(frozen=True, eq=False)
class _Searched:
    """One party's values, and how to find them."""

    party: str
    columns: tuple[Column, ...]
    mixed: Floats  # shape (n, k): constant, columns of any kind and labels

    @classmethod
    def of(cls, party: str, held: LocalData, schema: Schema) -> _Searched:
        X = held.X.astype(np.float64)
        names = [schema.features[c].name for c in held.columns]
        many = [len(np.unique(x)) >= 0.9 * len(x) and np.isfinite(x).all() for x in X.T]
        columns = tuple(Column(party, n, x) for n, x, m in zip(names, X.T, many, strict=True) if m)
        labels = np.zeros((len(X), 0)) if held.y is None else held.y[:, None].astype(np.float64)
        mixed = np.column_stack([np.ones(len(X)), np.nan_to_num(X), labels])
        return cls(party, columns, mixed)

    def within(self, payload: Payload, some: bool) -> str:
        """Return what of it is in a field's values over all messages; nothing: the empty text."""
        for numbers in payload.readings:
            if what := self._exact(numbers):
                return what
        if what := self._scaled(payload.whole):
            return what
        parts = payload.parts
        arrays = [p for p in parts if isinstance(p, np.ndarray) and p.size >= LEAST]
        scalars = _joined(tuple(p for p in parts if not isinstance(p, np.ndarray)))
        for array in [scalars, *arrays[:MOST_OF_A_KIND], _joined(tuple(arrays[:MOST_OF_A_KIND]))]:
            for vector in _vectors(array, len(self.mixed), self.mixed.shape[1]):
                if what := self._disguised(vector, some):
                    return what
        return ""

    def _exact(self, numbers: NDArray[Any]) -> str:
        """Look for single values, as float32 has them."""
        rows = np.zeros(len(self.mixed), dtype=np.int64)
        for column in self.columns:
            there = _among(column.values.astype(numbers.dtype), numbers)
            rows += there
            if np.count_nonzero(there) >= ENOUGH:
                return f"{np.count_nonzero(there)} values of column {column.name!r}"
        if len(self.columns) > 1 and (rows == len(self.columns)).any():
            return "a row"
        return ""

    def _scaled(self, whole: Floats) -> str:
        """Look for whole numbers that are values times a power of 2 or 10."""
        for column in self.columns if len(whole) >= SCALED else ():
            hits = _among(column.scaled, whole).sum(axis=1)
            for k in np.flatnonzero(hits >= SCALED):
                least, most = np.nanmin(column.scaled[k]), np.nanmax(column.scaled[k])
                inside = np.count_nonzero((whole >= least) & (whole <= most))
                tried = np.count_nonzero(np.isfinite(column.scaled[k]))
                if hits[k] > 10 * tried * inside / max(most - least, 1.0):
                    return f"{hits[k]} values of column {column.name!r}, times {_SCALES[k]:g}"
        return ""

    def _disguised(self, vector: Floats, some: bool) -> str:
        """Compare a vector with columns: as a whole, in part, and as a sum of them row by row."""
        values = np.unique(vector)
        if len(values) < LEAST or not np.isfinite(values).all():
            return self._told_labels(vector)
        coarse = np.ptp(values) < COARSE and (np.rint(values) == values).all()
        fine = some and len(values) <= MOST_PART and not coarse
        for column in self.columns:
            if len(vector) == len(column.values) and _alike(vector, column.values):
                return f"column {column.name!r}, permuted or scaled"
            if fine and _part(values, column):
                return f"a part of column {column.name!r}, scaled"
        if len(vector) == len(self.mixed) >= 3 * self.mixed.shape[1] and self._explains(vector):
            return "a sum of its columns, row by row"
        return ""

    def _told_labels(self, vector: Floats) -> str:
        """Compare a vector of few values with the labels, row by row."""
        fits = len(vector) == len(self.mixed) >= 3 * self.mixed.shape[1]
        if fits and len(np.unique(vector)) > 1 and self._explains(vector):
            return "its labels or columns, row by row"
        return ""

    def _explains(self, vector: Floats) -> bool:
        if not np.isfinite(vector).all():
            return False
        scale = np.linalg.norm(self.mixed, axis=0)
        usable = self.mixed[:, scale > 0] / scale[scale > 0]
        left = vector - usable @ np.linalg.lstsq(usable, vector, rcond=None)[0]
        spread = float(np.square(vector - vector.mean()).sum())
        return bool(spread > 0 and float(np.square(left).sum()) < LINEAR * spread)


def _among(values: NDArray[Any], known: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which values are among ascending ones; NaN is not."""
    if not len(known):
        return np.zeros(values.shape, dtype=bool)
    at = np.searchsorted(known, values)
    return known[np.minimum(at, len(known) - 1)] == values


def _alike(vector: Floats, column: Floats) -> bool:
    """Tell whether two vectors of a length are one under a permutation, a scale and a shift."""
    if len(vector) < 2 * LEAST or len(np.unique(vector)) < 0.5 * len(vector):
        return False
    one, other = (np.sort((x - x.min()) / np.ptp(x)) for x in (vector, column))
    return bool(min(np.abs(one - other).max(), np.abs(1 - one[::-1] - other).max()) < NEAR)


def _part(values: Floats, column: Column) -> bool:
    """Tell whether ascending values are some of a column's under a scale and a shift.

    The least and the largest of them are then two of the column's: all pairs are tried, those first
    with which one value more, of two that are tried, is the column's.
    """
    own, near = column.sorted, CLOSE * np.ptp(column.sorted) / len(column.sorted)
    steps = (values - values[0]) / (values[-1] - values[0])

    def nearest(first: Floats, wide: Floats, tried: Floats) -> tuple[NDArray[np.intp], Any]:
        mapped = first[:, None] + wide[:, None] * tried
        at = np.clip(np.searchsorted(own, mapped), 1, len(own) - 1)
        at -= np.abs(mapped - own[at - 1]) < np.abs(mapped - own[at])
        return at, np.abs(mapped - own[at]) < near

    first, wide = column.pairs
    kept = nearest(first, wide, steps[[len(steps) // 3, len(steps) // 2]])[1].any(axis=1)
    at, there = nearest(first[kept], wide[kept], steps)
    several = (np.diff(at, axis=1) != 0).mean(axis=1) > 0.8  # not all of them near one value
    return bool(((there.mean(axis=1) >= 0.9) & several).any())


def _readings(parts: tuple[Any, ...]) -> Iterator[NDArray[Any]]:
    """Yield all numbers of a field as they are, and what their bytes are as floats."""
    yield _joined(parts).astype(np.float32)
    blob = b"".join(map(_bytes, parts))
    for kind in (np.float32, np.float64):
        size = np.dtype(kind).itemsize
        for start in range(size):
            usable = (len(blob) - start) // size * size
            read = np.frombuffer(blob, kind, usable // size, start) if usable > 0 else None
            if read is not None:
                with np.errstate(over="ignore", invalid="ignore"):
                    yield read.astype(np.float32)


def _joined(parts: tuple[Any, ...]) -> Floats:
    """Return all numbers of values, one after the other."""
    return np.concatenate([np.zeros(0), *map(_numbers, parts)])


def _numbers(value: Any) -> Floats:
    if isinstance(value, str):
        return np.array([float(text) for text in _NUMBER.findall(value)], dtype=np.float64)
    if isinstance(value, bytes):
        return np.zeros(0)
    array = np.asarray(value)
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag])
    with np.errstate(over="ignore", invalid="ignore"):
        return array.ravel().astype(np.float64) if array.dtype.kind in "biuf" else np.zeros(0)


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (ValueError, binascii.Error):
            return b""
    return value if isinstance(value, bytes) else np.asarray(value).tobytes()


def _vectors(array: NDArray[Any], rows: int, width: int) -> Iterator[Floats]:
    """Yield the vectors in an array: along its axes, in its bytes, and of the length of columns."""
    flat = _numbers(array)
    yield flat
    shapes = [(rows, -1), (-1, rows), (-1, width - 1), (-1, width), (-1, 2)]
    for shape in shapes:
        known = shape[0] if shape[0] > 0 else shape[1]
        if known > 1 and flat.size % known == 0 and flat.size > known:
            yield from _slices(flat.reshape(shape))
    if array.ndim > 1 and array.dtype.kind in "biuf":
        for axis in range(array.ndim):
            yield from _slices(np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1))
    blob = array.tobytes()
    for kind in (np.int16, np.uint16, np.int32, np.uint8, np.float16, np.float32, np.int64):
        size = np.dtype(kind).itemsize
        if len(blob) % (size * rows) == 0 and size * rows <= len(blob) <= size * rows * 8:
            with np.errstate(all="ignore"):
                yield from _slices(np.frombuffer(blob, kind).reshape(rows, -1).astype(np.float64))


def _slices(matrix: NDArray[Any]) -> Iterator[Floats]:
    """Yield the columns of a matrix, and its rows, where they are few."""
    for each in (matrix.T, matrix):
        if len(each) <= MOST_SLICES:
            yield from each.astype(np.float64)
