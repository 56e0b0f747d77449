"""Sums that are sent back tell nobody which ciphertexts of rows are in them.

NVFlare's vertical encryption multiplies ciphertexts and sends the products as they are: who saw the
rows' ciphertexts, the server among them, recognises bins of one or two rows. What is tried here is
more: all bins of all rows at once, by making every table's sums and comparing ciphertexts.
"""

from itertools import product

import numpy as np
from gmpy2 import mpz

from fedtrees.crypto.bin_sums import BinLayout, BinSumEvaluator, BinSumKeyOwner
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.histograms import EncryptedRows
from fedtrees.crypto.obfuscators import Obfuscators
from fedtrees.crypto.packing import Slots

BINS, CODES = 2, np.array([0, 1, 0, 0, 1])
SLOTS = Slots(1 << 10, len(CODES))


class Unhidden(Obfuscators):
    """Leaves products of ciphertexts as they are, as NVFlare's aggregator does."""

    def _make(self, count):
        return [mpz(1)] * count


def sent(keys, hiding=None):
    """Return the rows' ciphertexts, and the sums over two bins that a party sends back."""
    owner, party = (
        BinSumKeyOwner(keys.public.bits, OperationCounter(), keys),
        BinSumEvaluator(OperationCounter()),
    )
    rows = owner.encrypt(np.arange(10).reshape(5, 2), SLOTS)
    party.learn(owner.public_key(), keys.public.bits)
    if hiding is not None:
        party._hiding = hiding
    told = BinLayout(np.array([5]), np.array([BINS]), 2, SLOTS)
    sums = party.sum_rows("passive-1", rows, told, lambda: (CODES[:, None], np.zeros(5, int)), None)
    assert owner.decrypt("passive-1", sums, told)[0, 0].tolist() == [0 + 4 + 6, 1 + 5 + 7]
    return rows, sums


def recognised(keys, rows, sums):
    """Return the tables whose sums are these very ciphertexts."""
    read = EncryptedRows.from_payload(rows, keys.public, SLOTS, (5, 2))
    tables = (np.array(codes) for codes in product(range(BINS), repeat=5))
    shape, none = (1, BINS), Unhidden(keys.public)
    return [
        codes.tolist()
        for codes in tables
        if read.sums(codes[:, None], np.zeros(5, int), shape).pack(none).payload == sums
    ]


def test_bins_are_recognised_in_sums_that_nothing_hides(keys):
    assert recognised(keys, *sent(keys, Unhidden(keys.public))) == [CODES.tolist()]


def test_no_bin_is_recognised_in_what_a_party_sends(keys):
    rows, sums = sent(keys)
    assert recognised(keys, rows, sums) == []
    assert sent(keys)[1] != sums
