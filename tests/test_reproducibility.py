"""Results that docs/how-to/reproduce.md calls identical are identical with other instructions."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from digests import ATTACKS, DEFENSES, EXACT, OF_NETWORKS, digests
from llvmlite.binding import get_host_cpu_name

from fedtrees.core.registry import register

BUILD = np.show_config(mode="dicts")
VECTORS = BUILD["SIMD Extensions"].get("found", [])
OPENBLAS = "openblas" in BUILD["Build Dependencies"]["blas"]["name"]
SETTINGS = {
    "numpy without vector instructions": {"NPY_DISABLE_CPU_FEATURES": " ".join(VECTORS)},
    "numba for any processor": {"NUMBA_CPU_NAME": "generic"},
    "OpenBLAS for an old processor": {"OPENBLAS_CORETYPE": "Prescott"},
}
NO_EFFECT = {
    "numpy without vector instructions": not VECTORS
    and "numpy uses no vector instructions here beyond those it is built for: none to switch off",
    "numba for any processor": get_host_cpu_name() == "generic"
    and "numba does not know this processor and compiles for any one already",
    "OpenBLAS for an old processor": not (OPENBLAS and platform.machine() == "x86_64")
    and "numpy's linear algebra is not OpenBLAS for x86-64 here: it cannot be told the processor",
}
SHARED_TREES = ("flower-bagging", "flower-cyclic", "local-ensembles")


def attacked(key):
    """Return whether a key belongs to the digest of a guess."""
    return key.rsplit(" ", 1)[1] in ATTACKS


def exact(key, setting):
    """Return whether the documentation calls a result identical.

    Guesses about shared trees are excluded with OpenBLAS, because they use linear algebra.
    """
    return not (setting.startswith("OpenBLAS") and key.startswith(SHARED_TREES) and attacked(key))


@pytest.fixture(scope="module")
def here():
    return digests()


#: This setting compiles kernels for another processor, which takes long. By default, only few
#: protocols are tested.
ANEW = "numba for any processor"
FEW = ("fedtree-hist", "secureboost")


@pytest.mark.long
@pytest.mark.parametrize(
    ("setting", "of"),
    [(name, FEW if name == ANEW else ()) for name in SETTINGS]
    + [pytest.param(ANEW, (), marks=pytest.mark.slow)],
)
def test_messages_models_and_guesses_are_identical_to_the_last_bit(here, setting, of):
    if NO_EFFECT[setting]:
        pytest.skip(NO_EFFECT[setting])
    script = Path(__file__).with_name("digests.py")
    process = subprocess.run(
        [sys.executable, str(script), *of],
        env={**os.environ, **SETTINGS[setting]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    other_digests = json.loads(process.stdout)
    own_digests = {
        k: v for k, v in here.items() if not of or (k.startswith(of) and not attacked(k))
    }
    compared = {key for key in own_digests if exact(key, setting)}
    assert len(compared) > len(own_digests) / 2 > 20
    assert {key for key in compared if own_digests[key] != other_digests.get(key)} == set()
    assert other_digests.keys() == own_digests.keys()


@pytest.mark.long
def test_digests_cover_every_exact_protocol_defense_and_attack(here):
    keys = [key.split(" ") for key in here]
    assert {protocol for protocol, _, _ in keys} == set(EXACT)
    assert {defense for _, defense, _ in keys} == set(DEFENSES)
    named = {d.partition("[")[0] for d in DEFENSES}
    assert named | {*OF_NETWORKS} == {"none", *register.names("defense")}
    assert set(ATTACKS) <= {what for _, _, what in keys}


@pytest.mark.long
def test_different_runs_have_different_digests(here):
    """Different runs have different digests, so that the hashed content is not constant."""
    runs = {key.rsplit(" ", 1)[0] for key in here}
    messages = {here[f"{run} messages"] for run in runs}
    assert len(messages) > len(runs) / 2
