//! Which files are served without the application, and how, as plain data. Names, meanings and defaults are those of
//! `tailrace/cli/options.py`.

use std::path::PathBuf;

use crate::resolve::Links;

/// All settings of static files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticConfig {
    /// The folders. Empty: no files are served.
    pub mounts: Vec<Mount>,
    /// The folders of the files that the application names. Empty: its fields are sent to the client.
    pub named: Vec<NamedFolder>,
    /// Which symbolic links below a folder are followed.
    pub symlinks: Links,
    /// Media types by the extension, without the dot and in lower case; they come before the common ones.
    pub types: Vec<(String, String)>,
    /// The Cache-Control field of files; the first rule that matches decides.
    pub cache_control: Vec<CacheRule>,
    /// The Cache-Control field of files whose name contains a hash of their content; empty: none.
    pub fingerprinted: String,
    /// The names of the file that is served for a folder; the first that exists is.
    pub index: Vec<String>,
    /// A file below a mount that is sent with 404 for what does not exist there: relative to the mount's folder.
    pub not_found: Option<String>,
    /// A file that is sent with 200 for what does not exist there and has no extension (single-page applications).
    pub fallback: Option<String>,
    /// Compressed siblings (`app.js.br`, `.zst`, `.gz`) are sent to clients that accept them: always, unless the
    /// application names the file.
    pub precompressed: bool,
    /// Files of compressible types are compressed once and kept in memory.
    pub compress: bool,
    /// Bytes of all files in memory.
    pub memory: usize,
}

impl Default for StaticConfig {
    fn default() -> Self {
        Self {
            mounts: Vec::new(),
            named: Vec::new(),
            symlinks: Links::Beneath,
            types: Vec::new(),
            cache_control: Vec::new(),
            fingerprinted: String::from("public, max-age=31536000, immutable"),
            index: vec![String::from("index.html")],
            not_found: None,
            fallback: None,
            precompressed: true,
            compress: false,
            memory: 32 << 20,
        }
    }
}

impl StaticConfig {
    /// The fields by which the application names files. Those without a folder are for the client.
    pub(crate) fn naming_fields(&self) -> &'static [&'static str] {
        const SENDFILE: &str = NamedBy::Sendfile.field();
        const ACCEL_REDIRECT: &str = NamedBy::AccelRedirect.field();
        let has = |by| self.named.iter().any(|named| named.by() == by);
        match (has(NamedBy::Sendfile), has(NamedBy::AccelRedirect)) {
            (true, true) => &[SENDFILE, ACCEL_REDIRECT],
            (true, false) => &[SENDFILE],
            (false, true) => &[ACCEL_REDIRECT],
            (false, false) => &[],
        }
    }

    /// The Cache-Control field of a file; empty: no such field. The first rule that matches decides, and without one
    /// whether the file is fingerprinted. path: that of the URL, decoded, with the name of the file that is sent for a
    /// folder.
    pub fn cache_control(&self, path: &str) -> &str {
        if let Some(rule) = self.cache_control.iter().find(|rule| rule.matches(path)) {
            return &rule.value;
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        if is_fingerprinted(name) { &self.fingerprinted } else { "" }
    }
}

/// A folder whose files are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The path of the URLs, as `/assets`: without a slash at the end, decoded; empty: all paths.
    pub prefix: String,
    /// The folder.
    pub folder: PathBuf,
    /// What does not exist in the folder is left to the application.
    pub is_overlay: bool,
}

/// A folder of files that the application names in a field of its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFolder {
    /// `None`: by `X-Sendfile` and the path of the file. Otherwise by `X-Accel-Redirect` and a path below this one,
    /// which is as [`Mount::prefix`].
    pub prefix: Option<String>,
    /// The folder.
    pub folder: PathBuf,
}

impl NamedFolder {
    /// The field that names its files.
    pub fn by(&self) -> NamedBy {
        if self.prefix.is_some() { NamedBy::AccelRedirect } else { NamedBy::Sendfile }
    }
}

/// The field by which the application names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// `X-Sendfile`: a path of the file system, as of Apache and lighttpd.
    Sendfile,
    /// `X-Accel-Redirect`: the path of a URL, as of nginx.
    AccelRedirect,
}

impl NamedBy {
    /// The name of the field.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Sendfile => "X-Sendfile",
            Self::AccelRedirect => "X-Accel-Redirect",
        }
    }
}

/// A rule for the Cache-Control field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheRule {
    /// The path of the URL, decoded: it and all below, if the pattern has no `*`; otherwise the whole path, where each
    /// `*` stands for any characters, slashes, too. A pattern that does not begin with a slash is for the last part of
    /// the path.
    pub pattern: String,
    /// The value of the field; empty: no such field.
    pub value: String,
}

impl CacheRule {
    /// True for a path that begins with a slash.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let pattern = self.pattern.as_str();
        let subject = if pattern.starts_with('/') { path } else { path.rsplit('/').next().unwrap_or(path) };
        if pattern.contains('*') {
            return is_match(pattern.as_bytes(), subject.as_bytes());
        }
        let pattern = pattern.strip_suffix('/').unwrap_or(pattern);
        subject.strip_prefix(pattern).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Whether the pattern, in which each `*` stands for any bytes, matches all of the subject. Time: at most the product of
/// both lengths.
fn is_match(pattern: &[u8], subject: &[u8]) -> bool {
    let (mut p, mut s) = (0, 0);
    // Where to go on if the bytes after the last `*` do not match: it takes one byte more.
    let mut retry: Option<(usize, usize)> = None;
    while s < subject.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, s));
            p += 1;
        } else if pattern.get(p) == Some(&subject[s]) {
            (p, s) = (p + 1, s + 1);
        } else if let Some((after, taken)) = retry {
            retry = Some((after, taken + 1));
            (p, s) = (after, taken + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// True for the last part of a path that contains a hash of the file's content, as build tools and Django's
/// `ManifestStaticFilesStorage` write it: between two of `.`, `-` and `_`, or before the extension, at least eight
/// hexadecimal digits, both letters and figures.
pub(crate) fn is_fingerprinted(name: &str) -> bool {
    let parts: Vec<_> = name.split(['.', '-', '_']).collect();
    let is_hash = |part: &&str| {
        part.len() >= 8
            && part.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'))
            && part.bytes().any(|byte| byte.is_ascii_digit())
            && part.bytes().any(|byte| byte.is_ascii_alphabetic())
    };
    // The first part is the name, the last one the extension.
    parts.len() > 2 && parts[1..parts.len() - 1].iter().any(is_hash)
}

#[cfg(test)]
mod tests {
    use super::{CacheRule, StaticConfig, is_fingerprinted};

    fn matches(pattern: &str, path: &str) -> bool {
        CacheRule { pattern: pattern.to_owned(), value: String::new() }.matches(path)
    }

    #[test]
    fn a_pattern_without_a_star_is_a_path_and_all_below() {
        assert!(
            matches("/assets", "/assets") && matches("/assets", "/assets/a.js") && matches("/assets/", "/assets/a")
        );
        assert!(!matches("/assets", "/assets-old/a.js") && !matches("/assets", "/a"));
        assert!(matches("/", "/a/b"));
        assert!(matches("robots.txt", "/a/robots.txt") && !matches("robots.txt", "/robots.txt.gz"));
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        assert!(matches("*.html", "/a/b.html") && !matches("*.html", "/a/b.htm"));
        assert!(matches("/img/*.png", "/img/a/b.png") && !matches("/img/*.png", "/other/img/a.png"));
        assert!(matches("*", "/a") && matches("/a*b*c", "/aXbXbc") && !matches("/a*b*c", "/aXcXb"));
        assert!(matches("/*/x", "/a/b/x") && !matches("/a**", "/b"));
    }

    #[test]
    fn many_stars_take_no_long_time() {
        let path = format!("/{}", "a".repeat(4_000));
        assert!(!matches(&format!("/{}b", "*a".repeat(500)), &path));
    }

    #[test]
    fn the_first_rule_decides_before_the_fingerprint() {
        let rule = |pattern: &str, value: &str| CacheRule { pattern: pattern.to_owned(), value: value.to_owned() };
        let config = StaticConfig {
            cache_control: vec![rule("/a", "max-age=60"), rule("*.html", "no-cache"), rule("*.js", "")],
            fingerprinted: String::from("immutable"),
            ..StaticConfig::default()
        };
        assert_eq!(config.cache_control("/a/x.27e20196a850.css"), "max-age=60");
        assert_eq!(config.cache_control("/b/x.27e20196a850.css"), "immutable");
        assert_eq!(config.cache_control("/b/x.27e20196a850.js"), "");
        assert_eq!(config.cache_control("/b/index.html"), "no-cache");
        assert_eq!(config.cache_control("/b/x.css"), "");
    }

    #[test]
    fn a_name_with_a_hash_is_fingerprinted() {
        for name in ["base.27e20196a850.css", "app-3f2a9c1b.js", "x_0a1b2c3d4e5f.min.js", "a.b.12345678abcdef01.map"] {
            assert!(is_fingerprinted(name), "{name}");
        }
        for name in ["photo-20240101.jpg", "jquery-3.7.1.min.js", "a.js", "3f2a9c1b.js", "deadbeef", "a.deadbeef.js"] {
            assert!(!is_fingerprinted(name), "{name}");
        }
    }
}
