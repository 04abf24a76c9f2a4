"""The fixture that these tests share with those of the server's package."""

from package.conftest import modules

__all__ = ["modules"]
