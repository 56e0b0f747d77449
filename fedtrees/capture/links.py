"""What members of a run sent one another directly, each read up to some place."""

from collections.abc import Callable

from fedtrees.capture.operations import CutOff, OtherOperation, Reader

#: Bytes at most that one member sends another within one operation.
MOST_BYTES = 128 << 20


class Links(Reader):
    """The bytes between members, each read up to some place.

    `world`: Number of members.
    `more`: Fetches more bytes into `streams`; returns False where there are none.
    """

    central = False

    def __init__(self, world: int, more: Callable[[], bool]) -> None:
        self.world, self._more = world, more
        self.streams = {(i, j): bytearray() for i in range(world) for j in range(world) if i != j}
        self._at = dict.fromkeys(self.streams, 0)

    def forget(self) -> None:
        """Drop the bytes that were read: nothing goes back beyond this place."""
        for link, at in self._at.items():
            del self.streams[link][:at]
            self._at[link] = 0

    def left(self) -> int:
        """Return how many bytes were not read, of all there are."""
        while self._more():
            pass
        return sum(len(s) - self._at[link] for link, s in self.streams.items())

    def ended(self) -> bool:
        """Return whether everything was read."""
        return not self.left()

    def take(self, sender: int, receiver: int, size: int) -> bytes:
        """Read what a member sends another; raises `OtherOperation` where it does not."""
        if not 0 <= size <= MOST_BYTES:
            raise OtherOperation(f"{size} bytes at once")
        link = sender, receiver
        begin = self._at[link]
        while len(self.streams[link]) < begin + size:
            if not self._more():
                raise CutOff("the capture ends")
        self._at[link] = begin + size
        return bytes(self.streams[link][begin : begin + size])
