"""TimberStrike where sums no longer fit the tree: a leaf that no value reaches claims rows."""

import numpy as np

from fedtrees.bench.federation import federation_of
from fedtrees.bench.suite import DataRef
from fedtrees.core.defense import Composition
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.protocols.base import train, view_of


def test_rows_of_a_leaf_that_no_value_reaches_stay_where_they_are():
    federation = federation_of(DataRef("diabetes"), Spec("iid"), 3, 0, None)
    protocol = register.make(
        "protocol", Spec("fedtree-hist", {"trees": 3, "max_depth": 6, "max_bin": 32})
    )
    defense = Composition((register.make("defense", Spec("min-bin", {"k": 10})),))
    done = train(protocol, federation.clients, federation.schema, defense=defense, seed=0)
    view = view_of(done, ("client-0",), federation.clients)
    attack = register.make("attack", Spec("timberstrike", {"chains": 1}))
    guess = attack.run(view, np.random.default_rng(0))
    assert len(guess.records) > 0
    assert np.isfinite(guess.records.X).all()
