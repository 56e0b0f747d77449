"""Vertical protocols give the same results with real and with ideal keys."""

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
    defense_object = None if defense is None else defense(0.3)
    (ideal, local_data), (real, _) = (
        run(text % mode, 3, classes, defense_object, n=60) for mode in ("ideal", "real")
    )
    for ideal_tree, real_tree in zip(ideal.model.trees, real.model.trees, strict=True):
        for field in ("feature", "threshold", "left", "default_left"):
            np.testing.assert_array_equal(getattr(ideal_tree, field), getattr(real_tree, field))
    assert ideal.transcript.traffic() == real.transcript.traffic()
    for party in local_data:
        views = [seen_by(training, local_data, party) for training in (ideal, real)]
        np.testing.assert_array_equal(*map(visible_leaves, views))
    sealed = [
        delivery.message
        for delivery in real.transcript
        if isinstance(delivery.message, (RowStatistics, BinSums))
    ]
    for message in sealed:
        seal = message.sums if isinstance(message, BinSums) else message.statistics
        assert len(seal.payload) == seal.nbytes > 0
        assert seal.keyholders == ("active",)
    for key in ("ciphertexts", "encrypted", "decrypted", "ciphertexts:BinSums"):
        assert ideal.transcript.costs[key] == real.transcript.costs[key] > 0
    assert real.transcript.costs["added"] > 0


def test_encrypted_sums_of_rows_equal_the_plain_sums():
    """The columns have 2 and 5 bins, some values are missing, and some rows are in no node."""
    rng = np.random.default_rng(0)
    n_bins, rows = np.array([5, 2, 5]), rng.integers(-50, 50, (40, 3))
    codes = np.stack([rng.integers(-1, bin_count, 40) for bin_count in n_bins], axis=1)
    nodes = rng.integers(-1, 2, 40)
    sums = BinLayout(np.bincount(nodes + 1, minlength=3)[1:], n_bins, 3, Slots(50, 40))
    key_owner, evaluator = (
        BinSumKeyOwner(1024, OperationCounter(), seeded(1024, 1)),
        BinSumEvaluator(OperationCounter()),
    )
    evaluator.learn(key_owner.public_key(), 1024)
    payload_of_rows = key_owner.encrypt(rows, sums.slots)
    payload = evaluator.sum_rows("p", payload_of_rows, sums, lambda: (codes, nodes), None)
    assert len(payload) == sum(part.nbytes for part in sums.traffic(1024))
    expected = np.zeros(sums.shape, dtype=np.int64)
    for row, (node, codes_of_row) in enumerate(zip(nodes, codes, strict=True)):
        for start, code in zip([0, 5, 7], codes_of_row, strict=True):
            if node >= 0 and code >= 0:
                expected[node, start + code] += rows[row]
    np.testing.assert_array_equal(key_owner.decrypt("p", payload, sums), expected)
