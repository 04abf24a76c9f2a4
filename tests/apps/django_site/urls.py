"""Paths."""

from django.contrib import admin
from django.urls import path

from django_site import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("visits", views.visits),
    path("signals", views.signals),
    path("sell/<name>", views.sell),
    path("export.csv", views.export),
    path("picture/<name>", views.picture),
]
