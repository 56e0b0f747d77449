"""Federated trees as scikit-learn estimators.

Every fit runs a federation and records a transcript.

The package may import `fedtrees.experiments` and the layers below it.
"""

from fedtrees.estimators.boosting import FederatedGBDTClassifier, FederatedGBDTRegressor
from fedtrees.estimators.forests import FederatedForestClassifier
from fedtrees.estimators.vertical import FederatedVerticalGBDTClassifier

__all__ = [
    "FederatedForestClassifier",
    "FederatedGBDTClassifier",
    "FederatedGBDTRegressor",
    "FederatedVerticalGBDTClassifier",
]
