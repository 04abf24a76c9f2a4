"""Files of the folder FILES as Flask, Django, django-sendfile2, Pyramid and WhiteNoise send them. /NAME is a file."""

import os
from pathlib import Path

FILES = Path(os.environ["FILES"])


def flask_app(x_sendfile=False):
    """`send_file`, as it is."""
    import flask

    app = flask.Flask(__name__)
    app.config["USE_X_SENDFILE"] = x_sendfile

    @app.get("/<name>")
    def file(name):
        conditional = "plain" not in flask.request.args
        return flask.send_from_directory(FILES, name, conditional=conditional, as_attachment=True)

    return app


def flask_x_sendfile():
    """`send_file` with USE_X_SENDFILE."""
    return flask_app(x_sendfile=True)


def django_app():
    """/NAME by django-sendfile2, with the backend of SENDFILE_BACKEND; /response/NAME as a FileResponse."""
    from django.conf import settings

    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="fw_files",
        SENDFILE_BACKEND=f"django_sendfile.backends.{os.environ.get('SENDFILE_BACKEND', 'xsendfile')}",
        SENDFILE_ROOT=str(FILES),
        SENDFILE_URL="/protected",
        MIDDLEWARE=["django.middleware.http.ConditionalGetMiddleware", "django.middleware.gzip.GZipMiddleware"],
    )
    from django.core.wsgi import get_wsgi_application
    from django.http import FileResponse
    from django.urls import path
    from django.utils.http import http_date
    from django_sendfile import sendfile

    def response(request, name):
        found = FileResponse((FILES / name).open("rb"), as_attachment=True)
        if "dated" in request.GET:
            found["Last-Modified"] = http_date((FILES / name).stat().st_mtime)
        return found

    global urlpatterns
    urlpatterns = [
        path("response/<str:name>", response),
        path("<str:name>", lambda request, name: sendfile(request, name, attachment=True)),
    ]
    return get_wsgi_application()


def pyramid_app():
    """A FileResponse."""
    from pyramid.config import Configurator
    from pyramid.response import FileResponse

    with Configurator() as config:
        config.add_route("file", "/{name}")
        config.add_view(
            lambda request: FileResponse(str(FILES / request.matchdict["name"]), request), route_name="file"
        )
        return config.make_wsgi_app()


def whitenoise_app():
    """WhiteNoise in front of an application."""
    from whitenoise import WhiteNoise

    def app(environ, start_response):
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"the application's"]

    return WhiteNoise(app, root=FILES)
