//! Content codings (RFC 9110 sections 8.4.1 and 12.5.3): which of those that are available a client prefers.
//!
//! A pure function. Any thread.

use crate::octets::trim;

/// A content coding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coding {
    /// None.
    #[default]
    Identity,
    /// `gzip`, RFC 1952.
    Gzip,
    /// `br`, RFC 7932.
    Brotli,
    /// `zstd`, RFC 8878.
    Zstd,
}

impl Coding {
    /// As written in Content-Encoding.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    fn is_named(self, name: &[u8]) -> bool {
        // RFC 9110 section 8.4.1.3.
        let is_old_name = self == Self::Gzip && name.eq_ignore_ascii_case(b"x-gzip");
        name.eq_ignore_ascii_case(self.name().as_bytes()) || is_old_name
    }
}

/// The coding that a client prefers, according to the values of its Accept-Encoding fields. `available`: the codings
/// besides `Identity`, best first; their order decides between equal weights. A coding that is acceptable beats
/// `Identity` unless the client gives `Identity` the higher weight. If none is acceptable, the result is `Identity`, as
/// RFC 9110 section 12.5.3 recommends, even if the client excludes it.
#[must_use]
pub fn preferred<'a>(accept: impl Iterator<Item = &'a [u8]> + Clone, available: &[Coding]) -> Coding {
    let weight = |coding: Coding| {
        let mut any = None;
        for (name, weight) in accept.clone().flat_map(members) {
            if coding.is_named(name) {
                return Some(weight);
            }
            if name == b"*" {
                any = Some(weight);
            }
        }
        any
    };
    // If the client does not mention it, identity is acceptable, but any other coding that it names is preferred.
    let identity = weight(Coding::Identity).unwrap_or(0);
    let mut best = (Coding::Identity, identity);
    for &coding in available {
        let weight = weight(coding).unwrap_or(0);
        let is_first = best.0 == Coding::Identity && weight == best.1;
        if weight > 0 && (weight > best.1 || is_first) {
            best = (coding, weight);
        }
    }
    best.0
}

/// The members of an Accept-Encoding value: name and weight in thousandths. Malformed ones are left out.
fn members(value: &[u8]) -> impl Iterator<Item = (&[u8], u16)> {
    value.split(|&byte| byte == b',').filter_map(|member| {
        let mut parts = member.split(|&byte| byte == b';').map(trim);
        let name = parts.next().filter(|name| !name.is_empty())?;
        match (parts.next(), parts.next()) {
            (None, _) => Some((name, 1_000)),
            (Some(parameter), None) => Some((name, thousandths(parameter)?)),
            _ => None,
        }
    })
}

/// `q=0.5` in thousandths (`weight` of RFC 9110 section 12.4.2).
fn thousandths(parameter: &[u8]) -> Option<u16> {
    let [b'q' | b'Q', b'=', digit @ (b'0' | b'1'), fraction @ ..] = parameter else { return None };
    let one = if *digit == b'1' { 1_000 } else { 0 };
    let digits = match fraction {
        [] => &[],
        [b'.', digits @ ..] if digits.len() <= 3 => digits,
        _ => return None,
    };
    let mut place = 100;
    let mut sum = one;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        sum += u16::from(digit - b'0') * place;
        place /= 10;
    }
    (sum <= 1_000).then_some(sum)
}
