"""Train once, attack many: cells, suites, the runner and the store of results.

It may import all but `report`, `estimators`, `audit` and `cli`. ``fedtrees.bench(...)`` runs one
and returns what it found: see `fedtrees.runs.bench`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Called(ModuleType):
    """A package that is called like the command of its name."""

    def __call__(self, **options: Any) -> Any:
        # By name: what puts bench and report together stands above both.
        return import_module("fedtrees.runs").bench(**options)


sys.modules[__name__].__class__ = _Called
