"""A Django app: `runserver` with Tailrace, and `manage.py tailrace`.

Add "tailrace.django" to INSTALLED_APPS before "django.contrib.staticfiles", which also has a `runserver`.
"""
