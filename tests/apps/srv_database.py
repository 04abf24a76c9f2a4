"""Asks a database for a text: /?port=P&text=T. What makes the driver cooperative is the hook's business."""

from urllib.parse import parse_qs

import psycopg2


def app(environ, start_response):
    if environ["PATH_INFO"] == "/pong":
        body = b"pong"
    else:
        query = {key: values[-1] for key, values in parse_qs(environ["QUERY_STRING"]).items()}
        connection = psycopg2.connect(
            host="127.0.0.1", port=query["port"], user="test", dbname="test", sslmode="disable", gssencmode="disable"
        )
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s", (query["text"],))
            body = cursor.fetchone()[0].encode()
        connection.close()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
