"""Clients of FedSGD that train with opacus, next to clients with the default engine.

python docs/examples/opacus/federated_opacus.py
"""

from fedtrees.core.guarantee import epsilon_in_words
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_one
from fedtrees.data.partition import Partition
from fedtrees.experiments.evaluate import make_defense
from fedtrees.experiments.federation import load_dataset, spread
from fedtrees.experiments.suite import DataRef
from fedtrees.metrics.utility import utility_scores
from fedtrees.protocols.training import train

clients = ("client-0", "client-1", "client-2")
federation = spread(load_dataset(DataRef("digits"), None), Partition("iid"), clients, seed=0)
network = "fedsgd-mlp[batch=64,rounds=60,lr=0.5,units=32,statistics=public]"
protocol = register.make("protocol", parse_one(network).parts[0])
auc, spent = {}, {}
for engine in ("torch", "opacus"):
    defense = make_defense(parse_one(f"dp-sgd[epsilon=8,engine={engine}]"))
    training = train(protocol, federation.local_data, federation.schema, defense=defense, seed=0)
    test = federation.test
    auc[engine] = utility_scores(test.y, training.predict(test.X))["auc"]
    spent[engine] = training.spent[1]
    print(f"{engine}: AUC {auc[engine]:.3f}; {epsilon_in_words(spent[engine])}")
