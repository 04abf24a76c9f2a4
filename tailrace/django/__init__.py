"""A Django app: `runserver` with Tailrace, and `manage.py tailrace`.

INSTALLED_APPS names it as "tailrace.django", before "django.contrib.staticfiles", which has a `runserver` as well.
"""
