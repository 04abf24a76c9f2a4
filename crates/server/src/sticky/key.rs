//! The key of a session: a parameter of the query string, which a response issues as a member of a JSON object.
//!
//! Engine.IO opens a session with `0{"sid":"...","upgrades":[...` and the client then sends `?sid=...`. Other JSON, which
//! may have a member of the same name, issues no key.
//!
//! Plain data.

use crate::request::Request;

/// Bytes of a response in which its key is looked for.
const SEARCHED: usize = 4 * 1024;
/// Maximum length of a key.
const LONGEST: usize = 256;

/// The name of the parameter and of the member.
pub(crate) struct KeyName(Vec<u8>);

impl KeyName {
    pub(crate) fn new(name: &str) -> Self {
        Self(name.as_bytes().to_vec())
    }

    /// The key of a request. `None`: it has none.
    pub(crate) fn in_request<'a>(&self, request: &'a Request) -> Option<&'a [u8]> {
        let query = request.head.query?.of(&request.bytes);
        let mut parameters = query.split(|byte| *byte == b'&');
        let key = parameters.find_map(|each| each.strip_prefix(&*self.0)?.strip_prefix(b"="))?;
        is_key(key).then_some(key)
    }

    /// The key that a response with this first block issues: the value of the first member of this name.
    pub(crate) fn issued_in<'a>(&self, block: &'a [u8]) -> Option<&'a [u8]> {
        let block = &block[..block.len().min(SEARCHED)];
        if !opens_session(block) {
            return None;
        }
        let quotes = block.iter().enumerate().filter(|(_, byte)| **byte == b'"');
        quotes.map(|(at, _)| &block[at + 1..]).find_map(|rest| self.value_at(rest))
    }

    /// The value of a member that begins here, after its first quote. In JSONP, the quotes are escaped.
    fn value_at<'a>(&self, rest: &'a [u8]) -> Option<&'a [u8]> {
        let rest = after_quote(rest.strip_prefix(&*self.0)?)?.strip_prefix(b":")?;
        let rest = after_quote(rest.trim_ascii_start())?;
        let length = rest.iter().position(|byte| !is_of_key(*byte))?;
        let (key, after) = rest.split_at(length);
        (after_quote(after).is_some() && is_key(key)).then_some(key)
    }
}

/// True if a response begins with the packet that opens a session of Engine.IO, also after its length (version 3 of the
/// protocol) or in JSONP.
fn opens_session(block: &[u8]) -> bool {
    let digits = block.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let packet = block[digits..].strip_prefix(b":").filter(|_| digits > 0).unwrap_or(block);
    packet.starts_with(b"0{") || block.starts_with(b"___eio[")
}

fn after_quote(bytes: &[u8]) -> Option<&[u8]> {
    bytes.strip_prefix(b"\\").unwrap_or(bytes).strip_prefix(b"\"")
}

fn is_key(key: &[u8]) -> bool {
    (1..=LONGEST).contains(&key.len()) && key.iter().copied().all(is_of_key)
}

/// Characters that are the same in a query string and in JSON: those that need no escape (RFC 3986 section 2.3).
fn is_of_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

#[cfg(test)]
mod tests {
    use tailrace_http::request_head::Span;

    use super::{KeyName, LONGEST, SEARCHED};
    use crate::request::Request;

    fn asked(query: &str) -> Option<Vec<u8>> {
        let mut request = Request { bytes: query.as_bytes().to_vec(), ..Request::default() };
        request.head.query = Some(Span { start: 0, end: query.len() as u32 });
        KeyName::new("sid").in_request(&request).map(<[u8]>::to_vec)
    }

    #[test]
    fn the_key_of_a_request_is_its_first_parameter_of_the_name() {
        assert_eq!(asked("EIO=4&transport=polling&sid=a-B_9&t=1"), Some(b"a-B_9".to_vec()));
        assert_eq!(asked("sid=a&sid=b"), Some(b"a".to_vec()));
        for query in ["", "sid", "sid=", "psid=a", "sid2=a", "SID=a", "sid=a%20b", "t=sid=a"] {
            assert_eq!(asked(query), None, "{query}");
        }
        assert!(asked(&format!("sid={}", "x".repeat(LONGEST))).is_some());
        assert_eq!(asked(&format!("sid={}", "x".repeat(LONGEST + 1))), None);
        assert_eq!(KeyName::new("sid").in_request(&Request::default()), None);
    }

    #[test]
    fn a_response_issues_the_key_of_a_json_member() {
        let name = KeyName::new("sid");
        for block in [
            r#"0{"sid":"a-B_9","upgrades":["websocket"]}"#,
            r#"97:0{"sid":"a-B_9","upgrades":[]}2:40"#,
            r#"0{"x":"sid","y":{"sid": "a-B_9"}}"#,
            r#"___eio[0]("0{\"sid\":\"a-B_9\",\"upgrades\":[]}");"#,
        ] {
            assert_eq!(name.issued_in(block.as_bytes()), Some(b"a-B_9".as_slice()), "{block}");
        }
        for block in ["", "sid", r#"0"sid"#, r#"0{"sid":5}"#, r#"0{"sid":""}"#, r#"0{"sid":"a b"}"#, r#"0{"sid":"a"#] {
            assert_eq!(name.issued_in(block.as_bytes()), None, "{block}");
        }
        // It opens no session.
        for block in [r#"{"sid":"a"}"#, r#"[{"sid":"a"}]"#, r#"4{"sid":"a"}"#, r#"40{"sid":"a"}"#, r#":0{"sid":"a"}"#] {
            assert_eq!(name.issued_in(block.as_bytes()), None, "{block}");
        }
        let late = format!("0{{{}{}", " ".repeat(SEARCHED), r#""sid":"a"}"#);
        assert_eq!(name.issued_in(late.as_bytes()), None);
    }
}
