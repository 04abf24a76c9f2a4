"""Views that a framework's own features need a good server for."""

from django.db.models import F
from django.http import FileResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt

from django_site import apps
from django_site.models import Seed


def visits(request):
    """Counts in the session, which lives in the database."""
    request.session["visits"] = request.session.get("visits", 0) + 1
    return JsonResponse({"visits": request.session["visits"], "ip": request.META["REMOTE_ADDR"]})


def signals(request):
    """How many requests have begun and ended: Django learns of the end when the server calls close()."""
    return JsonResponse(apps.counted)


@csrf_exempt
def sell(request, name):
    """A write, of which many may be under way."""
    Seed.objects.filter(name=name).update(sold=F("sold") + int(request.POST["count"]))
    return JsonResponse({"sold": Seed.objects.get(name=name).sold})


def export(request):
    """A stream with a query in it."""
    seeds = Seed.objects.order_by("name").values_list("name", "price")
    return StreamingHttpResponse((f"{name};{price}\n" for name, price in seeds.iterator()), content_type="text/csv")


def picture(request, name):
    """A file, through wsgi.file_wrapper."""
    return FileResponse(get_object_or_404(Seed, name=name).picture.open("rb"), as_attachment=True)
