"""The wires: which decoder reads the bytes of which framework, and which relay records them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedtrees.capture.collective import Decoding, Ended
from fedtrees.capture.lightgbm import decode_lightgbm
from fedtrees.capture.models import decode_models
from fedtrees.capture.records import Capture, Record, Run, Writer
from fedtrees.capture.relay import RabitRelay, Relay
from fedtrees.capture.xgboost_server import decode_server
from fedtrees.capture.xgboost_training import decode_rabit
from fedtrees.core.errors import DataError, check_known
from fedtrees.core.supported import SYSTEMS, TESTED, name_versions, untested

_IDLE = 1.0  # seconds without an open connection after which a run is considered finished
_PATIENCE = 120.0  # seconds to wait until a machine of LightGBM listens


#: By name: the framework, its package, and the decoder of its bytes.
WIRES: dict[str, tuple[str, str, Callable[[Iterable[Record]], Decoding]]] = {
    "rabit": ("XGBoost's own collective (Dask, Spark)", "xgboost", decode_rabit),
    "xgboost": ("XGBoost's federated server", "xgboost", decode_server),
    "lightgbm": ("LightGBM's data-parallel machines", "lightgbm", decode_lightgbm),
    "nvflare": ("NVFlare's histogram-based XGBoost", "nvflare", decode_server),
    "nvflare-trees": ("NVFlare's bagging or cyclic XGBoost", "nvflare", decode_models),
    "flower": ("Flower's bagging or cyclic XGBoost", "flwr", decode_models),
}
#: Wires that a relay records. For the remaining ones, a plug-in within the framework records.
LISTENED = ("rabit", "xgboost", "lightgbm")


#: Packages whose versions matter for a wire that is not in `SYSTEMS`.
_PACKAGES = {"rabit": ("xgboost",), "lightgbm": ("lightgbm",), "nvflare-trees": SYSTEMS["nvflare"]}


def versions_of(wire: str) -> str:
    """Return the versions with which the decoder of a wire was tested, with remarks."""
    packages = _PACKAGES.get(wire) or SYSTEMS.get(wire, ())
    remarks = [f" {r}." for p in packages if (r := TESTED[p].remark) and wire == "xgboost"]
    return f"{wire}: {name_versions(packages)}{''.join(remarks)}"


def record(
    wire: str,
    addresses: Sequence[tuple[str, int]],
    path: str | Path,
    *,
    listen: int = 0,
    host: str = "127.0.0.1",
    ready: Callable[[list[int]], None] = lambda ports: None,
) -> int:
    """Record all bytes between the relay and the real endpoints, until all connections closed.

    The parties of the framework may start at any time. The function therefore waits for the first
    bytes without a limit. It ends if they cannot be recorded.

    Parameters
    ----------
    wire : str
        One of `LISTENED`.
    addresses : sequence of (str, int)
        Host and port of the tracker or server. For LightGBM, of all machines.
    path : str or Path
        The capture.
    listen : int
        First port of the relay, 0 for any free port.
    host : str
        Address at which the relay listens.
    ready : callable
        Called with the list of the ports that the relay listens at.

    Returns
    -------
    written : int
        Number of recorded pieces.

    Raises
    ------
    DataError
        If the capture cannot be written, or a port is in use (`Writer`, `Relay`).
    """
    check_known("wire", wire, LISTENED)
    with Writer(path, Run.of(WIRES[wire][1], wire, {"host": host})) as writer:
        relay = Relay(writer, host)
        try:
            if wire == "rabit":
                ready([RabitRelay(relay, addresses[0], addresses[0][0]).listen(listen)])
            elif wire == "xgboost":
                ready([relay.door("federated", addresses[0], port=listen)])
            else:
                names = [f"machine:{rank}/{len(addresses)}" for rank in range(len(addresses))]
                ready(
                    [
                        relay.door(name, at, port=listen and listen + rank, patience=_PATIENCE)
                        for rank, (name, at) in enumerate(zip(names, addresses, strict=True))
                    ]
                )
            since = time.monotonic()
            while not (writer.written or relay.failed) or time.monotonic() - since < _IDLE:
                time.sleep(0.05)
                if relay.open:
                    since = time.monotonic()
        finally:
            relay.close()
        return writer.written


def relay_addresses(
    wire: str, addresses: Sequence[tuple[str, int]], host: str, ports: list[int]
) -> dict[str, Any]:
    """Return the addresses that the parties need in place of the real ones.

    Parameters
    ----------
    wire : str
        One of `LISTENED`.
    addresses : sequence of (str, int)
        The real addresses.
    host : str
        Address at which the relay listens.
    ports : list of int
        Ports of the relay.

    Returns
    -------
    addresses : dict of str to object
        For LightGBM, ``machines`` contains a list for each machine. It consists of the real address
        of this machine and the relay's addresses of all remaining machines.
    """
    if wire != "lightgbm":
        return {"listening": ports[0]}
    doors = [(host, port) for port in ports]
    lists = ([*doors[:k], addresses[k], *doors[k + 1 :]] for k in range(len(addresses)))
    return {"machines": [",".join(f"{name}:{port}" for name, port in one) for one in lists]}


class Decoded:
    """The messages of a capture, decoded while they are read.

    Each iteration reads the file again. `ended` describes the end of the latest complete iteration.
    """

    def __init__(self, capture: Capture) -> None:
        wire = capture.run_facts.wire
        if wire and wire not in WIRES:
            supported = ", ".join(WIRES)
            raise DataError(f"{capture.path}: bytes of {wire!r}; this release decodes {supported}")
        self.capture, self.ended, self._wire = capture, Ended(), wire

    def __iter__(self) -> Iterator[Record]:
        if not self._wire:
            yield from self.capture
            return
        try:
            self.ended = yield from WIRES[self._wire][2](self.capture)
        except DataError as err:
            other = untested(self.capture.run_facts.framework, self.capture.run_facts.version)
            raise DataError("; ".join(filter(None, [str(err), other]))) from err
