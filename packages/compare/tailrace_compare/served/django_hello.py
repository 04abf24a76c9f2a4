"""The smallest Django project, with the middleware that `startproject` lists; none of it needs the database here.
Beside hello a page from a template, JSON, and an upload."""

from __future__ import annotations

from pathlib import Path

import django  # type: ignore[import-untyped,unused-ignore]
from django.conf import settings  # type: ignore[import-untyped,unused-ignore]
from django.core.wsgi import get_wsgi_application  # type: ignore[import-untyped,unused-ignore]
from django.http import HttpRequest, HttpResponse, JsonResponse  # type: ignore[import-untyped,unused-ignore]
from django.shortcuts import render  # type: ignore[import-untyped,unused-ignore]
from django.urls import path  # type: ignore[import-untyped,unused-ignore]
from django.views.decorators.csrf import csrf_exempt  # type: ignore[import-untyped,unused-ignore]

from . import called
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
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "DIRS": [Path(__file__).parent / "templates"],
        }
    ],
    DATA_UPLOAD_MAX_MEMORY_SIZE=None,
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
)


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("Hello, World!", content_type="text/plain")


ORDERS = [{"number": n, "customer": f"Customer <{n}> & Sons", "total": 19.5 * n} for n in range(1, 21)]


def page(request: HttpRequest) -> HttpResponse:
    return render(request, "django_orders.html", {"title": "Orders", "orders": ORDERS})


def orders(request: HttpRequest) -> HttpResponse:
    return JsonResponse(ORDERS, safe=False)


@csrf_exempt  # type: ignore[untyped-decorator,unused-ignore]
def upload(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(len(request.body)), content_type="text/plain")


def floor(request: HttpRequest) -> HttpResponse:
    return HttpResponse(called.microseconds(app, request.META), content_type="text/plain")


urlpatterns = [
    path("", hello),
    path("ready", hello),
    path("page", page),
    path("json", orders),
    path("upload", upload),
    path("called", floor),
]

django.setup()
app = get_wsgi_application()
closed = closing(app)
