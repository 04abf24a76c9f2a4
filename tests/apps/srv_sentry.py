"""An application that reports to Sentry, by the handlers of sentry-sdk as they are: events are lines of $EVENTS.

With $SENTRY_HANDLER alone, sentry-sdk patches nothing, and its handler is attached to the logger `tailrace`.
"""

import json
import logging
import os

import sentry_sdk
from sentry_sdk.integrations.logging import EventHandler
from sentry_sdk.transport import Transport


class ToFile(Transport):
    def capture_envelope(self, envelope):
        event = envelope.get_event()
        if event is not None:
            with open(os.environ["EVENTS"], "a") as file:
                print(json.dumps(event, default=str), file=file)


IS_PLAIN = "SENTRY_HANDLER" in os.environ
sentry_sdk.init(dsn="http://key@127.0.0.1/1", transport=ToFile, default_integrations=not IS_PLAIN)
if IS_PLAIN:
    logging.getLogger("tailrace").addHandler(EventHandler(level=logging.ERROR))


def broken(what):
    raise ValueError(f"asked for {what}")


def app(environ, start_response):
    if environ["PATH_INFO"] == "/fails":
        broken(environ["QUERY_STRING"])
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"reported"]
