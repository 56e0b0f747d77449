"""Under a secure sum, sealed values are unreachable, and only the server opens totals."""

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
    local_data = over_clients(tables)
    return train(protocol, local_data, schema, defense=Composition(parts), seed=1), local_data


@pytest.fixture(scope="module", params=sorted(KINDS))
def pair(request):
    """Return the same training without a defense and under secure sums."""
    plain, local_data = run(request.param)
    return request.param, plain, run(request.param, "secure-sum")[0], local_data


def test_a_secure_sum_sends_as_many_bytes_as_the_undefended_run(pair):
    _, plain, summed, _ = pair
    assert summed.transcript.traffic() == plain.transcript.traffic()
    assert sum(plain.transcript.traffic().values()) > 0


def test_every_byte_is_sent_by_an_existing_party(pair):
    name, plain, summed, local_data = pair
    for training in (plain, summed):
        parties = {"server", *local_data}
        n_bytes = Counter()
        for delivery in training.transcript:
            assert delivery.sender in parties
            assert set(delivery.receivers) <= parties | {PUBLIC}
            if delivery.sender in delivery.receivers:
                assert delivery.nbytes == 0
            elif delivery.receivers != (PUBLIC,):
                assert delivery.nbytes == encoded_size(delivery.message)
                n_bytes["down" if delivery.sender == "server" else "up"] += delivery.nbytes * len(
                    delivery.receivers
                )
        traffic = Counter()
        for (direction, _), size in training.transcript.traffic().items():
            traffic[direction] += size
        assert traffic == n_bytes
    down = {kind for direction, kind in summed.transcript.traffic() if direction == "down"}
    assert not down & {kind.__name__ for kind in KINDS[name]}


def test_the_released_model_is_the_last_message_and_no_traffic(pair):
    name, plain, _, local_data = pair
    last_delivery = plain.transcript.deliveries[-1]
    assert (last_delivery.sender, last_delivery.receivers) == ("server", (PUBLIC,))
    assert type(last_delivery.message) is (ForestModel if name == "forest-hist" else BoostedModel)
    assert not any(kind.endswith("Model") for _, kind in plain.transcript.traffic())
    (item,) = view_of(plain, (PUBLIC,), local_data).seen
    assert item.message is last_delivery.message


def test_only_the_server_opens_totals(pair):
    name, plain, summed, local_data = pair
    server = view_of(summed, ("server",), local_data)
    opened_items = [item for item in server.seen if item.opened]
    assert {type(item.message) for item in opened_items} >= set(KINDS[name])
    assert not any(has_sealed_field(item.message) for item in opened_items)
    for message_type in KINDS[name]:
        totals = [
            sums_of(item.message) for item in opened_items if type(item.message) is message_type
        ]
        sums_of_clients = [
            sums_of(message)
            for _, message in view_of(plain, ("server",), local_data).messages(message_type)
        ]
        assert len(sums_of_clients) == len(local_data) * len(totals) > 0
        for number, total in enumerate(totals):
            parts = sums_of_clients[len(local_data) * number : len(local_data) * (number + 1)]
            for field_number, array in enumerate(total):
                np.testing.assert_array_equal(
                    array, np.sum([part[field_number] for part in parts], axis=0)
                )
    for other in (*local_data, PUBLIC):
        items = view_of(summed, (other,), local_data).seen
        assert not any(item.opened for item in items)
        other_messages = [item.message for item in items if item.sender != other]
        assert not any(
            type(message) in KINDS[name] and not has_sealed_field(message)
            for message in other_messages
        )
        own_messages = [
            item.message
            for item in items
            if item.sender == other and type(item.message) in KINDS[name]
        ]
        assert (len(own_messages) > 0) == (other in local_data)
        assert not any(map(has_sealed_field, own_messages))  # its own contributions
    joint_items = view_of(summed, tuple(local_data), local_data).seen
    # All clients together cannot open a total either.
    assert not any(item.opened for item in joint_items)


def walk(root, visited):
    """Yield all objects that can be reached through fields, containers and closures."""
    if id(root) in visited or isinstance(root, (str, bytes, int, float, type, type(None))):
        return
    visited[id(root)] = root
    yield root
    if isinstance(root, dict):
        children = [*root, *root.values()]
    elif isinstance(root, (list, tuple, set, frozenset)):
        children = list(root)
    else:
        children = list(getattr(root, "__dict__", {}).values())
        children += (
            [getattr(root, field.name) for field in fields(root)] if is_dataclass(root) else []
        )
        children += [cell.cell_contents for cell in getattr(root, "__closure__", None) or ()]
        children += [getattr(root, "base", None), getattr(root, "__self__", None)]
    for item in children:
        yield from walk(item, visited)


def test_nothing_sealed_can_be_reached_from_a_view(pair):
    name, plain, summed, local_data = pair
    client_deliveries = [
        delivery
        for delivery in plain.transcript
        if type(delivery.message) in KINDS[name] and delivery.sender in local_data
    ]
    secrets_by_sender = {delivery.sender: set() for delivery in client_deliveries}
    for delivery in client_deliveries:
        secrets_by_sender[delivery.sender] |= {
            array.tobytes() for array in sums_of(delivery.message) if np.any(array)
        }
    secret = set().union(*secrets_by_sender.values())
    assert secret
    reached = {bytes(t) for t in walk(view_of(plain, ("server",), local_data), {}) if arrays(t)}
    assert secret <= reached  # The search finds them if they are not sealed.
    for party in ("server", "client-0", PUBLIC):
        reachable = list(walk(view_of(summed, (party,), local_data), {}))
        own_secrets = secrets_by_sender.get(party, set())  # its own contributions
        assert not (secret - own_secrets) & {bytes(t) for t in reachable if arrays(t)}
        seals = [t for t in reachable if isinstance(t, Sealed)]
        assert len(seals) > 0 or party != "server"
        assert all(seal.payload == b"" and seal.keyholders == () for seal in seals)


def arrays(thing):
    return isinstance(thing, np.ndarray) and thing.dtype == np.int64


def test_sealed_fields_survive_the_codec_and_the_transcript_file(pair, tmp_path):
    _, _, summed, _ = pair
    sealed_deliveries = [
        delivery for delivery in summed.transcript if has_sealed_field(delivery.message)
    ]
    for delivery in sealed_deliveries:
        decoded = decode(encode(delivery.message))
        for field in fields(delivery.message):
            if isinstance(getattr(delivery.message, field.name), Sealed):
                assert getattr(decoded, field.name) == getattr(delivery.message, field.name)
    path = tmp_path / "run.npz"
    summed.transcript.save(path)
    loaded = Transcript.load(path)
    assert [has_sealed_field(delivery.message) for delivery in loaded] == [
        has_sealed_field(delivery.message) for delivery in summed.transcript
    ]
    assert loaded.traffic() == summed.transcript.traffic()
    assert loaded.acted == summed.transcript.acted == {0}
    assert loaded.coordinator == "server"


def test_a_sealed_value_with_a_payload_survives_the_codec():
    message = Histogram(
        0,
        np.zeros(1, np.int32),
        Sealed(("server", "arbiter"), (1, 3, 2), "<i8", 7, b"\x00cipher"),
        np.zeros((1, 2), np.int64),
    )
    decoded = decode(encode(message))
    assert decoded.sums == message.sums
    assert has_sealed_field(decoded)
    with pytest.raises(DataError):
        decode(encode(message)[:-40])


def test_sealing_hides_summable_fields_and_keeps_the_encoded_size():
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
