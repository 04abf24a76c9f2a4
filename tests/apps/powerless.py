"""The echo application, for whose process permissions of files count also if it runs as root."""

import ctypes
import struct

from echo import app

__all__ = ["app"]

DAC_OVERRIDE, DAC_READ_SEARCH = 1, 2
HEADER = struct.pack("Ii", 0x20080522, 0)

libc = ctypes.CDLL(None, use_errno=True)
data = ctypes.create_string_buffer(24)
if libc.capget(HEADER, data) != 0:
    raise OSError(ctypes.get_errno(), "capget")
words = list(struct.unpack("6I", data.raw[:24]))
words[0] &= ~(1 << DAC_OVERRIDE | 1 << DAC_READ_SEARCH)
if libc.capset(HEADER, struct.pack("6I", *words)) != 0:
    raise OSError(ctypes.get_errno(), "capset")
