"""Asks the database DSN for a text, once it gets a lock: /?text=T. What makes the driver cooperative is the hook's business."""

import os
from urllib.parse import parse_qs

import psycopg2


def app(environ, start_response):
    if environ["PATH_INFO"] == "/pong":
        body = b"pong"
    else:
        query = {key: values[-1] for key, values in parse_qs(environ["QUERY_STRING"]).items()}
        connection = psycopg2.connect(os.environ["DSN"])
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock_shared(1), %s", (query["text"],))
            body = cursor.fetchone()[1].encode()
        connection.close()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
