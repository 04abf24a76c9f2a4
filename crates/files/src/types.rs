//! The media type of a file, by the extension of its name. Pure functions.
//!
//! Decisions:
//! - The operator's types come first, and are sent as written.
//! - What browsers refuse or misread under the type of the common table has an entry in `BETTER`.
//! - `text/*` is UTF-8. A type that says its encoding in the content, such as XML's, or has only one, such as JSON's,
//!   gets no `charset`: it would overrule the content.
//! - An unknown extension, or none, is `application/octet-stream`: with `X-Content-Type-Options: nosniff` no browser
//!   runs it.

use std::borrow::Cow;

/// Sorted by extension; before the table of `mime_guess`.
const BETTER: &[(&str, &str)] = &[
    ("atom", "application/atom+xml"),
    ("br", "application/octet-stream"),
    ("cjs", "text/javascript; charset=utf-8"),
    ("gz", "application/gzip"),
    ("ico", "image/vnd.microsoft.icon"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("m4a", "audio/mp4"),
    // Source maps are JSON.
    ("map", "application/json"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("otf", "font/otf"),
    ("rpm", "application/x-rpm"),
    // Compressed already: under the type of SVG it would need a Content-Encoding.
    ("svgz", "application/gzip"),
    ("tgz", "application/gzip"),
    ("toml", "application/toml"),
    // Parts of HLS streams. TypeScript is not for browsers.
    ("ts", "video/mp2t"),
    ("woff", "font/woff"),
    ("xml", "application/xml"),
    ("xsd", "application/xml"),
    ("xsl", "application/xml"),
    ("xslt", "application/xml"),
    // RFC 9512.
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("zst", "application/zstd"),
];

/// For files whose name says nothing.
const UNKNOWN: &str = "application/octet-stream";

/// The Content-Type field of a file. name: its name, or a path that ends with it. extra: types by their extension,
/// without the dot, which come before the common ones.
pub fn media_type<'a>(name: &str, extra: &'a [(String, String)]) -> Cow<'a, str> {
    let Some(extension) = extension(name) else { return Cow::Borrowed(UNKNOWN) };
    if let Some((_, chosen)) = extra.iter().find(|(known, _)| known.eq_ignore_ascii_case(extension)) {
        return Cow::Borrowed(chosen);
    }
    let lower = extension.to_ascii_lowercase();
    if let Ok(place) = BETTER.binary_search_by_key(&lower.as_str(), |&(known, _)| known) {
        return Cow::Borrowed(BETTER[place].1);
    }
    match mime_guess::from_ext(&lower).first_raw() {
        None => Cow::Borrowed(UNKNOWN),
        Some("application/javascript" | "text/javascript") => Cow::Borrowed("text/javascript; charset=utf-8"),
        Some("text/html") => Cow::Borrowed("text/html; charset=utf-8"),
        Some("text/css") => Cow::Borrowed("text/css; charset=utf-8"),
        Some("text/plain") => Cow::Borrowed("text/plain; charset=utf-8"),
        Some("text/xml") => Cow::Borrowed("application/xml"),
        Some(text) if text.starts_with("text/") => Cow::Owned(format!("{text}; charset=utf-8")),
        Some(other) => Cow::Borrowed(other),
    }
}

/// What follows the last dot of a name; `None` if there is no dot, or only one at the start.
fn extension(name: &str) -> Option<&str> {
    let name = name.rsplit('/').next().unwrap_or(name);
    let (stem, extension) = name.rsplit_once('.')?;
    (!stem.is_empty() && !extension.is_empty()).then_some(extension)
}

#[cfg(test)]
mod tests {
    use super::{BETTER, media_type};
    use tailrace_http::compression::is_compressible;

    fn common(name: &str) -> String {
        media_type(name, &[]).into_owned()
    }

    #[test]
    fn types_of_the_web_are_as_browsers_want_them() {
        for (name, wanted) in [
            ("index.html", "text/html; charset=utf-8"),
            ("a.htm", "text/html; charset=utf-8"),
            ("app.js", "text/javascript; charset=utf-8"),
            ("app.mjs", "text/javascript; charset=utf-8"),
            ("site.css", "text/css; charset=utf-8"),
            ("notes.txt", "text/plain; charset=utf-8"),
            ("notes.md", "text/markdown; charset=utf-8"),
            ("table.csv", "text/csv; charset=utf-8"),
            ("data.json", "application/json"),
            ("app.js.map", "application/json"),
            ("site.webmanifest", "application/manifest+json"),
            ("logo.svg", "image/svg+xml"),
            ("logo.png", "image/png"),
            ("logo.jpeg", "image/jpeg"),
            ("logo.webp", "image/webp"),
            ("logo.avif", "image/avif"),
            ("favicon.ico", "image/vnd.microsoft.icon"),
            ("a.woff2", "font/woff2"),
            ("a.woff", "font/woff"),
            ("a.ttf", "font/ttf"),
            ("a.otf", "font/otf"),
            ("a.wasm", "application/wasm"),
            ("a.pdf", "application/pdf"),
            ("a.mp4", "video/mp4"),
            ("sitemap.xml", "application/xml"),
            ("feed.rss", "application/rss+xml"),
            ("app.js.gz", "application/gzip"),
            ("app.js.br", "application/octet-stream"),
        ] {
            assert_eq!(common(name), wanted, "{name}");
        }
    }

    #[test]
    fn the_extension_is_what_follows_the_last_dot_in_any_case() {
        assert_eq!(common("/a.css/PHOTO.JPG"), "image/jpeg");
        assert_eq!(common("a.tar.gz"), "application/gzip");
        for name in ["", "LICENSE", "/a.html/LICENSE", ".html", "/x/.css", "a.", "a.nobody-knows", "a.h\u{130}", "."] {
            assert_eq!(common(name), "application/octet-stream", "{name}");
        }
    }

    #[test]
    fn the_types_of_the_operator_come_first_and_stay_as_written() {
        let extra = [
            ("html".to_owned(), "text/html; charset=iso-8859-1".to_owned()),
            ("data".to_owned(), "text/plain".to_owned()),
        ];
        assert_eq!(media_type("a.HTML", &extra), "text/html; charset=iso-8859-1");
        assert_eq!(media_type("a.data", &extra), "text/plain");
        assert_eq!(media_type("a.css", &extra), "text/css; charset=utf-8");
    }

    #[test]
    fn the_table_is_sorted() {
        assert!(BETTER.is_sorted_by(|one, next| one.0 < next.0));
    }

    #[test]
    fn text_is_compressible_and_what_is_compressed_is_not() {
        for name in ["a.html", "a.js", "a.json", "a.svg", "a.xml", "a.wasm", "a.ttf", "a.map", "a.ico", "a.rss"] {
            assert!(is_compressible(&common(name)), "{name}");
        }
        for name in ["a.png", "a.woff2", "a.woff", "a.mp4", "a.zip", "a.gz", "a.br", "a.svgz", "a.pdf", "LICENSE"] {
            assert!(!is_compressible(&common(name)), "{name}");
        }
        assert!(is_compressible("Text/Plain"));
    }
}
