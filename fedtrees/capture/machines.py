"""Reassemble the collective operations of LightGBM's machines from the bytes between them.

The bytes contain no lengths. The size of every operation follows from the operations before it.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.links import Links
from fedtrees.capture.operations import Hop, OtherOperation
from fedtrees.trees.lightgbm.halving import gathering, scattering

_PAIR = 2  # numbers per bin: gradient and hessian


class Machines(Links):
    """The bytes between machines."""

    def gather(self, sizes: Sequence[int]) -> list[bytes]:
        """Read blocks of the given sizes, one of each machine, that all machines receive."""
        parts: dict[int, bytes] = {}
        for step in gathering(self.world, sum(sizes)):
            data = self.take(step.sender, step.receiver, sum(sizes[b] for b in step.blocks))
            # A block is sent several times, and must be the same every time. This verifies the size
            # of the operation.
            for block in step.blocks:
                part, data = data[: sizes[block]], data[sizes[block] :]
                if parts.setdefault(block, part) != part:
                    raise OtherOperation("parts that change on their way")
        return [parts[rank] for rank in range(self.world)]

    def numbers(self, dtype: str, count: int = 1) -> NDArray[np.generic]:
        """Read `count` numbers of every machine, shape (world, count)."""
        size = np.dtype(dtype).itemsize * count
        return np.frombuffer(b"".join(self.gather([size] * self.world)), dtype).reshape(-1, count)

    def scatter(self, bins: Sequence[int]) -> list[Hop]:
        """Read the sums of gradients and hessians on their way to the machine that needs each bin.

        `bins` contains the number of bins of each machine.
        """
        numbers = [_PAIR * n for n in bins]
        begins, hops = [0, *accumulate(numbers)], []
        for step in scattering(self.world, 8 * sum(numbers)):
            size = sum(numbers[b] for b in step.blocks)
            sums = np.frombuffer(self.take(step.sender, step.receiver, 8 * size), "<f8")
            first = begins[step.blocks[0]]
            hops.append(Hop(step.sender, (step.receiver,), first, sums, step.members))
        return hops
