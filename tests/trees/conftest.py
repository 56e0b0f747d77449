"""Tables on which several tests grow trees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from sklearn.datasets import load_breast_cancer

settings.register_profile("trees", settings.default, max_examples=60)
settings.load_profile("trees")


@pytest.fixture(scope="session")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return X.astype(np.float32), y


@pytest.fixture(scope="session")
def cancer_missing(cancer):
    X, y = cancer
    X = X.copy()
    X[np.random.default_rng(1).random(X.shape) < 0.1] = np.nan
    return X, y


@pytest.fixture(scope="session")
def ties():
    """5000 rows of 10 integer features from 0 to 7."""
    rng = np.random.default_rng(2)
    X = rng.integers(0, 8, (5000, 10)).astype(np.float32)
    logit = X[:, 0] - X[:, 1] + 0.5 * X[:, 2] - 2
    return X, (rng.random(len(X)) < 1 / (1 + np.exp(-logit))).astype(np.int64)


@pytest.fixture(scope="session")
def large():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(50_000, 28)).astype(np.float32)
    logit = X[:, 0] * X[:, 1] + X[:, 2]
    return X, (rng.random(len(X)) < 1 / (1 + np.exp(-logit))).astype(np.int64)
