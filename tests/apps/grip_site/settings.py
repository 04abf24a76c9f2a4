"""Settings of a project with django-eventstream and django-grip, and data in the directory that GRIP_SITE_DATA names."""

import os
from pathlib import Path

DATA = Path(os.environ["GRIP_SITE_DATA"])

SECRET_KEY = "a secret of the tests, which signs the links to more events"
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "test"]
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_eventstream"]
MIDDLEWARE = ["django_grip.GripMiddleware", "grip_site.users.by_field"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA / "db.sqlite3",
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "grip_site.urls"
USE_TZ = True

# Where the server accepts publications: it has set this, but not for the commands of manage.py.
GRIP_URL = os.environ.get("GRIP_URL")
EVENTSTREAM_STORAGE_CLASS = "django_eventstream.storage.DjangoModelStorage"
EVENTSTREAM_CHANNELMANAGER_CLASS = "grip_site.channels.Channels"
# Tracebacks are in the log of the server.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
}
