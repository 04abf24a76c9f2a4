//! A parsed request head: spans over the bytes that arrived.
//!
//! Plain data without a state of its own: `head` fills it, `target` and `framing` read it. Offsets are 32 bits wide:
//! the parser refuses a head long before one overflows. Any thread.

/// A range of the head's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// The bytes that the span covers; empty if `bytes` does not contain all of them.
    #[must_use]
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or(&[])
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// True when it covers nothing.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

/// The version of a message (RFC 9110 section 2.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1, or a higher minor version, which is processed as 1.1.
    #[default]
    Http11,
}

/// The four forms of a request target (RFC 9112 section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetForm {
    /// `/path?query`.
    #[default]
    Origin,
    /// `http://authority/path?query`.
    Absolute,
    /// `host:port`, only with CONNECT, which is refused.
    Authority,
    /// `*`, only with OPTIONS.
    Asterisk,
}

/// One field line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Field {
    /// The name as it was sent.
    pub name: Span,
    /// The value without the whitespace around it.
    pub value: Span,
}

/// A parsed request head. All spans refer to the bytes that [`crate::head::HeadParser::parse`] or [`crate::uwsgi::parse`]
/// was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    /// The method as it was sent; methods are case-sensitive.
    pub method: Span,
    /// The whole request target.
    pub target: Span,
    /// Its form.
    pub form: TargetForm,
    /// The path, not decoded. Never empty: `/` for an absolute-form target without one, `*` for the asterisk form.
    pub path: Span,
    /// What follows the first `?`, not decoded; `None` without a `?`.
    pub query: Option<Span>,
    /// The authority of an absolute-form target: valid, without userinfo.
    pub authority: Option<Span>,
    /// The scheme of an absolute-form target: `http` or `https` in any case.
    pub scheme: Option<Span>,
    /// The version.
    pub version: Version,
    /// All field lines in their order, none merged; in a uwsgi packet, the variables that are HTTP fields.
    pub fields: Vec<Field>,
    /// Further statements of a proxy: the variables of a uwsgi packet that are not fields, in their order. None in
    /// HTTP.
    pub variables: Vec<Field>,
    /// Length of the head in bytes, including empty lines before it and the empty line after it, or length of the
    /// packet.
    pub length: usize,
}

impl RequestHead {
    /// The values of its fields of this name. `bytes`: those to which the spans refer.
    pub fn values<'a>(&'a self, bytes: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + Clone {
        let fields = self.fields.iter().filter(move |field| field.name.of(bytes).eq_ignore_ascii_case(name));
        fields.map(|field| field.value.of(bytes))
    }

    /// Empties the head; the lists keep their capacity.
    pub fn clear(&mut self) {
        let (mut fields, mut variables) = (std::mem::take(&mut self.fields), std::mem::take(&mut self.variables));
        fields.clear();
        variables.clear();
        *self = Self { fields, variables, ..Self::default() };
    }
}
