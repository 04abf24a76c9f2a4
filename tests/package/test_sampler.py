"""The sampler of OpenTelemetry's environment variables."""

import pytest

from tailrace.cli.sampler import ARGUMENT, SAMPLER, sampling


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("", (1.0, True)),
        ("always_on", (1.0, False)),
        ("always_off", (0.0, False)),
        ("traceidratio", (0.25, False)),
        ("parentbased_always_on", (1.0, True)),
        ("parentbased_always_off", (0.0, True)),
        ("parentbased_traceidratio", (0.25, True)),
        (" ParentBased_TraceIdRatio ", (0.25, True)),
    ],
)
def test_each_sampler_of_the_specification(name, wanted):
    assert sampling({SAMPLER: name, ARGUMENT: "0.25"}) == (wanted, [])


def test_without_variables_all_requests_are_traced_unless_a_parent_decides():
    assert sampling({}) == ((1.0, True), [])
    assert sampling({SAMPLER: "traceidratio"}) == ((1.0, False), [])


@pytest.mark.parametrize("name", ["jaeger_remote", "parentbased_", "parentbased_parentbased_always_on", "0.1"])
def test_an_unknown_sampler_is_a_warning_and_the_default(name):
    found, (warning,) = sampling({SAMPLER: name, ARGUMENT: "0.5"})
    assert found == (1.0, True)
    assert warning == (
        f"OTEL_TRACES_SAMPLER={name!r} is unknown, so parentbased_always_on applies; choose from always_on, "
        "always_off, traceidratio, parentbased_always_on, parentbased_always_off, parentbased_traceidratio"
    )


@pytest.mark.parametrize("argument", ["x", "-0.1", "1.1", "nan", "inf"])
def test_an_argument_that_is_no_share_is_a_warning(argument):
    found, (warning,) = sampling({SAMPLER: "traceidratio", ARGUMENT: argument})
    assert found == (1.0, False)
    assert warning == f"OTEL_TRACES_SAMPLER_ARG={argument!r} is not a number from 0 to 1; all requests are traced"
