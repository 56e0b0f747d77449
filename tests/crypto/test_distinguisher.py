"""What the owner of a key can tell from the obfuscators of sums that it opens, beyond the sums.

The owner made the obfuscators of the rows. Whoever adds them multiplies a fresh one in; if that is
always a power of one base, the class of the product modulo these powers stays as it was. For DJN's
base the class is the Jacobi symbol modulo n.
"""

import numpy as np
import pytest
from gmpy2 import invert, jacobi
from scipy.stats import binomtest
from seeded_keys import EncryptedSums, SeededRandomness

from fedtrees.crypto.bin_sums import BinLayout, BinSumEvaluator, BinSumKeyOwner
from fedtrees.crypto.costs import MARK_BYTES, OperationCounter
from fedtrees.crypto.histograms import EncryptedRows
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.obfuscators import DJNObfuscators
from fedtrees.crypto.packing import Slots
from fedtrees.crypto.vectors import VectorEvaluator, VectorKeyOwner

TRIALS = 200
SURE = 1e-6


def symbols(payload, public):
    """Return the Jacobi symbols of ciphertexts modulo n, those of their obfuscators."""
    size = public.bits // 4
    found = public.read_ciphertexts(payload, len(payload) // size)
    return [int(jacobi(c % public.modulus, public.modulus)) for c in found]


@pytest.mark.parametrize("hiding", ["short powers", "r^n"])
def test_which_rows_were_added_is_told_by_short_powers_and_not_by_r_to_the_n(keys, hiding):
    """Rows of value 0 in bin 0: all but the first, or all but one of the other symbol."""
    n, rng = 24, np.random.default_rng(7)
    slots, rows = Slots(1, n), np.zeros((n, 1), dtype=np.int64)
    keyed, blind = (
        BinSumKeyOwner(512, OperationCounter(), keys),
        BinSumEvaluator(OperationCounter(), SeededRandomness(3)),
    )
    blind.learn(keyed.public_key(), 512)
    keyed._obfuscators.randomness = SeededRandomness(4)
    short = DJNObfuscators(keys.public, randomness=SeededRandomness(5))
    sums = BinLayout(np.array([n]), np.array([2]), 1, slots)
    right = 0
    for _ in range(TRIALS):
        sent = keyed.encrypt(rows, slots)
        known = symbols(sent[MARK_BYTES:], keys.public)
        other = known.index(-known[0])
        left_out = [0, other][rng.integers(2)]
        codes = (np.arange(n) == left_out).astype(np.int64)[:, None]
        nodes = np.zeros(n, dtype=np.int64)
        if hiding == "r^n":  # what crosses
            payload = blind.sum_rows("passive", sent, sums, lambda c=codes, at=nodes: (c, at), None)
        else:
            sealed = EncryptedRows.from_payload(sent, keys.public, slots, rows.shape)
            packed = sealed.sums(codes, nodes, (1, 2)).pack(short)
            payload = keys.public.write_ciphertexts(packed.ciphertexts)
        seen = symbols(payload[-128:], keys.public)[0]  # of the lowest place of the last ciphertext
        guess = 0 if seen == np.prod(known) * known[0] else other
        right += guess == left_out
    if hiding == "short powers":
        assert right == TRIALS
    else:
        assert binomtest(right, TRIALS).pvalue > SURE


def test_gradients_for_the_arbiter_are_hidden_by_the_whole_group(keys):
    """Scores are nobody's sums, and keep the symbol of all short powers; gradients have either."""
    keyed, blind = (
        VectorKeyOwner(512, OperationCounter(), keys),
        VectorEvaluator(OperationCounter()),
    )
    blind.learn(keyed.public_key(), 512)
    blind._plain.randomness = SeededRandomness(6)
    zero = np.array([0] * TRIALS, dtype=object)
    scores = blind.encrypt("z", np.array([3, 5], dtype=object))
    assert {*symbols(scores, keys.public)} == {1}
    matrix = np.array([[1, 2]] * TRIALS, dtype=object)
    gradient = blind.combine("g", {"z": (scores, matrix)}, zero, opens=True)
    minus = symbols(gradient, keys.public).count(-1)
    assert binomtest(minus, TRIALS).pvalue > SURE
    assert keyed.decrypt("g", gradient, TRIALS).tolist() == [13] * TRIALS


@pytest.mark.parametrize("opens", [False, True])
def test_who_encrypted_the_scores_cannot_take_them_out_of_the_residuals(keys, opens):
    """A passive party divides by its own ciphertexts: labels would be left, 1 + n y modulo n^2."""
    blind = VectorEvaluator(OperationCounter())
    blind.learn(VectorKeyOwner(512, OperationCounter(), keys).public_key(), 512)
    y, n = np.array([0, 1, 1, 0], dtype=object), keys.public.modulus
    scores = blind.encrypt("z", y)
    residuals = blind.combine("d", {"z": (scores, np.array([3] * 4, dtype=object))}, y, opens=opens)
    mine, told = (keys.public.read_ciphertexts(t, 4) for t in (scores, residuals))
    left = [d * invert(z**3, n * n) % (n * n) for z, d in zip(mine, told, strict=True)]
    assert len({*left}) == 4
    assert not any(c % n == 1 for c in left)
    assert keys.decrypt(left, OperationCounter()) == y.tolist()


def test_sums_over_clients_are_made_of_what_their_opener_never_saw(keys, monkeypatch):
    """Obfuscators are drawn for one sum alone, empty bins have some: sums need no further ones."""
    monkeypatch.setattr(KeyPair, "generate", lambda bits: keys)
    made = EncryptedSums(("b", "c"), 512)
    slots, seen = Slots(100, 3), set()
    for _ in range(20):
        sent = {n: made.encrypted(n, np.array([7, 0]), slots) for n in made.others}
        total = made.added(sent, 2, slots)
        assert made.opened(total, 2, slots).tolist() == [14, 0]
        for text in (*sent.values(), total):
            assert {*symbols(text[MARK_BYTES:], keys.public)} == {1}
            assert text not in seen
            seen.add(text)
