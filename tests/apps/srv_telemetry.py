"""An application whose logs go to OpenTelemetry, by the handler of opentelemetry-sdk as it is: records are in $RECORDS."""

import json
import logging
import os

from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor


class ToFile:
    """An exporter."""

    def export(self, batch):
        with open(os.environ["RECORDS"], "a") as file:
            for each in batch:
                record = each.log_record
                entry = {
                    "body": str(record.body),
                    "severity": record.severity_text,
                    "attributes": dict(record.attributes),
                    "scope": each.instrumentation_scope.name,
                }
                print(json.dumps(entry, default=str), file=file)

    def shutdown(self):
        pass

    def force_flush(self, timeout_millis=0):
        return True


provider = LoggerProvider()
provider.add_log_record_processor(SimpleLogRecordProcessor(ToFile()))
logging.getLogger("tailrace").addHandler(LoggingHandler(level=logging.INFO, logger_provider=provider))


def broken(what):
    raise ValueError(f"asked for {what}")


def app(environ, start_response):
    if environ["PATH_INFO"] == "/fails":
        broken(environ["QUERY_STRING"])
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"told"]
