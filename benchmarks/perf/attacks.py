"""Measure TimberStrike on a bundled table and on the published ones, in CPU seconds."""

import time
from collections.abc import Iterator

from fedtrees.benchmarks.perf.measure import FULL, Line, Size
from fedtrees.core.errors import DataError
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.experiments.federation import federation_of
from fedtrees.experiments.plan import FederationConfig
from fedtrees.experiments.suite import DataRef
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

# Upper limit in CPU seconds, by table.
TARGETS = {"breast-cancer": None, "pima": 10.0, "stroke": 60.0}
CLIENTS = 5


def lines(size: Size = FULL, data_dir: str | None = None) -> Iterator[Line]:
    """Attack 100 trees, with all trees and with the number of trees that the attack chooses."""
    iid, any_protocol = Spec("iid"), register.make("protocol", Spec("fedtree-hist"))
    for name, target in size.cases(list(TARGETS.items())):
        try:
            setting = FederationConfig.of(DataRef(name), iid, CLIENTS, 0, any_protocol)
            federation = federation_of(setting, data_dir)
        except DataError as err:
            yield Line(f"TimberStrike, {name}", "not run", str(err))
            continue
        for depth in size.cases((3, 6)):
            for protocol in ("fedtree-hist", "nvflare-hist"):
                spec = Spec(protocol, {"trees": size.trees(100), "max_depth": depth, "max_bin": 32})
                protocol_object = register.make("protocol", spec)
                run = train(protocol_object, federation.local_data, federation.schema)
                view = view_of(run, (f"client-{CLIENTS - 1}",), federation.local_data)
                for attack in ("timberstrike", "timberstrike[max_trees=100]"):
                    yield _attack(name, attack, spec, view, target)


def _attack(name: str, attack: str, spec: Spec, view, target: float | None) -> Line:  # type: ignore[no-untyped-def]
    """Return the line of one attack, measured after a warm-up run."""
    attack_object = register.make("attack", parse_grid(attack)[0])
    attack_object.run(view, Streams(0).rng("warm-up"))
    started = time.process_time()
    attack_object.run(view, Streams(0).rng("attack"))
    seconds = time.process_time() - started
    what = f"{attack} on {name}, {spec}"
    goal = () if target is None else ("", f"<= {target:g} s", seconds <= target)
    return Line(what, f"{seconds:.1f} s", *goal)
