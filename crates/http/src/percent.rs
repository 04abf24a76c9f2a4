//! Percent-encoding (RFC 3986 section 2.1). What is not a valid escape (`%zz`, a cut `%4`) stays as it was sent, and `%00`
//! is decoded like any other octet. No state; any thread.

use std::borrow::Cow;

/// Decodes percent-escapes once; borrows when there is none.
#[must_use]
pub fn percent_decode(raw: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = raw.iter().position(|&byte| byte == b'%') else {
        return Cow::Borrowed(raw);
    };
    let mut decoded = Vec::with_capacity(raw.len());
    decoded.extend_from_slice(&raw[..first]);
    let mut rest = &raw[first..];
    while let [byte, tail @ ..] = rest {
        if let (b'%', [high, low, after @ ..]) = (*byte, tail)
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            decoded.push(high << 4 | low);
            rest = after;
        } else {
            decoded.push(*byte);
            rest = tail;
        }
    }
    Cow::Owned(decoded)
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Cow, percent_decode};

    #[test]
    fn decodes_once() {
        assert_eq!(percent_decode(b"/a%2fb%252Fc").as_ref(), b"/a/b%2Fc");
        assert_eq!(percent_decode(b"/%C3%A9%00").as_ref(), b"/\xc3\xa9\x00");
    }

    #[test]
    fn leaves_what_is_no_escape() {
        assert_eq!(percent_decode(b"/%zz%4").as_ref(), b"/%zz%4");
        assert_eq!(percent_decode(b"%").as_ref(), b"%");
        assert_eq!(percent_decode(b"%%41").as_ref(), b"%A");
        assert!(matches!(percent_decode(b"/plain"), Cow::Borrowed(_)));
    }
}
