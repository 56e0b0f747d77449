"""Attributes of views that have another name since this release."""

import pytest

from fedtrees.core.view import View


@pytest.mark.parametrize(
    ("former", "present"),
    [
        ("own", "local_data"),
        ("known", "known_labels"),
        ("entries", "known_entries"),
        ("asked", "queried_rows"),
        ("stated", "protocol_changes"),
    ],
)
def test_a_former_attribute_gives_the_present_one_with_a_warning(blind_view, former, present):
    with pytest.warns(FutureWarning, match=rf"View\.{former} is now called View\.{present}"):
        assert getattr(blind_view, former) is getattr(blind_view, present)


def test_an_unknown_attribute_is_an_error(blind_view):
    with pytest.raises(AttributeError, match="'View' object has no attribute 'rowz'"):
        blind_view.rowz  # noqa: B018


@pytest.fixture(scope="module")
def blind_view() -> View:
    from sklearn.datasets import load_breast_cancer

    from fedtrees import FederatedGBDTClassifier

    X, y = load_breast_cancer(return_X_y=True)
    model = FederatedGBDTClassifier(n_estimators=1, max_depth=1, random_state=0).fit(X, y)
    return model.view("server")
