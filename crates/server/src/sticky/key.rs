//! The key of a session: where it is in a request, and in the response that issues it.
//!
//! - A parameter of the query string, which a response issues as a member of a JSON object. Engine.IO opens a session with
//!   `0{"sid":"...","upgrades":[...` and the client then sends `?sid=...`. Other JSON, which may have a member of the same
//!   name, issues no key.
//! - A cookie, which a response issues by `Set-Cookie`.
//! - A field, which a response issues by a field of the same name, such as `Mcp-Session-Id`.
//!
//! Plain data.

use tailrace_http::encode::ResponseHead;

use crate::request::Request;

/// Bytes of a response in which a member is looked for.
const SEARCHED: usize = 4 * 1024;
/// Maximum length of a key: browsers reject longer cookies.
const MAX_KEY: usize = 4 * 1024;
/// Maximum number of cookies of one request that are looked at: each is looked up.
const MAX_COOKIES: usize = 8;

/// Where the keys of sessions are, with their name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionKey {
    /// A parameter of the query string, and a member of the packet that opens a session of Engine.IO.
    Query(Vec<u8>),
    /// A cookie.
    Cookie(Vec<u8>),
    /// A header field.
    Field(Vec<u8>),
}

impl SessionKey {
    /// That of `query:NAME`, `cookie:NAME` or `header:NAME`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once(':').filter(|(_, name)| !name.is_empty())?;
        let name = name.as_bytes().to_vec();
        match kind {
            "query" => Some(Self::Query(name)),
            "cookie" => Some(Self::Cookie(name)),
            "header" => Some(Self::Field(name)),
            _ => None,
        }
    }

    /// What `found` returns for the first key of a request for which that is something. Only cookies can be several:
    /// those of other paths of the site have the same name.
    pub(crate) fn in_request<'a, T>(
        &'a self,
        request: &'a Request,
        mut found: impl FnMut(&'a [u8]) -> Option<T>,
    ) -> Option<T> {
        let Request { head, bytes, .. } = request;
        match self {
            Self::Query(name) => {
                let mut parameters = head.query?.of(bytes).split(|byte| *byte == b'&');
                let key = parameters.find_map(|each| each.strip_prefix(&**name)?.strip_prefix(b"="))?;
                is_key(key, is_of_member).then(|| found(key))?
            }
            Self::Cookie(name) => {
                let pairs = head.values(bytes, b"Cookie").flat_map(|value| value.split(|byte| *byte == b';'));
                pairs.filter_map(|pair| cookie(pair, name)).take(MAX_COOKIES).find_map(found)
            }
            Self::Field(name) => {
                let mut values = head.values(bytes, name);
                // The application would get several as one value.
                let key = values.next().filter(|_| values.next().is_none())?;
                is_key(key, is_of_field).then(|| found(key))?
            }
        }
    }

    /// Calls `issue` with the keys that a response with this head issues.
    pub(crate) fn issued_in_head<'a>(&self, head: &'a ResponseHead, mut issue: impl FnMut(&'a [u8])) {
        match self {
            Self::Query(_) => {}
            Self::Cookie(name) => {
                let fields = head.fields().filter(|(field, _)| field.eq_ignore_ascii_case(b"Set-Cookie"));
                fields.filter_map(|(_, value)| issued_cookie(value, name)).for_each(issue);
            }
            Self::Field(name) => {
                if let Some(key) = head.only(name).filter(|key| is_key(key, is_of_field)) {
                    issue(key);
                }
            }
        }
    }

    /// The key that a response with this first block issues: the value of the first member of this name.
    pub(crate) fn issued_in_block<'a>(&self, block: &'a [u8]) -> Option<&'a [u8]> {
        let Self::Query(name) = self else { return None };
        let block = &block[..block.len().min(SEARCHED)];
        if !opens_session(block) {
            return None;
        }
        let quotes = block.iter().enumerate().filter(|(_, byte)| **byte == b'"');
        quotes.map(|(at, _)| &block[at + 1..]).find_map(|rest| member(rest, name))
    }
}

/// The value of a cookie of this name that is a key. Names are case-sensitive (RFC 6265 section 5.4).
fn cookie<'a>(pair: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let at = pair.iter().position(|byte| *byte == b'=')?;
    let value = pair[at + 1..].trim_ascii();
    let key = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
    (pair[..at].trim_ascii() == name && is_key(key, is_of_field)).then_some(key)
}

/// The same of the value of `Set-Cookie`, unless that deletes the cookie (RFC 6265 section 5.2.2). One that is deleted
/// by `Expires` has a key that no client sends.
fn issued_cookie<'a>(value: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut parts = value.split(|byte| *byte == b';');
    let key = cookie(parts.next()?, name)?;
    let deletes = |part: &[u8]| {
        let (name, age) = std::str::from_utf8(part).ok()?.split_once('=')?;
        let is_age = name.trim().eq_ignore_ascii_case("Max-Age");
        age.trim().parse().ok().filter(|age: &i64| is_age && *age <= 0)
    };
    parts.find_map(deletes).is_none().then_some(key)
}

/// The value of a member of this name that begins here, after its first quote. In JSONP, the quotes are escaped.
fn member<'a>(rest: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let rest = after_quote(rest.strip_prefix(name)?)?.strip_prefix(b":")?;
    let rest = after_quote(rest.trim_ascii_start())?;
    let length = rest.iter().position(|byte| !is_of_member(*byte))?;
    let (key, after) = rest.split_at(length);
    (after_quote(after).is_some() && is_key(key, is_of_member)).then_some(key)
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

fn is_key(key: &[u8], is_part: fn(u8) -> bool) -> bool {
    (1..=MAX_KEY).contains(&key.len()) && key.iter().copied().all(is_part)
}

/// Characters that are the same in a query string and in JSON: those that need no escape (RFC 3986 section 2.3).
fn is_of_member(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Visible ASCII characters, which proxies and libraries do not change.
fn is_of_field(byte: u8) -> bool {
    byte.is_ascii_graphic()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tailrace_http::encode::ResponseHead;

    use super::{MAX_COOKIES, MAX_KEY, SEARCHED, SessionKey};
    use crate::request::Request;
    use crate::sticky::testing::{query, with_fields};

    fn keys(place: &str, request: &Request) -> Vec<String> {
        let mut found = Vec::new();
        let place = SessionKey::parse(place).unwrap();
        place.in_request(request, |key| -> Option<()> {
            found.push(String::from_utf8(key.to_vec()).unwrap());
            None
        });
        found
    }

    fn issued(place: &str, fields: &[(&str, &str)]) -> Vec<String> {
        let mut head = ResponseHead::default();
        head.status(b"401 Unauthorized").unwrap();
        for (name, value) in fields {
            head.field(name.as_bytes(), value.as_bytes()).unwrap();
        }
        let mut found = Vec::new();
        let note = |key: &[u8]| found.push(String::from_utf8(key.to_vec()).unwrap());
        SessionKey::parse(place).unwrap().issued_in_head(&head, note);
        found
    }

    #[test]
    fn a_place_has_a_kind_and_a_name() {
        for text in ["", "sid", "query:", "body:sid", "Cookie:sid"] {
            assert_eq!(SessionKey::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_key_of_a_request_is_its_first_parameter_of_the_name() {
        let asked = |text: &str| keys("query:sid", &query(text));
        assert_eq!(asked("EIO=4&transport=polling&sid=a-B_9&t=1"), ["a-B_9"]);
        assert_eq!(asked("sid=a&sid=b"), ["a"]);
        for text in ["", "sid", "sid=", "psid=a", "sid2=a", "SID=a", "sid=a%20b", "t=sid=a"] {
            assert!(asked(text).is_empty(), "{text}");
        }
        assert!(!asked(&format!("sid={}", "x".repeat(MAX_KEY))).is_empty());
        assert!(asked(&format!("sid={}", "x".repeat(MAX_KEY + 1))).is_empty());
        assert!(keys("query:sid", &Request::default()).is_empty());
    }

    #[test]
    fn the_keys_of_a_request_are_its_cookies_of_the_name() {
        let asked = |text: &str| keys("cookie:sid", &with_fields(&[("cOOKIE", text)]));
        for text in ["sid=a=b", "x=1; sid=a=b", "sid=\"a=b\"", "sid = a=b ;x", ";;=;sid=a=b;=;"] {
            assert_eq!(asked(text), ["a=b"], "{text}");
        }
        assert_eq!(asked("sid=a; sid=; sid=b c; sid=d"), ["a", "d"]);
        for text in ["", "sid", "sid=", "sid=\"\"", "psid=a", "Sid=a", "sid=\u{e9}", "x=sid=a", "sid=a\tb"] {
            assert!(asked(text).is_empty(), "{text}");
        }
        // A quote alone is a character.
        assert_eq!(asked("sid=\""), ["\""]);
        assert_eq!(asked(&"sid=a;".repeat(1_000)).len(), MAX_COOKIES);
        assert!(asked(&format!("sid={}", "x".repeat(MAX_KEY + 1))).is_empty());
        let several = with_fields(&[("Cookie", "sid=a"), ("X", "sid=x"), ("Cookie", "sid=b")]);
        assert_eq!(keys("cookie:sid", &several), ["a", "b"]);
    }

    #[test]
    fn the_key_of_a_request_is_its_only_field_of_the_name() {
        let asked = |fields: &[(&str, &str)]| keys("header:Mcp-Session-Id", &with_fields(fields));
        assert_eq!(asked(&[("mcp-session-id", "a,\"b")]), ["a,\"b"]);
        for fields in [
            [("Mcp-Session-Id", "a"), ("Mcp-Session-ID", "a")],
            [("Mcp-Session", "a"), ("X-Mcp-Session-Id", "a")],
            [("Mcp-Session-Id", "a b"), ("X", "a")],
            [("Mcp-Session-Id", ""), ("X", "a")],
        ] {
            assert!(asked(&fields).is_empty(), "{fields:?}");
        }
        assert!(asked(&[("Mcp-Session-Id", &"x".repeat(MAX_KEY + 1))]).is_empty());
    }

    #[test]
    fn a_response_issues_the_keys_of_its_cookies_but_those_that_it_deletes() {
        let cookie = |value: &str| issued("cookie:sid", &[("set-cookie", value)]);
        for value in
            ["sid=a", "sid=\"a\"; Path=/; HttpOnly", "sid=a;max-age=9;x", "sid=a; Max-Age=x", "sid=a; =0; Max-Age"]
        {
            assert_eq!(cookie(value), ["a"], "{value}");
        }
        for value in
            ["sid=", "sid=\"\"", "sid", "Sid=a", "x=1; sid=a", "sid=a; Max-Age=0", "sid=a; mAX-aGE = -1 ;", "sid=a b"]
        {
            assert!(cookie(value).is_empty(), "{value}");
        }
        let fields = [
            ("Set-Cookie", "sid=; Max-Age=0"),
            ("Set-Cookie", "sid=a; Path=/x"),
            ("Set-Cookie", "sid=b"),
            ("sid", "c"),
        ];
        assert_eq!(issued("cookie:sid", &fields), ["a", "b"]);
        assert!(issued("query:sid", &fields).is_empty());
    }

    #[test]
    fn a_response_issues_the_key_of_its_only_field() {
        assert_eq!(issued("header:Mcp-Session-Id", &[("mcp-session-id", " a ")]), ["a"]);
        for fields in [
            &[("Mcp-Session-Id", "a"), ("mcp-session-id", "b")][..],
            &[("Mcp-Session-Id", "")],
            &[("Mcp-Session-Id", "a b")],
            &[("Set-Cookie", "Mcp-Session-Id=a")],
        ] {
            assert!(issued("header:Mcp-Session-Id", fields).is_empty(), "{fields:?}");
        }
    }

    #[test]
    fn a_response_issues_the_key_of_a_json_member() {
        let issued = |block: &str| {
            let key = SessionKey::parse("query:sid").unwrap().issued_in_block(block.as_bytes()).map(<[u8]>::to_vec);
            assert_eq!(SessionKey::parse("cookie:sid").unwrap().issued_in_block(block.as_bytes()), None);
            key
        };
        for block in [
            r#"0{"sid":"a-B_9","upgrades":["websocket"]}"#,
            r#"97:0{"sid":"a-B_9","upgrades":[]}2:40"#,
            r#"0{"x":"sid","y":{"sid": "a-B_9"}}"#,
            r#"___eio[0]("0{\"sid\":\"a-B_9\",\"upgrades\":[]}");"#,
        ] {
            assert_eq!(issued(block), Some(b"a-B_9".to_vec()), "{block}");
        }
        for block in ["", "sid", r#"0"sid"#, r#"0{"sid":5}"#, r#"0{"sid":""}"#, r#"0{"sid":"a b"}"#, r#"0{"sid":"a"#] {
            assert_eq!(issued(block), None, "{block}");
        }
        // It opens no session.
        for block in [r#"{"sid":"a"}"#, r#"[{"sid":"a"}]"#, r#"4{"sid":"a"}"#, r#"40{"sid":"a"}"#, r#":0{"sid":"a"}"#] {
            assert_eq!(issued(block), None, "{block}");
        }
        assert_eq!(issued(&format!("0{{{}{}", " ".repeat(SEARCHED), r#""sid":"a"}"#)), None);
    }
}
