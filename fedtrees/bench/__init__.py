"""Train once, attack many: cells, suites, the runner and the store of results.

It may import all but `report`, `estimators`, `audit` and `cli`. ``fedtrees.bench(...)`` runs one
and returns what it found: see `fedtrees.api.bench`.
"""

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Called(ModuleType):
    """A package that is called like the command of its name."""

    def __call__(self, **options: Any) -> Any:
        # By name: what puts bench and report together stands above both.
        call = import_module("fedtrees.api").bench
        return call(**options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(import_module("fedtrees.api").bench)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """What `help` prints: how the package is called, before what is in it."""
        parameters = ",\n    ".join(map(str, self.__signature__.parameters.values()))
        call = inspect.getdoc(import_module("fedtrees.api").bench)
        return f"fedtrees.bench(\n    {parameters},\n)\n\n{call}\n\n{vars(self)['__doc__']}"


sys.modules[__name__].__class__ = _Called
