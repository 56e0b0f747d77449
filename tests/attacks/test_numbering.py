"""Values are numbered by their first appearance, as pandas does."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from fedtrees.attacks.labels.communities import number_values


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("spread", [1, 5, 300, 2**30])
@pytest.mark.parametrize("n", [0, 1, 40, 1000])
def test_numbers_are_those_of_pandas(n, spread, dtype):
    values = np.random.default_rng(n).integers(-1, spread, n).astype(dtype)
    number, distinct = number_values(values)
    expected, expected_distinct = pd.factorize(values)
    assert number.tolist() == expected.tolist()
    assert distinct.tolist() == expected_distinct.tolist()
    assert distinct.dtype == dtype


def test_attacks_and_the_command_line_load_neither_pandas_nor_scipy_stats():
    """Each takes about half a second to load, in every process of a bench."""
    code = (
        "import sys; from fedtrees.core.attack import contenders; contenders()\n"
        "import fedtrees.experiments.session, fedtrees.cli.main\n"
        "print([m for m in ('pandas', 'scipy.stats', 'scipy.signal') if m in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.split("\n")[0] == "[]"
