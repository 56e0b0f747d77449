"""Print digests of the messages, models, predictions and guesses of every protocol.

``python tests/digests.py`` prints all of them. ``python tests/digests.py fedtree-hist secureboost``
prints those of the named protocols, without attacks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from federations import sample_federation
from present import here

from fedtrees.conformance.samples import sample_local_data
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_composed, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.core.wire import encode
from fedtrees.experiments.evaluate import make_defense
from fedtrees.protocols.compatibility import check_fit
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.partition import RowPartition

EVERY = (
    "none",
    "split-only",
    "leaf-rounding[decimals=2]",
    "laplace-hist[epsilon=4]",
    "laplace-gradient[epsilon=4]",
    "secure-sum",
    "masking[mode=ideal]",
    "paillier[mode=ideal]",
    "public-cuts",
    "forced-bins",
    "grid-cuts",
    "dp-grid-cuts[epsilon=2]",
    "dp-quantile-cuts[epsilon=2]",
    "sketch-rounding",
    "hist-rounding[step=0.001]",
    "dp-gd[epsilon=4]",
    "min-bin[k=3]",
    "mask-sum-hessian",
    "min-leaf[k=3]",
    "id-lmid[xi=0.1]",
    "reduced-leakage",
    "lp-1st[epsilon=1]",
    "lp-mst[epsilon=1]",
    "grafting-ldp[epsilon=1]",
    "answer-rounding",
    "answer-noise[scale=0.1]",
    "query-limit[records=9]",
    "hide-leaf-ids",
    "decrypted-precision[bits=12]",
)
DEFENSES = here("defense", EVERY)
TREES = {"trees": 3, "max_depth": 3}
SMALL = {
    "dp-forest": {"trees": 3, "depth": 3},
    "vertical-regression": {"rounds": 3},
    "horizontal-regression": {"rounds": 3},
}
#: Defenses of networks. These are trained by torch or BLAS, whose sums are reproducible only on the
#: same processor.
OF_NETWORKS = ("dp-sgd", "gradient-noise", "gradient-rounding", "top-k")
EXACT = [
    n
    for n in register.names("protocol")
    if n != "fedxgbllr" and not register.get("protocol", n).info.extra_packages
]
ATTACKS = (
    "timberstrike[chains=2]",
    "timberstrike-published",
    "random-leaf",
    "lattice",
    "histogram-peeling",
)


def content(thing: Any) -> Iterator[bytes]:
    """Yield the arrays and numbers in a nested object as bytes."""
    if isinstance(thing, np.ndarray):
        yield f"{thing.dtype}{thing.shape}".encode() + thing.tobytes()
    elif isinstance(thing, RowPartition):
        yield thing.rows.tobytes()
    elif is_dataclass(thing):
        for item in fields(thing):
            yield from content(getattr(thing, item.name))
    elif isinstance(thing, (tuple, list)):
        for part in thing:
            yield from content(part)
    else:
        yield repr(thing).encode()


def digest(parts: Iterator[bytes]) -> str:
    """Return the hash of all parts in order."""
    combined = sha256()
    for part in parts:
        combined.update(part)
    return combined.hexdigest()


def digests(protocols: Sequence[str] = EXACT, attacks: Sequence[str] = ATTACKS) -> dict[str, str]:
    """Train every protocol with every compatible defense, and attack the undefended runs."""
    clients, schema = sample_federation()
    digest_of = {}
    for name in protocols:
        protocol = register.make("protocol", Spec(name, SMALL.get(name, TREES)))
        rows = protocol.layout == "horizontal"
        local_data = over_clients(clients) if rows else sample_local_data(protocol)
        for defense in DEFENSES:
            composed = make_defense(parse_composed([defense])[0])
            if not check_fit(protocol, composed).ok:
                continue
            run = train(protocol, local_data, schema, defense=composed, seed=5, noise_from="seed")
            key = f"{name} {defense}"
            digest_of[f"{key} messages"] = digest(encode(d.message) for d in run.transcript)
            digest_of[f"{key} model"] = digest(content(run.model))
            digest_of[f"{key} predictions"] = digest(content(run.predict(clients[0].X)))
            for text in attacks if defense == "none" else ():
                attack = register.make("attack", parse_grid(text)[0])
                view = view_of(run, (list(local_data)[-1],), local_data)
                if attack.inapplicable(view):
                    continue
                guess = attack.run(view, Streams(0).rng("attack"))
                digest_of[f"{key} {text}"] = digest(content(guess.claims))
    return digest_of


if __name__ == "__main__":
    print(json.dumps(digests(sys.argv[1:], ()) if sys.argv[1:] else digests()))
