"""The server's own log: the loggers `penstock` and `penstock.error`, and the handler that the command line gives them.

A program that embeds Penstock configures logging itself; nothing here touches its loggers.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

logger: Final = logging.getLogger("penstock")
# The core logs here: exceptions of the application, responses that broke, what it had to refuse to start.
error_logger: Final = logging.getLogger("penstock.error")


def to_stderr(level: str) -> None:
    """Sends the log to standard error, from this level up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter("%(asctime)s penstock[%(process)d] %(levelname)s: %(message)s", "%Y-%m-%dT%H:%M:%S%z")
    )
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    # An application that configures the root logger must not make each line appear twice.
    logger.propagate = False


def revive() -> None:
    """Undoes what `logging.config.dictConfig` does by default to loggers that existed before: it disables them."""
    logger.disabled = False
    error_logger.disabled = False
