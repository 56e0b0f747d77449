"""Values survive their bytes; nothing else does."""

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


def same(a, b):
    if isinstance(a, np.ndarray):
        kept = a.dtype.newbyteorder("=") == b.dtype and a.shape == b.shape
        return kept and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and (a == b or (a != a and b != b))


@pytest.mark.long
@given(VALUES)
def test_a_value_comes_back_as_it_was(value):
    again = unpack(bytes_of(value))
    assert same(value, again)
    assert bytes_of(again) == bytes_of(value)


def test_dataclasses_and_messages_come_back_with_arrays_that_nobody_can_write_to():
    table = Table(np.arange(6).reshape(3, 2), np.array([0, 1, 1]))
    claim = Records(table, np.array([0.5, 1, 0]), ("a", "b", "a"))
    start = BaseScore(np.zeros(1, np.float32), 3, 4)
    schema = Schema((Feature("a", low=0, high=np.float64(2)),), "y")
    again = unpack(bytes_of((claim, schema, start)), TYPES)
    assert again[1] == schema
    assert type(again[0]) is Records
    assert again[0].owner == claim.owner
    np.testing.assert_array_equal(again[0].table.X, table.X)
    assert encode(again[2]) == encode(start)
    for array in (again[0].table.X, again[0].confidence, again[2].margin):
        assert array.flags.aligned
        with pytest.raises(ValueError, match=r"read-only|WRITEABLE"):
            array.flags.writeable = True


def test_a_seal_crosses_closed():
    sums = np.zeros((1, 2, 2), np.int64)
    sent = Histogram(0, np.arange(1), Sealed.of(sums, "server"), np.zeros((1, 2)))
    again = unpack(bytes_of(sent))
    assert vars(again)["sums"] == Sealed.of(sums, "server")
    assert again.sums.payload == b""


class Live:
    def __reduce__(self):
        return print, ("here",)


class Sly(np.ndarray):
    def __getitem__(self, key):
        return 7


@pytest.mark.parametrize(
    "value", [Live(), b"bytes", {1: 2}, np.array([Live()]), np.array(["a"]), Live, {1}, print]
)
def test_what_is_alive_does_not_cross(value):
    with pytest.raises(DataError, match="cannot be encoded"):
        pack({"x": (value,)})


def test_a_value_that_contains_itself_is_refused():
    knot = []
    knot.append(knot)
    with pytest.raises(DataError, match="nested too deep"):
        pack(knot)


def test_a_subclass_crosses_as_the_plain_thing():
    again = unpack(bytes_of((np.arange(3).view(Sly),)))[0]
    assert type(again) is np.ndarray
    assert again[1] == 1


def test_bytes_that_are_cut_changed_or_name_what_is_not_expected_are_refused():
    whole = bytes_of({"a": np.arange(5), "b": (Table(np.ones((2, 2)), np.ones(2)), 1.5)})
    for end in range(len(whole)):
        with pytest.raises(DataError):
            unpack(whole[:end], TYPES)
    with pytest.raises(DataError, match="too many"):
        unpack(whole + b"x", TYPES)
    with pytest.raises(DataError, match="not expected here"):
        unpack(whole)
    for blob in (pickle.dumps(1), b"", b"FTV1"):
        with pytest.raises(DataError):
            unpack(blob)
    rng = np.random.default_rng(0)
    for _ in range(300):  # read as something, or refused: nothing else is raised
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] = rng.integers(256)
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
    ("magic", "read"), [(b"FTV1", unpack), (b"FTM1", decode), (b"FTL1", read_call)]
)
def test_a_header_nested_too_deep_is_refused(magic, read):
    text = b"[" * 100_000
    with pytest.raises(DataError, match="nested too deep"):
        read(magic + struct.pack("<I", len(text)) + text)


@pytest.mark.parametrize("text", [b'{"type":"Histogram","fields":[]}', b'{"type":5}', b"[]"])
def test_a_message_whose_header_is_of_another_shape_is_refused(text):
    with pytest.raises(DataError):
        decode(b"FTM1" + struct.pack("<I", len(text)) + text)


def test_more_text_than_the_reader_takes_is_refused():
    packed = b"".join(pack(["x" * 100]))
    assert unpack(packed, most_text=200) == ["x" * 100]
    with pytest.raises(DataError, match="at most 50 are read: return arrays"):
        unpack(packed, most_text=50)


def framed(form, header, rest):
    text = json.dumps(header, separators=(",", ":")).encode()
    return form + struct.pack("<I", len(text)) + text + rest


def test_the_bytes_of_every_form_are_those_of_earlier_versions():
    margin = np.array([1.5, -2], ">f4")
    fields = {"margin": {"dtype": "<f4", "shape": [2]}, "g_bits": 3, "h_bits": 4}
    header, raw = {"type": "BaseScore", "fields": fields}, margin.astype("<f4").tobytes()
    message = BaseScore(margin, 3, 4)
    assert encode(message) == framed(b"FTM1", header, raw)
    assert write_call({"does": "ask"}, message) == framed(b"FTL1", {"does": "ask"}, encode(message))
    value = {"a": (None, [True, "x"]), "b": message, "c": np.int16(7), "d": np.zeros((0, 2))}
    entry = {
        "map": {
            "a": [None, {"list": [True, "x"]}],
            "b": {"message": header},
            "c": {"raw": {"dtype": "<i2", "scalar": 7}},
            "d": {"raw": {"dtype": "<f8", "shape": [0, 2]}},
        }
    }
    bare = framed(b"FTV1", entry, b"")
    assert bytes_of(value) == bare + bytes(-len(bare) % 16) + raw
