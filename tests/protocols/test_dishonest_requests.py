"""A dishonest sender neither lowers the noise of honest parties nor gets a second answer."""

import re

import numpy as np
import pytest
from federations import sample_federation
from present import here

from fedtrees.bench.conformance.samples import sample_local_data, sample_table
from fedtrees.bench.evaluate import make_defense
from fedtrees.core.errors import BeyondParametersError
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.messages.boosting import LeafSums, LeafSumsRequest
from fedtrees.messages.cuts import CutsRequest, GridRequest
from fedtrees.messages.private_forests import LeafClassCounts
from fedtrees.protocols.training import train

#: Protocols and defenses in which a client or a passive party adds noise, or the arbiter does.
NOISY = [
    ("dp-gbdt[trees=3,max_depth=2,noise=distributed]", "none"),
    ("dp-gbdt[trees=3,max_depth=2,noise=distributed]", "masking[mode=ideal]"),
    ("dp-gbdt[trees=3,max_depth=2,noise=distributed]", "dp-grid-cuts[epsilon=1,cells=8]"),
    ("dp-gbdt[trees=3,max_depth=2,noise=central]", "dp-quantile-cuts[epsilon=1]"),
    ("dp-forest[trees=2,depth=3,noise=distributed]", "none"),
    ("dp-forest[trees=2,depth=3,noise=central]", "secure-sum"),
    ("dp-ebm[max_rounds=3]", "none"),
    ("fedtree-hist[trees=2,max_depth=2]", "laplace-hist[epsilon=1]"),
    ("fedtree-hist[trees=2,max_depth=2]", "laplace-gradient[epsilon=1]"),
    ("nvflare-hist[trees=2,max_depth=2]", "laplace-hist[epsilon=1]"),
    ("federboost-h[trees=2,max_depth=2]", "dp-grid-cuts[epsilon=1,cells=8]+laplace-hist[epsilon=1]"),
    ("secureboost[trees=2,max_depth=2]", "laplace-hist[epsilon=1]"),
    ("federboost-v[trees=2,max_depth=2,epsilon=1]", "none"),
    ("vertical-regression[rounds=3,statistics=public,bits=24]", "dp-gd[epsilon=1]"),
    ("fedsgd-mlp[rounds=2,units=2,batch=8,statistics=public]", "dp-sgd[epsilon=4]"),
    ("fedavg-mlp[rounds=2,units=2,batch=8]", "gradient-noise[scale=0.1]"),
    ("fedxgbllr[trees=2,max_depth=2,rounds=2,iterations=2,channels=2,batch=8]", "dp-sgd[epsilon=4]"),
]  # fmt: skip


def trained(protocol, defense="none", behaviour="", seed=3):
    """Train on the small table, where the coordinator follows a behaviour."""
    made = register.make("protocol", parse_grid(protocol)[0])
    missing = made.missing() or [n for p in parse_composed([defense])[0].parts
                                 for n in register.get("defense", p.name).needs if p.name == "dp-sgd"
                                 and not _there(n)]  # fmt: skip
    if missing:
        pytest.skip(f"needs {', '.join(missing)}, of an extra")
    held, (_, schema) = sample_local_data(made), sample_table()
    composed = make_defense(parse_composed([defense])[0])
    (driving,) = [name for name in made.roles(3) if name in ("server", "active")]
    cheats = {driving: behaviour} if behaviour else {}
    return train(
        made, held, schema, defense=composed, seed=seed, noise_from="seed", behaviours=cheats
    )


def _there(module):
    from importlib.util import find_spec

    return find_spec(module) is not None


@pytest.mark.parametrize("behaviour", ["lying-count", "asking-twice"])
@pytest.mark.parametrize(("protocol", "defense"), NOISY)
def test_requests_beyond_the_agreement_are_refused_where_parties_add_noise(
    protocol, defense, behaviour
):
    honest = trained(protocol, defense)
    cheated = trained(protocol, defense, behaviour)

    assert honest.refused == ""
    assert cheated.model is None
    assert re.match(r"\w+(\.\w+=.*)?: .*; the sender must keep to the agreement", cheated.refused)
    # What was released before is a part of what an honest run releases, and of no larger cost.
    spent = [event for event in cheated.transcript.events if event.party != "server"]
    assert all(event in honest.transcript.events for event in spent)
    assert len(spent) <= len(honest.transcript.events)
