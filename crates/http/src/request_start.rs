//! When a proxy received a request: `X-Request-Start`, or `X-Queue-Start`. There is no standard; these forms are in use:
//!
//! | value | who sends it |
//! |---|---|
//! | `t=1732449783.123`, seconds with a fraction | nginx, `t=${msec}` |
//! | `t=1732449783123456`, microseconds | Apache httpd, `%t` |
//! | `1732449783123`, milliseconds | Heroku; Caddy; HAProxy, `%[date(0,ms)]` |
//!
//! `t=` may be missing from each. The unit follows from the magnitude: seconds have up to 11 digits, milliseconds 12 to
//! 14, microseconds 15 to 17, nanoseconds 18 to 20. No moment since 1973 can be taken for another one.
//!
//! Pure functions. Any thread.

use std::time::Duration;

use crate::framing::decimal;

/// The proxy's clock may be ahead of this machine's by this much: the request has not waited then.
const SKEW: Duration = Duration::from_secs(1);
/// A longer wait is taken for a mistake: no proxy keeps a request for so long.
const LONGEST: Duration = Duration::from_secs(3600);

/// For how long a request has waited in front of this server, `now`, as time since 1970. `None`: the value is no time,
/// is in the future by more than 1 s, or more than 1 h ago.
#[must_use]
pub fn waited(value: &[u8], now: Duration) -> Option<Duration> {
    let start = moment(value)?;
    match now.checked_sub(start) {
        Some(waited) => Some(waited).filter(|waited| *waited <= LONGEST),
        None => (start - now <= SKEW).then_some(Duration::ZERO),
    }
}

/// The time since 1970 that a value states.
fn moment(value: &[u8]) -> Option<Duration> {
    let value = value.strip_prefix(b"t=").unwrap_or(value);
    let point = value.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = match point {
        Some(point) => (&value[..point], &value[point + 1..]),
        None => (value, &b""[..]),
    };
    let are_digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    if whole.is_empty() || !are_digits(whole) || !are_digits(fraction) || (point.is_some() && fraction.is_empty()) {
        return None;
    }
    let whole = decimal(whole)?;
    // Nanoseconds in the unit.
    let unit = match whole {
        ..100_000_000_000 => 1_000_000_000,
        100_000_000_000..100_000_000_000_000 => 1_000_000,
        100_000_000_000_000..100_000_000_000_000_000 => 1_000,
        _ => 1,
    };
    let digits = fraction.iter().chain(&[b'0'; 9]).take(9);
    let billionths = digits.fold(0_u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    let nanos = u128::from(whole) * unit + u128::from(billionths) * unit / 1_000_000_000;
    let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
    Some(Duration::new(seconds, (nanos % 1_000_000_000) as u32))
}
