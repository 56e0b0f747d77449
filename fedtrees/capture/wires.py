"""Which decoder reads whose bytes, and what listens where to record them."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedtrees.capture.federated import Federated
from fedtrees.capture.lightgbm import LightGBM
from fedtrees.capture.models import Models
from fedtrees.capture.operations import Ended
from fedtrees.capture.rabit import Rabit
from fedtrees.capture.rabit_relay import RabitRelay
from fedtrees.capture.records import Capture, Record, Run, Writer
from fedtrees.capture.relay import Relay
from fedtrees.core.errors import DataError, check_known
from fedtrees.core.supported import SYSTEMS, TESTED, name_versions, untested

_IDLE = 1.0  # seconds after the last connection closed, before a run is over
_PATIENCE = 120.0  # seconds for which a machine may not listen yet


class Decoder(Protocol):
    """Reads messages out of recorded bytes; iterated over once."""

    ended: Ended | None

    def __iter__(self) -> Iterator[Record]: ...


#: By name: the framework, its package, and what decodes its bytes.
WIRES: dict[str, tuple[str, str, Callable[[Iterable[Record]], Any]]] = {
    "rabit": ("XGBoost's own collective (Dask, Spark)", "xgboost", Rabit),
    "xgboost": ("XGBoost's federated server", "xgboost", Federated),
    "lightgbm": ("LightGBM's data-parallel machines", "lightgbm", LightGBM),
    "nvflare": ("NVFlare's histogram-based XGBoost", "nvflare", Federated),
    "nvflare-trees": ("NVFlare's bagging or cyclic XGBoost", "nvflare", Models),
    "flower": ("Flower's bagging or cyclic XGBoost", "flwr", Models),
}
#: Whose bytes something listens for; of the others, what is loaded within the framework writes.
LISTENED = ("rabit", "xgboost", "lightgbm")


#: Packages whose versions matter for a wire, where it is not one of `SYSTEMS`.
_PACKAGES = {"rabit": ("xgboost",), "lightgbm": ("lightgbm",), "nvflare-trees": SYSTEMS["nvflare"]}


def versions_of(wire: str) -> str:
    """Return the versions with which the decoder of a wire was tested, and what others lack."""
    packages = _PACKAGES.get(wire) or SYSTEMS.get(wire, ())
    remarks = [f" {r}." for p in packages if (r := TESTED[p].remark) and wire == "xgboost"]
    return f"{wire}: {name_versions(packages)}{''.join(remarks)}"


def record(
    wire: str,
    to: Sequence[tuple[str, int]],
    path: str | Path,
    *,
    listen: int = 0,
    host: str = "127.0.0.1",
    ready: Callable[[list[int]], None] = lambda ports: None,
) -> int:
    """Write down a run: what crosses between `listen` and `to`, until all have gone.

    Returns how many pieces crossed. Raises `DataError` as `Writer` and `Relay` do, or if nobody
    spoke.

    `to`: The tracker or server; of LightGBM, all machines. `ready`: Called with the ports that are
    listened at, one for each of them.
    """
    check_known("wire", wire, LISTENED)
    with Writer(path, Run.of(WIRES[wire][1], wire, {"host": host})) as writer:
        relay = Relay(writer, host)
        try:
            if wire == "rabit":
                ready([RabitRelay(relay, to[0], to[0][0]).listen(listen)])
            elif wire == "xgboost":
                ready([relay.door("federated", to[0], port=listen)])
            else:
                names = [f"machine:{rank}/{len(to)}" for rank in range(len(to))]
                ready(
                    [
                        relay.door(name, at, port=listen and listen + rank, patience=_PATIENCE)
                        for rank, (name, at) in enumerate(zip(names, to, strict=True))
                    ]
                )
            since = time.monotonic()
            while not writer.written or time.monotonic() - since < _IDLE:
                time.sleep(0.05)
                if relay.open:
                    since = time.monotonic()
        finally:
            relay.close()
        return writer.written


def told(wire: str, to: Sequence[tuple[str, int]], host: str, ports: list[int]) -> dict[str, Any]:
    """Return what parties are given in place of where others are.

    Of LightGBM, a list for each machine: itself where it is, all others behind doors.
    """
    if wire != "lightgbm":
        return {"listening": ports[0]}
    doors = [(host, port) for port in ports]
    lists = ([*doors[:k], to[k], *doors[k + 1 :]] for k in range(len(to)))
    return {"machines": [",".join(f"{name}:{port}" for name, port in one) for one in lists]}


class Decoded:
    """The messages of a capture, decoded as they are read.

    Iterating anew reads the file anew; `ended` is of the last time that it was read to its end.
    """

    def __init__(self, capture: Capture) -> None:
        wire = capture.told.wire
        if wire and wire not in WIRES:
            known = ", ".join(WIRES)
            raise DataError(f"{capture.path}: bytes of {wire!r}; this release decodes {known}")
        self.capture, self.ended, self._wire = capture, Ended(), wire

    def __iter__(self) -> Iterator[Record]:
        if not self._wire:
            yield from self.capture
            return
        decoder: Decoder = WIRES[self._wire][2](self.capture)
        try:
            yield from decoder
        except DataError as err:
            other = untested(self.capture.told.framework, self.capture.told.version)
            raise DataError("; ".join(filter(None, [str(err), other]))) from err
        self.ended = decoder.ended or Ended()
