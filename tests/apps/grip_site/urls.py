"""Paths."""

import django_eventstream.views
from django.urls import path

from grip_site import views

urlpatterns = [
    path("events/", views.events),
    path("rooms/<room>/events/", django_eventstream.views.events, {"format-channels": ["{room}", "{room}-news"]}),
    path("send/<channel>", views.send),
    path("send-turned/<channel>", views.send_turned),
    path("deny/<channel>/<name>", views.deny),
    path("allow/<channel>/<name>", views.allow),
    path("stream/<channel>", views.stream),
    path("poll/<channel>", views.poll),
    path("publish/<channel>", views.publish),
    path("ws/<channel>", views.chat),
]
