"""Vertical protocols with real keys are what they are with ideal ones."""

import numpy as np
import pytest
from columns import run, seen_by
from seeded_keys import seeded

from fedtrees.crypto.bin_sums import BinLayout, BinSumEvaluator, BinSumKeyOwner
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.packing import Slots
from fedtrees.defenses.nodes import IDLMID
from fedtrees.messages.vertical import BinSums, RowStatistics, visible_leaves


@pytest.mark.parametrize(
    ("name", "classes", "defense"),
    [
        ("secureboost[", 2, None),
        ("secureboost[", 0, None),
        ("secureboost[multi_output=true,", 4, IDLMID),
        ("vertical-forest[bootstrap=true,", 3, None),
    ],
)
def test_computed_ciphertexts_give_the_same_model_messages_and_bytes(
    name, classes, defense, monkeypatch
):
    keys = seeded(1024, 7)
    monkeypatch.setattr(KeyPair, "generate", lambda bits: keys)
    text = f"{name}trees=1,max_depth=3,max_bin=8,key_bits=1024,crypto=%s]"
    by = None if defense is None else defense(0.3)
    (ideal, held), (real, _) = (run(text % how, 3, classes, by, n=60) for how in ("ideal", "real"))
    for a, b in zip(ideal.model.trees, real.model.trees, strict=True):
        for field in ("feature", "threshold", "left", "default_left"):
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
    assert ideal.transcript.traffic() == real.transcript.traffic()
    for who in held:
        views = [seen_by(t, held, who) for t in (ideal, real)]
        np.testing.assert_array_equal(*map(visible_leaves, views))
    sealed = [d.message for d in real.transcript if isinstance(d.message, (RowStatistics, BinSums))]
    for message in sealed:
        seal = message.sums if isinstance(message, BinSums) else message.statistics
        assert len(seal.payload) == seal.nbytes > 0
        assert seal.keyholders == ("active",)
    for key in ("ciphertexts", "encrypted", "decrypted", "ciphertexts:BinSums"):
        assert ideal.transcript.costs[key] == real.transcript.costs[key] > 0
    assert real.transcript.costs["added"] > 0


def test_sums_of_rows_are_the_plain_ones_whatever_the_bins():
    """Columns of 2 and 5 bins, missing values, rows in no node."""
    rng = np.random.default_rng(0)
    n_bins, rows = np.array([5, 2, 5]), rng.integers(-50, 50, (40, 3))
    codes = np.stack([rng.integers(-1, b, 40) for b in n_bins], axis=1)
    nodes = rng.integers(-1, 2, 40)
    sums = BinLayout(np.bincount(nodes + 1, minlength=3)[1:], n_bins, 3, Slots(50, 40))
    keyed, blind = (
        BinSumKeyOwner(1024, OperationCounter(), seeded(1024, 1)),
        BinSumEvaluator(OperationCounter()),
    )
    blind.learn(keyed.public_key(), 1024)
    sent = keyed.encrypt(rows, sums.slots)
    payload = blind.sum_rows("p", sent, sums, lambda: (codes, nodes), None)
    assert len(payload) == sum(t.nbytes for t in sums.traffic(1024))
    expected = np.zeros(sums.shape, dtype=np.int64)
    for row, (at, where) in enumerate(zip(nodes, codes, strict=True)):
        for start, code in zip([0, 5, 7], where, strict=True):
            if at >= 0 and code >= 0:
                expected[at, start + code] += rows[row]
    np.testing.assert_array_equal(keyed.decrypt("p", payload, sums), expected)
