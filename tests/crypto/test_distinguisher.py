"""Information about sums that the owner of a key gets from their obfuscators, in addition to the
sums.

The owner generated the obfuscators of the rows. The party that adds them multiplies a fresh
obfuscator. If that is always a power of one base, the class of the product modulo these powers
does not change. For DJN's base the class is the Jacobi symbol modulo n.
"""

import numpy as np
import pytest
from gmpy2 import invert, jacobi
from scipy.stats import binomtest
from seeded_keys import EncryptedSums, SeededRandomness

from fedtrees.crypto.bin_sums import BinLayout, BinSumEvaluator, BinSumKeyOwner, EncryptedRows
from fedtrees.crypto.costs import MARK_BYTES, OperationCounter
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.obfuscators import DJNObfuscators
from fedtrees.crypto.packing import Slots
from fedtrees.crypto.vectors import VectorEvaluator, VectorKeyOwner

TRIALS = 200
SURE = 1e-6


def jacobi_symbols(payload, public):
    """Return the Jacobi symbols of ciphertexts modulo n, which are those of their obfuscators."""
    size = public.bits // 4
    ciphertexts = public.read_ciphertexts(payload, len(payload) // size)
    return [int(jacobi(ciphertext % public.modulus, public.modulus)) for ciphertext in ciphertexts]


@pytest.mark.parametrize("hiding", ["short powers", "r^n"])
def test_short_powers_reveal_which_rows_were_added_and_r_to_the_n_does_not(keys, hiding):
    """All rows have value 0. Bin 0 contains all rows except the first, or all except one with
    the other symbol.
    """
    n_rows, rng = 24, np.random.default_rng(7)
    slots, rows = Slots(1, n_rows), np.zeros((n_rows, 1), dtype=np.int64)
    key_owner, evaluator = (
        BinSumKeyOwner(512, OperationCounter(), keys),
        BinSumEvaluator(OperationCounter(), SeededRandomness(3)),
    )
    evaluator.learn(key_owner.public_key(), 512)
    key_owner._obfuscators.randomness = SeededRandomness(4)
    short = DJNObfuscators(keys.public, randomness=SeededRandomness(5))
    sums = BinLayout(np.array([n_rows]), np.array([2]), 1, slots)
    n_correct = 0
    for _ in range(TRIALS):
        payload_of_rows = key_owner.encrypt(rows, slots)
        symbols_of_rows = jacobi_symbols(payload_of_rows[MARK_BYTES:], keys.public)
        other_row = symbols_of_rows.index(-symbols_of_rows[0])
        left_out = [0, other_row][rng.integers(2)]
        codes = (np.arange(n_rows) == left_out).astype(np.int64)[:, None]
        nodes = np.zeros(n_rows, dtype=np.int64)
        if hiding == "r^n":  # The protocol sends this payload.
            payload = evaluator.sum_rows(
                "passive", payload_of_rows, sums, lambda c=codes, at=nodes: (c, at), None
            )
        else:
            sealed = EncryptedRows.from_payload(payload_of_rows, keys.public, slots, rows.shape)
            packed = sealed.sums(codes, nodes, (1, 2)).pack(short)
            payload = keys.public.write_ciphertexts(packed.ciphertexts)
        # The last ciphertext contains the lowest place.
        symbol_of_sum = jacobi_symbols(payload[-128:], keys.public)[0]
        guess = 0 if symbol_of_sum == np.prod(symbols_of_rows) * symbols_of_rows[0] else other_row
        n_correct += guess == left_out
    if hiding == "short powers":
        assert n_correct == TRIALS
    else:
        assert binomtest(n_correct, TRIALS).pvalue > SURE


def test_gradients_for_the_arbiter_are_obfuscated_by_the_full_group(keys):
    """Scores are no sums, so they keep the symbol of all short powers. Gradients have either
    symbol.
    """
    key_owner, evaluator = (
        VectorKeyOwner(512, OperationCounter(), keys),
        VectorEvaluator(OperationCounter()),
    )
    evaluator.learn(key_owner.public_key(), 512)
    evaluator._plain.randomness = SeededRandomness(6)
    zero = np.array([0] * TRIALS, dtype=object)
    scores = evaluator.encrypt("z", np.array([3, 5], dtype=object))
    assert {*jacobi_symbols(scores, keys.public)} == {1}
    matrix = np.array([[1, 2]] * TRIALS, dtype=object)
    gradient = evaluator.combine("g", {"z": (scores, matrix)}, zero, opens=True)
    n_negative = jacobi_symbols(gradient, keys.public).count(-1)
    assert binomtest(n_negative, TRIALS).pvalue > SURE
    assert key_owner.decrypt("g", gradient, TRIALS).tolist() == [13] * TRIALS


@pytest.mark.parametrize("opens", [False, True])
def test_the_encrypter_of_scores_cannot_remove_them_from_the_residuals(keys, opens):
    """If a passive party could divide by its ciphertexts, the labels would remain as 1 + n y
    modulo n^2.
    """
    evaluator = VectorEvaluator(OperationCounter())
    evaluator.learn(VectorKeyOwner(512, OperationCounter(), keys).public_key(), 512)
    y, n = np.array([0, 1, 1, 0], dtype=object), keys.public.modulus
    scores = evaluator.encrypt("z", y)
    residuals = evaluator.combine(
        "d", {"z": (scores, np.array([3] * 4, dtype=object))}, y, opens=opens
    )
    score_ciphertexts, residual_ciphertexts = (
        keys.public.read_ciphertexts(text, 4) for text in (scores, residuals)
    )
    quotients = [
        residual * invert(score**3, n * n) % (n * n)
        for score, residual in zip(score_ciphertexts, residual_ciphertexts, strict=True)
    ]
    assert len({*quotients}) == 4
    assert not any(quotient % n == 1 for quotient in quotients)
    assert keys.decrypt(quotients, OperationCounter()) == y.tolist()


def test_sums_over_clients_contain_ciphertexts_that_their_opener_never_received(keys, monkeypatch):
    """Obfuscators are drawn for one sum each, also for empty bins, so sums need no further
    obfuscator.
    """
    monkeypatch.setattr(KeyPair, "generate", lambda bits: keys)
    encrypted_sums = EncryptedSums(("b", "c"), 512)
    slots, seen_texts = Slots(100, 3), set()
    for _ in range(20):
        arrays_of_clients = {
            name: encrypted_sums.encrypted(name, np.array([7, 0]), slots)
            for name in encrypted_sums.others
        }
        total = encrypted_sums.added(arrays_of_clients, 2, slots)
        assert encrypted_sums.opened(total, 2, slots).tolist() == [14, 0]
        for text in (*arrays_of_clients.values(), total):
            assert {*jacobi_symbols(text[MARK_BYTES:], keys.public)} == {1}
            assert text not in seen_texts
            seen_texts.add(text)
