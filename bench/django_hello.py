"""The smallest Django project, with the middleware that `startproject` lists and that needs no database."""

from __future__ import annotations

import django  # type: ignore[import-untyped,unused-ignore]
from django.conf import settings  # type: ignore[import-untyped,unused-ignore]
from django.core.wsgi import get_wsgi_application  # type: ignore[import-untyped,unused-ignore]
from django.http import HttpRequest, HttpResponse  # type: ignore[import-untyped,unused-ignore]
from django.urls import path  # type: ignore[import-untyped,unused-ignore]

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    DEBUG=False,
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
    ],
    ROOT_URLCONF=__name__,
    SECRET_KEY="not a secret: this project has nothing to protect",
)


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("Hello, World!", content_type="text/plain")


urlpatterns = [path("", hello), path("ready", hello)]

django.setup()
app = get_wsgi_application()
