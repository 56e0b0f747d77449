from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.core.errors import DataError
from fedtrees.trees.files.model_file import decode_ubjson


def length(n):
    return b"L" + struct.pack(">q", n)


def encode(value):
    """Encode as XGBoost does."""
    if isinstance(value, bool):
        return b"T" if value else b"F"
    if value is None:
        return b"Z"
    if isinstance(value, int):
        return b"L" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"D" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"S" + length(len(value.encode())) + value.encode()
    if isinstance(value, list):
        return b"[#" + length(len(value)) + b"".join(map(encode, value))
    pairs = (length(len(k.encode())) + k.encode() + encode(v) for k, v in value.items())
    return b"{" + b"".join(pairs) + b"}"


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
)
values = st.recursive(
    scalars,
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=3), inside, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.long
@given(values)
def test_values_are_decoded(value):
    assert decode_ubjson(encode(value)) == value


@pytest.mark.long
@given(values, st.data())
def test_truncated_values_are_refused(value, data):
    encoded = encode(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(DataError):
        decode_ubjson(encoded[:cut])


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "i4", "i8", "f4", "f8"])
def test_typed_arrays_keep_their_type(kind):
    marker = dict(zip(["i1", "u1", "i2", "i4", "i8", "f4", "f8"], "iUIlLdD", strict=True))[kind]
    numbers = np.array([0, 1, 100], dtype=kind)
    data = b"[$" + marker.encode() + b"#" + length(3) + numbers.astype(">" + kind).tobytes()
    decoded = decode_ubjson(data)
    np.testing.assert_array_equal(decoded, numbers)
    assert decoded.dtype == np.dtype(kind)


def test_arrays_may_end_by_a_bracket():
    assert decode_ubjson(b"[U\x01T[]]") == [1, True, []]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends at byte 0"),
        (b"TT", "1 bytes follow"),
        (b"H", "no value b'H'"),
        (b"[" * 200, "deeper than 64"),
        (b"S" + length(-1), "negative"),
        (b"Sd\x00\x00\x00\x00", "no length b'd'"),
        (b"[$T#" + length(2**40), "array of b'T'"),
        (b"[$L#" + length(2**62), "ends at byte"),
        (b"[#" + length(2**62), "ends at byte"),
        (b"S" + length(2**62), "ends at byte"),
    ],
)
def test_bad_bytes_are_refused_without_taking_memory(data, message):
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message):
            decode_ubjson(data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
