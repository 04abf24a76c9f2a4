"""Which requests `--otlp-endpoint` traces: the standard environment variables of OpenTelemetry.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/#general-sdk-configuration
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

SAMPLER: Final = "OTEL_TRACES_SAMPLER"
ARGUMENT: Final = "OTEL_TRACES_SAMPLER_ARG"
_DEFAULT: Final = "parentbased_always_on"
# The share of requests; None: that of the argument.
_SHARES: Final = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}
_PARENT: Final = "parentbased_"


def sampling(environ: Mapping[str, str] = os.environ) -> tuple[tuple[float, bool], list[str]]:
    """The share of requests to trace, and whether a trusted sender's sampled flag decides first; and the warnings.

    As the specification says, a value that is unknown counts as unset."""
    warnings = []
    name = environ.get(SAMPLER, "").strip().lower() or _DEFAULT
    if name.removeprefix(_PARENT) not in _SHARES:
        known = ", ".join([*_SHARES, *(f"{_PARENT}{each}" for each in _SHARES)])
        warnings.append(f"{SAMPLER}={name!r} is unknown, so {_DEFAULT} applies; choose from {known}")
        name = _DEFAULT
    share = _SHARES[name.removeprefix(_PARENT)]
    if share is None:
        share, text = 1.0, environ.get(ARGUMENT, "").strip()
        try:
            given = float(text or 1)
        except ValueError:
            given = -1.0
        if 0 <= given <= 1:
            share = given
        else:
            warnings.append(f"{ARGUMENT}={text!r} is not a number from 0 to 1; all requests are traced")
    return (share, name.startswith(_PARENT)), warnings
