//! Formats with the atoms of gunicorn's `--access-logformat`, so that such a format works unchanged: `%(h)s`,
//! `%({Host}i)s` (a field of the request), `%({Content-Type}o)s` (of the response), `%({REMOTE_PORT}e)s` (a variable).

use super::atoms::Atom;
use super::parts::{FormatPart, Variables, end_literal};
use super::spelling::nearest;

/// The atoms without an argument.
const LETTERS: &str = "h, l, u, t, r, m, U, q, H, s, B, b, f, a, T, M, D, L, p";
/// Those that have a name in the other notation.
const SAME: [(&str, &str); 9] = [
    ("h", "client"),
    ("m", "method"),
    ("U", "path"),
    ("H", "protocol"),
    ("s", "status"),
    ("B", "bytes"),
    ("b", "bytes"),
    ("f", "referer"),
    ("a", "user_agent"),
];
/// The atoms with an argument.
const ARGUMENTS: &str = "%({field}i)s of the request, %({field}o)s of the response, %({key}e)s of environ";

pub(super) fn parse(text: &str, variables: &mut Variables) -> Result<Vec<FormatPart>, String> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        literal.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            literal.push('%');
            rest = after;
            continue;
        }
        let Some(inner) = rest.strip_prefix('(') else {
            return Err("'%' without '(' (write '%%' for a percent sign)".to_owned());
        };
        let (name, after) = inner.split_once(')').ok_or_else(|| format!("'%({inner}' has no closing parenthesis"))?;
        parts.extend(end_literal(&mut literal));
        let first = parts.len();
        add(name, &mut parts, variables)?;
        rest = match after.as_bytes().first() {
            Some(b's') => &after[1..],
            // Python's conversion of whole numbers; in gunicorn these atoms are such.
            Some(b'd') if matches!(parts[first..], [FormatPart::Duration(_)]) => &after[1..],
            _ => return Err(format!("'%({name})' must be written %({name})s")),
        };
    }
    literal.push_str(rest);
    parts.extend(end_literal(&mut literal));
    for part in &parts {
        if let FormatPart::Literal(text) = part {
            no_braces(text)?;
        }
    }
    Ok(parts)
}

/// Refuses an atom in braces, which would be written as it is instead of its value.
fn no_braces(text: &str) -> Result<(), String> {
    for piece in text.split('{').skip(1) {
        if let Some((name, _)) = piece.split_once('}')
            && Atom::named(name).is_some()
        {
            return Err(format!("{{{name}}} and atoms like %(h)s are two notations: use one of them"));
        }
    }
    Ok(())
}

fn add(name: &str, parts: &mut Vec<FormatPart>, variables: &mut Variables) -> Result<(), String> {
    if let Some(inner) = name.strip_prefix('{') {
        parts.push(with_argument(name, inner, variables)?);
        return Ok(());
    }
    let same = SAME.iter().find(|(letter, _)| *letter == name);
    if let Some(atom) = same.and_then(|(_, atom)| Atom::named(atom)) {
        parts.push(FormatPart::Atom(atom));
        return Ok(());
    }
    let literal = |text: &str| FormatPart::Literal(text.to_owned());
    match name {
        "l" => parts.push(literal("-")),
        "u" => parts.push(FormatPart::User),
        "t" => parts.extend([literal("["), FormatPart::ClfTime, literal("]")]),
        "r" => parts.push(FormatPart::RequestLine),
        "q" => parts.push(FormatPart::Query),
        "T" => parts.push(FormatPart::Duration(1_000_000_000)),
        "M" => parts.push(FormatPart::Duration(1_000_000)),
        "D" => parts.push(FormatPart::Duration(1_000)),
        "L" => parts.push(FormatPart::Seconds),
        "p" => parts.push(FormatPart::Process),
        _ => {
            let hint = nearest(name, Atom::all().map(Atom::name))
                .map(|name| format!("; there is {{{name}}} in the other notation"))
                .unwrap_or_default();
            return Err(format!("unknown atom %({name})s{hint}; choose from {LETTERS}, and {ARGUMENTS}"));
        }
    }
    Ok(())
}

fn with_argument(name: &str, inner: &str, variables: &mut Variables) -> Result<FormatPart, String> {
    let (argument, kind) = inner.split_once('}').ok_or_else(|| format!("'%({name})s' has no closing brace"))?;
    if kind != "e" && !is_field_name(argument) || argument.is_empty() {
        return Err(format!("'%({name})s': {argument:?} is not a field name"));
    }
    match kind {
        "i" => Ok(FormatPart::RequestField(argument.to_ascii_lowercase())),
        "o" => Ok(FormatPart::ResponseField(argument.to_ascii_lowercase())),
        "e" => Ok(variables.part(argument, variable(argument))),
        _ => Err(format!("unknown atom %({name})s; choose from {ARGUMENTS}")),
    }
}

pub(super) fn is_field_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

/// The part that says the same as a key of `environ`, as far as that follows from the request head and the client's
/// address. As in gunicorn, letters may be small.
pub(super) fn variable(name: &str) -> Option<FormatPart> {
    let name = name.to_ascii_uppercase();
    Some(match name.as_str() {
        "REQUEST_METHOD" => FormatPart::Atom(Atom::named("method")?),
        "QUERY_STRING" => FormatPart::Query,
        "SERVER_PROTOCOL" => FormatPart::Atom(Atom::named("protocol")?),
        "REMOTE_ADDR" => FormatPart::Atom(Atom::named("client")?),
        "REMOTE_PORT" => FormatPart::Port,
        "CONTENT_TYPE" | "CONTENT_LENGTH" => FormatPart::RequestField(name.to_ascii_lowercase().replace('_', "-")),
        _ => {
            let field = name.strip_prefix("HTTP_").filter(|field| !field.is_empty())?;
            FormatPart::RequestField(field.to_ascii_lowercase().replace('_', "-"))
        }
    })
}
