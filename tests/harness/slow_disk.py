"""A disk as slow as a test wants it: a library, loaded before libc, in which operations on temporary files wait.

The library is built with cc and sees what goes through libc: making a temporary file, writing and closing it.
Whether an operation waits or fails is told by files of the control folder, which also show who waits.
"""

import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int told(const char *name, char *path, size_t size) {
    const char *folder = getenv("SLOW_DISK");
    if (!folder) return 0;
    snprintf(path, size, "%s/%s", folder, name);
    return syscall(SYS_access, path, F_OK) == 0;
}

/* Waits as long as the disk takes; -1 with errno when it fails. */
static int operate(void) {
    char path[512], own[512], name[64];
    if (told("delay", path, sizeof path)) usleep(1000000);
    snprintf(name, sizeof name, "waiting.%ld", (long)syscall(SYS_gettid));
    if (told("hold", path, sizeof path)) {
        told(name, own, sizeof own);
        int (*plain_close)(int) = dlsym(RTLD_NEXT, "close");
        plain_close(syscall(SYS_openat, AT_FDCWD, own, O_CREAT | O_WRONLY, 0600));
        while (told("hold", path, sizeof path)) usleep(2000);
        syscall(SYS_unlinkat, AT_FDCWD, own, 0);
    }
    if (told("full", path, sizeof path)) { errno = ENOSPC; return -1; }
    return 0;
}

/* What has no name any more in the temporary folder. */
static int temporary(int fd) {
    char link[64], path[512];
    const char *folder = getenv("TMPDIR");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    return folder && length > (ssize_t)strlen(folder) && strncmp(path, folder, strlen(folder)) == 0;
}

int open64(const char *path, int flags, ...) {
    va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list);
    int (*plain)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
    const char *folder = getenv("TMPDIR");
    int ours = (flags & O_TMPFILE) == O_TMPFILE && folder && strcmp(folder, path) == 0;
    if (ours && operate() < 0) return -1;
    return plain(path, flags, mode);
}

ssize_t write(int fd, const void *bytes, size_t count) {
    ssize_t (*plain)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    if (temporary(fd) && operate() < 0) return -1;
    return plain(fd, bytes, count);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) {
    ssize_t (*plain)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    if (temporary(fd) && operate() < 0) return -1;
    return plain(fd, bytes, count, offset);
}

int close(int fd) {
    int (*plain)(int) = dlsym(RTLD_NEXT, "close");
    if (temporary(fd)) operate();
    return plain(fd);
}
"""


class SlowDisk:
    """The temporary folder of a server whose environment is `environment`, and its slowness."""

    def __init__(self, folder: Path) -> None:
        self.control = folder / "control"
        self.control.mkdir()
        temporary = folder / "temporary"
        temporary.mkdir()
        library = folder / "slow_disk.so"
        command = ["cc", "-shared", "-fPIC", "-O1", "-w", "-x", "c", "-", "-o", str(library), "-ldl"]
        subprocess.run(command, input=SOURCE.encode(), check=True)
        self.environment = {"LD_PRELOAD": str(library), "SLOW_DISK": str(self.control), "TMPDIR": str(temporary)}

    def set(self, state: str, is_on: bool) -> None:
        """`hold`: every operation waits until it is off. `delay`: each takes a second. `full`: each fails."""
        path = self.control / state
        if is_on:
            path.touch()
        else:
            path.unlink(missing_ok=True)

    def waiting(self) -> int:
        """Operations that wait for `hold` to be off."""
        return len(list(self.control.glob("waiting.*")))
