//! The path of a request target as CGI names it: `SCRIPT_NAME` and `PATH_INFO`. Pure functions, no interpreter.
//!
//! Decisions:
//! - A path is percent-decoded exactly once. What is not a valid escape (`%zz`, a cut `%4`) stays as it was sent, since
//!   refusing it is the application's choice and dropping it would change the name.
//! - `%00` is decoded like any other octet. The name is the application's to judge, and hiding a part of it would let
//!   two parties see two names.
//! - `*` (RFC 9112 section 3.2.4) has an empty path (section 3.3), so `PATH_INFO` is empty; `RAW_URI` says `*`.

/// The part of a decoded path after the application's root (`SCRIPT_NAME`). A path that is not under the root stays
/// unchanged: a proxy in front may already have removed the root.
pub(crate) fn path_info<'a>(path: &'a [u8], root: &[u8]) -> &'a [u8] {
    match path.strip_prefix(root) {
        Some(rest) if rest.is_empty() || rest[0] == b'/' => rest,
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_ends_at_a_segment() {
        assert_eq!(path_info(b"/app/x", b"/app"), b"/x");
        assert_eq!(path_info(b"/app", b"/app"), b"");
        assert_eq!(path_info(b"/apple", b"/app"), b"/apple");
        assert_eq!(path_info(b"/other", b"/app"), b"/other");
        assert_eq!(path_info(b"/x", b""), b"/x");
        assert_eq!(path_info(b"", b""), b"");
    }
}
