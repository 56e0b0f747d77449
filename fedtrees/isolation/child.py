"""The process that attacks run in: started afresh, so that it has never held truth.

It loads attacks, never runs one: for every view it forks, the copy answers and ends, and nothing
that an attack leaves behind in its process is there for the next one. Where there is no fork, it
answers one view and ends. Before a copy loads any attack that is not built in, it gives up the disk
and the network.
"""

import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.attack import Attack
from fedtrees.core.errors import FedtreesError, ProtocolError
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import load_plugin, register
from fedtrees.core.specs import Spec
from fedtrees.core.view import View
from fedtrees.isolation import disk, guesses, kernels, views
from fedtrees.isolation.calls import close_calls
from fedtrees.isolation.channel import Channel, Closed
from fedtrees.isolation.described import described, facts_of
from fedtrees.isolation.probe import probed
from fedtrees.isolation.shield import (
    adopt_descendants,
    close_for_good,
    end_children,
    end_with_parent,
)
from fedtrees.isolation.watch import watching

MOST_TEXT = 20_000  # characters of an error that are passed on
_CLOSED = (
    "; an attack opens installed code, its own file and the empty folder it works in, and no "
    "sockets"
)
# Messages that come whole; where there are none, nothing is closed and nothing asked for.
_WHOLE = getattr(socket, "SOCK_SEQPACKET", 1) if sys.platform == "linux" else socket.SOCK_STREAM


def main() -> None:
    """Serve the process that started this one: over the socket it names, or once over the pipes."""
    where, parent = sys.argv[1], int(sys.argv[2])
    register.attacks_here = True
    close_for_good()
    if where == "once":
        channel = _pipes()
        _in_empty_folder(lambda: answer(channel))
        return
    signal.signal(signal.SIGALRM, lambda *_: _end_after(parent))
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
    adopt_descendants()
    control = socket.socket(fileno=int(where))
    while wanted := _next(control):
        order, fd = wanted
        with suppress(FedtreesError, ImportError):  # others' are for the copy to load
            load(
                order
                | {"attacks": [a for a in order["attacks"] if register.is_ours("attack", a[0])]}
            )
        kernels.prepare()
        _readable()
        control.sendall(b"%d\n" % _serve(control, fd))


def load(order: Mapping[str, Any]) -> None:
    """Load what attacks on a view need: plugins, and the modules that define its messages."""
    for file, digest in order.get("plugins", ()):
        load_plugin(file, digest)
    for name in order["modules"]:
        import_module(name)
    for name, _ in order["attacks"]:
        register.get("attack", name)


def load_loose(order: Mapping[str, Any]) -> None:
    """Load the plugins that came before one that is asked about; what fails was told of then."""
    for file, digest in order["plugins"]:
        with suppress(FedtreesError):
            load_plugin(file, digest)


def answer(channel: Channel, compiled: Callable[[bytes], bool] = lambda _: False) -> None:
    """Answer one request; `compiled` has a kernel compiled outside, where machine code is kept."""

    def ask(X: NDArray[np.float32], ids: NDArray[np.int64] | None = None) -> NDArray[Any]:
        channel.send({"ask": X} if ids is None else {"ask": X, "ids": ids})
        said = channel.receive()
        if "error" in said:
            raise ProtocolError(said["error"])
        return said["answers"]  # type: ignore[no-any-return]

    try:
        order = channel.receive()
        _shut_in(order, compiled)
        if "probe" in order:
            channel.send({"refused": probed(**order["probe"])})
            return
        if "file" in order:
            load_loose(order)
            file, digest = order["file"]
            channel.send(described(file, digest, bool(order["bait"])))
            return
        load(order)
        if "installed" in order:
            channel.send({"facts": facts_of(str(order["installed"]))})
            return
        if "make" in order:
            for spec in order["attacks"]:
                register.make("attack", Spec(*spec))
            channel.send({"made": True})
            return
        view = views.view_of(channel.receive(views.types()), ask)
        reply = _guess(order, view) if "randomness" in order else _reasons(order, view)
    except BaseException as err:
        reply = _failure(err)
    try:
        channel.send(reply)
    except Closed:
        raise
    except Exception as err:  # what it returned cannot be packed
        channel.send(_failure(err))


@cache
def _readable() -> tuple[Path, ...]:
    return *disk.code(), *kernels.folders()


def _shut_in(order: Mapping[str, Any], compiled: Callable[[bytes], bool]) -> None:
    """Give up, before an attack's code runs, the disk but for code and this folder, and sockets.

    Of a plugin its file is left, not the folder that it is in: a run may be in the same.
    """
    files = [file for file, _ in order.get("plugins", ())] + [*order.get("file", ())][:1]
    if disk.close_disk((*_readable(), *files), (os.getcwd(),)):
        kernels.only_read(compiled)
    close_calls()


def _guess(order: Mapping[str, Any], view: View) -> dict[str, Any]:
    (spec,) = order["attacks"]
    attack: Attack = register.make("attack", Spec(*spec))
    reason = None if order["anyway"] else _told(attack.inapplicable(view))
    if reason:
        return {"inapplicable": reason}
    touched: list[str] | None = [] if order["watch"] else None
    wall, cpu = time.perf_counter(), time.process_time()
    with watching(touched):
        guess = attack.run(view, views.generator(order["randomness"]))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    told = guesses.told(guess, attack.name, order["claims"])
    return {"guess": told, "wall": wall, "cpu": cpu, "touched": tuple(touched or ())}


def _reasons(order: Mapping[str, Any], view: View) -> dict[str, Any]:
    asked: list[Attack] = [register.make("attack", Spec(*spec)) for spec in order["attacks"]]
    return {"reasons": tuple(_told(attack.inapplicable(view)) for attack in asked)}


def _told(reason: Any) -> tuple[str, dict[str, Any]] | None:
    """Return a reason as a value; a text is one that has no code."""
    if isinstance(reason, Reason):
        return reason.code, dict(reason.args)
    return ("other", {"text": str(reason)}) if reason else None


def _failure(err: BaseException) -> dict[str, Any]:
    kinds = [k.__name__ for k in type(err).__mro__ if k.__module__ == FedtreesError.__module__]
    known = kinds[0] if kinds else ""
    text = str(err) if known else f"{type(err).__name__}: {err}"
    if PermissionError in (type(err), type(err.__cause__)):
        text += _CLOSED
    trace = "" if known else "".join(traceback.format_exception(err))
    return {"failed": known, "text": text[:MOST_TEXT], "traceback": trace[-MOST_TEXT:]}


def _next(control: socket.socket) -> tuple[dict[str, Any], int] | None:
    """Wait for an order and the end of a channel that comes with it; None when there is no more."""
    text, fds, _, _ = socket.recv_fds(control, 1 << 16, 1)
    while text and not text.endswith(b"\n"):
        text += control.recv(1 << 16)
    return (json.loads(text), fds[0]) if text else None


def _serve(control: socket.socket, fd: int) -> int:
    """Let a copy of this process answer; return how it ended, when nothing of it is left."""
    folder = tempfile.mkdtemp(prefix="fedtrees-")
    ours, theirs = socket.socketpair(type=_WHOLE)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _answer_and_exit(control, fd, folder, theirs)
    os.close(fd)
    theirs.close()
    with ours:
        status = os.waitstatus_to_exitcode(_compile_until_it_ends(pid, ours))
    end_children()
    shutil.rmtree(folder, ignore_errors=True)
    return status


def _compile_until_it_ends(pid: int, orders: socket.socket) -> int:
    """Compile the kernels that a copy asks for; return its status."""
    while True:
        asked, _, _ = select.select([orders], [], [], 0.5)
        if not asked:  # it may have ended and left a process that still could ask
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
            continue
        with suppress(OSError):
            if order := orders.recv(kernels.MOST_ORDER):
                orders.send(b"y" if kernels.compiled(order) else b"n")
                continue
        return os.waitpid(pid, 0)[1]


def _answer_and_exit(
    control: socket.socket, fd: int, folder: str, orders: socket.socket
) -> NoReturn:
    def compiled(order: bytes) -> bool:
        orders.send(order)
        return orders.recv(1) == b"y"

    status = 1
    try:
        end_with_parent()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        control.close()
        _work_in(folder)
        with socket.socket(fileno=fd) as ours:
            answer(Channel(ours.makefile("rb"), ours.makefile("wb")), compiled)
        status = 0
    except Closed:  # whoever asked is gone
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _work_in(folder: str) -> None:
    os.chdir(folder)
    tempfile.tempdir = os.environ["TMPDIR"] = folder


def _in_empty_folder(work: Any) -> None:
    here = os.getcwd()
    folder = tempfile.mkdtemp(prefix="fedtrees-")
    try:
        _work_in(folder)
        work()
    finally:
        os.chdir(here)
        shutil.rmtree(folder, ignore_errors=True)


def _pipes() -> Channel:
    """Take the two pipes away from what an attack may print or read."""
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return Channel(os.fdopen(reading, "rb"), os.fdopen(writing, "wb"))


def _end_after(parent: int) -> None:
    if os.getppid() != parent:
        os.killpg(0, signal.SIGKILL)
