"""An application that starts a thread while it loads."""

import threading
import time

threading.Thread(target=time.sleep, args=(3600,), name="refresh-prices", daemon=True).start()


def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"Hello, World!\n"]
