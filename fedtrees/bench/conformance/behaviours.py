"""Does a behaviour keep the rules?"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from fedtrees.bench.conformance.alike import same_transcript
from fedtrees.bench.conformance.findings import Finding
from fedtrees.bench.conformance.samples import made, sample_local_data, sample_table
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.reasons import Unfit
from fedtrees.core.transcript import PUBLIC
from fedtrees.protocols.training import Training, train


def check_behaviour(behaviour: Any, protocols: Sequence[str]) -> Iterator[Finding]:
    """Check what it says of itself, whose place it takes, and that nobody else need change."""
    told = bool(behaviour.beyond and behaviour.noticed)
    yield Finding("it says what it does beyond, and whether others notice", told)
    ran = False
    for run, _, who in cheated_runs(behaviour.name, protocols):
        ran, name = True, f"{run.protocol.name}, {who}"
        twice = cheated_runs(behaviour.name, [run.protocol.name])
        again = next(other for other, _, party in twice if party == who)
        yield Finding(f"{name}: two runs of one seed are one", same_transcript(run, again))
        sent = {type(d.message) for d in run.transcript if d.sender == who}
        other = sorted(kind.__name__ for kind in sent - {*run.protocol.says, *_released(run)})
        rule = f"{name}: it sends messages of the protocol alone"
        yield Finding(rule, not other, ", ".join(other))
    yield Finding("it takes the place of a party of at least one protocol", ran)


def cheated_runs(
    behaviour: str, protocols: Sequence[str]
) -> Iterator[tuple[Training, dict[str, LocalData], str]]:
    """Train every protocol that has a party whose place a behaviour takes; yield who cheats."""
    for name in protocols:
        protocol = made(name)
        if protocol is None:
            continue
        held, (_, schema) = sample_local_data(protocol), sample_table()
        last = {role: who for who, role in protocol.roles(3).items()}
        for who in last.values():
            cheats = {who: behaviour}
            with contextlib.suppress(Unfit):
                yield (
                    train(protocol, held, schema, seed=5, noise_from="seed", behaviours=cheats),
                    held,
                    who,
                )


def _released(run: Training) -> set[type[Message]]:
    return {type(d.message) for d in run.transcript if d.receivers == (PUBLIC,)}
