"""Messages of LightGBM's collective operations (``src/network`` of LightGBM 4.7).

The functions return which machine sends which data to which machine, so that the knowledge of each
machine can be derived.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: Number of bytes above which both operations use a ring, unless the number of machines is a power
#: of 2 (`scattering`).
RING_BYTES = 10 << 20


@dataclass(frozen=True)
class Step:
    """Data that one machine sends to another one within a collective operation.

    Attributes
    ----------
    sender, receiver : int
        Numbers of the machines.
    blocks : tuple of int
        Machines to which the sent blocks belong, in their order.
    members : tuple of int
        For a sum, the machines whose numbers it contains.
    """

    sender: int
    receiver: int
    blocks: tuple[int, ...]
    members: tuple[int, ...] = ()


def gathering(world: int, size: int = 0) -> Iterator[Step]:
    """Yield the steps by which every machine receives the block of every machine.

    The algorithm is recursive doubling if the number of machines is a power of 2, otherwise that of
    Bruck et al. (1997).
    """
    if size > RING_BYTES:
        for step in range(world - 1):
            for rank in range(world):
                yield Step(rank, (rank + 1) % world, ((rank - step) % world,))
        return
    n_blocks, doubling = 1, world & (world - 1) == 0
    while n_blocks < world:
        count = min(n_blocks, world - n_blocks)
        for rank in range(world):
            if doubling:
                first = rank // n_blocks * n_blocks
                yield Step(rank, rank ^ n_blocks, tuple(range(first, first + n_blocks)))
            else:
                blocks = tuple((rank + k) % world for k in range(count))
                yield Step(rank, (rank - n_blocks) % world, blocks)
        n_blocks += count


def scattering(world: int, size: int = 0) -> Iterator[Step]:
    """Yield the steps by which every machine receives the sum of its block.

    The algorithm is recursive halving. If the number of machines is not a power of 2, the last ones
    form pairs: the second machine of a pair sends all its numbers to the first, its leader, and
    receives its sum at the end (``linker_topo.cpp``).
    """
    power = 1 << (world.bit_length() - 1)
    if size >= RING_BYTES and power != world:
        for step in range(1, world):
            for rank in range(world):
                block = (rank - step) % world
                whose = tuple(sorted((rank - k) % world for k in range(step)))
                yield Step(rank, (rank + 1) % world, (block,), whose)
        return
    single = world - 2 * (world - power)
    groups: list[tuple[int, ...]] = [(r,) for r in range(single)] + [
        (r, r + 1) for r in range(single, world, 2)
    ]
    everybody = tuple(range(world))
    for leader, *followers in groups:
        for follower in followers:
            yield Step(follower, leader, everybody, (follower,))
    summed, distance = list(groups), power // 2
    while distance:
        before = list(summed)
        for k, group in enumerate(groups):
            first = (k ^ distance) // distance * distance
            blocks = tuple(r for g in groups[first : first + distance] for r in g)
            yield Step(group[0], groups[k ^ distance][0], blocks, before[k])
            summed[k] = tuple(sorted(before[k] + before[k ^ distance]))
        distance //= 2
    for leader, *followers in groups:
        for follower in followers:
            yield Step(leader, follower, (follower,), everybody)
