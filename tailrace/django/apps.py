"""The app, and the check of its position in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.core.management import get_commands


class TailraceConfig(AppConfig):
    """The app "tailrace.django"."""

    name = "tailrace.django"
    # By default the last part of the name, "django".
    label = "tailrace"
    verbose_name = "Tailrace"

    def ready(self) -> None:
        """Registers the check."""
        checks.register(check_position)


def check_position(**_: object) -> list[checks.CheckMessage]:
    """A warning if `runserver` is not replaced, because django.contrib.staticfiles comes first."""
    if get_commands()["runserver"] != "django.contrib.staticfiles":
        return []
    return [
        checks.Warning(
            "runserver does not use Tailrace, because 'django.contrib.staticfiles' comes before 'tailrace.django' in "
            "INSTALLED_APPS.",
            hint="Move 'tailrace.django' before 'django.contrib.staticfiles'.",
            id="tailrace.W001",
        )
    ]
