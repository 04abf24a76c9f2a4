"""The folders of static files, and the access log: found from the directory of the application, and checked before a
server serves."""

from __future__ import annotations

import os
import stat
from dataclasses import replace

from tailrace.cli.server_settings import ServerSettings
from tailrace.errors import ConfigError
from tailrace.logs import log


def located(settings: ServerSettings, directory: str | None = None) -> ServerSettings:
    """The settings with absolute paths of folders of files and of the access log: the application may change the
    current directory.

    directory: what relative ones are relative to; None: the current directory. A symbolic link in it is kept: a
    deployment changes it. Raises ConfigError for what is no folder, and for options that need one or exclude each
    other.
    """
    static = tuple(
        (prefix, _located(folder, directory, f"--static {prefix or '/'}={folder}"))
        for prefix, folder in settings.static
    )
    overlay = settings.overlay and _located(settings.overlay, directory, f"--overlay {settings.overlay}")
    if overlay and any(not prefix for prefix, _ in static):
        raise ConfigError("--static / and --overlay both serve every path; remove one")
    for status, file in settings.static_fallback:
        flag = f"--static-fallback {status}={file}"
        if not static:
            raise ConfigError(f"{flag}: the file must be in a --static folder; add one, as in --static /=./dist")
        if not any(os.path.isfile(os.path.join(folder, file)) for _, folder in static):
            raise ConfigError(
                f"{flag}: no --static folder contains this file ({', '.join(folder for _, folder in static)}); "
                "give its path relative to the folder"
            )
    named = tuple(
        (
            prefix,
            _located(folder, directory, f"--sendfile-root {'' if prefix is None else (prefix or '/') + '='}{folder}"),
        )
        for prefix, folder in settings.sendfile_root
    )
    access_log = settings.access_log and log.located(settings.access_log, directory)
    return replace(settings, static=static, overlay=overlay, sendfile_root=named, access_log=access_log)


def _located(folder: str, directory: str | None, option: str) -> str:
    """The folder by a name from the root. Raises ConfigError."""
    path = os.path.join(os.getcwd() if directory is None and not os.path.isabs(folder) else directory or "", folder)
    if ".." not in path.split("/"):
        # Removes what is superfluous. With `..` the result may be another directory, if there are symbolic links.
        path = os.path.normpath(path)
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        raise ConfigError(f"{option}: the folder {path} does not exist; create it, or name another") from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{option}: {path} cannot be used: {getattr(error, 'strerror', error)}; name a folder that this user can "
            "enter"
        ) from None
    if not is_folder:
        raise ConfigError(f"{option}: {path} is not a folder; name the folder that contains the files")
    if not os.access(path, os.X_OK):
        raise ConfigError(f"{option}: this user cannot enter {path}; grant access, or name another folder")
    return path
