"""Federated trees as scikit-learn estimators.

Every fit runs a federation and records a transcript. The package must not import `fedtrees.api` or
a layer above it.
"""

from fedtrees.estimators.boosting import FederatedGBDTClassifier, FederatedGBDTRegressor
from fedtrees.estimators.forests import FederatedForestClassifier

__all__ = ["FederatedForestClassifier", "FederatedGBDTClassifier", "FederatedGBDTRegressor"]
