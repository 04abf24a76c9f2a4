//! Numbers, times and text as bytes, escaped so that no client can forge a line or a field.
//!
//! What each request needs is written without `core::fmt`, which would take most of the time of a line.

use std::io::Write;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::Offset;
use tailrace_http::encode::decimal_text;

/// A number in decimal digits.
pub(super) fn push_number(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(decimal_text(number, &mut [0; 20]));
}

/// The last `digits` decimal digits of a number, with zeros in front.
pub(super) fn push_decimal(number: u32, digits: usize, out: &mut Vec<u8>) {
    let at = out.len();
    out.resize(at + digits, b'0');
    let mut rest = number;
    for place in out[at..].iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// Milliseconds with three decimals, rounded.
pub(super) fn push_millis(time: Duration, out: &mut Vec<u8>) {
    let micros = time.as_secs().saturating_mul(1_000_000) + u64::from((time.subsec_nanos() + 500) / 1_000);
    push_number(micros / 1_000, out);
    out.push(b'.');
    push_decimal((micros % 1_000) as u32, 3, out);
}

pub(super) fn push_client(client: IpAddr, out: &mut Vec<u8>) {
    match client {
        IpAddr::V4(client) => {
            for (index, octet) in client.octets().into_iter().enumerate() {
                if index > 0 {
                    out.push(b'.');
                }
                push_number(u64::from(octet), out);
            }
        }
        // Writing into memory cannot fail.
        IpAddr::V6(client) => drop(write!(out, "{client}")),
    }
}

/// True for bytes that need no escape.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = b' ';
    while byte <= b'~' {
        plain[byte as usize] = byte != b'"' && byte != b'\\';
        byte += 1;
    }
    plain
};

/// Appends bytes. Quotes and backslashes get a backslash; `escape` writes whatever is neither visible ASCII nor a
/// space.
fn push_with(bytes: &[u8], out: &mut Vec<u8>, escape: impl Fn(u8, &mut Vec<u8>)) {
    let mut rest = bytes;
    loop {
        let plain = rest.iter().position(|&byte| !PLAIN[byte as usize]).unwrap_or(rest.len());
        out.extend_from_slice(&rest[..plain]);
        let Some(&byte) = rest.get(plain) else { return };
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            _ => escape(byte, out),
        }
        rest = &rest[plain + 1..];
    }
}

/// Text of the client or of the application, for a line that is not JSON.
pub(super) fn push_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    push_with(bytes, out, |byte, out| drop(write!(out, "\\x{byte:02x}")));
}

/// A JSON string; bytes from 0x80 on are taken as latin-1.
pub(super) fn push_json(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    push_with(bytes, out, |byte, out| drop(write!(out, "\\u{byte:04x}")));
    out.push(b'"');
}

/// A moment in the notations of the log. All but the milliseconds is rendered once a second: that takes 4,100
/// instructions; a line that uses the result takes 320 (docs/internals/measurements.md, "Mechanisms").
#[derive(Default)]
pub(crate) struct Calendar {
    second: u64,
    milli: u32,
    clf: Vec<u8>,
    rfc3339: Vec<u8>,
}

impl Calendar {
    pub(crate) fn set(&mut self, at: SystemTime) {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.milli = since.subsec_millis();
        if self.second != since.as_secs() || self.clf.is_empty() {
            self.second = since.as_secs();
            self.write_second();
        }
    }

    #[cold]
    fn write_second(&mut self) {
        let second = i64::try_from(self.second).ok().and_then(|second| Timestamp::from_second(second).ok());
        let at = Offset::UTC.to_datetime(second.unwrap_or(Timestamp::MAX));
        // Writing into memory cannot fail, and a date and time has all that these notations need.
        self.clf.clear();
        drop(write!(self.clf, "{}", at.strftime("%d/%b/%Y:%H:%M:%S +0000")));
        self.rfc3339.clear();
        drop(write!(self.rfc3339, "{}", at.strftime("%Y-%m-%dT%H:%M:%S.")));
    }

    /// Seconds since 1970, with three decimals.
    pub(super) fn push_seconds(&self, out: &mut Vec<u8>) {
        push_number(self.second, out);
        out.push(b'.');
        push_decimal(self.milli, 3, out);
    }

    /// The time as in the common log format, without brackets.
    pub(super) fn clf(&self) -> &[u8] {
        &self.clf
    }

    pub(crate) fn push_rfc3339(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.rfc3339);
        push_decimal(self.milli, 3, out);
        out.push(b'Z');
    }
}

#[cfg(test)]
mod tests {
    use super::{Calendar, push_client, push_millis, push_number};
    use std::time::{Duration, UNIX_EPOCH};

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        // From `date -u -d @SECOND`: the epoch, leap days and centuries, ends of months and years, more than 32 bits.
        for (second, clf, rfc3339) in [
            (0, "01/Jan/1970:00:00:00", "1970-01-01T00:00:00"),
            (5_097_599, "28/Feb/1970:23:59:59", "1970-02-28T23:59:59"),
            (5_097_600, "01/Mar/1970:00:00:00", "1970-03-01T00:00:00"),
            (68_169_600, "29/Feb/1972:00:00:00", "1972-02-29T00:00:00"),
            (951_782_399, "28/Feb/2000:23:59:59", "2000-02-28T23:59:59"),
            (951_782_400, "29/Feb/2000:00:00:00", "2000-02-29T00:00:00"),
            (951_868_799, "29/Feb/2000:23:59:59", "2000-02-29T23:59:59"),
            (951_868_800, "01/Mar/2000:00:00:00", "2000-03-01T00:00:00"),
            (978_307_199, "31/Dec/2000:23:59:59", "2000-12-31T23:59:59"),
            (1_709_164_800, "29/Feb/2024:00:00:00", "2024-02-29T00:00:00"),
            (1_735_689_599, "31/Dec/2024:23:59:59", "2024-12-31T23:59:59"),
            (2_147_483_648, "19/Jan/2038:03:14:08", "2038-01-19T03:14:08"),
            (4_107_542_399, "28/Feb/2100:23:59:59", "2100-02-28T23:59:59"),
            (4_107_542_400, "01/Mar/2100:00:00:00", "2100-03-01T00:00:00"),
            (4_294_967_296, "07/Feb/2106:06:28:16", "2106-02-07T06:28:16"),
            (13_574_563_200, "29/Feb/2400:00:00:00", "2400-02-29T00:00:00"),
        ] {
            let mut calendar = Calendar::default();
            calendar.set(UNIX_EPOCH + Duration::from_millis(second * 1_000 + 7));
            assert_eq!(written(|out| out.extend_from_slice(calendar.clf())), format!("{clf} +0000"));
            assert_eq!(written(|out| calendar.push_rfc3339(out)), format!("{rfc3339}.007Z"));
            assert_eq!(written(|out| calendar.push_seconds(out)), format!("{second}.007"));
        }
    }

    #[test]
    fn numbers_are_as_the_standard_library_formats_them() {
        for number in [0, 9, 10, 99_999, u64::MAX] {
            assert_eq!(written(|out| push_number(number, out)), number.to_string());
        }
        for nanos in [0, 499, 500, 1_000_000, 1_234_567, 999_999_400, 999_999_500, 61_000_000_000] {
            let time = Duration::from_nanos(nanos);
            let wanted = format!("{:.3}", (nanos + 500) as f64 / 1e6 - 0.0005 + 0.000_000_1);
            assert_eq!(written(|out| push_millis(time, out)), wanted, "{nanos}");
        }
        for client in ["192.0.2.70", "0.0.0.0", "2001:db8::1"] {
            assert_eq!(written(|out| push_client(client.parse().unwrap_or([0, 0, 0, 1].into()), out)), client);
        }
    }
}
