"""Federated trees as scikit-learn estimators.

Every fit runs a federation and records a transcript. The package may import `fedtrees.experiments`
and the layers below it.
"""

from fedtrees.estimators.boosting import FederatedGBDTClassifier, FederatedGBDTRegressor
from fedtrees.estimators.forests import FederatedForestClassifier

__all__ = ["FederatedForestClassifier", "FederatedGBDTClassifier", "FederatedGBDTRegressor"]
