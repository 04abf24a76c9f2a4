//! The parts of a format.

use super::atoms::Atom;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FormatPart {
    Literal(String),
    Atom(Atom),
    /// The time of the common log format, without its brackets.
    ClfTime,
    /// Method, target and version, as the client sent them.
    RequestLine,
    /// The user of `Authorization: Basic`.
    User,
    /// The query, nothing where there is none.
    Query,
    /// The time that the response took, in whole units of this many nanoseconds.
    Duration(u32),
    /// The time that the response took: seconds, a point and microseconds.
    Seconds,
    /// The number of the process.
    Process,
    /// The client's port.
    Port,
    /// A field of the request, by its name in lower case.
    RequestField(String),
    /// A field of the response, by its name in lower case.
    ResponseField(String),
    /// A key of `environ`, by its number among those of the format. Where the application was not called, the part
    /// that says the same, if there is one.
    Variable(usize, Option<Box<FormatPart>>),
}

/// The keys of `environ` that a format names, each once.
#[derive(Default)]
pub(super) struct Variables(pub(super) Vec<String>);

impl Variables {
    /// The part for a key.
    pub(super) fn part(&mut self, name: &str, otherwise: Option<FormatPart>) -> FormatPart {
        let known = self.0.iter().position(|known| known == name);
        let number = known.unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        });
        FormatPart::Variable(number, otherwise.map(Box::new))
    }
}

/// The literal that has been read, unless it is empty, as a part.
pub(super) fn end_literal(literal: &mut String) -> Option<FormatPart> {
    (!literal.is_empty()).then(|| FormatPart::Literal(std::mem::take(literal)))
}
