"""Values survive their encoding, and everything else is refused."""

import contextlib
import json
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedtrees.core.claims import LeafCounts, Records
from fedtrees.core.errors import DataError
from fedtrees.core.messages import Sealed
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.wire import decode, encode, pack, read_call, unpack, write_call
from fedtrees.messages.horizontal import BaseScore, Histogram

TYPES = (Table, Records, LeafCounts, Feature, Schema)
KINDS = st.sampled_from(["f4", "f8", "i8", "i4", "u1", "?", ">f8"])
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.builds(np.float32, st.floats(width=32)),
    KINDS.flatmap(lambda kind: arrays.arrays(kind, SHAPES)),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(), inner, max_size=4),
    ),
    max_leaves=12,
)


def bytes_of(value):
    return b"".join(map(bytes, pack(value)))


def are_equal(first, second):
    if isinstance(first, np.ndarray):
        same_shape_and_dtype = (
            first.dtype.newbyteorder("=") == second.dtype and first.shape == second.shape
        )
        return same_shape_and_dtype and np.array_equal(
            first, second, equal_nan=first.dtype.kind == "f"
        )
    if isinstance(first, (list, tuple)):
        return (
            type(first) is type(second)
            and len(first) == len(second)
            and all(map(are_equal, first, second))
        )
    if isinstance(first, dict):
        return list(first) == list(second) and all(
            are_equal(first[key], second[key]) for key in first
        )
    return type(first) is type(second) and (
        first == second or (first != first and second != second)
    )


@pytest.mark.long
@given(VALUES)
def test_a_value_survives_its_encoding(value):
    decoded = unpack(bytes_of(value))
    assert are_equal(value, decoded)
    assert bytes_of(decoded) == bytes_of(value)


def test_dataclasses_and_messages_are_decoded_with_read_only_arrays():
    table = Table(np.arange(6).reshape(3, 2), np.array([0, 1, 1]))
    claim = Records(table, np.array([0.5, 1, 0]), ("a", "b", "a"))
    start = BaseScore(np.zeros(1, np.float32), 3, 4)
    schema = Schema((Feature("a", low=0, high=np.float64(2)),), "y")
    decoded = unpack(bytes_of((claim, schema, start)), TYPES)
    assert decoded[1] == schema
    assert type(decoded[0]) is Records
    assert decoded[0].owner == claim.owner
    np.testing.assert_array_equal(decoded[0].table.X, table.X)
    assert encode(decoded[2]) == encode(start)
    for array in (decoded[0].table.X, decoded[0].confidence, decoded[2].margin):
        assert array.flags.aligned
        with pytest.raises(ValueError, match=r"read-only|WRITEABLE"):
            array.flags.writeable = True


def test_a_sealed_field_stays_sealed():
    sums = np.zeros((1, 2, 2), np.int64)
    message = Histogram(0, np.arange(1), Sealed.of(sums, "server"), np.zeros((1, 2)))
    decoded = unpack(bytes_of(message))
    assert vars(decoded)["sums"] == Sealed.of(sums, "server")
    assert decoded.sums.payload == b""


class Live:
    def __reduce__(self):
        return print, ("here",)


class Sly(np.ndarray):
    def __getitem__(self, key):
        return 7


@pytest.mark.parametrize(
    "value", [Live(), b"bytes", {1: 2}, np.array([Live()]), np.array(["a"]), Live, {1}, print]
)
def test_objects_that_are_no_plain_values_are_refused(value):
    with pytest.raises(DataError, match="cannot be encoded"):
        pack({"x": (value,)})


def test_a_value_that_contains_itself_is_refused():
    knot = []
    knot.append(knot)
    with pytest.raises(DataError, match="nested too deep"):
        pack(knot)


def test_a_subclass_is_decoded_as_its_plain_type():
    decoded = unpack(bytes_of((np.arange(3).view(Sly),)))[0]
    assert type(decoded) is np.ndarray
    assert decoded[1] == 1


def test_truncated_or_changed_bytes_and_unexpected_types_are_refused():
    encoded = bytes_of({"a": np.arange(5), "b": (Table(np.ones((2, 2)), np.ones(2)), 1.5)})
    for end in range(len(encoded)):
        with pytest.raises(DataError):
            unpack(encoded[:end], TYPES)
    with pytest.raises(DataError, match="too many"):
        unpack(encoded + b"x", TYPES)
    with pytest.raises(DataError, match="not expected here"):
        unpack(encoded)
    for blob in (pickle.dumps(1), b"", b"FTV1"):
        with pytest.raises(DataError):
            unpack(blob)
    rng = np.random.default_rng(0)
    # The changed bytes are decoded or refused; no other error is raised.
    for _ in range(300):
        changed = bytearray(encoded)
        changed[rng.integers(len(encoded))] = rng.integers(256)
        with contextlib.suppress(DataError):
            unpack(bytes(changed), TYPES)


@pytest.mark.parametrize(
    "entry",
    [
        {"raw": {"dtype": "|O", "shape": [1]}},
        {"raw": {"dtype": "<f8", "shape": [-1, -8]}},
        {"raw": {"dtype": "<f8", "shape": [2**62, 4]}},
        {"is": "builtins:eval", "of": {}},
        {"of": {}},
        {"message": {"type": "Nobody", "fields": {}}},
        {"is": "fedtrees.core.schema:Table", "of": {"X": None, "y": 1}},
        {"is": "fedtrees.core.schema:Table", "of": {"z": None}},
    ],
)
def test_a_header_that_lies_is_refused(entry):
    text = json.dumps(entry).encode()
    with pytest.raises(DataError):
        unpack(b"FTV1" + struct.pack("<I", len(text)) + text + bytes(64), TYPES)


@pytest.mark.parametrize(
    ("magic", "decode_function"), [(b"FTV1", unpack), (b"FTM1", decode), (b"FTL1", read_call)]
)
def test_a_header_nested_too_deep_is_refused(magic, decode_function):
    text = b"[" * 100_000
    with pytest.raises(DataError, match="nested too deep"):
        decode_function(magic + struct.pack("<I", len(text)) + text)


@pytest.mark.parametrize("text", [b'{"type":"Histogram","fields":[]}', b'{"type":5}', b"[]"])
def test_a_message_whose_header_is_of_another_shape_is_refused(text):
    with pytest.raises(DataError):
        decode(b"FTM1" + struct.pack("<I", len(text)) + text)


def test_more_text_than_the_reader_takes_is_refused():
    packed = b"".join(pack(["x" * 100]))
    assert unpack(packed, most_text=200) == ["x" * 100]
    with pytest.raises(DataError, match="at most 50 are read: return arrays"):
        unpack(packed, most_text=50)


def frame(magic, header, content):
    text = json.dumps(header, separators=(",", ":")).encode()
    return magic + struct.pack("<I", len(text)) + text + content


def test_the_bytes_of_every_form_are_those_of_earlier_versions():
    margin = np.array([1.5, -2], ">f4")
    fields = {"margin": {"dtype": "<f4", "shape": [2]}, "g_bits": 3, "h_bits": 4}
    header, raw = {"type": "BaseScore", "fields": fields}, margin.astype("<f4").tobytes()
    message = BaseScore(margin, 3, 4)
    assert encode(message) == frame(b"FTM1", header, raw)
    assert write_call({"does": "ask"}, message) == frame(b"FTL1", {"does": "ask"}, encode(message))
    value = {"a": (None, [True, "x"]), "b": message, "c": np.int16(7), "d": np.zeros((0, 2))}
    entry = {
        "map": {
            "a": [None, {"list": [True, "x"]}],
            "b": {"message": header},
            "c": {"raw": {"dtype": "<i2", "scalar": 7}},
            "d": {"raw": {"dtype": "<f8", "shape": [0, 2]}},
        }
    }
    bare = frame(b"FTV1", entry, b"")
    assert bytes_of(value) == bare + bytes(-len(bare) % 16) + raw
