"""The admin of the model."""

from django.contrib import admin

from django_site.models import Seed


@admin.register(Seed)
class SeedAdmin(admin.ModelAdmin):
    """A list with a search."""

    list_display = ("name", "price", "sold")
    search_fields = ("name",)
