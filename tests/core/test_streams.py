import gc

import numpy as np

from fedtrees.core.streams import Streams


def draws(streams, purpose="noise", *index):
    return streams.rng(purpose, *index).integers(0, 2**32, 4).tolist()


def test_a_draw_depends_on_names_only():
    a = Streams(7).child("client-0")
    first = draws(a)
    draws(Streams(7).child("client-1"))
    assert draws(Streams(7).child("client-0")) == first


def test_different_names_seeds_and_rounds_differ():
    every = [
        draws(Streams(7).child("a")),
        draws(Streams(8).child("a")),
        draws(Streams(7).child("b")),
        draws(Streams(7).child("a"), "split"),
        draws(Streams(7).child("a"), "noise", 1),
        draws(Streams(7).child("a", "noise"), "noise"),
    ]
    assert len(set(map(tuple, every))) == len(every)


def test_a_child_does_not_contain_the_seed():
    child = Streams(7).child("client-0")
    referents = gc.get_referents(child)
    assert not any(
        isinstance(referent, (int, np.integer)) and referent == 7 for referent in referents
    )
    assert not hasattr(child, "seed")
    assert not hasattr(child, "__dict__")


def test_noise_of_a_seed_has_a_separate_root():
    """Public tests and partitions of a seed never change, and the noise is independent of them."""
    streams = Streams(7, "seed")
    assert draws(streams.noise.child("a")) == draws(Streams(7, "seed").child("a").noise)
    roots = {id(stream): gc.get_referents(stream)[0] for stream in (streams, streams.noise)}
    assert len(set(roots.values())) == 2
    assert draws(streams.noise) != draws(streams)
    first = [3656402131, 2073928857, 2758917606, 662158119]
    assert draws(Streams(7).child("client-0"), "columns", 3) == first
