//! Fields of a request and of its response.

use tailrace_http::uwsgi::variable_of;

use super::write::push_escaped;
use crate::shown_request::ShownRequest;

/// A field of the response with this head; empty where it has none.
pub(super) fn of_response<'a>(head: &'a [u8], name: &[u8]) -> &'a [u8] {
    // The first line is the status line.
    for line in head.split(|&byte| byte == b'\n').skip(1) {
        if let Some((found, rest)) = line.split_at_checked(name.len())
            && let Some(value) = rest.strip_prefix(b": ")
            && found.eq_ignore_ascii_case(name)
        {
            return value.trim_ascii_end();
        }
    }
    &[]
}

/// The user that a proxy has authenticated, or that `Authorization: Basic` names (RFC 7617), or a dash.
pub(super) fn push_user(request: &ShownRequest<'_>, out: &mut Vec<u8>) {
    if let Some(user @ [_, ..]) = variable_of(request.bytes, request.head, b"REMOTE_USER") {
        return push_escaped(user, out);
    }
    let user = request
        .field(b"authorization")
        .split_at_checked(5)
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"basic"))
        .and_then(|(_, credentials)| decoded(credentials.trim_ascii()));
    match user.as_ref().and_then(|user| user.split(|&byte| byte == b':').next()).filter(|user| !user.is_empty()) {
        Some(user) => push_escaped(user, out),
        None => out.push(b'-'),
    }
}

/// Decodes base64 (RFC 4648 section 4), padded or not. `None`: it is not base64.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let (mut bits, mut count) = (0_u32, 0);
    for &char in text.iter().take_while(|&&char| char != b'=') {
        let value = match char {
            b'A'..=b'Z' => char - b'A',
            b'a'..=b'z' => char - b'a' + 26,
            b'0'..=b'9' => char - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}
