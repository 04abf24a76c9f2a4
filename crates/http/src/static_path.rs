//! The path of a request as the name of a file below a folder: which names a request may ask for at all.
//!
//! It starts from [`RequestHead::path`](crate::request_head::RequestHead::path), which is percent-encoded as it arrived
//! (`target` splits off the query and decodes nothing), so percent-decoding happens here, and once. A [`RelativePath`]
//! has only names: no `.` or `..`, no empty name, no separator that was encoded, no NUL. What a name refers to is for
//! the resolver to find out; links are not known here.
//!
//! A refusal is a value. A file server answers with [`PathError::refusal`]; if an application stands behind the files,
//! the request may be passed on to it instead.
//!
//! | what arrives | result | reason |
//! |---|---|---|
//! | `%zz`, `%4`, `%u002e` | 400 | RFC 3986 section 2.1 has no such encoding |
//! | a control character, U+0080 to U+009F too | 400 | NUL ends a name for the system; others spoil logs |
//! | what is not UTF-8, so also overlong forms | 400 | a decoder behind this one could read `/` or `.` |
//! | `.`, `..`, encoded or not | 400 | RFC 3986 section 6.2.2.3: clients remove them before they send |
//! | `%2F`, `\`, `%5C` | 404 | data of a segment, which no file name can have; proxies take `\` for `/` |
//! | an empty segment, but the last | 404 | another resource than that without it (RFC 3986 section 3.3) |
//! | a name that begins with a dot | 404 | `.git`, `.env`; see [`DotFiles`] |
//! | a name of more than 255 bytes, 4,096 bytes or 65 names in all | 404 | no longer ones exist; a bounded walk |
//! | `%252e` | the name `%2e` | decoded once |
//! | a name with `;`, `:`, `~`, spaces or dots at its end, fullwidth forms | that name | nothing else on Linux |
//!
//! Pure functions. Any thread.

use crate::limits::Refusal;
use crate::octets::hexadecimal;

/// The longest name of a file, in bytes (`NAME_MAX`).
const NAME: usize = 255;
/// The longest path, in bytes: the system's `PATH_MAX` includes the NUL at its end.
const PATH: usize = 4095;
/// Maximum number of names in a path. The resolver holds a descriptor for each.
const NAMES: usize = 64;
/// The folder that RFC 8615 gives a meaning to.
const WELL_KNOWN: &[u8] = b".well-known";

const MALFORMED: Refusal =
    Refusal::new(400, "Each \"%\" in the path must be followed by two hexadecimal digits that encode an octet.");
const CONTROL: Refusal = Refusal::new(400, "The path must not contain control characters.");
const NOT_UTF8: Refusal = Refusal::new(400, "The percent-encoded octets of the path must be UTF-8.");
const DOT_SEGMENT: Refusal = Refusal::new(400, "The path must not have \".\" or \"..\" as a segment.");
const NOT_FOUND: Refusal = Refusal::new(404, "There is no such file.");

/// Names that begin with a dot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DotFiles {
    /// Only `.well-known` is served, as the first name (RFC 8615 section 3); names inside it must not begin with a dot.
    #[default]
    WellKnown,
    /// All are served: the name comes from the application or the settings, not from a request.
    Allowed,
}

/// Why a path names no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// A `%` without two hexadecimal digits.
    Malformed,
    /// NUL or another control character.
    Control,
    /// Its octets are not UTF-8.
    NotUtf8,
    /// A `.` or `..`.
    DotSegment,
    /// An encoded slash, or a backslash.
    Separator,
    /// `//`.
    EmptySegment,
    /// A name that begins with a dot, which [`DotFiles`] does not allow.
    DotFile,
    /// A name or the whole is longer than those of the system, or there are too many names.
    TooLong,
    /// It continues without a slash after the prefix: it is not a path below it.
    NotBelow,
}

impl PathError {
    /// The response where no application is asked. 400: no client sends this. 404: it could be the path of a resource,
    /// but not that of a file; the response does not tell whether there is a hidden one.
    #[must_use]
    pub const fn refusal(self) -> Refusal {
        match self {
            Self::Malformed => MALFORMED,
            Self::Control => CONTROL,
            Self::NotUtf8 => NOT_UTF8,
            Self::DotSegment => DOT_SEGMENT,
            Self::Separator | Self::EmptySegment | Self::DotFile | Self::TooLong | Self::NotBelow => NOT_FOUND,
        }
    }
}

/// Names of folders and a file, each below the one before it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RelativePath {
    /// The names, separated by slashes.
    text: String,
    is_directory_form: bool,
}

impl RelativePath {
    /// The names, separated by slashes: `css/site.css`. Empty for the folder itself. Case is preserved.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the path ended with a slash. A path without names has both forms: `/static` and `/static/`.
    #[must_use]
    pub fn is_directory_form(&self) -> bool {
        self.is_directory_form
    }

    /// The path of a file in this folder, such as `index.html`. `None`: the argument is not a file name, or the path
    /// becomes too long.
    #[must_use]
    pub fn child(&self, name: &str) -> Option<Self> {
        let is_name = !matches!(name, "" | "." | "..")
            && name.len() <= NAME
            && !name.chars().any(|character| matches!(character, '/' | '\\') || character.is_control());
        let text = if self.text.is_empty() { name.to_owned() } else { format!("{}/{name}", self.text) };
        let fits = text.len() <= PATH && text.split('/').count() <= NAMES;
        (is_name && fits).then_some(Self { text, is_directory_form: false })
    }

    /// The path of the file whose name is this one's plus a suffix, such as `.br`. `None`: there is no name, or the
    /// name becomes too long, or the suffix contains a slash.
    #[must_use]
    pub fn with_suffix(&self, suffix: &str) -> Option<Self> {
        let (folder, name) = self.text.rsplit_once('/').unwrap_or(("", &self.text));
        let folder = Self { text: folder.to_owned(), is_directory_form: true };
        if name.is_empty() { None } else { folder.child(&format!("{name}{suffix}")) }
    }
}

/// The part of a request's path after this prefix, with the slash that it begins with: `/site.css` of
/// `/static/site.css` for `/static`. It is empty for the prefix itself. `None`: the path is not below the prefix.
///
/// The octets are compared as they arrived, so `/%73tatic/site.css` is not below `/static`.
#[must_use]
pub fn below<'a>(path: &'a [u8], prefix: &str) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(prefix.trim_end_matches('/').as_bytes())?;
    matches!(rest, [] | [b'/', ..]).then_some(rest)
}

/// Decodes the part of a request's path after a prefix, as [`below`] returns it: percent-encoded, without the query,
/// and with a slash in front unless it is empty.
///
/// # Errors
/// It names no file that may be served. Of several reasons that of the first name counts, and its UTF-8 comes last.
pub fn decode(rest: &[u8], dot_files: DotFiles) -> Result<RelativePath, PathError> {
    let segments = match rest {
        [] => return Ok(RelativePath { text: String::new(), is_directory_form: false }),
        [b'/', segments @ ..] => segments,
        _ => return Err(PathError::NotBelow),
    };
    // An octet takes three at most. Longer ones are not read.
    if segments.len() > 3 * PATH {
        return Err(PathError::TooLong);
    }
    let (names, is_directory_form) = match segments {
        [] => (None, true),
        [names @ .., b'/'] => (Some(names), true),
        names => (Some(names), false),
    };
    let mut text = Vec::with_capacity(segments.len());
    // An encoded slash is refused, so that the slashes that arrived are those of the path.
    for (index, segment) in names.into_iter().flat_map(|names| names.split(|&octet| octet == b'/')).enumerate() {
        if index > 0 {
            text.push(b'/');
        }
        let start = text.len();
        decode_segment(segment, &mut text)?;
        check_name(&text[start..], index, dot_files)?;
    }
    if text.len() > PATH {
        return Err(PathError::TooLong);
    }
    let text = String::from_utf8(text).map_err(|_| PathError::NotUtf8)?;
    // U+0080 to U+009F; those of ASCII have been found.
    if text.chars().any(char::is_control) {
        return Err(PathError::Control);
    }
    Ok(RelativePath { text, is_directory_form })
}

/// A path as clients send it: what may not stand in one is percent-encoded (RFC 3986 section 3.3). Slashes stay.
#[must_use]
pub fn encode(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for &octet in path.as_bytes() {
        if octet.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&octet) {
            text.push(char::from(octet));
        } else {
            text.push_str(&format!("%{octet:02X}"));
        }
    }
    text
}

fn decode_segment(segment: &[u8], text: &mut Vec<u8>) -> Result<(), PathError> {
    let mut rest = segment;
    while let [octet, tail @ ..] = rest {
        let octet = if *octet == b'%' {
            let [high, low, tail @ ..] = tail else { return Err(PathError::Malformed) };
            rest = tail;
            digit(*high)? << 4 | digit(*low)?
        } else {
            rest = tail;
            *octet
        };
        match octet {
            b'/' | b'\\' => return Err(PathError::Separator),
            0..=0x1f | 0x7f => return Err(PathError::Control),
            _ => text.push(octet),
        }
    }
    Ok(())
}

fn digit(octet: u8) -> Result<u8, PathError> {
    hexadecimal(octet).ok_or(PathError::Malformed)
}

fn check_name(name: &[u8], index: usize, dot_files: DotFiles) -> Result<(), PathError> {
    let is_allowed = match dot_files {
        DotFiles::WellKnown => index == 0 && name == WELL_KNOWN,
        DotFiles::Allowed => true,
    };
    match name {
        b"" => Err(PathError::EmptySegment),
        b"." | b".." => Err(PathError::DotSegment),
        [b'.', ..] if !is_allowed => Err(PathError::DotFile),
        _ if name.len() > NAME || index >= NAMES => Err(PathError::TooLong),
        _ => Ok(()),
    }
}
