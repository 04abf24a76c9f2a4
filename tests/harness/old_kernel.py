"""Runs a Python program as on Linux 4.18: every later system call fails, by a filter (seccomp(2)) that its processes
inherit.

    python old_kernel.py ENOSYS -m tailrace shop:app

ENOSYS is the answer of a kernel that does not have the call, EPERM that of a container's filter which does not know it.
"""

import ctypes
import errno
import os
import struct
import sys

# `struct sock_filter` of linux/filter.h, and the instructions that are used.
INSTRUCTION = struct.Struct("HBBI")
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
# Offsets in `struct seccomp_data`.
NUMBER, ARCHITECTURE = 0, 4
ALLOW, FAIL = 0x7FFF0000, 0x00050000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# From this number on the calls of all architectures are the same, and none is older than Linux 5.1. The highest numbers
# of Linux 4.18 are lower.
FIRST = 424
CLONE3, EPOLL_PWAIT2 = 435, 441
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER = 22, 38, 2


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def prefix(fault: str) -> list[str]:
    """The arguments of Python that come before those of the program."""
    return [__file__, fault]


def instructions(machine: str, fault: int) -> list[bytes]:
    """The filter."""
    return [
        INSTRUCTION.pack(LOAD, 0, 0, ARCHITECTURE),
        INSTRUCTION.pack(EQUAL, 0, 4, ARCHITECTURES[machine]),  # else: no such call
        INSTRUCTION.pack(LOAD, 0, 0, NUMBER),
        # The C library tries the older call only where the kernel does not have this one, and filters know that.
        INSTRUCTION.pack(EQUAL, 2, 0, CLONE3),
        INSTRUCTION.pack(AT_LEAST, 2, 0, FIRST),
        INSTRUCTION.pack(RETURN, 0, 0, ALLOW),
        INSTRUCTION.pack(RETURN, 0, 0, FAIL | errno.ENOSYS),
        INSTRUCTION.pack(RETURN, 0, 0, FAIL | fault),
    ]


def install(fault: int) -> None:
    """Puts the filter into effect for this process. Raises OSError."""
    filtered = instructions(os.uname().machine, fault)
    program = Program(len(filtered), b"".join(filtered))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    for option, *rest in (PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, FILTER, ctypes.addressof(program)):
        if libc.prctl(option, *rest, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option}): {os.strerror(ctypes.get_errno())}")
    # A filter that lets this call pass would have every test pass.
    if libc.syscall(ctypes.c_long(EPOLL_PWAIT2), -1, None, 1, None, None) != -1 or ctypes.get_errno() != fault:
        raise OSError(ctypes.get_errno(), "the filter has no effect")


if __name__ == "__main__":
    install(getattr(errno, sys.argv[1]))
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
