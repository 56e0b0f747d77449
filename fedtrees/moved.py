"""Old names that plug-ins may use, for one release: modules, and members of classes.

`fedtrees/__init__.py` installs `MovedModules` as the last finder of Python's import system. An
import of an old name then returns the contents of the module that replaced it, with a
`DeprecationWarning`. Modules that no plug-in needed have no old name here.

The tables of members are read by the classes themselves. `Channel` accepts the old names with a
warning, and `Defense` refuses them with an error that states the new name.
"""

from __future__ import annotations

import csv
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType


def _read_moved_modules() -> dict[str, str]:
    """Return the lines of ``moved.csv``: the old name, and the module that has replaced it."""
    text = Path(__file__).with_name("moved.csv").read_text("utf-8")
    return {line["old"]: line["new"] for line in csv.DictReader(text.splitlines())}


#: Old name -> module that has replaced it, both below ``fedtrees``.
MOVED = _read_moved_modules()
#: Old packages whose names are now those of public functions -> module of the function.
FUNCTIONS = {"audit": "api.model_audit"}
#: Former attributes of a defense or composition -> fields of `core.defense.Requirements`.
REQUIREMENT_NAMES = {
    old: f"requirements.{new} (a field of Requirements)"
    for old, new in {
        "gradient_clip": "gradient_clip", "declared_rows": "declared_rows",
        "row_bounds": "row_bounds", "poisson_sampling": "poisson_sampling",
        "gradient_engine": "gradient_engine", "proven": "range_proofs",
        "least_leaf_rows": "min_leaf_rows", "unit_hessian": "unit_hessian",
        "bounds_hessian": "bounded_hessian", "counts_classes": "class_counts",
        "reads_rows": "reads_local_data",
    }.items()
}  # fmt: skip
#: Former names of the members of `core.defense.Defense`.
DEFENSE_NAMES = {
    "rows": "transform_examples", "outgoing": "transform_message", "candidates": "allowed_splits",
    "shown": "visible_nodes", "summed": "summed_types", "aggregation": "secure_aggregation",
    "cuts": "cut_plan", "finish": "repair_model", "answer": "transform_answer",
    "endpoint": "limit_endpoint", "undone_by": "broken_by", "log_chance": "log_likelihood",
    "at": "roles", "guards": "handled_types", "exempts": "permitted_types",
    "requires": "applies_to", "acts_on": "example_stages", "opens_to": "additional_readers",
    "acts_through": "hooks, which is derived from the methods that the class overrides",
    "tries": "info.bench_grid (a field of DefenseInfo)",
    "deployed": "info.deployments (a field of DefenseInfo)",
    "needs": "extra_packages",
    **REQUIREMENT_NAMES,
}  # fmt: skip
#: Former names of the members of `core.defense.Context`.
CONTEXT_NAMES = {"held": "local_data", "level": "open_nodes", "spend": "record_release"}
#: Former names of methods of `core.network.Network` that still work.
NETWORK_NAMES = {"ask": "request", "tell": "send"}
#: Former members of `core.network.Network` that no longer exist.
REMOVED_FROM_NETWORK = {
    "names": "hosts, whose keys are the names", "parties": "hosts, with the attribute party",
    "context": "hosts[name].context", "connect": "join", "note": "record_opened",
    "weighted": "declared[name].weighted",
    "allowed_splits": "protocols.tree_masks.allowed_splits(net, ...)",
    "shown_nodes": "protocols.tree_masks.visible_nodes(net, ...)",
    "cut_plan": "protocols.cut_points.cut_plan_of(net)",
}  # fmt: skip
#: Former names of the members and parameters of `core.channel.Channel`.
CHANNEL_NAMES = {
    "error": "posterior_moments", "spread": "error_range", "added": "sum_of_draws",
    "within": "in_units_of", "hides": "suppresses",
}  # fmt: skip
CHANNEL_PARAMETERS = {"whole": "integers", "single": "float32"}
#: Former names of sites in `Defense.channels`.
SITE_NAMES = {"candidates": "allowed_splits", "shown": "visible_nodes"}
_PACKAGE = __name__.partition(".")[0]


class _CallableModule(ModuleType):
    """An old package with the name of a public function, which can be called like it."""

    def __call__(self, *args: object, **options: object) -> object:
        name = self.__name__.rpartition(".")[2]
        function = getattr(import_module(f"{_PACKAGE}.{FUNCTIONS[name]}"), name)
        return function(*args, **options)


class MovedModules(MetaPathFinder, Loader):
    """Import the module that replaced an old one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a specification for an old name, and None for all other names."""
        package, _, name = fullname.partition(".")
        if package != _PACKAGE or name not in MOVED:
            return None
        # An old package must look like one, so that its modules can be imported.
        is_package = any(old.startswith(f"{name}.") for old in MOVED)
        return spec_from_loader(fullname, self, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return a module that can also be called if its name is now that of a function.

        Importing ``fedtrees.audit.scrub`` makes ``fedtrees.audit`` an old package. The function
        `fedtrees.audit` must still work afterwards.
        """
        name = spec.name.partition(".")[2]
        return _CallableModule(spec.name) if name in FUNCTIONS else None

    def exec_module(self, module: ModuleType) -> None:
        """Let the old module look up all attributes in the new one."""
        new_name = f"{_PACKAGE}.{MOVED[module.__name__.partition('.')[2]]}"
        warnings.warn(
            f"{module.__name__} is now a part of {new_name}; import from there, because the old "
            "name is removed in the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        replacement = import_module(new_name)
        module.__dict__.update(
            {k: v for k, v in vars(replacement).items() if not k.startswith("__")}
        )


def install() -> None:
    """Append the finder, once per process."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
