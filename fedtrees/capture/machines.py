"""Collective operations of LightGBM's machines, cut out of what crossed between them.

The bytes carry no lengths, and every operation is of a size that follows from what was before.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.links import Links
from fedtrees.capture.operations import Hop, OtherOperation
from fedtrees.trees.lightgbm.halving import gathering, scattering

_PAIR = 2  # numbers of a bin


class Machines(Links):
    """The bytes between machines."""

    def gather(self, sizes: Sequence[int]) -> list[bytes]:
        """Read blocks of such sizes that all machines get, each machine's own."""
        parts: dict[int, bytes] = {}
        for step in gathering(self.world, sum(sizes)):
            said = self.take(step.sender, step.receiver, sum(sizes[b] for b in step.blocks))
            for block in step.blocks:
                part, said = said[: sizes[block]], said[sizes[block] :]
                if parts.setdefault(block, part) != part:
                    raise OtherOperation("parts that change on their way")
        return [parts[rank] for rank in range(self.world)]

    def numbers(self, dtype: str, count: int = 1) -> NDArray[np.generic]:
        """Read as many numbers of every machine, shape (world, count)."""
        size = np.dtype(dtype).itemsize * count
        return np.frombuffer(b"".join(self.gather([size] * self.world)), dtype).reshape(-1, count)

    def scatter(self, bins: Sequence[int]) -> list[Hop]:
        """Read sums of gradients and hessians on their way to who wants so many bins of them."""
        numbers = [_PAIR * n for n in bins]
        begins, hops = [0, *accumulate(numbers)], []
        for step in scattering(self.world, 8 * sum(numbers)):
            size = sum(numbers[b] for b in step.blocks)
            said = np.frombuffer(self.take(step.sender, step.receiver, 8 * size), "<f8")
            first = begins[step.blocks[0]]
            hops.append(Hop(step.sender, (step.receiver,), first, said, step.members))
        return hops
