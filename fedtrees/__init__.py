"""Measure the privacy leakage of federated tree models, and the cost of defenses.

The main entry point is `fedtrees.bench`, which runs the same benchmark as the command ``fedtrees
bench`` and returns a `Run`. `fedtrees.recommend` and `fedtrees.audit` also do the same as the
commands of these names. The estimators train a federation with the interface of scikit-learn.
A plug-in (an attack, defense, protocol, behaviour or metric of another author) imports base classes
and the registry from here, for example ``from fedtrees import Attack, Guess, Records, register``.
It imports further objects from these modules, which are part of the extension API as well:

- `fedtrees.messages.horizontal`, `.vertical`, `.forests`, `.networks` and `.models`: message types
- `fedtrees.core.parameters`: declarations of parameters, for example ``positive(1.0)``
- `fedtrees.core.channel`, `fedtrees.core.deterministic_channels` and `fedtrees.privacy.noise`:
  channels, for example ``Rounding`` and ``Laplace``
- `fedtrees.protocols` and `fedtrees.metrics`: protocols and metrics to derive from

The attacks, defenses and benchmarks of fedtrees are in the folders ``attacks/``, ``defenses/`` and
``benchmarks/`` at the top of the repository. They are imported as `fedtrees.attacks`,
`fedtrees.defenses` and `fedtrees.benchmarks`.
"""

from importlib import import_module
from typing import Any

from fedtrees import moved

__version__ = "1.0.0"

#: Public names by module, below ``fedtrees``. A module is imported at the first use of one of its
#: names, so that `import fedtrees` is fast. ``__init__.pyi`` states the same for type checkers.
_MODULES = {
    # Running
    "api.bench": ("bench",),
    "api.model_audit": ("ModelAudit", "audit"),
    "api.recommend": ("Recommendation", "recommend"),
    "api.run": ("BestDefense", "Run", "RunLeak"),
    "estimators": (
        "FederatedForestClassifier",
        "FederatedGBDTClassifier",
        "FederatedGBDTRegressor",
        "FederatedVerticalGBDTClassifier",
    ),
    "estimators.scoring": ("AttackScore", "AttackScores", "leakage"),
    "protocols.training": ("Training", "train"),
    "protocols.views": ("view_of",),
    "trees.files.models": ("load_model",),
    # Extending
    "core.attack": ("Attack",),
    "core.defense": ("ChannelDefense", "Defense", "DefenseInfo", "Requirements"),
    "core.messages": ("Message", "Reveal", "Trait", "permit_types_with", "types_with"),
    "core.party": ("Behaviour", "Party", "handles"),
    "core.registry": ("register",),
    "core.results": ("Measure",),
    "core.view": ("View",),
    "metrics.metric": ("Metric", "Score"),
    "protocols.base": ("Coordinator", "Protocol", "ProtocolInfo"),
    # Claims and guarantees
    "core.claims": (
        "Claim",
        "EveryRecord",
        "Guess",
        "Labels",
        "LeafCounts",
        "Membership",
        "Records",
    ),
    "core.guarantee": ("ApproximateDP", "Computational", "NoGuarantee", "PureDP", "Structural"),
    # Data
    "core.local_data": ("LocalData",),
    "core.schema": ("Feature", "Schema", "Table"),
    "data.dataset": ("Dataset",),
    # Errors
    "core.errors": ("DataError", "FedtreesError", "ProtocolError", "StoreError", "UsageError"),
}
#: Public name -> module that defines it.
PUBLIC_NAMES = {name: f"fedtrees.{module}" for module, names in _MODULES.items() for name in names}
__all__ = ["__version__", *sorted(PUBLIC_NAMES)]

moved.install()


def __getattr__(name: str) -> Any:
    if name not in PUBLIC_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PUBLIC_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC_NAMES})
