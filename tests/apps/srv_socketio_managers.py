"""python-socketio without a framework: two servers with a channel each, for clients below /shop/ and /blog/.

`/emit/shop?data=...` emits to the clients of one of them, `&size=N` instead so many letters; the answer has the process.
"""

import os
import sys
import urllib.parse

import socketio

from tailrace.socketio import Manager

MODE = "gevent" if "gevent.monkey" in sys.modules else "threading"
shop, blog = (socketio.Server(async_mode=MODE, client_manager=Manager(name)) for name in ("shop", "blog"))


for each in (shop, blog):
    each.on("pid", lambda sid: os.getpid())


def emit(environ, start_response):
    query = dict(urllib.parse.parse_qsl(environ["QUERY_STRING"]))
    to = {"/emit/shop": shop, "/emit/blog": blog}[environ["PATH_INFO"]]
    to.emit("news", "x" * int(query["size"]) if "size" in query else query["data"])
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]


application = socketio.WSGIApp(
    shop, socketio.WSGIApp(blog, emit, socketio_path="blog/socket.io"), socketio_path="shop/socket.io"
)
