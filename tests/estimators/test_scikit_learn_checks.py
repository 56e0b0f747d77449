"""scikit-learn's own checks of what an estimator must do."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from fedtrees import (
    FederatedForestClassifier,
    FederatedGBDTClassifier,
    FederatedGBDTRegressor,
)


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
    check(estimator)
