"""The compiled kernels that the attack process has in memory before it forks."""

import socket
import subprocess
import sys

import numpy as np
import pytest
from numba.core import types

from fedtrees.attacks.labels.graph_methods import _lloyd
from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.conformance.samples import sample_training
from fedtrees.core.registry import load_plugin, register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec
from fedtrees.isolation import child, kernels, sandbox
from fedtrees.isolation.process import AttackProcess
from fedtrees.protocols.views import view_of

LOADED = """
from fedtrees.blind_baselines import consensus
from fedtrees.isolation import kernels
kernels.prepare()
before = len(consensus._consensus.signatures)
kernels.prepare()
print(before, len(consensus._consensus.signatures))
"""


@pytest.mark.long
def test_stored_kernels_are_loaded_only_once():
    rng = np.random.default_rng(0)
    tables = [
        Table(rng.normal(size=(8, 2)).astype(np.float32), rng.integers(2, size=8)) for _ in (0, 1)
    ]
    matched_consensus(tables, np.array([0.3, 0.3, 0.0]))
    process = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    before, after = map(int, process.stdout.split())
    assert before == after > 0


COMPILES = """
import os
import numpy as np
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess
from fedtrees.core.registry import register

@register.attack("compiles")
class Compiles(Attack):
    def run(self, view, rng):
        from fedtrees.attacks.joint.log_posterior import Classes, count_row

        before = count_row.stats.cache_misses.total()  # of the process that this is a copy of
        n = np.zeros((2, 2, 2), np.int32)
        classes = Classes(np.ones((2, 2, 2)), 1.0, n, n[0].copy(), n[0, 0].copy())
        count_row(classes, n[0].copy(), 0, 0, 1)
        compiled = count_row.stats.cache_misses.total() - before
        try:
            open(os.path.join(os.environ["NUMBA_CACHE_DIR"], "poison.nbi"), "wb").close()
        except PermissionError:
            return Guess.none("it claims nothing", {"compiled": compiled, "wrote": 0})
        return Guess.none("it claims nothing", {"compiled": compiled, "wrote": 1})
"""


@pytest.mark.long
def test_an_attack_of_a_plugin_compiles_for_itself_and_stores_no_machine_code(
    tmp_path, monkeypatch
):
    plugin, cache = tmp_path / "compiles.py", tmp_path / "cache"
    plugin.write_text(COMPILES)
    cache.mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))
    load_plugin(plugin)
    training, local_data = sample_training(
        register.make("protocol", Spec("fedtree-hist", {"trees": 1, "max_depth": 2}))
    )
    view = view_of(training, ("client-0",), local_data)
    fresh = AttackProcess()
    try:
        first, second = (fresh.run(Spec("compiles"), view).guess.notes for _ in range(2))
    finally:
        fresh.end()
    assert [first["wrote"], second["wrote"]] == [int(not sandbox.landlock_version())] * 2
    # A stored kernel would reveal to the second run that the first one happened.
    if sandbox.landlock_version():
        assert first["compiled"] == second["compiled"] == 1
        assert not list(cache.rglob("classes.count_row-*.nbi"))
        assert not list(cache.rglob("poison.nbi"))


@pytest.mark.long
@pytest.mark.parametrize("trusted", [False, True])
def test_kernels_are_compiled_on_request_of_built_in_attacks_only(trusted):
    table, weights = (types.Array(types.float64, dimensions, "C") for dimensions in (2, 1))
    order = kernels._order(_lloyd.py_func, (table, weights, table))
    child_end, parent_end = socket.socketpair()
    with child_end, parent_end:
        parent_end.send(order)
        assert child._compile_for(child_end, trusted)
        assert parent_end.recv(1) == (b"y" if trusted else b"n")
        parent_end.close()
        # The other end is closed, so no further request arrives.
        assert not child._compile_for(child_end, trusted)
