"""The server's own log: loggers, entry formats, `--log-config`, and the functions of `tailrace.on_delivery`."""
