"""Which calls to the kernel a process gives up for the rest of its life: seccomp, of Linux.

No sockets, so no network and no service of this machine; no memory, queues or keys that others
could find by a number; no way into another process.
"""

import ctypes
import platform
import struct
import sys

# linux/audit.h's number of each architecture, and its numbers of the calls.
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBERS = {
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200),
    "io_uring_setup": (425, 425),  # it opens sockets without `socket`
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "open_by_handle_at": (304, 265), "perf_event_open": (298, 241),
    "bpf": (321, 280), "userfaultfd": (323, 282), "setns": (308, 268), "mount": (165, 40),
}  # fmt: skip

# From linux/bpf_common.h, linux/seccomp.h and linux/prctl.h.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOWED, _REFUSED = 0x7FFF0000, 0x00050001  # the second as EPERM
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_X32 = 0x40000000  # calls of a second table on x86_64 begin here
_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38


def close_calls() -> bool:
    """Be refused those calls from here on, with EPERM; tell whether that holds."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _ARCHITECTURES:
        return False
    column = list(_ARCHITECTURES).index(machine)
    program = _program(_ARCHITECTURES[machine], [pair[column] for pair in _NUMBERS.values()])
    held = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a length, padding, a pointer
    whole = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    return int(libc.prctl(_SET_SECCOMP, _FILTER, whole, 0, 0)) == 0


def _program(architecture: int, numbers: list[int]) -> bytes:
    """Assemble the filter: what is of another architecture, or listed, is refused."""
    left = len(numbers)  # comparisons that follow, each of which may jump to the end
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 0, left + 3, architecture),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_AT_LEAST, left + 1, 0, _X32),
        *((_IF_EQUAL, left - i, 0, number) for i, number in enumerate(numbers)),
        (_RETURN, 0, 0, _ALLOWED),
        (_RETURN, 0, 0, _REFUSED),
    ]
    return b"".join(struct.pack("HBBI", *line) for line in lines)
