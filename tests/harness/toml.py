"""`tomllib.loads`, also on Python 3.10, which has no tomllib."""

import sys

if sys.version_info >= (3, 11):
    from tomllib import loads as parse_toml
else:
    from tomli import loads as parse_toml

__all__ = ["parse_toml"]
