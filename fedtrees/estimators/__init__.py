"""Federated trees as scikit-learn estimators: every fit is a real federation with a transcript.

It may import `bench` and below.
"""

from fedtrees.estimators.boosting import FederatedGBDTClassifier, FederatedGBDTRegressor
from fedtrees.estimators.forests import FederatedForestClassifier

__all__ = ["FederatedForestClassifier", "FederatedGBDTClassifier", "FederatedGBDTRegressor"]
