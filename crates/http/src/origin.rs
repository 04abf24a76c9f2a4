//! Which pages may open a WebSocket (RFC 6454, RFC 6455 section 10.2).
//!
//! A browser opens a WebSocket to any host, with the cookies of that host, for a page of any site, and says in `Origin`
//! which site that is. So a server that does not compare it lets each site act for its users.

/// The origins whose pages may open a WebSocket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    any: bool,
    /// Those whose authority is the request's host.
    same: bool,
    /// `scheme://host[:port]`, in lower case.
    listed: Vec<Vec<u8>>,
}

/// An entry that is no origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnOrigin;

impl Origins {
    /// From entries that are `same`, `any` or `scheme://host[:port]`.
    ///
    /// # Errors
    /// An entry is none of these.
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, NotAnOrigin> {
        let mut origins = Self::default();
        for entry in entries {
            match entry {
                "any" => origins.any = true,
                "same" => origins.same = true,
                listed => {
                    let parts = listed.split_once("://").ok_or(NotAnOrigin)?;
                    // A wildcard would match only itself.
                    let is_origin = is_scheme(parts.0.as_bytes())
                        && crate::target::is_authority(parts.1.as_bytes())
                        && !parts.1.contains('*');
                    if !is_origin {
                        return Err(NotAnOrigin);
                    }
                    origins.listed.push(without_default_port(listed.as_bytes()).to_ascii_lowercase());
                }
            }
        }
        Ok(origins)
    }

    /// True if a page of `origin` may open a WebSocket to `host`, the value of Host. A client without `Origin` is no
    /// browser, and need not be asked about. is_encrypted: the request is known to have come by https, so that a page
    /// which anyone on the way could have written is of another origin.
    #[must_use]
    pub fn permit(&self, origin: &[u8], host: &[u8], is_encrypted: bool) -> bool {
        let origin = without_default_port(origin);
        self.any
            || self.listed.iter().any(|listed| origin.eq_ignore_ascii_case(listed))
            || (self.same && is_same(origin, host, is_encrypted))
    }
}

/// RFC 3986 section 3.1.
fn is_scheme(name: &[u8]) -> bool {
    name.first().is_some_and(u8::is_ascii_alphabetic)
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
}

/// Unless the scheme of the request is known, that of the origin is not compared: behind a proxy that does not state it,
/// the server knows only its own.
fn is_same(origin: &[u8], host: &[u8], is_encrypted: bool) -> bool {
    let Some(at) = memchr::memmem::find(origin, b"://") else { return false };
    let (scheme, authority) = (&origin[..at], &origin[at + 3..]);
    let is_web = scheme.eq_ignore_ascii_case(b"https") || (scheme.eq_ignore_ascii_case(b"http") && !is_encrypted);
    let asked = [scheme, b"://", host].concat();
    is_web && !authority.is_empty() && without_default_port(&asked).eq_ignore_ascii_case(origin)
}

/// An origin without the port that its scheme has anyway.
fn without_default_port(origin: &[u8]) -> &[u8] {
    for (scheme, port) in [(b"https://".as_slice(), b":443".as_slice()), (b"http://", b":80")] {
        if origin.len() >= scheme.len() && origin[..scheme.len()].eq_ignore_ascii_case(scheme) {
            return origin.strip_suffix(port).unwrap_or(origin);
        }
    }
    origin
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{NotAnOrigin, Origins};

    #[test]
    fn the_origin_of_the_host_may_in_any_notation_and_no_other() {
        let same = Origins::of(["same"]).unwrap();
        for (origin, host, permitted) in [
            ("https://shop.example", "shop.example", true),
            ("https://SHOP.example", "shop.EXAMPLE", true),
            ("https://shop.example", "shop.example:443", true),
            ("http://shop.example:80", "shop.example", true),
            ("http://shop.example:8000", "shop.example:8000", true),
            ("http://[::1]:8000", "[::1]:8000", true),
            ("http://[::1]", "[::1]", true),
            ("https://shop.example", "shop.example:80", false),
            ("https://shop.example:8443", "shop.example", false),
            ("https://evil.example", "shop.example", false),
            ("https://shop.example.evil.example", "shop.example", false),
            ("https://evil-shop.example", "shop.example", false),
            ("https://shop.example", "", false),
            ("https://", "", false),
            ("null", "shop.example", false),
            ("null", "null", false),
            ("shop.example", "shop.example", false),
            ("foo://shop.example", "shop.example", false),
            ("://shop.example", "shop.example", false),
            ("", "", false),
        ] {
            assert_eq!(same.permit(origin.as_bytes(), host.as_bytes(), false), permitted, "{origin} {host}");
            let is_https = origin.starts_with("https");
            assert_eq!(same.permit(origin.as_bytes(), host.as_bytes(), true), permitted && is_https, "{origin} {host}");
        }
    }

    #[test]
    fn listed_origins_may_and_any_may() {
        let listed = Origins::of(["https://App.example:443", "chrome-extension://abc"]).unwrap();
        assert!(listed.permit(b"https://app.example", b"api.example", true));
        assert!(listed.permit(b"chrome-extension://abc", b"api.example", true));
        assert!(!listed.permit(b"http://app.example", b"api.example", true));
        assert!(!listed.permit(b"https://api.example", b"api.example", true), "`same` is not listed");
        assert!(Origins::of(["any"]).unwrap().permit(b"null", b"api.example", true));
        for wrong in [
            "app.example",
            "https://",
            "://a",
            "https://a/b",
            "https://a b",
            "https://*.a",
            "a b://x",
            "1://x",
            "*",
            "",
        ] {
            assert_eq!(Origins::of([wrong]), Err(NotAnOrigin), "{wrong}");
        }
    }
}
