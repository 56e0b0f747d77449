"""The process in which attacks run. It is a fresh interpreter, which never contained the truth.

The process loads built-in attacks and runs none. For every view it forks. The copy receives the
view, runs the attack, sends the guess and ends, so that nothing that an attack stores in its memory
is there for the next one. Before a copy loads an attack that is not built in, it gives up the disk
(`fedtrees.isolation.sandbox`) and all system calls that an attack does not need
(`fedtrees.isolation.sandbox`), and limits its memory, files and CPU time
(`fedtrees.isolation.sandbox`). On systems without fork, each view gets a fresh interpreter.
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
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.attack import Attack
from fedtrees.core.errors import FedtreesError, ProtocolError, UsageError, describe_error
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import FormerNameWarning, load_plugin, register
from fedtrees.core.repeated import elsewhere
from fedtrees.core.specs import Spec
from fedtrees.core.view import View
from fedtrees.isolation import kernels, sandbox, transfer
from fedtrees.isolation.sandbox import (
    adopt_descendants,
    close_calls,
    close_for_good,
    end_children,
    end_with_parent,
    probed,
)
from fedtrees.isolation.transfer import MOST_BYTES, Closed, ValuePipe
from fedtrees.isolation.watch import describe_plugin, facts_of, record_access

MOST_TEXT = 20_000  # characters of an error message that are passed on
MOST_OUTPUT = 2**16  # bytes of an attack's output that are passed on
_CLOSED = (
    "; an attack may open installed code, its own file and the empty folder that it works in. It "
    "opens no sockets and starts no processes"
)
_UNPROTECTED = (
    "attacks of plug-ins are not run here: this system cannot keep them from the files of the user "
    "and from other processes (that takes Linux 5.13 or newer with Landlock and seccomp). Add "
    "--unprotected to run them without this protection"
)
# Sockets that preserve message borders. Systems without them have no Landlock either, so that no
# kernel is requested from a copy.
_WHOLE = getattr(socket, "SOCK_SEQPACKET", 1) if sys.platform == "linux" else socket.SOCK_STREAM


def main() -> None:
    """Serve the bench that started this process, over a socket, or a single time over pipes."""
    where, parent = sys.argv[1], os.getppid()
    register.imports.attacks_here = True
    # The bench has already announced a former name to the user.
    warnings.simplefilter("ignore", FormerNameWarning)
    close_for_good()
    if where == "once":
        channel = _pipes()
        _in_empty_folder(lambda: answer(channel))
        return
    # The timer detects that the bench was killed: this process then has another parent.
    signal.signal(signal.SIGALRM, lambda *_: _end_after(parent))
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
    adopt_descendants()
    control = socket.socket(fileno=int(where))
    while received := _next(control):
        order, fd = received
        built_in = [a for a in order["attacks"] if register.is_ours("attack", a[0])]
        with suppress(FedtreesError, ImportError):  # the copy loads attacks of plug-ins
            load(order | {"attacks": built_in})
        kernels.prepare()
        _readable()
        control.sendall(b"%d\n" % _serve(control, fd, bool(order["trusted"])))


def load(order: Mapping[str, Any]) -> None:
    """Load the plug-ins and modules that attacks on a view need."""
    for file, digest in order.get("plugins", ()):
        load_plugin(file, digest)
    for name in order["modules"]:
        import_module(name)
    for name, _ in order["attacks"]:
        register.get("attack", name)


def load_loose(order: Mapping[str, Any]) -> None:
    """Load the plug-ins that were loaded before a file that is described.

    Errors are ignored here.
    """
    for file, digest in order["plugins"]:
        with suppress(FedtreesError):
            load_plugin(file, digest)


def answer(channel: ValuePipe, compiled: Callable[[bytes], bool] = lambda _: False) -> None:
    """Answer one request.

    `compiled` lets another process compile a kernel, if the cache lacks it.
    """

    def ask(X: NDArray[np.float32], ids: NDArray[np.int64] | None = None) -> NDArray[Any]:
        channel.send({"ask": X} if ids is None else {"ask": X, "ids": ids}, MOST_BYTES)
        reply_to_query = channel.receive()
        if "error" in reply_to_query:
            raise ProtocolError(reply_to_query["error"])
        return reply_to_query["answers"]  # type: ignore[no-any-return]

    def compute(request: Mapping[str, Any]) -> Mapping[str, Any]:
        channel.send(request, MOST_BYTES)
        reply: Mapping[str, Any] = channel.receive(transfer.view_types())
        return reply

    try:
        order = channel.receive()
        _shut_in(order, compiled)
        if order["trusted"]:  # the bench computes nothing for attacks of plug-ins
            elsewhere.ask = compute
        reply = _reply_to(order, channel, ask)
    except BaseException as err:
        reply = _failure(err)
    try:
        channel.send(reply, MOST_BYTES)
    except Closed:
        raise
    except Exception as err:  # the returned value cannot be packed or is too large
        channel.send(_failure(err))


def _reply_to(
    order: Mapping[str, Any], channel: ValuePipe, ask: Callable[..., Any]
) -> dict[str, Any]:
    """Return the reply to an order: a probe, a description, an attack, a guess or reasons."""
    if "probe" in order:
        return {"refused": probed(**order["probe"])}
    if "file" in order:
        load_loose(order)
        file, digest = order["file"]
        return describe_plugin(file, digest, bool(order["bait"]))
    load(order)
    if "installed" in order:
        return {"facts": facts_of(str(order["installed"]))}
    if "make" in order:
        for spec in order["attacks"]:
            register.make("attack", Spec(*spec))
        return {"made": True}
    view = transfer.view_of(channel.receive(transfer.view_types()), ask)
    return _guess(order, view) if "randomness" in order else _reasons(order, view)


@cache
def _readable() -> tuple[Path, ...]:
    """Return the paths that every attack may open."""
    return *sandbox.code_paths(), *kernels.folders()


def _shut_in(order: Mapping[str, Any], compiled: Callable[[bytes], bool]) -> None:
    """Give up the disk, most system calls and most resources before code of an attack runs.

    The process can open installed code, the empty folder in which it works, and the files of
    plug-ins, but not the folders of these files, because a run may be in the same folder. Only
    built-in attacks may have kernels compiled by another process: otherwise the next attack could
    see which kernels were compiled.

    Raises
    ------
    UsageError
        If the order runs code of a plug-in and this system has no Landlock or no seccomp, unless
        the user asked to run it unprotected.
    """
    trusted = bool(order["trusted"])
    files = [file for file, _ in order.get("plugins", ())] + [*order.get("file", ())][:1]
    closed = sandbox.close_disk((*_readable(), *files), (os.getcwd(),))
    if closed:
        kernels.only_read(compiled if trusted else lambda _: False)
    sandbox.limit_resources(float(order["seconds"]))
    closed = close_calls() and closed
    if not (closed or trusted or order["unprotected"]):
        raise UsageError(_UNPROTECTED)


def _guess(order: Mapping[str, Any], view: View) -> dict[str, Any]:
    """Run one attack on a view and return its guess, or why it does not apply."""
    (spec,) = order["attacks"]
    attack: Attack = register.make("attack", Spec(*spec))
    reason = None if order["anyway"] else _reason_as_values(attack.inapplicable(view))
    if reason:
        return {"inapplicable": reason}
    touched: list[str] | None = [] if order["watch"] else None
    wall, cpu = time.perf_counter(), time.process_time()
    with record_access(touched):
        guess = attack.run(view, transfer.generator(order["randomness"]))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu + elsewhere.cpu_seconds
    guess_value = transfer.guess_as_value(guess, attack.name, order["claims"])
    return {"guess": guess_value, "wall": wall, "cpu": cpu, "touched": tuple(touched or ())}


def _reasons(order: Mapping[str, Any], view: View) -> dict[str, Any]:
    """Return why attacks do not apply to a view."""
    made_attacks: list[Attack] = [register.make("attack", Spec(*spec)) for spec in order["attacks"]]
    return {
        "reasons": tuple(_reason_as_values(attack.inapplicable(view)) for attack in made_attacks)
    }


def _reason_as_values(reason: Any) -> tuple[str, dict[str, Any]] | None:
    """Return a reason as a value. A text is a reason without a code."""
    if isinstance(reason, Reason):
        return reason.code, dict(reason.args)
    return ("other", {"text": str(reason)}) if reason else None


def _failure(err: BaseException) -> dict[str, Any]:
    """Return an exception as a value."""
    kinds = [k.__name__ for k in type(err).__mro__ if k.__module__ == FedtreesError.__module__]
    error_class = kinds[0] if kinds else ""
    text = str(err) if error_class else describe_error(err)
    text += sandbox.explain_limit(err)
    if PermissionError in (type(err), type(err.__cause__)):
        text += _CLOSED
    trace = "" if error_class else "".join(traceback.format_exception(err))
    return {"failed": error_class, "text": text[:MOST_TEXT], "traceback": trace[-MOST_TEXT:]}


def _next(control: socket.socket) -> tuple[dict[str, Any], int] | None:
    """Wait for an order and the channel that comes with it. None if the bench has ended."""
    text, fds, _, _ = socket.recv_fds(control, 1 << 16, 1)
    while text and not text.endswith(b"\n"):
        text += control.recv(1 << 16)
    return (json.loads(text), fds[0]) if text else None


def _serve(control: socket.socket, fd: int, trusted: bool) -> int:
    """Let a copy of this process answer.

    Return its exit status after all its processes have ended.

    Parameters
    ----------
    control : socket.socket
        Socket to the bench.
    fd : int
        Descriptor of the channel to the bench.
    trusted : bool
        Whether the copy runs built-in attacks only. Then it may ask for compiled kernels.
    """
    folder = tempfile.mkdtemp(prefix="fedtrees-")
    near_end, far_end = socket.socketpair(type=_WHOLE)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer_and_exit(fd, folder, far_end, writing)
    for end in (fd, writing):
        os.close(end)
    far_end.close()
    try:
        with near_end:
            status = os.waitstatus_to_exitcode(_attend(pid, near_end, reading, trusted))
    finally:
        os.close(reading)
    end_children()
    with suppress(RecursionError):  # thousands of nested folders
        shutil.rmtree(folder, ignore_errors=True)
    return status


def _attend(pid: int, orders: socket.socket, reading: int, trusted: bool) -> int:
    """Compile the kernels that a copy requests, and print its output. Return its wait status."""
    watched, printed = [orders.fileno(), reading], 0
    while watched:
        ready, _, _ = select.select(watched, [], [], 0.5)
        if not ready:  # the copy may have ended and left a process that has the pipe open
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
        if reading in ready:
            size = _print_from(reading, MOST_OUTPUT - printed)
            printed += size
            if not size:
                watched.remove(reading)
        if orders.fileno() in ready and not _compile_for(orders, trusted):
            watched.remove(orders.fileno())
    return os.waitpid(pid, 0)[1]


def _compile_for(orders: socket.socket, trusted: bool) -> bool:
    """Compile a kernel that a copy requests, and return whether it may request more."""
    order = b""
    with suppress(OSError):
        order = orders.recv(kernels.MOST_ORDER)
        if order:
            orders.send(b"y" if trusted and kernels.compiled(order) else b"n")
    return bool(order)


def _print_from(reading: int, max_bytes: int) -> int:
    """Print text from a pipe to stderr, without control characters.

    Return the number of bytes read.
    """
    blob = os.read(reading, 4096)
    text = blob[: max(0, max_bytes)].decode(errors="replace")
    with suppress(OSError):
        sys.stderr.write("".join(c for c in text if c.isprintable() or c in "\n\t"))
        sys.stderr.flush()
    return len(blob)


def _answer_and_exit(fd: int, folder: str, orders: socket.socket, writing: int) -> NoReturn:
    """Answer one request in a copy of this process, and exit."""

    def compiled(order: bytes) -> bool:
        orders.send(order)
        return orders.recv(1) == b"y"

    status = 1
    try:
        end_with_parent()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        _keep_descriptors(fd, orders.fileno(), writing)
        _work_in(folder)
        with socket.socket(fileno=fd) as channel_socket:
            answer(
                ValuePipe(channel_socket.makefile("rb"), channel_socket.makefile("wb")), compiled
            )
        status = 0
    except Closed:  # the bench has ended
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _keep_descriptors(fd: int, orders: int, writing: int) -> None:
    """Close all descriptors but these, redirect output to a pipe, and input to an empty file.

    A descriptor that two copies inherit has one position and one set of flags for both. Through
    these, one attack could leave data for the next one.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (writing, 1), (writing, 2)):
        os.dup2(old, new)
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):
            if int(name) not in (0, 1, 2, fd, orders):
                with suppress(OSError):  # the descriptor of the listing is already closed
                    os.close(int(name))


def _work_in(folder: str) -> None:
    """Use a folder as working folder and for temporary files."""
    os.chdir(folder)
    tempfile.tempdir = os.environ["TMPDIR"] = folder


def _in_empty_folder(work: Any) -> None:
    """Call a function in an empty folder, and remove the folder afterwards."""
    here = os.getcwd()
    folder = tempfile.mkdtemp(prefix="fedtrees-")
    try:
        _work_in(folder)
        work()
    finally:
        os.chdir(here)
        shutil.rmtree(folder, ignore_errors=True)


def _pipes() -> ValuePipe:
    """Return the channel over the two pipes, and separate them from the attack's output."""
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return ValuePipe(os.fdopen(reading, "rb"), os.fdopen(writing, "wb"))


def _end_after(parent: int) -> None:
    """End this process and its copies if the bench has ended."""
    if os.getppid() != parent:
        os.killpg(0, signal.SIGKILL)
