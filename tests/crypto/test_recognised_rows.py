"""Returned sums do not reveal which ciphertexts of rows they contain.

NVFlare's vertical encryption multiplies ciphertexts and sends the products unchanged. A party
that received the ciphertexts of the rows, such as the server, recognises bins of one or two
rows. These tests try all bins of all rows at once: they compute the sums of every table and
compare the ciphertexts.
"""

from itertools import product

import numpy as np
from gmpy2 import mpz

from fedtrees.crypto.bin_sums import BinLayout, BinSumEvaluator, BinSumKeyOwner, EncryptedRows
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.obfuscators import Obfuscators
from fedtrees.crypto.packing import Slots

BINS, CODES = 2, np.array([0, 1, 0, 0, 1])
SLOTS = Slots(1 << 10, len(CODES))


class Unhidden(Obfuscators):
    """A source of obfuscators that leaves products of ciphertexts unchanged, as NVFlare's
    aggregator does.
    """

    def _make(self, count):
        return [mpz(1)] * count


def send_rows_and_sums(keys, hiding=None):
    """Return the ciphertexts of the rows, and the sums over two bins that a party returns."""
    owner, party = (
        BinSumKeyOwner(keys.public.bits, OperationCounter(), keys),
        BinSumEvaluator(OperationCounter()),
    )
    rows = owner.encrypt(np.arange(10).reshape(5, 2), SLOTS)
    party.learn(owner.public_key(), keys.public.bits)
    if hiding is not None:
        party._hiding = hiding
    layout = BinLayout(np.array([5]), np.array([BINS]), 2, SLOTS)
    sums = party.sum_rows(
        "passive-1", rows, layout, lambda: (CODES[:, None], np.zeros(5, int)), None
    )
    assert owner.decrypt("passive-1", sums, layout)[0, 0].tolist() == [0 + 4 + 6, 1 + 5 + 7]
    return rows, sums


def recognise_tables(keys, rows, sums):
    """Return the tables whose sums have exactly these ciphertexts."""
    encrypted_rows = EncryptedRows.from_payload(rows, keys.public, SLOTS, (5, 2))
    tables = (np.array(codes) for codes in product(range(BINS), repeat=5))
    shape, no_obfuscation = (1, BINS), Unhidden(keys.public)
    return [
        codes.tolist()
        for codes in tables
        if encrypted_rows.sums(codes[:, None], np.zeros(5, int), shape).pack(no_obfuscation).payload
        == sums
    ]


def test_bins_are_recognised_in_sums_without_obfuscation(keys):
    assert recognise_tables(keys, *send_rows_and_sums(keys, Unhidden(keys.public))) == [
        CODES.tolist()
    ]


def test_no_bin_is_recognised_in_the_sent_sums(keys):
    rows, sums = send_rows_and_sums(keys)
    assert recognise_tables(keys, rows, sums) == []
    assert send_rows_and_sums(keys)[1] != sums
