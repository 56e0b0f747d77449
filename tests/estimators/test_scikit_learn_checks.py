"""scikit-learn's checks of estimators."""

import os
import subprocess
import sys
from functools import cache

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedtrees import (
    FederatedForestClassifier,
    FederatedGBDTClassifier,
    FederatedGBDTRegressor,
)


@pytest.mark.long(but=("FederatedGBDTClassifier(n_clients=2,n_estimators=5)-",))
@parametrize_with_checks(
    [
        FederatedGBDTClassifier(n_estimators=5, n_clients=2),
        FederatedGBDTRegressor(n_estimators=5, n_clients=2),
        FederatedForestClassifier(n_estimators=5, n_clients=2),
        FederatedForestClassifier(n_estimators=3, n_clients=2, protocol="local-forests"),
        FederatedGBDTClassifier(n_estimators=5, n_clients=2, protocol="nvflare-hist"),
    ]
)
def test_scikit_learn_is_content(estimator, check):
    if "array_api" in check.func.__name__ and "SCIPY_ARRAY_API" not in os.environ:
        array_api_checks_pass()
    else:
        check(estimator)


@cache
def array_api_checks_pass():
    """Run the array API checks of this file, for which scipy needs a variable before its import."""
    arguments = ("-n", "0", "-m", "", "-q", "-k", "array_api", "-p", "no:cacheprovider", __file__)
    process = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        env=os.environ | {"SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout
    assert "5 passed" in process.stdout
    assert "skipped" not in process.stdout
