"""Encrypted histograms equal the plain ones for every input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrees.crypto.bin_sums import EncryptedRows, PackedHistogram
from fedtrees.crypto.costs import OperationCounter, histogram_traffic
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.obfuscators import DJNObfuscators, OwnerObfuscators
from fedtrees.crypto.packing import Slots
from fedtrees.crypto.primitives import MalformedError, PlaintextOverflowError, WrongKeyError

LIMIT = 2**20


def plain_sums(rows, bins, nodes, shape):
    sums = np.zeros((shape[0], bins.shape[1], shape[1], rows.shape[1]), dtype=np.int64)
    for row, bins_of_row, node in zip(rows, bins, nodes, strict=True):
        if node >= 0:
            for feature, bin_index in enumerate(bins_of_row):
                sums[node, feature, bin_index] += row
    return sums


def draw(seed, n, features, statistics, shape):
    rng = np.random.default_rng(seed)
    rows = rng.choice([-LIMIT, LIMIT, 0, 1, -1], size=(n, statistics))
    bins = rng.integers(shape[1], size=(n, features))
    return rows, bins, rng.integers(-1, shape[0], size=n)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(0, 25),
    features=st.integers(1, 4),
    statistics=st.integers(1, 3),
    n_nodes=st.integers(1, 3),
    n_bins=st.integers(1, 9),
)
def test_encrypted_histograms_equal_the_plain_sums(
    keys, owner, seed, n, features, statistics, n_nodes, n_bins
):
    shape = (n_nodes, n_bins)
    rows, bins, nodes = draw(seed, n, features, statistics, shape)
    slots = Slots(LIMIT, max(n, 1))
    payload = EncryptedRows.of(rows, slots, owner).payload
    sealed = EncryptedRows.from_payload(payload, keys.public, slots, rows.shape)
    packed = sealed.sums(bins, nodes, shape).pack(
        DJNObfuscators(keys.public) if n % 5 == 0 else owner
    )
    received = PackedHistogram.from_payload(packed.payload, keys.public, slots, packed.shape)
    assert np.array_equal(received.decrypt(keys), plain_sums(rows, bins, nodes, shape))


def test_extreme_rows_in_one_bin_do_not_overflow(keys, owner):
    n = 40
    rows = np.tile([LIMIT, -LIMIT], (n, 1))
    slots = Slots(LIMIT, n)
    sealed = EncryptedRows.of(rows, slots, owner)
    bins, nodes = np.zeros((n, 1), dtype=np.uint8), np.zeros(n, dtype=np.int64)
    decrypted = sealed.sums(bins, nodes, (1, 3)).pack(owner).decrypt(keys)
    assert decrypted.tolist() == [[[[n * LIMIT, -n * LIMIT], [0, 0], [0, 0]]]]


def test_class_counts_share_a_plaintext(keys, owner):
    labels = np.array([0, 2, 1, 2, 2])
    rows = np.eye(3, dtype=np.int64)[labels]
    ledger = OperationCounter()
    sealed = EncryptedRows.of(rows, Slots(1, 5), OwnerObfuscators(keys, ledger))
    assert ledger.done["encrypted"] == 5
    bins = np.array([[0], [1], [0], [1], [0]])
    decrypted = sealed.sums(bins, np.zeros(5, int), (1, 2)).pack(owner).decrypt(keys)
    assert decrypted.tolist() == [[[[1, 1, 1], [0, 0, 2]]]]


def test_the_size_of_messages_is_known_in_advance(keys, owner):
    """Two tables with the same number of rows give messages of the same size, for all bins."""
    n, features, n_bins = 6, 3, 32
    slots = Slots(LIMIT, n)
    rows = EncryptedRows.of(np.ones((n, 2), np.int64), slots, owner)
    nodes = np.array([0, 0, 0, 0, 1, 1])
    sizes, sent_counts = set(), set()
    for bins in (np.zeros((n, features), int), np.arange(n * features).reshape(n, features)):
        packed = rows.sums(bins, nodes, (2, n_bins)).pack(owner)
        sizes.add(len(packed.payload))
        sent_counts.add(int(packed.sent.sum()))
    assert sizes == {histogram_traffic([4, 2], features, n_bins, 2, slots, 512).nbytes}
    assert sent_counts == {features * (4 + 2)}


def test_the_work_is_one_addition_per_row_and_one_shift_per_bin(keys, owner):
    ledger, n, features, n_bins = OperationCounter(), 50, 2, 4
    rng = np.random.default_rng(0)
    bins = np.concatenate(
        [np.tile(np.arange(n_bins), (features, 1)).T, rng.integers(4, size=(46, 2))]
    )
    rows = EncryptedRows.of(np.ones((n, 2), np.int64), Slots(LIMIT, n), owner)
    sums = rows.sums(bins, np.zeros(n, int), (1, n_bins), ledger)
    assert ledger.done["added"] == n * features - features * n_bins
    ledger = OperationCounter()
    packed = sums.pack(OwnerObfuscators(keys, ledger))
    per = Slots(LIMIT, n).per_plaintext(512) // 2
    assert len(packed.ciphertexts) == -(-features * n_bins // per)
    assert ledger.done["multiplied"] == features * n_bins - len(packed.ciphertexts)


def test_returned_ciphertexts_are_fresh(keys, owner):
    rows = EncryptedRows.of(np.ones((3, 1), np.int64), Slots(1, 3), owner)
    sums = rows.sums(np.zeros((3, 1), int), np.zeros(3, int), (1, 1))
    first, second = sums.pack(owner), sums.pack(owner)
    assert first.ciphertexts != second.ciphertexts
    assert first.ciphertexts != sums.cells
    assert np.array_equal(first.decrypt(keys), second.decrypt(keys))


def test_input_that_does_not_fit_is_refused(keys, other_keys, owner):
    rows = np.ones((4, 2), np.int64)
    bins, nodes = np.zeros((4, 2), int), np.zeros(4, int)
    sealed = EncryptedRows.of(rows, Slots(1, 3), owner)
    with pytest.raises(PlaintextOverflowError, match="more rows than the 3"):
        sealed.sums(bins, nodes, (1, 2))
    # Four rows fit if they are split into three and one.
    sealed.sums(bins, np.array([0, 0, 0, 1]), (2, 2))
    for wrong in ((bins[:3], nodes), (bins, nodes[:3]), (bins + 2, nodes), (bins, nodes + 1)):
        with pytest.raises(MalformedError):
            sealed.sums(*wrong, (1, 2))
    with pytest.raises(PlaintextOverflowError, match="do not fit one plaintext"):
        EncryptedRows.of(np.ones((1, 20), np.int64), Slots(2**40, 2), owner)
    packed = sealed.sums(bins, nodes - [0, 0, 0, 1], (1, 2)).pack(owner)
    for payload in (
        packed.payload[:-1],
        packed.payload + b"x",
        b"",
        b"\xff" * 8 + packed.payload[8:],
    ):
        with pytest.raises((MalformedError, WrongKeyError)):
            PackedHistogram.from_payload(payload, keys.public, packed.slots, packed.shape)
    with pytest.raises(PlaintextOverflowError, match="key"):
        packed.decrypt(other_keys)


def test_the_default_key_gives_the_plain_sums(capfd):
    keys = KeyPair.generate()
    rows, bins, nodes = draw(1, 12, 2, 2, (2, 8))
    obfuscators = DJNObfuscators(keys.public)
    sealed = EncryptedRows.of(rows, Slots(LIMIT, 12), obfuscators).sums(bins, nodes, (2, 8))
    assert np.array_equal(
        sealed.pack(obfuscators).decrypt(keys), plain_sums(rows, bins, nodes, (2, 8))
    )


def test_rows_and_histograms_are_decrypted_only_with_their_layout(keys, owner):
    rows, bins, nodes = draw(3, 6, 2, 2, (2, 4))
    slots, encrypted_rows = Slots(LIMIT, 6), EncryptedRows.of(rows, Slots(LIMIT, 6), owner)
    packed = encrypted_rows.sums(bins, nodes, (2, 4)).pack(owner)
    assert (
        EncryptedRows.from_payload(encrypted_rows.payload, keys.public, slots, (6, 2))
        == encrypted_rows
    )
    for other_slots, shape in ((slots, (6, 1)), (slots, (6, 3)), (Slots(LIMIT, 12), (6, 2))):
        with pytest.raises(WrongKeyError, match="ciphertexts do not match"):
            EncryptedRows.from_payload(encrypted_rows.payload, keys.public, other_slots, shape)
    for other_slots, shape in (
        *((slots, shape) for shape in [(2, 4, 2, 2), (1, 4, 4, 2), (4, 2, 2, 2), (2, 2, 4, 1)]),
        (Slots(LIMIT, 7), packed.shape),
        (Slots(LIMIT + 1, 6), packed.shape),
    ):
        with pytest.raises(WrongKeyError, match="ciphertexts do not match"):
            PackedHistogram.from_payload(packed.payload, keys.public, other_slots, shape)
