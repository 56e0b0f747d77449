"""What a process for attacks has in memory before it is copied."""

import subprocess
import sys

import numpy as np

from fedtrees.core.schema import Table
from fedtrees.guessing.consensus import matched_consensus

LOADED = """
from fedtrees.guessing import consensus
from fedtrees.isolation import kernels
kernels.prepare()
before = len(consensus._consensus.signatures)
kernels.prepare()
print(before, len(consensus._consensus.signatures))
"""


def test_kernels_that_were_compiled_before_are_loaded_once():
    rng = np.random.default_rng(0)
    tables = [
        Table(rng.normal(size=(8, 2)).astype(np.float32), rng.integers(2, size=8)) for _ in (0, 1)
    ]
    matched_consensus(tables, np.array([0.3, 0.3, 0.0]))
    said = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    before, after = map(int, said.stdout.split())
    assert before == after > 0

