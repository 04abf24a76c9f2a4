//! How to interpret the file name that an application gives in `X-Sendfile` or `X-Accel-Redirect`.
//!
//! The fields have no specification. `X-Sendfile` is a path in the file system, `X-Accel-Redirect` a URL path. How a
//! name beyond ASCII is written depends on the framework:
//!
//! | the value | is from | reading |
//! |---|---|---|
//! | characters beyond Latin-1 | Flask, which gives `start_response` the path as it is | the characters |
//! | characters of Latin-1 | Flask, Django | the characters |
//! | octets of UTF-8 as characters of Latin-1 | applications that do as PEP 3333 says | the octets |
//! | `=?utf-8?b?...?=`, `=?utf-8?q?...?=` | Django, for what is beyond Latin-1 | RFC 2047 |
//!
//! The second and the third cannot be distinguished, so there are two readings, the characters first. No absolute path
//! begins with `=?`.
//!
//! `X-Sendfile` is not percent-decoded, though mod_xsendfile and lighttpd decode it: Flask and django-sendfile2 do not
//! encode it, and `50%25.txt` would become `50%.txt`, possibly a different user's file.
//!
//! Pure functions. Any thread.

use std::borrow::Cow;

/// The possible readings of a value, most likely first: one text or two.
#[must_use]
pub fn readings(value: &str) -> Vec<Cow<'_, str>> {
    if let Some(text) = encoded_word(value) {
        return vec![Cow::Owned(text)];
    }
    let mut found = vec![Cow::Borrowed(value)];
    if !value.is_ascii() {
        let octets: Option<Vec<u8>> = value.chars().map(|character| u8::try_from(character).ok()).collect();
        found.extend(octets.and_then(|octets| String::from_utf8(octets).ok()).map(Cow::Owned));
    }
    found
}

/// The names of an absolute path, without redundant parts (`//`, `/./`). `None`: it is not an absolute path, or it ends
/// with a slash, or it contains `..`, which may lead elsewhere than it seems if there are links.
#[must_use]
pub fn names(path: &str) -> Option<Vec<&str>> {
    let path = path.strip_prefix('/')?;
    if path.is_empty() || path.ends_with('/') || path.ends_with("/.") {
        return None;
    }
    let names: Vec<_> = path.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    (!names.is_empty() && !names.contains(&"..")).then_some(names)
}

/// The text of an encoded word (RFC 2047) in UTF-8.
fn encoded_word(value: &str) -> Option<String> {
    let word = value.strip_prefix("=?")?.strip_suffix("?=")?;
    let mut parts = word.split('?');
    let (charset, encoding, text) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    let octets = match encoding {
        "b" | "B" => from_base64(text.as_bytes())?,
        "q" | "Q" => from_quoted(text.as_bytes())?,
        _ => return None,
    };
    String::from_utf8(octets).ok()
}

/// The encoding `B`: base64 (RFC 4648 section 4), with padding.
fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |octet: u8| match octet {
        b'A'..=b'Z' => Some(octet - b'A'),
        b'a'..=b'z' => Some(octet - b'a' + 26),
        b'0'..=b'9' => Some(octet - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut octets = Vec::with_capacity(text.len() / 4 * 3);
    for (index, group) in text.chunks(4).enumerate() {
        let digits = group.iter().take_while(|&&octet| octet != b'=').count();
        let is_last = (index + 1) * 4 >= text.len();
        if group.len() != 4 || digits < 2 || (digits < 4 && !is_last) || !group[digits..].iter().all(|&o| o == b'=') {
            return None;
        }
        let mut bits = 0_u32;
        for &octet in &group[..digits] {
            bits = bits << 6 | u32::from(digit(octet)?);
        }
        let bytes = (bits << (6 * (4 - digits))).to_be_bytes();
        octets.extend_from_slice(&bytes[1..digits]);
    }
    Some(octets)
}

/// The encoding `Q` (RFC 2047 section 4.2).
fn from_quoted(text: &[u8]) -> Option<Vec<u8>> {
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [octet, tail @ ..] = rest {
        rest = tail;
        match octet {
            b'_' => octets.push(b' '),
            b'=' => {
                let [high, low, tail @ ..] = rest else { return None };
                let digit = |octet: u8| char::from(octet).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                octets.push(digit(*high)? << 4 | digit(*low)?);
                rest = tail;
            }
            other => octets.push(*other),
        }
    }
    Some(octets)
}
