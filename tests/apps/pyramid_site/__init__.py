"""A Pyramid application for `pserve`: views, renderers, tweens, static files."""

import hashlib

from pyramid.config import Configurator
from pyramid.response import FileResponse, Response


def index(request):
    return {"title": request.registry.settings["seeds.title"], "path": request.path, "query": request.GET.mixed()}


def upload(request):
    field = request.POST["file"]
    return {"name": field.filename, "sha256": hashlib.sha256(field.file.read()).hexdigest()}


def rows(request):
    return Response(app_iter=(b"%d\n" % number for number in range(3000)), content_type="text/plain")


def source(request):
    return FileResponse(__file__, request=request, content_type="text/x-python")


def timing(handler, registry):
    def tween(request):
        response = handler(request)
        response.headers["X-Tween"] = registry.settings["seeds.title"]
        return response

    return tween


def main(global_config, **settings):
    """The factory that the ini file names."""
    with Configurator(settings=settings) as config:
        config.add_tween("pyramid_site.timing")
        for name, path in (("index", "/"), ("upload", "/upload")):
            config.add_route(name, path)
            config.add_view(globals()[name], route_name=name, renderer="json")
        for name in ("rows", "source"):
            config.add_route(name, f"/{name}")
            config.add_view(globals()[name], route_name=name)
        config.add_static_view("static", "pyramid_site:static", cache_max_age=60)
        return config.make_wsgi_app()
