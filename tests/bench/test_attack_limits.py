"""An attack can leave nothing for the next attack and take nothing from the machine."""

import csv
import importlib.resources
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedtrees.conformance.samples import sample_training
from fedtrees.core.errors import DataError, ProtocolError
from fedtrees.core.registry import load_plugin, register
from fedtrees.core.specs import Spec
from fedtrees.isolation import sandbox
from fedtrees.isolation.process import AttackError, AttackProcess, attack_process
from fedtrees.protocols.views import view_of

PLUGIN = Path(__file__).parent / "plugins" / "channels.py"
needs_landlock = pytest.mark.skipif(
    not sandbox.landlock_version(), reason="this kernel has no Landlock"
)


@pytest.fixture(scope="module")
def views():
    training, local_data = sample_training(
        register.make("protocol", Spec("fedtree-hist", {"trees": 1, "max_depth": 2}))
    )
    return [view_of(training, (f"client-{number}",), local_data) for number in (0, 1)]


@pytest.fixture(autouse=True)
def plugin(tmp_path):
    file = tmp_path / "channels.py"
    file.write_text(PLUGIN.read_text())
    load_plugin(file)


def greedy(views, takes):
    return attack_process().run(Spec("greedy", {"takes": takes}), views[0]).guess


@needs_landlock
def test_an_attack_leaves_nothing_that_the_next_attack_could_read(views):
    process = AttackProcess()
    try:
        notes_before, _, notes_after = (
            process.run(Spec("channels"), views[i]).guess.notes for i in (1, 0, 1)
        )
    finally:
        process.end()
    assert notes_after == notes_before
    assert notes_before["shared"] == 0
    assert (
        notes_before["descriptors"] <= 9
    )  # Three standard streams, the channel, kernels, and four that WAYS opens or lists.


@needs_landlock
def test_every_forbidden_operation_of_the_doctor_is_refused():
    refused = attack_process().refused()
    expected = {
        "change permissions", "change owners", "change times of files", "use extended attributes",
        "watch files", "lock files", "use shared memory and queues", "use keyrings",
        "change priorities", "limit the bench", "signal the bench", "start processes",
    }  # fmt: skip
    assert expected <= refused.keys()
    assert [name for name, closed in refused.items() if not closed] == []


@pytest.mark.long
def test_each_limit_has_a_message_that_names_it(views):
    with pytest.raises(AttackError, match=r"MemoryError.*may take 8 GiB of memory.*--memory"):
        greedy(views, "memory")
    with pytest.raises(AttackError, match="a file of an attack may have 64 MiB"):
        greedy(views, "file")
    with pytest.raises(ProtocolError, match=r"an attack may return 67,108,864 \(64 MiB\)"):
        greedy(views, "reply")
    with pytest.raises(DataError, match="bytes of text; at most 16,777,216 are read"):
        greedy(views, "texts")


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is of Linux")
def test_cpu_time_ends_an_attack_whose_bench_does_not(views):
    ignored = signal.signal(signal.SIGALRM, lambda *_: None)  # as a bench that hangs
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(ProtocolError, match=r"SIGXCPU.*--time-limit"):
            greedy(views, "processor")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, ignored)


def test_the_number_of_the_bench_is_in_no_argument(views):
    assert str(os.getpid()) not in greedy(views, "arguments").notes


@pytest.mark.long
def test_output_of_an_attack_is_bounded_and_has_no_control_characters(views, tmp_path):
    code = (
        "from test_attack_limits import *\n"
        f"load_plugin({str(tmp_path / 'channels.py')!r})\n"
        "training, local_data = sample_training(register.make('protocol', Spec('fedtree-hist')))\n"
        "greedy([view_of(training, ('client-0',), local_data)], 'printed')\n"
    )
    tests = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    err = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(tests)},
    ).stderr  # fmt: skip
    assert "seen" in err
    assert "\x1b" not in err
    assert len(err) <= 2**16


WITHOUT_LANDLOCK = """
import sys
from fedtrees.experiments.options import load_plugins
from fedtrees.core.errors import UsageError
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.isolation import sandbox
from fedtrees.isolation.process import attack_process

assert sandbox.refuse_call(444)  # the call that makes a set of Landlock's rules
try:
    load_plugins([sys.argv[1]])
except UsageError as err:
    print(err)
attack_process().make(Spec("timberstrike"))  # built-in attacks run as before
load_plugins([sys.argv[1]], unprotected=True)
print(register.make("attack", Spec("greedy")).name)
"""


@pytest.mark.long
@pytest.mark.skipif(
    not sandbox.call_numbers(), reason="seccomp stands in for a kernel without Landlock"
)
def test_without_landlock_attacks_of_plugins_run_only_unprotected(tmp_path):
    lines = subprocess.run(
        [sys.executable, "-c", WITHOUT_LANDLOCK, str(tmp_path / "channels.py")],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert "Landlock" in lines[0]
    assert "--unprotected" in lines[0]
    assert lines[1:] == ["greedy"]


PASSES_ROWS_ON = """
from pathlib import Path

from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Records
from fedtrees.core.registry import register
from fedtrees.core.schema import Table

KEPT = Path(__file__).with_name("kept.bin")

@register.attack("passes-rows-on")
class PassesRowsOn(Attack):
    def run(self, view, rng):
        rows = view.rows
        if view.principals == ("client-0",):
            KEPT.write_bytes(rows.X.tobytes())
        elif KEPT.exists():
            import numpy as np
            X = np.frombuffer(KEPT.read_bytes(), np.float32).reshape(-1, rows.X.shape[1])
            rows = Table(X, np.zeros(len(X), int))
        return Guess((Records(rows),))
"""
CHECK = """
import sys
from fedtrees.conformance.checks import check
from fedtrees.experiments.options import load_plugins
from fedtrees.core.specs import Spec
from fedtrees.isolation import sandbox

assert sandbox.refuse_call(444)  # the call that makes a set of Landlock's rules: files stay open
load_plugins([sys.argv[1]], unprotected=True)
for finding in check("attack", Spec("passes-rows-on"), ["fedtree-hist"]):
    print(finding.holds, finding.rule)
"""


@pytest.mark.long
@pytest.mark.skipif(
    not sandbox.call_numbers(), reason="seccomp stands in for a kernel without Landlock"
)
def test_check_catches_an_attack_that_keeps_rows_for_the_next_threat(tmp_path):
    file = tmp_path / "passes.py"
    file.write_text(PASSES_ROWS_ON)
    output = subprocess.run(
        [sys.executable, "-c", CHECK, str(file)], capture_output=True, text=True, check=True
    ).stdout
    rule = "fedtree-hist, client: it keeps nothing from one threat to the next"
    assert f"False {rule}" in output.splitlines()


# getpid by the gate of 32-bit programs: mov eax, 20; int 0x80; ret
COMPATIBILITY = """
import ctypes, mmap, sys
from fedtrees.isolation.sandbox import close_calls

code = bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3])
page = mmap.mmap(-1, 4096, prot=7)
page.write(code)
getpid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
before = getpid()
assert close_calls()
x32 = ctypes.CDLL(None, use_errno=True).syscall(0x40000000 + 39)
print(before > 0, getpid(), x32)
"""


def test_shared_libraries_of_wheels_can_be_opened_outside_of_the_installation(
    tmp_path, monkeypatch
):
    """`pip install --user` puts them into a separate folder, and OR-tools needs them."""
    site = tmp_path / "site"
    for folder in ("ortools.libs", "ortools", "runs"):
        (site / folder).mkdir(parents=True)
    (site / "ortools" / "__init__.py").touch()
    (site / "table.csv").touch()
    monkeypatch.syspath_prepend(str(site))
    readable = {path.name for path in sandbox.code_paths() if path.parent == site}
    assert readable == {"ortools", "ortools.libs"}


def test_linked_packages_of_an_installation_can_be_opened(tmp_path, monkeypatch):
    """Landlock decides by the target of a link, and uv can install packages as links."""
    prefix, cache = tmp_path / "environment", tmp_path / "cache"
    site = prefix / "lib" / "site-packages"
    for folder in (site / "copied", cache / "linked", cache / "data"):
        folder.mkdir(parents=True)
    for package in (site / "copied", cache / "linked"):
        (package / "__init__.py").touch()
    for name in ("linked", "data"):
        (site / name).symlink_to(cache / name)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.syspath_prepend(str(site))
    # The installation itself is listed, so that only links are listed separately.
    assert {p.name for p in sandbox.code_paths() if p.parent == site} == {"linked"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the gate is x86's")
def test_calls_of_32_bit_programs_and_of_x32_are_refused():
    process = subprocess.run([sys.executable, "-c", COMPATIBILITY], capture_output=True, text=True)
    if process.returncode == -signal.SIGSEGV:
        pytest.skip("this kernel runs no 32-bit programs")
    assert process.stdout.split() == ["True", "-1", "-1"]  # EPERM, and an error


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_of_calls_are_those_of_the_kernel_s_headers(machine):
    if not HEADERS[machine].exists():
        pytest.skip(f"{HEADERS[machine]} is not installed")
    text = HEADERS[machine].read_text()
    defined = dict(re.findall(r"#define (__NR\w+)\s+(\w+)", text))
    path = importlib.resources.files("fedtrees.isolation") / "system_calls.csv"
    with path.open(newline="") as file:
        rows = {row["call"]: row[machine] for row in csv.DictReader(file)}
    assert len(rows) > 200
    for name, number in rows.items():
        value = defined.get(f"__NR_{name}")
        value = defined.get(value, value) or ""
        if value.isdigit():
            assert number == value, name
        elif number:
            assert int(number) > 440, name  # newer than the headers


def test_calls_that_change_files_or_other_processes_are_not_on_the_list():
    allowed = {*sandbox.call_numbers(sandbox.ALLOWED), *sandbox.call_numbers(sandbox.BY_ARGUMENT)}
    refused = {name for names in sandbox.refused_uses().values() for name in names}
    pattern = r"chmod|chown|utime|xattr|inotify|fanotify|file_setattr|setpriority|ioprio_set"
    assert not [name for name in allowed if re.search(pattern, name)]
    assert not allowed & refused
    assert {"fchmodat2", "file_setattr", "setxattrat", "sched_setaffinity", "execve"} <= refused
