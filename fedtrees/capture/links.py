"""The bytes that the members of a run sent one another directly, each read up to a position."""

from collections.abc import Callable

from fedtrees.capture.operations import CutOff, OtherOperation, Reader

#: Largest number of bytes that one member sends another within one operation.
MOST_BYTES = 128 << 20


class Links(Reader):
    """The bytes between members, each read up to a position.

    Parameters
    ----------
    world : int
        Number of members.
    more : callable
        Appends more bytes to `streams`. It returns False if there are none.
    """

    central = False

    def __init__(self, world: int, more: Callable[[], bool]) -> None:
        self.world, self._more = world, more
        self.streams = {(i, j): bytearray() for i in range(world) for j in range(world) if i != j}
        self._at = dict.fromkeys(self.streams, 0)

    def forget(self) -> None:
        """Delete the bytes that were read, so that the reader cannot return to them."""
        for link, at in self._at.items():
            del self.streams[link][:at]
            self._at[link] = 0

    def left(self) -> int:
        """Return the number of bytes that were not read, after fetching all bytes."""
        while self._more():
            pass
        return sum(len(s) - self._at[link] for link, s in self.streams.items())

    def ended(self) -> bool:
        """Return whether all bytes were read."""
        return not self.left()

    def take(self, sender: int, receiver: int, size: int) -> bytes:
        """Read the bytes that a member sends another.

        Raises `OtherOperation` if the size is impossible, and `CutOff` if the capture ends before.
        """
        if not 0 <= size <= MOST_BYTES:
            raise OtherOperation(f"{size} bytes at once")
        link = sender, receiver
        begin = self._at[link]
        while len(self.streams[link]) < begin + size:
            if not self._more():
                raise CutOff("the capture ends")
        # The bytes remain in the stream until `forget`, because an operation may be tried again.
        self._at[link] = begin + size
        return bytes(self.streams[link][begin : begin + size])
