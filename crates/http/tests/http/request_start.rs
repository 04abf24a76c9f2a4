//! When a proxy received a request, in the forms of proxies and platforms.

use std::time::Duration;

use tailrace_http::request_start::waited;

/// 2024-11-24T12:03:03.5Z.
const NOW: Duration = Duration::from_millis(1_732_449_783_500);

#[test]
fn each_form_states_the_same_moment() {
    for value in [
        "t=1732449783.250",
        "1732449783.25",
        "t=1732449783250",
        "1732449783250",
        "1732449783250.0",
        "t=1732449783250000",
        "1732449783250000",
        "1732449783250000000",
        "1732449783.2500000000000001",
    ] {
        assert_eq!(waited(value.as_bytes(), NOW), Some(Duration::from_millis(250)), "{value}");
    }
    assert_eq!(waited(b"1732449783", NOW), Some(Duration::from_millis(500)));
    assert_eq!(waited(b"t=1732449783.499999", NOW), Some(Duration::from_micros(1)));
    assert_eq!(waited(b"1732449783499.9995", NOW), Some(Duration::from_nanos(500)));
}

#[test]
fn a_proxy_whose_clock_is_a_little_ahead_states_no_wait() {
    assert_eq!(waited(b"1732449783500", NOW), Some(Duration::ZERO));
    assert_eq!(waited(b"1732449784500", NOW), Some(Duration::ZERO));
    assert_eq!(waited(b"1732449784501", NOW), None);
}

#[test]
fn a_wait_of_more_than_an_hour_is_a_mistake() {
    assert_eq!(waited(b"1732446183500", NOW), Some(Duration::from_secs(3600)));
    assert_eq!(waited(b"1732446183499", NOW), None);
    for value in ["0", "1", "t=0.5", "18446744073709551615"] {
        assert_eq!(waited(value.as_bytes(), NOW), None, "{value}");
    }
}

#[test]
fn what_is_no_time_states_nothing() {
    for value in [
        "",
        "t=",
        "t",
        "t=t=1732449783",
        "T=1732449783.250",
        "-1732449783.250",
        "+1732449783.250",
        "1732449783.",
        ".250",
        "1732449783,250",
        "1732449783.2.5",
        "1.7e9",
        "1732449783 ",
        "0x67431577",
        "NaN",
        "now",
        "\u{661}",
        "17324497832500000000000",
        "1732449783.25s",
        "\"1732449783.25\"",
        "1732449783.25, 1732449783.25",
    ] {
        assert_eq!(waited(value.as_bytes(), NOW), None, "{value}");
    }
}
