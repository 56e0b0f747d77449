"""What can an honest-but-curious client learn from the trees of three hospitals, and how does the
defense `split-only` change this?

Run it: python docs/tutorials/first_bench.py
"""

# %% A federation: 456 training rows of the breast cancer table, spread over three clients.
from fedtrees import LeafCounts, register, train, view_of
from fedtrees.core.composition import Composition
from fedtrees.core.local_data import stacked
from fedtrees.core.specs import Spec
from fedtrees.core.streams import Streams
from fedtrees.experiments.federation import federation_of
from fedtrees.experiments.plan import FederationConfig
from fedtrees.experiments.suite import DataRef
from fedtrees.messages.horizontal import LeafValues
from fedtrees.metrics.leaf_counts import score_leaf_counts, true_leaf_counts

protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 10, "max_depth": 4}))
setting = FederationConfig.of(DataRef("breast-cancer"), Spec("iid"), 3, 0, protocol)
federation = federation_of(setting, data_dir=None)
print([len(rows) for rows in federation.local_data.values()], "rows per client")

# %% Train with the protocol of FedTree, without a defense and with `split-only`.
split_only = Composition((register.make("defense", Spec("split-only")),))
runs = {
    "none": train(protocol, federation.local_data, federation.schema, seed=0),
    "split-only": train(
        protocol, federation.local_data, federation.schema, defense=split_only, seed=0
    ),
}

# %% What did the last client receive about the leaves of the first tree?
for name, run in runs.items():
    view = view_of(run, ("client-2",), federation.local_data)
    _, leaves = next(view.messages(LeafValues))
    print(f"{name:10}  value {leaves.value[:3]}  H {None if leaves.h is None else leaves.h[:3]}")

# %% Both models make the same predictions, bit for bit.
margins = [run.model.margin(federation.test.X) for run in runs.values()]
same_predictions = bool((margins[0] == margins[1]).all())
print("same predictions:", same_predictions)

# %% Nevertheless, an attack can still compute the class counts of every leaf from the leaf values.
attack = register.make("attack", Spec("timberstrike", {"max_trees": 1}))
victim_data = [federation.local_data[name] for name in ("client-0", "client-1")]
victims = stacked(victim_data, federation.schema)
exact = {}
for name, run in runs.items():
    view = view_of(run, ("client-2",), federation.local_data)
    guess = attack.run(view, Streams(0).rng("attack"))
    leaves = run.model.trees[0].leaves
    truth = true_leaf_counts(0, run.model.apply(victims.X)[:, 0], victims.y, leaves)
    exact[name] = score_leaf_counts(guess.all(LeafCounts), [truth]).leaf_counts_exact
    print(f"{name:10}  leaves of the first tree with exact class counts: {exact[name]:.0%}")
