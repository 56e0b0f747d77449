"""Kernels compile where numba can write neither next to the source nor below the home folder."""

import os
import subprocess
import sys

import pytest

from fedtrees.isolation import sandbox

READ_ONLY = """
import os, sys, tempfile, warnings
from fedtrees.isolation import sandbox

assert sandbox.close_disk(("/",), sys.argv[1:])  # all else can be read only, even by root
tempfile.tempdir = sys.argv[1] if sys.argv[1:] else "/"
import numpy as np
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import fedtrees.blind_baselines.matching, fedtrees.metrics.records
    from fedtrees.trees.jit import place
print(place(np.array([1.0, 2.0, 3.0]), 0, 3, 2.5))
print(os.environ.get("NUMBA_CACHE_DIR", "none"))
print([str(w.message) for w in caught if "NUMBA_CACHE_DIR" in str(w.message)])
"""


@pytest.mark.long
@pytest.mark.skipif(
    not sandbox.landlock_version(), reason="only Landlock makes folders read-only for root"
)
@pytest.mark.parametrize("temporary", [True, False])
def test_a_read_only_installation_compiles_into_a_temporary_folder_or_none(tmp_path, temporary):
    environment = {
        name: value for name, value in os.environ.items() if name not in ("HOME", "NUMBA_CACHE_DIR")
    }
    process = subprocess.run(
        [sys.executable, "-c", READ_ONLY, *[str(tmp_path)] * temporary],
        capture_output=True, text=True, env={**environment, "HOME": "/nonexistent"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    result, folder, warning = process.stdout.splitlines()
    assert result == "2"
    assert folder.startswith(str(tmp_path)) == temporary
    assert ("Set NUMBA_CACHE_DIR to a folder" in warning) == temporary
    assert not list(tmp_path.iterdir())  # The temporary folder is removed at the end.
