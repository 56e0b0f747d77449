"""Who sends whom what in LightGBM's collective operations (``src/network`` of LightGBM 4.7)."""

from collections.abc import Iterator
from dataclasses import dataclass

#: Bytes above which both operations go round a ring, where machines are no power of 2, or many.
RING_BYTES = 10 << 20


@dataclass(frozen=True)
class Step:
    """What one machine sends another within a collective operation.

    `blocks`: Whose blocks, in their order. `members`: In a sum: whose numbers are in it.
    """

    sender: int
    receiver: int
    blocks: tuple[int, ...]
    members: tuple[int, ...] = ()


def gathering(world: int, size: int = 0) -> Iterator[Step]:
    """Yield the steps by which every machine gets every machine's block.

    Recursive doubling for a power of 2, otherwise the algorithm of Bruck et al. (1997).
    """
    if size > RING_BYTES:
        for step in range(world - 1):
            for rank in range(world):
                yield Step(rank, (rank + 1) % world, ((rank - step) % world,))
        return
    held, doubling = 1, world & (world - 1) == 0
    while held < world:
        count = min(held, world - held)
        for rank in range(world):
            if doubling:
                first = rank // held * held
                yield Step(rank, rank ^ held, tuple(range(first, first + held)))
            else:
                blocks = tuple((rank + k) % world for k in range(count))
                yield Step(rank, (rank - held) % world, blocks)
        held += count


def scattering(world: int, size: int = 0) -> Iterator[Step]:
    """Yield the steps by which every machine gets the sum of its own block.

    Recursive halving. Where machines are no power of 2, the last ones go in pairs: the second hands
    the first, its leader, all it has, and gets its sum in the end (``linker_topo.cpp``).
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
    for leader, *others in groups:
        for other in others:
            yield Step(other, leader, everybody, (other,))
    summed, distance = list(groups), power // 2
    while distance:
        before = list(summed)
        for k, group in enumerate(groups):
            first = (k ^ distance) // distance * distance
            blocks = tuple(r for g in groups[first : first + distance] for r in g)
            yield Step(group[0], groups[k ^ distance][0], blocks, before[k])
            summed[k] = tuple(sorted(before[k] + before[k ^ distance]))
        distance //= 2
    for leader, *others in groups:
        for other in others:
            yield Step(leader, other, (other,), everybody)
