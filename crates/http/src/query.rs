//! Request targets as logs and status pages show them: without secrets in their parameters.
//!
//! Decisions:
//! - A parameter is secret by its name, which is percent-decoded, lowercased and reduced to letters and digits. So
//!   `%74oken`, `access-token` and `user[accessToken]` are secret. If a name may belong to a secret, it counts as one:
//!   a hidden postal code (`zip_code`) costs less than a shown authorization code.
//! - A short name such as `key` or `pin` counts only as the last word, since other words end in it (`monkey`, `spin`).
//!   Words are separated by characters other than letters and digits, or by camel case: `user_key`, `userKey`, `HMACKey`.
//! - Parameters end at `&`. Some applications also end them at `;`. So names after a `;` count, too, and after a secret
//!   name all values up to the next `&` are hidden, since they may be parts of the secret.
//! - A value that contains a secret is hidden: a URL with one in its query or fragment (`next=/reset%3Ftoken%3D...`),
//!   JSON with a member that has such a name, a JSON Web Token, or `Bearer ...`.
//! - Names and values are percent-decoded up to three times, because a proxy or client may have encoded them again.
//! - Parameters of path segments (`/a;token=...`, RFC 3986 section 3.3) are treated likewise.
//! - Userinfo needs no masking: targets with userinfo are refused before they are logged or shown (`target.rs`).

use std::borrow::Cow;

/// What is shown instead of a value.
const HIDDEN: &[u8] = b"***";

/// Parts that occur only in names of secrets.
const PARTS: [&str; 29] = [
    "bearer",
    "csrf",
    "xsrf",
    "creds",
    "token",
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "secret",
    "signature",
    "credential",
    "apikey",
    "accesskey",
    "privatekey",
    "authkey",
    "userkey",
    "passkey",
    "licensekey",
    "sharedkey",
    "signingkey",
    "userpass",
    "pwd",
    "session",
    "sessid",
    "authcode",
    "verifier",
    "assertion",
    "samlresponse",
];
/// Names of secrets, or the last word of such a name; digits may follow.
const WORDS: [&str; 18] = [
    "key",
    "code",
    "sig",
    "sign",
    "hmac",
    "auth",
    "authorization",
    "pass",
    "pw",
    "sid",
    "jwt",
    "otp",
    "totp",
    "mfa",
    "cred",
    "nonce",
    "pin",
    "ticket",
];
/// Maximum number of times that a name or a value is percent-decoded.
const DECODINGS: usize = 3;

/// Which values of query strings are hidden.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueryMasking {
    /// Those of parameters that are named like secrets.
    #[default]
    Secrets,
    /// All.
    All,
    /// None.
    None,
}

impl QueryMasking {
    /// The target as it may be shown: names are kept, and each value that is to be hidden is `***`.
    #[must_use]
    pub fn shown<'a>(self, target: &'a [u8]) -> Cow<'a, [u8]> {
        if self == Self::None || !target.iter().any(|byte| matches!(byte, b'?' | b';')) {
            return Cow::Borrowed(target);
        }
        let mark = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
        let (path, query) = target.split_at(mark);
        let mut shown = Vec::with_capacity(target.len());
        for (number, segment) in path.split(|byte| *byte == b'/').enumerate() {
            if number > 0 {
                shown.push(b'/');
            }
            let end = segment.iter().position(|byte| *byte == b';').map_or(segment.len(), |mark| mark + 1);
            shown.extend_from_slice(&segment[..end]);
            self.show_part(&segment[end..], &mut shown);
        }
        let Some(query) = query.strip_prefix(b"?") else { return Cow::Owned(shown) };
        shown.push(b'?');
        for (number, part) in query.split(|byte| *byte == b'&').enumerate() {
            if number > 0 {
                shown.push(b'&');
            }
            self.show_part(part, &mut shown);
        }
        Cow::Owned(shown)
    }

    /// Shows what is between two `&`.
    fn show_part(self, part: &[u8], shown: &mut Vec<u8>) {
        let mut hides = self == Self::All;
        for (number, parameter) in part.split(|byte| *byte == b';').enumerate() {
            if number > 0 {
                shown.push(b';');
            }
            let equals = parameter.iter().position(|byte| *byte == b'=');
            let name = &parameter[..equals.unwrap_or(parameter.len())];
            let hid = hides;
            hides = hides || is_secret(name);
            match equals {
                Some(equals) => {
                    shown.extend_from_slice(&parameter[..=equals]);
                    let value = &parameter[equals + 1..];
                    shown.extend_from_slice(if hides || holds_secret(value) { HIDDEN } else { value });
                }
                // A value without a name, or the rest of a secret.
                None if hid && !parameter.is_empty() => shown.extend_from_slice(HIDDEN),
                None => shown.extend_from_slice(parameter),
            }
        }
    }
}

/// Whether a value contains a parameter that may be a secret, or has the form of a secret.
fn holds_secret(value: &[u8]) -> bool {
    let mut decoded = Cow::Borrowed(value);
    for _ in 0..DECODINGS {
        if has_secret_parameter(&decoded) || has_secret_member(&decoded) || is_credential(&decoded) {
            return true;
        }
        if !decoded.contains(&b'%') {
            return false;
        }
        decoded = Cow::Owned(percent_decoded(&decoded));
    }
    has_secret_parameter(&decoded) || has_secret_member(&decoded) || is_credential(&decoded)
}

/// In the query string or fragment of a URL.
fn has_secret_parameter(url: &[u8]) -> bool {
    let start = url.iter().position(|octet| matches!(octet, b'?' | b'#')).unwrap_or(url.len());
    url[start..].split(|octet| matches!(octet, b'?' | b'#' | b'&' | b';')).any(|parameter| {
        let equals = parameter.iter().position(|octet| *octet == b'=');
        equals.is_some_and(|equals| is_secret(&parameter[..equals]))
    })
}

/// In JSON: a quoted name before a colon.
fn has_secret_member(json: &[u8]) -> bool {
    let parts: Vec<_> = json.split(|octet| *octet == b'"').collect();
    // `+` is a space in a query string.
    let after = |text: &[u8]| text.iter().copied().find(|octet| !matches!(octet, b' ' | b'+' | b'\t' | b'\n' | b'\r'));
    parts.windows(2).any(|pair| after(pair[1]) == Some(b':') && is_secret(pair[0]))
}

/// A JSON Web Token (RFC 7519), whose header begins with `{"`, or a bearer token (RFC 6750).
fn is_credential(value: &[u8]) -> bool {
    let is_bearer = value
        .get(..7)
        .is_some_and(|start| start[..6].eq_ignore_ascii_case(b"bearer") && matches!(start[6], b' ' | b'+' | b':'));
    is_bearer || (value.starts_with(b"eyJ") && value.iter().filter(|octet| **octet == b'.').count() >= 2)
}

fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut rest = text;
    std::iter::from_fn(|| {
        let (octet, after) = next_octet(rest)?;
        rest = after;
        Some(octet)
    })
    .collect()
}

/// Whether a parameter with this name may be a secret.
fn is_secret(raw: &[u8]) -> bool {
    let mut decoded = Cow::Borrowed(raw);
    for _ in 1..DECODINGS {
        if !decoded.contains(&b'%') {
            break;
        }
        decoded = Cow::Owned(percent_decoded(&decoded));
    }
    let (mut name, mut last_word) = (String::new(), 0);
    let mut rest = &*decoded;
    let mut before = b'_';
    while let Some((byte, after)) = next_octet(rest) {
        rest = after;
        if byte.is_ascii_alphanumeric() {
            let is_capital = byte.is_ascii_uppercase();
            // The last capital of several begins the next word: `HMACKey`.
            let ends_capitals = is_capital && next_octet(after).is_some_and(|(next, _)| next.is_ascii_lowercase());
            if !before.is_ascii_alphanumeric() || ends_capitals || is_capital && !before.is_ascii_uppercase() {
                last_word = name.len();
            }
            name.push(char::from(byte.to_ascii_lowercase()));
        }
        before = byte;
    }
    let is_word = |found: &str| WORDS.contains(&found.trim_end_matches(|letter: char| letter.is_ascii_digit()));
    PARTS.iter().any(|part| name.contains(part)) || is_word(&name) || is_word(&name[last_word..])
}

/// The next octet of a percent-encoded text, and what follows it.
fn next_octet(text: &[u8]) -> Option<(u8, &[u8])> {
    let hex = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    if let [b'%', high, low, after @ ..] = text
        && let (Some(high), Some(low)) = (hex(*high), hex(*low))
    {
        return Some((high << 4 | low, after));
    }
    text.split_first().map(|(byte, after)| (*byte, after))
}

#[cfg(test)]
mod tests {
    use super::QueryMasking;

    fn shown(masking: QueryMasking, target: &str) -> String {
        String::from_utf8_lossy(&masking.shown(target.as_bytes())).into_owned()
    }

    #[test]
    fn values_of_parameters_that_are_named_like_secrets_are_hidden() {
        for name in [
            "token",
            "TOKEN",
            "%74oken",
            "t%6Fken",
            "access_token",
            "accessToken",
            "user[token]",
            "user%5Btoken%5D",
            "csrfmiddlewaretoken",
            "X-Amz-Security-Token",
            "X-Amz-Signature",
            "X-Goog-Credential",
            "sig",
            "key",
            "api_key",
            "api-key",
            "apikey",
            "apiKey",
            "subscription-key",
            "AWSAccessKeyId",
            "password",
            "new_password1",
            "passwd",
            "user.pwd",
            "secret",
            "client_secret",
            "code",
            "auth",
            "auth_code",
            "session",
            "sessionid",
            "JSESSIONID",
            "PHPSESSID",
            "+token",
            "authkey",
            "AUTHKEY",
            "authKey",
            "userkey",
            "user_key",
            "passkey",
            "licensekey",
            "licenseKey",
            "license%4Bey",
            "license[hmacKey]",
            "storageKEY",
            "HMACKey",
            "userPIN",
            "resetCode",
            "userpwd",
            "pass1",
            "otp2",
            "userKey3",
            "oauth_verifier",
            "client_assertion",
            "sign",
            "bearer",
            "csrf",
            "xsrfValue",
            "totp",
            "totp2",
            "creds",
            "user_cred",
            "%2574oken",
            "%252574oken",
        ] {
            assert_eq!(
                shown(QueryMasking::Secrets, &format!("/a?x=1&{name}=s3&y=2")),
                format!("/a?x=1&{name}=***&y=2")
            );
        }
        for name in [
            "q",
            "page",
            "keyword",
            "monkey",
            "encode",
            "sort",
            "design",
            "%zz",
            "author",
            "spin",
            "bypass",
            "monkeY",
            "Monkey",
            "MONKEY",
            "keyWord",
            "authorName",
            "codePage",
        ] {
            let target = format!("/token=1/a?{name}=s3");
            assert_eq!(shown(QueryMasking::Secrets, &target), target);
        }
    }

    #[test]
    fn separators_repetitions_and_values_without_a_name_do_not_show_a_secret() {
        for (target, secrets, all) in [
            ("/", "/", "/"),
            ("/?", "/?", "/?"),
            ("/?token", "/?token", "/?***"),
            ("/?s3", "/?s3", "/?***"),
            ("/?token=", "/?token=***", "/?token=***"),
            ("/?a=1&token=s3&token=s4", "/?a=1&token=***&token=***", "/?a=***&token=***&token=***"),
            ("/?a=1;token=s3", "/?a=1;token=***", "/?a=***;token=***"),
            ("/?token=s3;b=s4;s5&c=1", "/?token=***;b=***;***&c=1", "/?token=***;b=***;***&c=***"),
            ("/?token=s3==&&b=?page=1", "/?token=***&&b=?page=1", "/?token=***&&b=***"),
            ("/?next=/a?token=s3&b=1", "/?next=***&b=1", "/?next=***&b=***"),
            ("/?next=%2Fa%3Fb%3D1%26t%6Fken%3Ds3&b=1", "/?next=***&b=1", "/?next=***&b=***"),
            ("/?to=https://a/%23access_token%3Ds3", "/?to=***", "/?to=***"),
            ("/?next=/token%3D1", "/?next=/token%3D1", "/?next=***"),
            ("/?next=%252Fa%253Ftoken%253Ds3&b=1", "/?next=***&b=1", "/?next=***&b=***"),
            ("/?next=/a%3Fthen%3D%252Fb%253Ftoken%253Ds3", "/?next=***", "/?next=***"),
            ("/?data={%22password%22:%20%22s3%22}&b=1", "/?data=***&b=1", "/?data=***&b=***"),
            ("/?data=%7B%22a%22%3A%7B%22apiKey%22+:1", "/?data=***", "/?data=***"),
            ("/?data={%22name%22:%22token%22}", "/?data={%22name%22:%22token%22}", "/?data=***"),
            ("/?q=Bearer%20s3", "/?q=***", "/?q=***"),
            ("/?q=eyJhbGciOiJub25lIn0.eyJhIjoxfQ.", "/?q=***", "/?q=***"),
            ("/a;token=s3/b;x=1?c=2", "/a;token=***/b;x=1?c=2", "/a;token=***/b;x=***?c=***"),
            ("/a;jsessionid=s3", "/a;jsessionid=***", "/a;jsessionid=***"),
            ("/a;b/c", "/a;b/c", "/a;***/c"),
            ("/?a=1&token=s3%26b", "/?a=1&token=***", "/?a=***&token=***"),
            ("/?%7", "/?%7", "/?***"),
        ] {
            assert_eq!(shown(QueryMasking::Secrets, target), secrets);
            assert_eq!(shown(QueryMasking::All, target), all);
            assert_eq!(shown(QueryMasking::None, target), target);
        }
    }
}
