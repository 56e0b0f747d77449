"""Under a secure sum nothing sealed can be reached, nobody else opens the total, bytes are real."""

from collections import Counter
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, ProtocolError
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import Sealed, has_sealed_field, seal_sums
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.core.transcript import PUBLIC, Transcript
from fedtrees.core.wire import decode, encode, encoded_size
from fedtrees.messages.forests import ClassCounts, ClassTotals, ForestModel
from fedtrees.messages.horizontal import Histogram
from fedtrees.messages.models import BoostedModel
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

KINDS = {
    "fedtree-hist": (Histogram,),
    "nvflare-hist": (Histogram,),
    "forest-hist": (ClassTotals, ClassCounts),
}


def sums_of(message):
    return [getattr(message, f.name) for f in fields(message) if f.metadata.get("summed")]


def run(name, *defenses):
    tables, schema = sample_federation(rows=90)
    protocol = register.make("protocol", Spec(name, {"trees": 2, "max_depth": 2, "max_bin": 8}))
    parts = tuple(register.make("defense", Spec(d)) for d in defenses)
    held = over_clients(tables)
    return train(protocol, held, schema, defense=Composition(parts), seed=1), held


@pytest.fixture(scope="module", params=sorted(KINDS))
def pair(request):
    """The same training without a defense and under secure sums."""
    plain, held = run(request.param)
    return request.param, plain, run(request.param, "secure-sum")[0], held


def test_a_secure_sum_costs_the_bytes_of_what_crosses_and_no_more(pair):
    _, plain, summed, _ = pair
    assert summed.transcript.traffic() == plain.transcript.traffic()
    assert sum(plain.transcript.traffic().values()) > 0


def test_every_byte_is_sent_by_a_party_that_exists(pair):
    name, plain, summed, held = pair
    for done in (plain, summed):
        parties = {"server", *held}
        sent = Counter()
        for d in done.transcript:
            assert d.sender in parties
            assert set(d.receivers) <= parties | {PUBLIC}
            if d.sender in d.receivers:
                assert d.nbytes == 0
            elif d.receivers != (PUBLIC,):
                assert d.nbytes == encoded_size(d.message)
                sent["down" if d.sender == "server" else "up"] += d.nbytes * len(d.receivers)
        traffic = Counter()
        for (way, _), size in done.transcript.traffic().items():
            traffic[way] += size
        assert traffic == sent
    down = {kind for way, kind in summed.transcript.traffic() if way == "down"}
    assert not down & {kind.__name__ for kind in KINDS[name]}


def test_the_released_model_is_told_last_and_is_no_traffic(pair):
    name, plain, _, held = pair
    last = plain.transcript.deliveries[-1]
    assert (last.sender, last.receivers) == ("server", (PUBLIC,))
    assert type(last.message) is (ForestModel if name == "forest-hist" else BoostedModel)
    assert not any(kind.endswith("Model") for _, kind in plain.transcript.traffic())
    (seen,) = view_of(plain, (PUBLIC,), held).seen
    assert seen.message is last.message


def test_the_server_opens_totals_and_nobody_else_has_them(pair):
    name, plain, summed, held = pair
    server = view_of(summed, ("server",), held)
    opened = [s for s in server.seen if s.opened]
    assert {type(s.message) for s in opened} >= set(KINDS[name])
    assert not any(has_sealed_field(s.message) for s in opened)
    for kind in KINDS[name]:
        totals = [sums_of(s.message) for s in opened if type(s.message) is kind]
        single = [sums_of(m) for _, m in view_of(plain, ("server",), held).messages(kind)]
        assert len(single) == len(held) * len(totals) > 0
        for i, total in enumerate(totals):
            parts = single[len(held) * i : len(held) * (i + 1)]
            for j, array in enumerate(total):
                np.testing.assert_array_equal(array, np.sum([p[j] for p in parts], axis=0))
    for other in (*held, PUBLIC):
        seen = view_of(summed, (other,), held).seen
        assert not any(s.opened for s in seen)
        others = [s.message for s in seen if s.sender != other]
        assert not any(type(m) in KINDS[name] and not has_sealed_field(m) for m in others)
        own = [s.message for s in seen if s.sender == other and type(s.message) in KINDS[name]]
        assert (len(own) > 0) == (other in held)
        assert not any(map(has_sealed_field, own))  # what it put in itself
    every = view_of(summed, tuple(held), held).seen
    assert not any(s.opened for s in every)  # all clients together open none either


def walk(thing, seen):
    """Yield whatever can be reached from something through fields, containers and closures."""
    if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type, type(None))):
        return
    seen[id(thing)] = thing
    yield thing
    if isinstance(thing, dict):
        inside = [*thing, *thing.values()]
    elif isinstance(thing, (list, tuple, set, frozenset)):
        inside = list(thing)
    else:
        inside = list(getattr(thing, "__dict__", {}).values())
        inside += [getattr(thing, f.name) for f in fields(thing)] if is_dataclass(thing) else []
        inside += [c.cell_contents for c in getattr(thing, "__closure__", None) or ()]
        inside += [getattr(thing, "base", None), getattr(thing, "__self__", None)]
    for item in inside:
        yield from walk(item, seen)


def test_nothing_sealed_can_be_reached_from_a_view(pair):
    name, plain, summed, held = pair
    alone = [d for d in plain.transcript if type(d.message) in KINDS[name] and d.sender in held]
    by = {d.sender: set() for d in alone}
    for d in alone:
        by[d.sender] |= {array.tobytes() for array in sums_of(d.message) if np.any(array)}
    secret = set().union(*by.values())
    assert secret
    reached = {bytes(t) for t in walk(view_of(plain, ("server",), held), {}) if arrays(t)}
    assert secret <= reached  # the walk finds them where they are open
    for who in ("server", "client-0", PUBLIC):
        found = list(walk(view_of(summed, (who,), held), {}))
        own = by.get(who, set())  # what it put in itself
        assert not (secret - own) & {bytes(t) for t in found if arrays(t)}
        inside = [t for t in found if isinstance(t, Sealed)]
        assert len(inside) > 0 or who != "server"
        assert all(s.payload == b"" and s.keyholders == () for s in inside)


def arrays(thing):
    return isinstance(thing, np.ndarray) and thing.dtype == np.int64


def test_sealed_fields_survive_the_codec_and_the_transcript_file(pair, tmp_path):
    _, _, summed, _ = pair
    hidden = [d for d in summed.transcript if has_sealed_field(d.message)]
    for d in hidden:
        back = decode(encode(d.message))
        for f in fields(d.message):
            if isinstance(getattr(d.message, f.name), Sealed):
                assert getattr(back, f.name) == getattr(d.message, f.name)
    path = tmp_path / "run.npz"
    summed.transcript.save(path)
    again = Transcript.load(path)
    assert [has_sealed_field(d.message) for d in again] == [
        has_sealed_field(d.message) for d in summed.transcript
    ]
    assert again.traffic() == summed.transcript.traffic()
    assert again.acted == summed.transcript.acted == {0}
    assert again.coordinator == "server"


def test_a_sealed_value_with_a_payload_comes_back_whole():
    message = Histogram(
        0,
        np.zeros(1, np.int32),
        Sealed(("server", "arbiter"), (1, 3, 2), "<i8", 7, b"\x00cipher"),
        np.zeros((1, 2), np.int64),
    )
    back = decode(encode(message))
    assert back.sums == message.sums
    assert has_sealed_field(back)
    with pytest.raises(DataError):
        decode(encode(message)[:-40])


def test_sealing_hides_what_is_summed_and_counts_as_much():
    open_one = Histogram(
        2, np.arange(3, dtype=np.int32), np.ones((3, 5, 2), np.int64), np.ones((3, 2), np.int64)
    )
    hidden = seal_sums(open_one, "server")
    assert not has_sealed_field(open_one)
    assert has_sealed_field(hidden)
    assert hidden.sums == Sealed(("server",), (3, 5, 2), "<i8", 240)
    assert hidden.totals == Sealed(("server",), (3, 2), "<i8", 48)
    assert hidden.nodes.tolist() == [0, 1, 2]
    assert encoded_size(hidden) == encoded_size(open_one) == len(encode(open_one))
    with pytest.raises(ProtocolError, match="is a list"):
        Histogram(0, np.zeros(1, np.int32), [1, 2], np.zeros((1, 2), np.int64))
