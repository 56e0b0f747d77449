"""Decode the traffic between LightGBM's machines."""

import re
from collections.abc import Iterable, Iterator

from fedtrees.capture.data_parallel import DataParallel
from fedtrees.capture.machines import Machines
from fedtrees.capture.operations import Ended
from fedtrees.capture.records import Record
from fedtrees.capture.training import recorded
from fedtrees.core.errors import DataError
from fedtrees.messages.captured import WireBytes

_RANK, _MOST_MACHINES = 4, 512
_DOOR = re.compile(r"machine:(\d{1,4})/(\d{1,4})")


class LightGBM:
    """Decodes a capture of ``lightgbm``. It can be iterated over once.

    `ended` describes the end after a complete iteration. Raises `DataError` if the machines do not
    introduce themselves as those of LightGBM.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._chunks = (r.message for r in records if isinstance(r.message, WireBytes))
        self._said: dict[tuple[int, bool], bytearray] = {}
        self._ends: dict[int, tuple[int, int]] = {}  # ranks of opener and acceptor, by connection
        self._world = 0
        self._machines: Machines | None = None
        self._later = 0  # number of bytes of later trainings
        self.ended: Ended | None = None

    def __iter__(self) -> Iterator[Record]:
        machines = self._connected()
        why = yield from recorded(DataParallel(machines).messages(), machines.world)
        left = machines.left()
        later = f"{self._later:,} bytes of a later training; capture it into a run of its own"
        self.ended = Ended(left + self._later, why or later if left or self._later else "")

    def _connected(self) -> Machines:
        """Return the bytes between the machines, once all of them are connected.

        All machines of lower rank connect to a machine, and each of them first sends its rank.
        """
        for chunk in self._chunks:
            self._said.setdefault((chunk.link, chunk.opener), bytearray()).extend(
                chunk.data.tobytes()
            )
            self._introduced(chunk)
            if len(self._ends) == self._world * (self._world - 1) // 2 > 0:
                machines = self._machines = Machines(self._world, self._more)
                for (link, opener), data in self._said.items():
                    if link in self._ends:
                        ends = self._ends[link] if opener else self._ends[link][::-1]
                        machines.streams[ends] += data[_RANK:] if opener else data
                self._said.clear()
                return machines
        raise DataError(
            "the capture ends before all machines are connected with one another; let it run from "
            "before the first machine starts"
        )

    def _introduced(self, chunk: WireBytes) -> None:
        """Store the ranks of both ends of a connection, once its opener has sent its rank."""
        data = self._said[chunk.link, chunk.opener]
        if chunk.link in self._ends or not chunk.opener or len(data) < _RANK:
            return
        rank, door = int.from_bytes(data[:_RANK], "little"), _DOOR.fullmatch(chunk.door)
        if door is None or not rank < int(door[1]) < int(door[2]) <= _MOST_MACHINES:
            raise DataError(f"{chunk.door!r} is called by one of rank {rank}: no LightGBM machines")
        # Only the first connection between two machines belongs to this training.
        self._world = int(door[2])
        if (rank, int(door[1])) not in self._ends.values():
            self._ends[chunk.link] = rank, int(door[1])

    def _more(self) -> bool:
        """Append the next recorded bytes to their stream. Return False if there are none."""
        assert self._machines is not None
        for chunk in self._chunks:
            if chunk.link in self._ends:
                ends = self._ends[chunk.link]
                to = ends if chunk.opener else ends[::-1]
                self._machines.streams[to] += chunk.data.tobytes()
                return True
            self._later += chunk.data.size
        return False
