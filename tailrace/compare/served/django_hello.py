"""The smallest Django project, with the middleware that `startproject` lists; none of it needs the database here."""

from __future__ import annotations

import django  # type: ignore[import-untyped,unused-ignore]
from django.conf import settings  # type: ignore[import-untyped,unused-ignore]
from django.core.wsgi import get_wsgi_application  # type: ignore[import-untyped,unused-ignore]
from django.http import HttpRequest, HttpResponse  # type: ignore[import-untyped,unused-ignore]
from django.urls import path  # type: ignore[import-untyped,unused-ignore]

from .closing import closing

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    DEBUG=False,
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
        "django.contrib.messages",
    ],
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
    ],
    ROOT_URLCONF=__name__,
    SECRET_KEY="not a secret: this project has nothing to protect",
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
)


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("Hello, World!", content_type="text/plain")


urlpatterns = [path("", hello), path("ready", hello)]

django.setup()
app = get_wsgi_application()
closed = closing(app)
