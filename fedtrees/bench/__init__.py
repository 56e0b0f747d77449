"""Run benchmarks: train federations, attack what each party received, and store the results.

A suite (`suite`) is a grid of settings. It is expanded into cells (`cells`): trainings, attacks,
blind guesses and references. The runner (`runner`) computes the cells, several processes at a time
(`engine`), and the store (`store`) saves their rows. One training is shared by all attacks on it.

``fedtrees.bench(...)`` runs a benchmark and returns its results, see `fedtrees.api.bench`. This
package may import all packages except `report`, `estimators`, `audit` and `cli`.
"""

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Called(ModuleType):
    """A package that can be called like the command of the same name."""

    def __call__(self, **options: Any) -> Any:
        # ^Imported by name at the time of the call, because `fedtrees.api` is in a higher layer
        # that imports both `bench` and `report`.
        call = import_module("fedtrees.api").bench
        return call(**options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(import_module("fedtrees.api").bench)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """Text that `help` prints: documentation of the call, then of the package."""
        parameters = ",\n    ".join(map(str, self.__signature__.parameters.values()))
        call = inspect.getdoc(import_module("fedtrees.api").bench)
        return f"fedtrees.bench(\n    {parameters},\n)\n\n{call}\n\n{vars(self)['__doc__']}"


sys.modules[__name__].__class__ = _Called
