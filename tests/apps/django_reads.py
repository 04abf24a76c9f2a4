"""Reports how many bytes of a body Django reads, and whether the request has a Content-Length."""

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="-", MIDDLEWARE=[])
django.setup()


def length(request):
    return HttpResponse(f"{len(request.body)} {'CONTENT_LENGTH' in request.META}")


urlpatterns = [path("", length)]
application = get_wsgi_application()
