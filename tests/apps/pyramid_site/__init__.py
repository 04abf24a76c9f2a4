"""A Pyramid application for `pserve`: views, renderers, sessions in signed cookies, tweens, static files, exceptions."""

import hashlib

from pyramid.config import Configurator
from pyramid.httpexceptions import HTTPFound
from pyramid.response import FileResponse, Response
from pyramid.session import SignedCookieSessionFactory


def index(request):
    return {"title": request.registry.settings["seeds.title"], "path": request.path, "query": request.GET.mixed()}


def basket(request):
    if request.method == "POST":
        request.session.setdefault("seeds", []).append(request.POST["seed"])
        request.session.changed()
        request.session.flash("added")
        return HTTPFound(request.route_url("basket"))
    return {"seeds": request.session.get("seeds", []), "said": request.session.pop_flash()}


def upload(request):
    field = request.POST["file"]
    return {"name": field.filename, "sha256": hashlib.sha256(field.file.read()).hexdigest()}


def rows(request):
    return Response(app_iter=(b"%d\n" % number for number in range(3000)), content_type="text/plain")


def source(request):
    return FileResponse(__file__, request=request, content_type="text/x-python")


def fails(request):
    raise LookupError("no such shelf")


def failed(error, request):
    request.response.status_int = 503
    return {"error": str(error)}


def timing(handler, registry):
    def tween(request):
        response = handler(request)
        response.headers["X-Tween"] = registry.settings["seeds.title"]
        return response

    return tween


def main(global_config, **settings):
    """The factory that the ini file names."""
    sessions = SignedCookieSessionFactory("a secret of the tests")
    with Configurator(settings=settings, session_factory=sessions) as config:
        config.add_tween("pyramid_site.timing")
        for name, path in (("index", "/"), ("basket", "/basket"), ("upload", "/upload"), ("fails", "/fails")):
            config.add_route(name, path)
            config.add_view(globals()[name], route_name=name, renderer="json")
        for name in ("rows", "source"):
            config.add_route(name, f"/{name}")
            config.add_view(globals()[name], route_name=name)
        config.add_static_view("static", "pyramid_site:static", cache_max_age=60)
        config.add_exception_view(failed, context=LookupError, renderer="json")
        return config.make_wsgi_app()
