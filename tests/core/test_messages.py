from dataclasses import FrozenInstanceError, dataclass, fields

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.core.errors import DataError, ProtocolError
from fedtrees.core.messages import Message, Reveal, summable
from fedtrees.core.secure_sum import add_messages
from fedtrees.core.wire import decode, encode, encoded_size
from fedtrees.messages.horizontal import Histogram, LeafValues, NodeSplits


@dataclass(frozen=True, eq=False)
class Sample(Message):
    name: str
    count: int
    ratio: float
    flag: bool
    array: np.ndarray
    nothing: np.ndarray | None = None


ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@given(st.text(), st.integers(-(2**60), 2**60), st.floats(), st.booleans(), ARRAYS)
def test_the_codec_returns_an_equal_message(name, count, ratio, flag, array):
    message = Sample(name, count, ratio, flag, array)
    blob = encode(message)
    assert len(blob) == encoded_size(message)
    decoded = decode(blob)
    assert (decoded.name, decoded.count, decoded.flag, decoded.nothing) == (name, count, flag, None)
    assert np.array_equal([decoded.ratio], [ratio], equal_nan=True)
    assert decoded.array.dtype == array.dtype
    assert decoded.array.shape == array.shape
    assert decoded.array.tobytes() == array.tobytes()


@given(st.data())
def test_a_cut_message_is_refused(data):
    blob = encode(Sample("x", 1, 0.5, True, np.arange(6.0)))
    cut = data.draw(st.integers(0, len(blob) - 1))
    with pytest.raises(DataError):
        decode(blob[:cut])


def test_hostile_headers_are_refused():
    good = encode(Sample("x", 1, 0.5, True, np.arange(6.0)))
    for bad in (
        good.replace(b"Sample", b"Simple"),
        good.replace(b'"<f8"', b'"|O8"'),
        good.replace(b"[6]", b"[9]"),
        good + b"more",
        b"\x80\x04pickle",
    ):
        with pytest.raises(DataError):
            decode(bad)


def test_messages_are_frozen_and_their_arrays_read_only():
    source = np.arange(4.0)
    message = Sample("x", 1, 0.5, True, source[1:3])
    with pytest.raises(FrozenInstanceError):
        message.count = 2
    with pytest.raises(ValueError, match="read-only"):
        message.array[0] = 7
    with pytest.raises(ValueError, match="WRITEABLE"):
        message.array.flags.writeable = True
    # The message contains a copy, so the sender cannot change it afterwards.
    source[1] = 99
    assert message.array.tolist() == [1.0, 2.0]


def test_a_message_reveals_everything_unless_it_declares_otherwise():
    assert Sample("x", 1, 0.5, True, np.zeros(1)).reveals == frozenset(Reveal)


def test_fields_of_unsupported_types_are_refused():
    with pytest.raises(ProtocolError, match="is a list"):
        Sample([1, 2], 1, 0.5, True, np.zeros(1))
    with pytest.raises(ProtocolError, match="Python objects"):
        Sample("x", 1, 0.5, True, np.array([object()]))


def test_statistics_change_what_a_decision_reveals():
    nodes = np.zeros(1, dtype=np.int32)
    without_statistics = LeafValues(0, nodes, np.ones(1, dtype=np.float32))
    with_statistics = LeafValues(0, nodes, np.ones(1, dtype=np.float32), np.ones(1), np.ones(1))
    assert without_statistics.reveals == {Reveal.MODEL}
    assert with_statistics.reveals >= {Reveal.LABELS, Reveal.COUNTS}
    splits_only = NodeSplits(0, *(np.zeros(1, dtype=np.int32),) * 4, np.zeros(1, dtype=bool), nodes)
    assert splits_only.reveals == {Reveal.THRESHOLDS}


def test_adding_messages_sums_the_summable_fields_and_compares_the_others():
    def part(tree, value):
        sums = np.full((1, 3, 2), value)
        return Histogram(tree, np.zeros(1, np.int32), sums, np.zeros((0, 2), np.int64))

    total = add_messages([part(1, 2), part(1, 5)])
    assert total.tree == 1
    assert (total.sums == 7).all()
    with pytest.raises(ProtocolError, match="disagree on 'tree'"):
        add_messages([part(1, 2), part(2, 5)])
    assert [field.name for field in fields(Histogram) if field.metadata.get("summed")] == [
        "sums",
        "totals",
    ]
    assert summable().metadata == {"summed": True}
