//! Which responses of the application the server compresses, and how their heads change (RFC 9110 sections 8.4, 8.8.3
//! and 12.5.5).
//!
//! Pure functions. Any thread.
//!
//! Decisions:
//! - A response that has a content coding is left alone, and so `Content-Encoding: identity` is how an application
//!   exempts one. So are `Cache-Control: no-transform`, a digest of the content, and a part of it.
//! - A strong entity tag becomes weak, because the bytes are others (RFC 9110 section 8.8.1). A 304 must repeat the
//!   client's entity tag, which shows whether its response was compressed, and the `Vary` of the 200. A 304 need not
//!   have a type, so it gets `Vary` unless its type is known not to be compressed.
//! - Streams of server-sent events are compressed only if their type is named: each would hold the memory of an encoder
//!   for hours, for events that hardly become smaller.

use crate::coding::{Coding, preferred};
use crate::encode::{HeadFault, ResponseHead};
use crate::octets::trim;

/// The codings, best first. Measured over JSON of 20 KB and 400 KB (share that is left, time for 100 KB on one core):
/// zstd 3: 23.6 and 19.3 %, 0.3 ms; gzip 4: 23.9 and 20.0 %, 0.7 ms; Brotli 4: 23.2 and 20.1 %, 1.1 to 1.7 ms. For
/// files, which are compressed once, Brotli comes first.
const CODINGS: [Coding; 3] = [Coding::Zstd, Coding::Gzip, Coding::Brotli];

/// Responses whose length is known and smaller are not compressed, in bytes: most fit into one packet all the same.
pub const MIN_COMPRESSED: u64 = 1024;

/// What an operator says of the responses that are compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressionRules {
    types: Vec<String>,
    min_size: u64,
}

/// What is done with a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Nothing.
    None,
    /// It is not compressed, because of what this client accepts: `Vary` says so.
    Varies,
    /// A 304 to a client that has the compressed response: its entity tag becomes weak.
    Revalidated,
    /// It is compressed.
    By(Coding),
}

impl CompressionRules {
    /// `types`: media types in lower case, or `text/*` for all of a kind; empty: those of [`is_compressible`], but for
    /// server-sent events. `min_size`: responses whose length is known and smaller are not compressed, in bytes.
    #[must_use]
    pub fn new(types: Vec<String>, min_size: u64) -> Self {
        Self { types, min_size }
    }

    /// What is done with the response of this head. `length`: of its body, if that is known. `accept`: the values of the
    /// client's Accept-Encoding fields. `known`: those of its If-None-Match fields.
    #[must_use]
    pub fn choose<'a>(
        &self,
        head: &ResponseHead,
        length: Option<u64>,
        accept: impl Iterator<Item = &'a [u8]> + Clone,
        known: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Compression {
        match head.status_code() {
            204..=206 => return Compression::None,
            304 => return self.revalidated(head, accept, known),
            _ => {}
        }
        if length.is_some_and(|length| length < self.min_size) {
            return Compression::None;
        }
        let mut has_type = false;
        for (name, value) in head.fields() {
            let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
            let exempts = match name.len() {
                6 => is("Digest"),
                11 => is("Content-MD5") || is("Repr-Digest"),
                12 if is("Content-Type") => {
                    has_type = self.has_type(value);
                    !has_type
                }
                13 => is("Content-Range") || (is("Cache-Control") && has_member(value, b"no-transform")),
                14 => is("Content-Digest"),
                16 => is("Content-Encoding"),
                _ => false,
            };
            if exempts {
                return Compression::None;
            }
        }
        match preferred(accept, &CODINGS) {
            _ if !has_type => Compression::None,
            Coding::Identity => Compression::Varies,
            coding => Compression::By(coding),
        }
    }

    /// For a 304. Without If-None-Match, it is not known which response the client has.
    fn revalidated<'a>(
        &self,
        head: &ResponseHead,
        accept: impl Iterator<Item = &'a [u8]> + Clone,
        mut known: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Compression {
        let fields = |wanted: &'static str| {
            head.fields().filter(move |(name, _)| name.eq_ignore_ascii_case(wanted.as_bytes())).map(|(_, value)| value)
        };
        if fields("Content-Type").any(|value| !self.has_type(value)) {
            return Compression::None;
        }
        let is_compressed = if known.clone().next().is_some() {
            let is_weak = |value: &[u8]| fields("ETag").any(|tag| has_member(value, &[b"W/", tag].concat()));
            known.any(is_weak)
        } else {
            preferred(accept, &CODINGS) != Coding::Identity
        };
        if is_compressed { Compression::Revalidated } else { Compression::Varies }
    }

    fn has_type(&self, media_type: &[u8]) -> bool {
        let Ok(media_type) = std::str::from_utf8(media_type) else { return false };
        let name = media_type.split(';').next().unwrap_or(media_type).trim().to_ascii_lowercase();
        if self.types.is_empty() {
            return name != "text/event-stream" && is_compressible(&name);
        }
        self.types.iter().any(|wanted| match wanted.strip_suffix('*') {
            Some(kind) => name.starts_with(kind),
            None => name == *wanted,
        })
    }
}

impl Compression {
    /// Changes the head of a response with which this is done. Its length is no longer known if it is compressed.
    ///
    /// # Errors
    /// [`HeadFault::NoMemory`]; the head is as it was before.
    pub fn mark(self, head: &mut ResponseHead) -> Result<(), HeadFault> {
        if self == Self::None {
            return Ok(());
        }
        let mut new = ResponseHead::default();
        new.copy_from(head)?;
        if let Self::By(coding) = self {
            let kept =
                |name: &[u8]| !name.eq_ignore_ascii_case(b"ETag") && !name.eq_ignore_ascii_case(b"Accept-Ranges");
            new.rewrite(None, kept)?;
            new.field(b"Content-Encoding", coding.name().as_bytes())?;
            copy_tags(head, &mut new)?;
        }
        if self == Self::Revalidated {
            new.retain(|name| !name.eq_ignore_ascii_case(b"ETag"))?;
            copy_tags(head, &mut new)?;
        }
        if !varies(head) {
            new.field(b"Vary", b"Accept-Encoding")?;
        }
        *head = new;
        Ok(())
    }
}

/// Adds the entity tags of `from`, as weak ones.
fn copy_tags(from: &ResponseHead, to: &mut ResponseHead) -> Result<(), HeadFault> {
    for (_, tag) in from.fields().filter(|(name, _)| name.eq_ignore_ascii_case(b"ETag")) {
        if tag.starts_with(b"\"") {
            to.field(b"ETag", &[b"W/", tag].concat())?;
        } else {
            to.field(b"ETag", tag)?;
        }
    }
    Ok(())
}

/// Whether the head says that the response depends on Accept-Encoding, or on everything.
fn varies(head: &ResponseHead) -> bool {
    let mut values = head.fields().filter(|(name, _)| name.eq_ignore_ascii_case(b"Vary")).map(|(_, value)| value);
    values.any(|value| has_member(value, b"*") || has_member(value, b"Accept-Encoding"))
}

/// Whether a list has this member. Letters of either case are the same.
fn has_member(list: &[u8], wanted: &[u8]) -> bool {
    list.split(|&byte| byte == b',').any(|member| trim(member).eq_ignore_ascii_case(wanted))
}

/// Whether content of this media type becomes notably smaller by compression.
#[must_use]
pub fn is_compressible(media_type: &str) -> bool {
    let name = media_type.split(';').next().unwrap_or(media_type).trim().to_ascii_lowercase();
    name.starts_with("text/")
        || name.ends_with("+xml")
        || name.ends_with("+json")
        || matches!(
            name.as_str(),
            "application/json"
                | "application/javascript"
                | "application/xml"
                | "application/yaml"
                | "application/toml"
                | "application/wasm"
                | "application/rtf"
                | "application/postscript"
                | "application/vnd.apple.mpegurl"
                | "application/vnd.ms-fontobject"
                | "application/x-sh"
                | "application/x-sql"
                | "font/otf"
                | "font/ttf"
                | "font/collection"
                | "image/bmp"
                | "image/vnd.microsoft.icon"
                | "image/x-icon"
        )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::iter::{empty, once};

    use super::{Compression, CompressionRules};
    use crate::coding::Coding;
    use crate::encode::ResponseHead;

    const JSON: (&str, &str) = ("Content-Type", "application/json");

    fn head(status: &str, fields: &[(&str, &str)]) -> ResponseHead {
        let mut head = ResponseHead::default();
        head.status(status.as_bytes()).unwrap();
        for (name, value) in fields {
            head.field(name.as_bytes(), value.as_bytes()).unwrap();
        }
        head
    }

    fn chosen(status: &str, fields: &[(&str, &str)], length: Option<u64>, accept: &str) -> Compression {
        let rules = CompressionRules::new(Vec::new(), 1024);
        rules.choose(&head(status, fields), length, once(accept.as_bytes()), empty())
    }

    #[test]
    fn a_text_of_some_size_is_compressed_in_the_coding_that_the_client_prefers() {
        for (accept, coding) in [
            ("gzip, deflate, br, zstd", Compression::By(Coding::Zstd)),
            ("gzip, br", Compression::By(Coding::Gzip)),
            ("gzip;q=0.5, br", Compression::By(Coding::Brotli)),
            ("*", Compression::By(Coding::Zstd)),
            ("", Compression::Varies),
            ("identity", Compression::Varies),
            ("gzip;q=0", Compression::Varies),
        ] {
            assert_eq!(chosen("200 OK", &[JSON], Some(1024), accept), coding, "{accept}");
            assert_eq!(chosen("404 Not Found", &[JSON], None, accept), coding, "{accept}, of unknown length");
            assert_eq!(chosen("200 OK", &[JSON], Some(1023), accept), Compression::None, "{accept}, small");
        }
    }

    #[test]
    fn what_says_so_or_would_no_longer_be_true_is_left_alone() {
        let exempt = [
            ("Content-Encoding", "gzip"),
            ("content-encoding", "identity"),
            ("Content-Range", "bytes 0-1/2"),
            ("Cache-Control", "private, No-Transform"),
            ("Content-MD5", "Q2hlY2sgSW50ZWdyaXR5IQ=="),
            ("Digest", "sha-256=X"),
            ("Content-Digest", "sha-256=:X:"),
            ("Repr-Digest", "sha-256=:X:"),
            ("Content-Type", "image/png"),
        ];
        for field in exempt {
            assert_eq!(chosen("200 OK", &[JSON, field], None, "gzip"), Compression::None, "{field:?}");
        }
        for status in ["204 No Content", "205 Reset Content", "206 Partial Content"] {
            assert_eq!(chosen(status, &[JSON], None, "gzip"), Compression::None, "{status}");
        }
        assert_eq!(chosen("200 OK", &[], None, "gzip"), Compression::None, "without a type");
        assert_eq!(chosen("200 OK", &[("Content-Type", "text/event-stream")], None, "gzip"), Compression::None);
        assert_eq!(
            chosen("200 OK", &[JSON, ("Cache-Control", "private")], None, "gzip"),
            Compression::By(Coding::Gzip)
        );
    }

    #[test]
    fn named_types_replace_the_common_ones() {
        let rules = CompressionRules::new(vec![String::from("text/*"), String::from("application/x-log")], 0);
        let chosen =
            |kind| rules.choose(&head("200 OK", &[("Content-Type", kind)]), None, once(b"gzip".as_slice()), empty());
        for kind in ["text/event-stream", "TEXT/plain; charset=utf-8", "application/x-log"] {
            assert_eq!(chosen(kind), Compression::By(Coding::Gzip), "{kind}");
        }
        for kind in ["application/json", "application/x-logs", "image/svg+xml"] {
            assert_eq!(chosen(kind), Compression::None, "{kind}");
        }
    }

    fn marked(compression: Compression, status: &str, fields: &[(&str, &str)]) -> String {
        let mut head = head(status, fields);
        compression.mark(&mut head).unwrap();
        assert_eq!(head.declared_length().is_some(), !matches!(compression, Compression::By(_)));
        String::from_utf8(head.bytes().to_vec()).unwrap()
    }

    #[test]
    fn a_compressed_response_has_its_coding_and_a_weak_entity_tag_and_no_ranges() {
        let fields = [
            JSON,
            ("Content-Length", "5000"),
            ("ETag", "\"v1\""),
            ("Accept-Ranges", "bytes"),
            ("Vary", "Cookie"),
            ("X-Other", "kept"),
        ];
        assert_eq!(
            marked(Compression::By(Coding::Brotli), "200 OK", &fields),
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nVary: Cookie\r\nX-Other: kept\r\n\
             Content-Encoding: br\r\nETag: W/\"v1\"\r\nVary: Accept-Encoding\r\n"
        );
    }

    #[test]
    fn a_response_that_another_client_would_get_compressed_says_that_it_varies() {
        let length = ("Content-Length", "5000");
        for (vary, added) in [("Cookie", true), ("Cookie, accept-encoding", false), ("*", false)] {
            let text = marked(Compression::Varies, "200 OK", &[length, ("ETag", "\"v1\""), ("Vary", vary)]);
            assert_eq!(text.ends_with("Vary: Accept-Encoding\r\n"), added, "{text}");
            assert!(text.contains("\r\nETag: \"v1\"\r\n"), "{text}");
        }
    }

    #[test]
    fn a_304_has_the_entity_tag_that_the_client_has_and_the_vary_of_its_200() {
        let rules = CompressionRules::new(Vec::new(), 1024);
        let chosen = |fields: &[(&str, &str)], accept: &'static str, known: Option<&'static str>| {
            let known = known.map(str::as_bytes).into_iter();
            rules.choose(&head("304 Not Modified", fields), None, once(accept.as_bytes()), known)
        };
        let tag = ("ETag", "\"v1\"");
        for (accept, known, expected) in [
            ("gzip", Some("W/\"v1\""), Compression::Revalidated),
            ("gzip", Some("\"v0\", W/\"v1\""), Compression::Revalidated),
            ("gzip", Some("\"v1\""), Compression::Varies),
            ("gzip", Some("*"), Compression::Varies),
            ("identity", Some("W/\"v1\""), Compression::Revalidated),
            ("gzip", None, Compression::Revalidated),
            ("", None, Compression::Varies),
        ] {
            assert_eq!(chosen(&[tag], accept, known), expected, "{accept} {known:?}");
        }
        assert_eq!(chosen(&[tag, JSON], "gzip", Some("\"v1\"")), Compression::Varies);
        assert_eq!(chosen(&[tag, ("Content-Type", "image/png")], "gzip", None), Compression::None);
        let fields = [("Content-Length", "5"), tag, ("X-Other", "kept")];
        let text = marked(Compression::Revalidated, "304 Not Modified", &fields);
        assert_eq!(text, "HTTP/1.1 304 Not Modified\r\nX-Other: kept\r\nETag: W/\"v1\"\r\nVary: Accept-Encoding\r\n");
        let weak = [("Content-Length", "5"), ("ETag", "W/\"v1\""), ("Vary", "*")];
        let text = marked(Compression::Revalidated, "304 Not Modified", &weak);
        assert_eq!(text, "HTTP/1.1 304 Not Modified\r\nVary: *\r\nETag: W/\"v1\"\r\n");
    }
}
