"""Search the messages of a training for local data that they do not declare.

`fedtrees plugin check` calls this module.

The tags of a message declare that it *reveals* something about rows. A message that contains values
of rows declares the fields (`Message.verbatim`). All remaining fields of all messages are searched
for the columns and rows of each party, in these forms:

- unchanged, in part, or permuted,
- multiplied and shifted,
- in other bytes: narrower or wider types, several values in one number, or in texts,
- as a linear combination of columns, row by row,
- one value at a time, in many messages.

Values of the searched table have 24 random bits each, so that a match is not a coincidence. The
search finds accidental leaks. It does not find values that code hides on purpose, for example with
a cipher.

The parties of a simulation share one process. A second check follows all references in memory from
each party, to show that no party can reach the data of another one.
"""

from __future__ import annotations

import base64
import binascii
import gc
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message, Sealed
from fedtrees.core.network import Network
from fedtrees.core.party import acting
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Delivery, Transcript

Floats = NDArray[np.float64]

ENOUGH = 3  # matching values of a column; one match occurs by chance in 1 of 250 long runs
# The same after multiplication by a round number, and ten times as many as expected by chance.
SCALED = 5
LEAST = 10  # smallest number of values of a column that is recognised at any scale
MOST_PART = 400  # largest array that is compared with parts of columns
MOST_SLICES = 16  # largest number of slices of an array along an axis
MOST_OF_A_KIND = 4  # number of messages of one type and sender whose arrays are compared one by one
# Tolerance as a share of the range. It recognises a column that was rounded to 8 or more bits.
NEAR = 2e-3
# Tolerance for a part of a column, as a share of the range divided by the number of rows. About
# 1.6% of random numbers are near one value.
CLOSE = 0.008
COARSE = 2**12  # integers within such a small range have a larger distance than the tolerance
# Largest share of the variance that a linear combination of columns may leave unexplained.
LINEAR = 1e-6
_SCALES = [*(2.0**k for k in range(64)), *(10.0**k for k in range(1, 16))]
_NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, eq=False)
class Column:
    """A column of one party whose values cannot occur by chance.

    Attributes
    ----------
    party : str
        Name of the party.
    name : str
        Name of the column.
    values : float array, shape (n,)
        The values.
    """

    party: str
    name: str
    values: Floats

    @cached_property
    def sorted(self) -> Floats:
        """The distinct values in ascending order."""
        return np.unique(self.values)

    @cached_property
    def pairs(self) -> tuple[Floats, Floats]:
        """First values and differences of all pairs of values that are not close to each other."""
        wide = self.sorted[None, :] - self.sorted[:, None]
        first, last = np.nonzero(np.abs(wide) > 0.1 * np.ptp(self.sorted))
        return self.sorted[first], wide[first, last]

    @cached_property
    def scaled(self) -> Floats:
        """The values times every scale, rounded to integers, shape (scales, n).

        NaN marks integers of at most 13 bits, which occur by chance.
        """
        integers = np.rint(np.multiply.outer(_SCALES, self.values))
        return np.where(np.abs(integers) > 2**13, integers, np.nan)


@dataclass(frozen=True, eq=False)
class Payload:
    """The values of one field in all messages of one type from one sender.

    Attributes
    ----------
    where : str
        Type, field and sender.
    readers : frozenset of str
        Receivers of the messages.
    parts : tuple
        The value of the field in each message.
    """

    where: str
    readers: frozenset[str]
    parts: tuple[Any, ...]

    @cached_property
    def readings(self) -> list[NDArray[np.float32]]:
        """All numbers, and all bytes interpreted as floats: distinct values in ascending order."""
        return [np.unique(numbers) for numbers in _readings(self.parts)]

    @cached_property
    def large_integers(self) -> Floats:
        """The distinct integers above 1024 in absolute value, in ascending order."""
        numbers = _concatenate(self.parts)
        finite = np.unique(numbers[np.isfinite(numbers)])
        large: Floats = finite[(np.rint(finite) == finite) & (np.abs(finite) > 2**10)]
        return large


def find_local_values(
    transcript: Transcript,
    local_data: Mapping[str, LocalData],
    schema: Schema,
    kinds: tuple[type[Message], ...] = (),
) -> list[str]:
    """Return a text for each field that contains local data without declaring it.

    Parameters
    ----------
    transcript : Transcript
        All messages of a training.
    local_data : mapping of str to LocalData
        Data of every party. Columns with few distinct values are not searched for.
    schema : Schema
        Names of the columns.
    kinds : tuple of message types
        If given, only these messages are searched, and not for parts of columns at any scale, which
        takes most of the time.
    """
    texts: list[str] = []
    every = [_Searched.of(name, part, schema) for name, part in local_data.items()]
    for payload in _payloads(transcript, kinds):
        for searched in every:
            if payload.readers - {searched.party} and (
                match := searched.within(payload, not kinds)
            ):
                texts.append(f"{payload.where} carries {match} of {searched.party}")
                break
    return texts


def _payloads(transcript: Transcript, kinds: tuple[type[Message], ...]) -> Iterator[Payload]:
    """Yield the values of each field, except declared fields.

    A message that a party delivers to itself, a note of what it decrypted, is left out.
    """
    crossed: dict[tuple[str, str, str], list[Any]] = defaultdict(list)
    readers: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    seen: set[int] = set()
    for d in transcript:
        # The recorded note of a decryption is delivered to the party itself and does not cross the
        # network.
        if d.receivers == (d.sender,) or (kinds and type(d.message) not in kinds):
            continue
        for name, value in _fields(d):
            key = (type(d.message).__name__, d.sender, name)
            readers[key] |= {*d.receivers}
            # A broadcast is one message with several deliveries.
            if id(d.message) not in seen:
                crossed[key].append(value)
        seen.add(id(d.message))
    for (kind, sender, name), parts in crossed.items():
        where = f"{kind}.{name} from {sender}"
        yield Payload(where, frozenset(readers[kind, sender, name]), tuple(parts))


def _fields(delivery: Delivery) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a message that do not declare values of rows.

    Sealed values are opened.
    """
    message = delivery.message
    for item in fields(message):
        value = getattr(message, item.name)
        if item.name not in type(message).verbatim and value is not None:
            yield item.name, value.payload if isinstance(value, Sealed) else value


@dataclass(frozen=True, eq=False)
class _Searched:
    """The values of one party, and the tests that find them.

    Attributes
    ----------
    party : str
        Name of the party.
    columns : tuple of Column
        Columns with many distinct values.
    mixed : float array, shape (n, k)
        A constant, all columns and the labels.
    """

    party: str
    columns: tuple[Column, ...]
    mixed: Floats

    @classmethod
    def of(cls, party: str, local_data: LocalData, schema: Schema) -> _Searched:
        """Prepare the search for the values of one party."""
        X = local_data.X.astype(np.float64)
        names = [schema.features[c].name for c in local_data.columns]
        distinct = [len(np.unique(x)) >= 0.9 * len(x) and np.isfinite(x).all() for x in X.T]
        columns = tuple(
            Column(party, n, x) for n, x, m in zip(names, X.T, distinct, strict=True) if m
        )
        labels = (
            np.zeros((len(X), 0))
            if local_data.y is None
            else local_data.y[:, None].astype(np.float64)
        )
        mixed = np.column_stack([np.ones(len(X)), np.nan_to_num(X), labels])
        return cls(party, columns, mixed)

    def within(self, payload: Payload, some: bool) -> str:
        """Describe the local data that a field contains in all messages together.

        The text is "" if there are none. `some` states whether to search for parts of columns, too.
        """
        for numbers in payload.readings:
            if match := self._exact(numbers):
                return match
        if match := self._scaled(payload.large_integers):
            return match
        parts = payload.parts
        arrays = [p for p in parts if isinstance(p, np.ndarray) and p.size >= LEAST]
        scalars = _concatenate(tuple(p for p in parts if not isinstance(p, np.ndarray)))
        for array in [
            scalars,
            *arrays[:MOST_OF_A_KIND],
            _concatenate(tuple(arrays[:MOST_OF_A_KIND])),
        ]:
            for vector in _vectors(array, len(self.mixed), self.mixed.shape[1]):
                if match := self._disguised(vector, some):
                    return match
        return ""

    def _exact(self, numbers: NDArray[Any]) -> str:
        """Search for single values with the precision of float32."""
        rows = np.zeros(len(self.mixed), dtype=np.int64)
        for column in self.columns:
            matches = _among(column.values.astype(numbers.dtype), numbers)
            # Count for each row in how many columns its value occurs. A complete row is a leak,
            # too.
            rows += matches
            if np.count_nonzero(matches) >= ENOUGH:
                return f"{np.count_nonzero(matches)} values of column {column.name!r}"
        if len(self.columns) > 1 and (rows == len(self.columns)).any():
            return "a row"
        return ""

    def _scaled(self, integers: Floats) -> str:
        """Search for integers that are values times a power of 2 or 10."""
        for column in self.columns if len(integers) >= SCALED else ():
            hits = _among(column.scaled, integers).sum(axis=1)
            for k in np.flatnonzero(hits >= SCALED):
                smallest, largest = np.nanmin(column.scaled[k]), np.nanmax(column.scaled[k])
                inside = np.count_nonzero((integers >= smallest) & (integers <= largest))
                tried = np.count_nonzero(np.isfinite(column.scaled[k]))
                # Right-hand side: ten times the expected number of matches if the integers were
                # uniformly distributed over the range.
                if hits[k] > 10 * tried * inside / max(largest - smallest, 1.0):
                    return f"{hits[k]} values of column {column.name!r}, times {_SCALES[k]:g}"
        return ""

    def _disguised(self, vector: Floats, some: bool) -> str:
        """Compare a vector with columns, with parts of columns, and with linear combinations."""
        values = np.unique(vector)
        if len(values) < LEAST or not np.isfinite(values).all():
            return self._find_labels(vector)
        # Integers within a small range are rounded too coarsely to be recognised with the
        # tolerance.
        coarse = np.ptp(values) < COARSE and (np.rint(values) == values).all()
        fine = some and len(values) <= MOST_PART and not coarse
        for column in self.columns:
            if len(vector) == len(column.values) and _are_affine_permutations(
                vector, column.values
            ):
                return f"column {column.name!r}, permuted or scaled"
            if fine and _part(values, column):
                return f"a part of column {column.name!r}, scaled"
        if len(vector) == len(self.mixed) >= 3 * self.mixed.shape[1] and self._explains(vector):
            return "a sum of its columns, row by row"
        return ""

    def _find_labels(self, vector: Floats) -> str:
        """Compare a vector with few distinct values with labels and columns, row by row."""
        fits = len(vector) == len(self.mixed) >= 3 * self.mixed.shape[1]
        if fits and len(np.unique(vector)) > 1 and self._explains(vector):
            return "its labels or columns, row by row"
        return ""

    def _explains(self, vector: Floats) -> bool:
        """Return whether a linear combination of columns explains a vector almost completely."""
        if not np.isfinite(vector).all():
            return False
        scale = np.linalg.norm(self.mixed, axis=0)
        # Columns are scaled to length 1, because least squares is inaccurate for very different
        # scales.
        usable = self.mixed[:, scale > 0] / scale[scale > 0]
        residual = vector - usable @ np.linalg.lstsq(usable, vector, rcond=None)[0]
        spread = float(np.square(vector - vector.mean()).sum())
        return bool(spread > 0 and float(np.square(residual).sum()) < LINEAR * spread)


def _among(values: NDArray[Any], sorted_values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values occur in an ascending array. NaN never does."""
    if not len(sorted_values):
        return np.zeros(values.shape, dtype=bool)
    at = np.searchsorted(sorted_values, values)
    occurs: NDArray[np.bool_] = sorted_values[np.minimum(at, len(sorted_values) - 1)] == values
    return occurs


def _are_affine_permutations(vector: Floats, column: Floats) -> bool:
    """Return whether a permutation, a scale and a shift map a vector to a column.

    Both are scaled to the range from 0 to 1 and sorted. A negative scale reverses the order.
    """
    if len(vector) < 2 * LEAST or len(np.unique(vector)) < 0.5 * len(vector):
        return False
    # A permutation disappears by sorting, a scale and a shift by mapping to the range from 0 to 1.
    one, other = (np.sort((x - x.min()) / np.ptp(x)) for x in (vector, column))
    return bool(min(np.abs(one - other).max(), np.abs(1 - one[::-1] - other).max()) < NEAR)


def _part(values: Floats, column: Column) -> bool:
    """Return whether a scale and a shift map ascending values to values of a column.

    The smallest and the largest value are then mapped to two values of the column. All pairs are
    tried. To save time, two inner values are mapped first, and only pairs for which one of them is
    near a value of the column are examined further.
    """
    column_values, near = column.sorted, CLOSE * np.ptp(column.sorted) / len(column.sorted)
    steps = (values - values[0]) / (values[-1] - values[0])

    def nearest(first: Floats, wide: Floats, tried: Floats) -> tuple[NDArray[np.intp], Any]:
        mapped = first[:, None] + wide[:, None] * tried
        at = np.clip(np.searchsorted(column_values, mapped), 1, len(column_values) - 1)
        # `at` is the index of the next larger value. The smaller neighbour is used if it is nearer.
        at -= np.abs(mapped - column_values[at - 1]) < np.abs(mapped - column_values[at])
        return at, np.abs(mapped - column_values[at]) < near

    first, wide = column.pairs
    promising = nearest(first, wide, steps[[len(steps) // 3, len(steps) // 2]])[1].any(axis=1)
    at, matches = nearest(first[promising], wide[promising], steps)
    # The values must not all be mapped to the same value of the column.
    several = (np.diff(at, axis=1) != 0).mean(axis=1) > 0.8
    return bool(((matches.mean(axis=1) >= 0.9) & several).any())


def _readings(parts: tuple[Any, ...]) -> Iterator[NDArray[Any]]:
    """Yield all numbers of a field, and its bytes interpreted as float32 and float64."""
    yield _concatenate(parts).astype(np.float32)
    blob = b"".join(map(_bytes, parts))
    for kind in (np.float32, np.float64):
        size = np.dtype(kind).itemsize
        # Numbers can begin at any byte.
        for start in range(size):
            usable = (len(blob) - start) // size * size
            read = np.frombuffer(blob, kind, usable // size, start) if usable > 0 else None
            if read is not None:
                with np.errstate(over="ignore", invalid="ignore"):
                    yield read.astype(np.float32)


def _concatenate(parts: tuple[Any, ...]) -> Floats:
    """Concatenate all numbers of some values."""
    return np.concatenate([np.zeros(0), *map(_numbers, parts)])


def _numbers(value: Any) -> Floats:
    """Return all numbers in a value. Texts are searched for decimal numbers."""
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
    """Return the bytes of a value. Texts are decoded from base64 if possible."""
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (ValueError, binascii.Error):
            return b""
    return value if isinstance(value, bytes) else np.asarray(value).tobytes()


def _vectors(array: NDArray[Any], rows: int, width: int) -> Iterator[Floats]:
    """Yield the vectors in an array: its slices, its bytes, and parts of the length of columns."""
    flat = _numbers(array)
    yield flat
    shapes = [(rows, -1), (-1, rows), (-1, width - 1), (-1, width), (-1, 2)]
    for shape in shapes:
        length = shape[0] if shape[0] > 0 else shape[1]
        if length > 1 and flat.size % length == 0 and flat.size > length:
            yield from _slices(flat.reshape(shape))
    if array.ndim > 1 and array.dtype.kind in "biuf":
        for axis in range(array.ndim):
            yield from _slices(np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1))
    # Several values can be packed into the bytes of one number.
    blob = array.tobytes()
    for kind in (np.int16, np.uint16, np.int32, np.uint8, np.float16, np.float32, np.int64):
        size = np.dtype(kind).itemsize
        if len(blob) % (size * rows) == 0 and size * rows <= len(blob) <= size * rows * 8:
            with np.errstate(all="ignore"):
                yield from _slices(np.frombuffer(blob, kind).reshape(rows, -1).astype(np.float64))


def _slices(matrix: NDArray[Any]) -> Iterator[Floats]:
    """Yield the columns and the rows of a matrix, if there are at most `MOST_SLICES`."""
    for each in (matrix.T, matrix):
        if len(each) <= MOST_SLICES:
            yield from each.astype(np.float64)


_LEAST = 20  # smallest array whose contents identify a party


def reachable(start: object) -> Iterator[object]:
    """Yield every object that can be reached from an object, starting with the object.

    Global variables of functions are not followed.
    """
    # Objects are compared by identity, because equality can be expensive and can be redefined.
    seen, stack = {id(start)}, [start]
    while stack:
        current = stack.pop()
        yield current
        if isinstance(current, FunctionType):
            referents: list[Any] = [
                current.__closure__,
                current.__defaults__,
                current.__kwdefaults__,
            ]
        elif isinstance(current, (type, ModuleType, BuiltinFunctionType)):
            continue
        else:
            referents = gc.get_referents(current)
        for referent in referents:
            if id(referent) not in seen:
                seen.add(id(referent))
                stack.append(referent)


def find_foreign_rows(net: Network, local_data: Mapping[str, LocalData]) -> list[str]:
    """Return a text for each party that can reach the columns or labels of another party.

    Possible ways are an attribute of a class that parties share, or a list that several parties
    received. Data in delivered messages are not considered.
    """
    arrays_of = {name: _arrays(part) for name, part in local_data.items()}
    texts = []
    for name, host in net.hosts.items():
        party = host.party
        with acting(party):
            local_keys = set(arrays_of.get(name, {}))
            arrays = [x for x in _led_to(party) if x.size >= _LEAST]
        # Contents are compared instead of identities, so that a copy of the data is found, too.
        keys = {_key(x) for x in arrays} - local_keys
        for other, other_arrays in arrays_of.items():
            if other != name and (
                kinds := sorted({other_arrays[k] for k in keys & other_arrays.keys()})
            ):
                texts.append(f"{name} leads to the {' and '.join(kinds)} of {other}")
    return texts


def _led_to(party: object) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the arrays that can be reached from a party or from the attributes of its class."""
    for kind in type(party).__mro__:
        if kind.__module__.partition(".")[0] != "builtins":
            for value in vars(kind).values():
                if not isinstance(value, (FunctionType, type)):
                    yield from (x for x in reachable(value) if isinstance(x, np.ndarray))
    yield from (x for x in reachable(party) if isinstance(x, np.ndarray))


def _arrays(local_data: LocalData) -> dict[tuple[Any, ...], str]:
    """Return the arrays of local data by key."""
    names = {_key(local_data.X): "columns"}
    if local_data.y is not None:
        names[_key(local_data.y)] = "labels"
    return names


def _key(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Return a key that is equal for arrays with the same contents."""
    if array.dtype.kind not in "iuf":
        return (array.dtype.str, array.shape)
    return (array.dtype.str, array.shape, hash(np.ascontiguousarray(array).tobytes()))
