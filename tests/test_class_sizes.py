"""Classes have at most 15 public attributes and methods, except those that a reason is given for.

A class with many members usually has several responsibilities. The exceptions are listed with their
present number of members and the reason. A number may become smaller, and never larger.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST = 15
EXTENSION = "extension interface: a plug-in overrides some of the documented members"
PARAMETERS = "fields are the hyper-parameters of the algorithm, which users type in brackets"
RECORD = "record of one result: fields, and properties that are derived from them"
OBSERVATIONS = "data of one attack that several of its steps read and derive further values from"
#: Module and class -> largest permitted number of members, and the reason.
EXCEPTIONS = {
    "fedtrees.core.composition.Composition": (22, "applies each hook of `Defense` to all parts"),
    "fedtrees.core.defense.Defense": (31, EXTENSION),
    "fedtrees.core.network.Network": (
        18, "its methods are all that a coordinator can do, and a protocol needs no other object"
    ),
    "fedtrees.core.results.Measure": (20, "fields are the facts and words about one column"),
    "fedtrees.core.view.View": (24, "the documented input of every attack"),
    "fedtrees.protocols.base.Protocol": (29, EXTENSION),
    "fedtrees.protocols.training.Training": (21, RECORD),
    "fedtrees.protocols.forests.dp_forest.DPForest": (19, PARAMETERS),
    "fedtrees.protocols.horizontal.dp_gbdt.DPGBDT": (28, PARAMETERS),
    "fedtrees.protocols.horizontal.ebm.DPEBM": (19, PARAMETERS),
    "fedtrees.protocols.networks.network_training.NetworkProtocol": (
        19, "half are parameters, and the other half differs between FedSGD and FedAvg"
    ),
    "fedtrees.protocols.peers.lightgbm_data.LightGBMData": (18, PARAMETERS),
    "fedtrees.protocols.regression.vertical.VerticalRegression": (18, PARAMETERS),
    "fedtrees.protocols.tree_networks.fedxgbllr.FedXGBllr": (17, PARAMETERS),
    "fedtrees.trees.boosted.params.TreeParams": (18, PARAMETERS),
    "fedtrees.crypto.keys.PublicKey": (
        17, "all operations of the Paillier scheme with the public key, of which phe replaces some"
    ),
    "fedtrees.defenses.dp_sgd.DPSGD": (17, PARAMETERS + ", next to the members of `Defense`"),
    "fedtrees.defenses.laplace.LaplaceHistogram": (
        17, PARAMETERS + ", next to the members of `Defense`"
    ),
    "fedtrees.metrics.metric.Case": (34, "the documented input of every metric"),
    "fedtrees.experiments.options.BenchOptions": (34, "one field for each option of `bench`"),
    "fedtrees.experiments.table_spec.TableSpec": (19, "one field for each option about a table"),
    "fedtrees.experiments.plan.Task": (17, "fields identify one cell of a run"),
    "fedtrees.experiments.runner.Runner": (
        16, "eight fields are the options of a run, which every worker process needs"
    ),
    "fedtrees.data.csv_file.TextTable": (
        21, "one field for each decision of the cleaning, because a file is read once"
    ),
    "fedtrees.federation.agreement.FederationAgreement": (
        19, "fields are those of the agreement's file, which all parties sign"
    ),
    "fedtrees.model_audit.model.ModelFile": (27, "fields are the contents of a model file"),
    "fedtrees.model_audit.exposure.TreeExposure": (21, RECORD),
    "fedtrees.report.adversaries.AdversaryFindings": (16, RECORD),
    "fedtrees.report.advice.Advice": (19, RECORD),
    "fedtrees.report.findings.RunAnalysis": (18, RECORD),
    "fedtrees.report.findings.SettingFindings": (33, RECORD),
    "fedtrees.report.frontier.Point": (22, RECORD),
    "fedtrees.report.leakage.LeakageResult": (25, RECORD),
    "fedtrees.report.recipe.Recipe": (18, RECORD),
    "fedtrees.attacks.exact_decoding.decode.Decoder": (17, OBSERVATIONS),
    "fedtrees.attacks.exact_decoding.path_hypotheses.PathHypotheses": (17, OBSERVATIONS),
    "fedtrees.attacks.joint.posterior_problem.State": (
        16, "arguments of compiled kernels, which take one named tuple of arrays"
    ),
    "fedtrees.attacks.joint.posterior_problem.World": (
        17, "arguments of compiled kernels, which take one named tuple of arrays"
    ),
    "fedtrees.attacks.labels.mixture.Mixture": (17, OBSERVATIONS),
    "fedtrees.attacks.membership.leaf_sums._Sums": (19, OBSERVATIONS),
    "fedtrees.attacks.observations.boosting.BoostingObservations": (22, OBSERVATIONS),
    "fedtrees.attacks.peeling.rows.BinnedForest": (17, OBSERVATIONS),
    "fedtrees.attacks.timberstrike.reconstruct._Problem": (23, OBSERVATIONS),
    "fedtrees.attacks.tree_network_inversion.matching.SoftTrees": (17, OBSERVATIONS),
    "fedtrees.attacks.tree_network_inversion.search.Refinement": (16, OBSERVATIONS),
}  # fmt: skip


def test_classes_have_few_public_members():
    sizes = dict(count_members())
    assert not EXCEPTIONS.keys() - sizes.keys(), "remove these classes, which no longer exist"
    too_large = {
        name: size for name, size in sizes.items() if size > EXCEPTIONS.get(name, (LARGEST, ""))[0]
    }
    assert not too_large, "split these classes, or list them with a reason"
    small = {name for name in EXCEPTIONS if sizes[name] <= LARGEST}
    assert not small, "remove these classes from the list of exceptions"


def count_members():
    """Yield the name of every class of the product, and its number of public members."""
    for folder in ("fedtrees", "attacks", "defenses"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts if folder == "fedtrees" else ("fedtrees", *parts))
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef):
                    yield f"{module}.{node.name}", len(set(public_members(node)))


def public_members(node):
    """Yield the names of the public methods and attributes of a class."""
    for item in node.body:
        names = []
        if isinstance(item, ast.FunctionDef):
            names = [item.name]
            if item.name == "__init__":
                names = attributes_set_on_self(item)
        elif isinstance(item, ast.Assign | ast.AnnAssign):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        yield from (name for name in names if not name.startswith("_"))


def attributes_set_on_self(function):
    """Return the names of the attributes of `self` that a method sets."""
    return [
        target.attr
        for target in ast.walk(function)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    ]
