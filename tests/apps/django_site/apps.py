"""Counts requests from the first on; views are imported only by the first of them."""

import threading

from django.apps import AppConfig
from django.core.signals import request_finished, request_started

counted = {"started": 0, "finished": 0}
lock = threading.Lock()


def count(name):
    """A receiver that counts its signal."""

    def receive(**_):
        with lock:
            counted[name] += 1

    return receive


class DjangoSite(AppConfig):
    """The application of the project."""

    name = "django_site"

    def ready(self):
        request_started.connect(count("started"), weak=False)
        request_finished.connect(count("finished"), weak=False)
