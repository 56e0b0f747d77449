"""Measure the privacy leakage of federated tree models, and the cost of defenses.

The main entry point is `fedtrees.bench`, which runs the same benchmark as the command ``fedtrees
bench`` and returns a `Run`. The estimators train a federation with the interface of scikit-learn.
"""

from importlib import import_module
from typing import Any

__version__ = "1.0.0"

#: Public names and their modules. A module is imported at the first use of its name, so that
# `import fedtrees` is fast.
_EXPORTS = {
    "FederatedForestClassifier": "fedtrees.estimators",
    "FederatedGBDTClassifier": "fedtrees.estimators",
    "FederatedGBDTRegressor": "fedtrees.estimators",
    "Run": "fedtrees.api",
    "leakage": "fedtrees.estimators.scoring",
    "load_model": "fedtrees.trees.files.models",
}
# ^Packages that are imported at first use. `fedtrees.bench` can also be called.
_PACKAGES = ("bench",)
__all__ = ["__version__", *_EXPORTS, *_PACKAGES]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"fedtrees.{name}")
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS, *_PACKAGES})
