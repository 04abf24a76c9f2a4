"""A Django project with its admin and sessions, with SQLite and media in the directory that DJANGO_SITE_DATA names."""
