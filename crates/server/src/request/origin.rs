//! How the client sent a request, where a proxy stands between.
//!
//! Plain data. Each part is `None` when nobody who is trusted says otherwise than the connection itself.

use tailrace_http::request_head::Span;

/// The scheme of the URL that a client requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `http`.
    Http,
    /// `https`.
    Https,
}

/// What a proxy that is trusted says of the request as it received it. Its client's address is
/// [`Endpoints::peer`](crate::Endpoints). The spans refer to the bytes of the request's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The scheme.
    pub scheme: Option<Scheme>,
    /// The host, with its port if it was sent with one: a valid authority.
    pub host: Option<Span>,
    /// The port that the client connected to.
    pub port: Option<u16>,
    /// The path that the proxy has removed from the start of the target: it begins with a slash and does not end with
    /// one, and is not decoded.
    pub prefix: Option<Span>,
}
