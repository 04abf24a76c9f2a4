"""`manage.py tailrace`: the production server with the project's application."""

from __future__ import annotations

from argparse import ArgumentParser

from django.core.management.base import BaseCommand

from tailrace.django.serve import serve


class Command(BaseCommand):
    """Takes the options of `tailrace serve`, and Django's `--settings` and `--pythonpath`."""

    help = "Serves the project in production, with the options of `tailrace serve`."

    def run_from_argv(self, argv: list[str]) -> None:
        """Serves until SIGINT or SIGTERM. `manage.py` itself has applied Django's options."""
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--settings")
        parser.add_argument("--pythonpath")
        serve(parser.parse_known_args(argv[2:])[1])

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Prints the help of `tailrace serve`, for `manage.py help tailrace`."""
        serve(["--help"])
