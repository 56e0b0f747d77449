"""What a process for attacks has in memory before it is copied."""

import subprocess
import sys

import numpy as np
import pytest

from fedtrees.bench.conformance import sample_training
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec
from fedtrees.guessing.consensus import matched_consensus
from fedtrees.isolation import disk
from fedtrees.isolation.process import AttackProcess
from fedtrees.protocols.views import view_of

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


COMPILES = """
import json
from fedtrees.core.attack import Attack
from fedtrees.core.guess import Guess
from fedtrees.core.registry import register

@register.attack("compiles")
class Compiles(Attack):
    def run(self, view, rng):
        from fedtrees.attacks.evidence.draws import standard_normal as kernel
        from numba.core import caching

        written = 0
        try:
            open(kernel._cache._cache_file._index_path, "ab").close()
            written = 1
        except OSError:
            pass
        return Guess(notes={"written": written})
"""
