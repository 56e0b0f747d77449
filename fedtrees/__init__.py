"""What does a federated tree model leak, and what does a defense cost?"""

from importlib import import_module
from typing import Any

__version__ = "1.0.0"

#: Public name -> module; imported when first used, so that `import fedtrees` stays light.
_EXPORTS = {
    "FederatedForestClassifier": "fedtrees.estimators",
    "FederatedGBDTClassifier": "fedtrees.estimators",
    "FederatedGBDTRegressor": "fedtrees.estimators",
    "Run": "fedtrees.api",
    "leakage": "fedtrees.estimators.scoring",
    "load_model": "fedtrees.trees.files.models",
}
_PACKAGES = ("bench",)  # called by their own name
__all__ = ["__version__", *_EXPORTS, *_PACKAGES]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"fedtrees.{name}")
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS, *_PACKAGES})
