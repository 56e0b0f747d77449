"""Old names that plug-ins may use, for one release: modules, and members of classes.

`fedtrees/__init__.py` installs `MovedModules` as the last finder of Python's import system. An
import of an old name then returns the contents of the module that replaced it, with a
`DeprecationWarning`. Modules that no plug-in needed have no old name here.

The tables of members are read by the classes themselves. `Channel` accepts the old names with a
warning, and `Defense` refuses them with an error that states the new name.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

#: Old name -> module that has replaced it, both below ``fedtrees``.
MOVED = {
    "audit": "model_audit",
    "audit.attack": "model_audit.attack",
    "audit.audit": "model_audit.audit",
    "audit.exposure": "model_audit.exposure",
    "audit.first_trees": "model_audit.first_trees",
    "audit.leaf_counts": "model_audit.leaf_counts",
    "audit.leaf_value_counts": "model_audit.leaf_value_counts",
    "audit.margins": "model_audit.margins",
    "audit.membership": "model_audit.membership",
    "audit.model": "model_audit.model",
    "audit.page": "model_audit.page",
    "audit.readers": "model_audit.readers",
    "audit.rows": "model_audit.rows",
    "audit.scrub": "model_audit.scrub",
    "audit.tables": "model_audit.tables",
    "audit.training_settings": "model_audit.training_settings",
    "audit.tree_sources": "model_audit.tree_sources",
    "audit.verdict": "model_audit.verdict",
    "blind_baselines.clusters": "blind_baselines.conditional",
    "core.aggregation": "core.secure_sum",
    "core.behaviour": "core.party",
    "core.coarsening": "core.deterministic_channels",
    "core.codec": "core.wire",
    "core.columns": "core.results",
    "core.cut_plan": "core.defense",
    "core.deployment": "core.defense",
    "core.guess": "core.claims",
    "core.line": "core.remote",
    "core.model": "core.endpoint",
    "core.oracle": "core.endpoint",
    "core.rows": "core.results",
    "core.sealed": "core.messages",
    "core.sensitivity": "core.noise_order",
    "core.values": "core.wire",
    "data.spreadsheets": "data.table_files",
    "defenses.answers": "defenses.endpoint",
    "defenses.dp_quantile_cuts": "defenses.cut_points",
    "defenses.hist_rounding": "defenses.rounding",
    "defenses.id_lmid": "defenses.nodes",
    "defenses.laplace_gradient": "defenses.laplace",
    "defenses.laplace_hist": "defenses.laplace",
    "defenses.leaf_rounding": "defenses.rounding",
    "defenses.mask_sum_hessian": "defenses.suppression",
    "defenses.min_bin": "defenses.suppression",
    "defenses.min_leaf": "defenses.suppression",
    "defenses.real_sums": "defenses.secure_sum",
    "defenses.reduced_leakage": "defenses.nodes",
    "defenses.settled_cuts": "defenses.cut_points",
    "defenses.sketch_rounding": "defenses.rounding",
    "defenses.split_only": "defenses.suppression",
    "guessing": "blind_baselines",
    "guessing.blind": "blind_baselines.guesses",
    "guessing.clusters": "blind_baselines.conditional",
    "guessing.conditional": "blind_baselines.conditional",
    "guessing.consensus": "blind_baselines.consensus",
    "guessing.entries": "blind_baselines.conditional",
    "guessing.frequent": "blind_baselines.imputation",
    "guessing.imputation": "blind_baselines.imputation",
    "guessing.matching": "blind_baselines.matching",
    "guessing.pools": "blind_baselines.recipes",
    "guessing.recipes": "blind_baselines.recipes",
    "guessing.rows": "blind_baselines.rows",
    "guessing.tolerance": "blind_baselines.rows",
    "messages.boosting": "messages.horizontal",
    "messages.class_counts": "messages.forests",
    "messages.cuts": "messages.horizontal",
    "messages.fixed_point": "linear",
    "messages.packing": "messages.models",
    "messages.private_forests": "messages.forests",
    "messages.shared_trees": "messages.horizontal",
    "messages.tree_networks": "messages.networks",
    "messages.vertical_model": "messages.vertical",
    "metrics.advantage": "metrics.metric",
    "metrics.bin_counts": "metrics.bins",
    "metrics.branches": "metrics.thresholds",
    "metrics.class_shares": "metrics.labels",
    "metrics.column_bins": "metrics.bins",
    "metrics.column_ranks": "metrics.splits",
    "metrics.known_entries": "metrics.metric",
    "metrics.moved_cuts": "metrics.splits",
    "metrics.orders": "metrics.splits",
    "metrics.routed_labels": "metrics.labels",
    "metrics.rows": "metrics.records",
    "metrics.specificity": "metrics.records",
    "neural.tree_outputs": "neural.perceptron",
    "privacy.discrete_gaussian": "privacy.mechanisms",
    "privacy.leaf_sums": "privacy.gaussian_dp",
    "privacy.measured": "privacy_audit.bounds",
    "privacy.polya": "privacy.mechanisms",
    "privacy.quantiles": "privacy.mechanisms",
    "privacy.randomised_response": "privacy.mechanisms",
    "privacy.sampled_gaussian": "privacy.gaussian_dp",
    "protocols.boosting_protocol": "protocols.settings",
    "protocols.canaries": "privacy_audit.canaries",
    "protocols.fit": "protocols.compatibility",
    "protocols.forest_settings": "protocols.settings",
    "protocols.horizontal.dp_ebm": "protocols.horizontal.ebm",
    "protocols.horizontal.ebm_merge": "protocols.horizontal.ebm",
    "protocols.horizontal.federboost_h": "protocols.horizontal.histogram_protocols",
    "protocols.horizontal.fedtree_hist": "protocols.horizontal.histogram_protocols",
    "protocols.horizontal.flower_bagging": "protocols.horizontal.tree_sharing",
    "protocols.horizontal.flower_cyclic": "protocols.horizontal.tree_sharing",
    "protocols.horizontal.followed": "protocols.horizontal.histogram_parties",
    "protocols.horizontal.growing_client": "protocols.horizontal.histogram_parties",
    "protocols.horizontal.histograms": "protocols.horizontal.histogram_parties",
    "protocols.horizontal.lightgbm_data": "protocols.peers.lightgbm_data",
    "protocols.horizontal.local_ensembles": "protocols.horizontal.tree_sharing",
    "protocols.horizontal.nvflare_hist": "protocols.horizontal.histogram_protocols",
    "protocols.horizontal.xgboost_ring": "protocols.peers.xgboost_ring",
    "protocols.lockstep": "protocols.peers.peer",
    "protocols.vertical.columns": "protocols.vertical.local_bins",
    "protocols.vertical.limits": "protocols.vertical.passive",
    "protocols.vertical.model": "protocols.vertical.protocol",
    "protocols.vertical.node_quantiles": "protocols.vertical.local_bins",
    "protocols.vertical.settings": "protocols.vertical.protocol",
    "protocols.vertical.xgboost_vertical": "protocols.peers.xgboost_vertical",
    "protocols.vertically_held": "protocols.settings",
    "report.rows": "report.results",
    "report.selection": "report.results",
    "trees.boosted.categorical": "trees.boosted.splitting",
    "trees.boosted.splits": "trees.boosted.splitting",
    "trees.files.sklearn_forest": "trees.files.forests",
    "trees.files.ubjson": "trees.files.model_file",
    "trees.grid": "trees.cut_points",
    "trees.imputer": "blind_baselines.imputer",
    "trees.sketch": "trees.cut_points",
}
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
