"""The application, with the admin's static files, which a view serves here as in development."""

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.contrib.staticfiles.views import serve
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_site.settings")


class Static(StaticFilesHandler):
    """Serves static files without DEBUG too."""

    def serve(self, request):
        return serve(request, self.file_path(request.path), insecure=True)


application = Static(get_wsgi_application())
