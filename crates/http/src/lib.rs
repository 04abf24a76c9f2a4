//! HTTP/1 and uwsgi without I/O: bytes to events, events to bytes. No socket, clock, thread or Python.
//!
//! A request passes [`head`], or [`uwsgi`] if a proxy sends it as a packet: they fill a [`request_head`] (spans over the
//! bytes). Then come [`framing`] (how long the body is, whether the connection persists) and [`body`] (decoding); its
//! response passes [`encode`]. [`limits`] has what a request may cost, and refusals as values. [`static_path`],
//! [`conditional`], [`range`] and [`coding`] tell which file, which part of it, and which form of it, answers a request.
//! [`proxy_protocol`] and [`forwarded`] read what proxies state about a client, [`trust`] has whose statements are
//! believed. [`origin`] has which pages may open a WebSocket, [`identity`] the id of a request and its trace,
//! [`request_start`] when a proxy received it.
//!
//! The parser is this crate's own. httparse accepts a bare LF as a line end, so each line would have to be searched for
//! it again; and it starts over with every read, so the time for a head that comes octet by octet would be quadratic in
//! its length. It serves as the oracle of the tests instead; `examples/speed.rs` measures both.
//!
//! # Decisions
//!
//! A request that two recipients could read differently is refused, and its connection is closed (RFC 9112 section
//! 11.2). Where the standard leaves a choice, this is what was chosen ("9112 2.2" is RFC 9112 section 2.2):
//!
//! | what arrives | response | RFC and section, reason |
//! |---|---|---|
//! | up to 4 empty lines before a request line | skipped | 9112 2.2 asks for one at least; 5 are 400 |
//! | bare LF, bare CR, anywhere | 400 | 9112 2.2 allows to accept LF; a proxy that does not reads another message |
//! | first octet 0x16 | 400 | TLS on a plain port; the sentence says so |
//! | unknown or lower-case method | served | 9110 9.1: methods are case-sensitive; the application decides |
//! | method of more than 64 octets | 501 | 9112 3: longer than any that is implemented |
//! | CONNECT to a host and port | 501 | 9110 9.3.6: not a proxy; with any other target 400 |
//! | octets >= 0x80 in the target | 400 | 3986 2 knows only ASCII; clients percent-encode |
//! | `#` in the target | 400 | 9112 3.2: no form has a fragment |
//! | `%zz`, `\`, `{`, `"` and other visible ASCII | served | no framing depends on them; browsers send them |
//! | user name in the authority | 400 | 9110 4.2.4 |
//! | absolute-form target | served | 9112 3.2.2: its authority replaces Host, which must still be valid |
//! | absolute-form without a path | `/` | 9110 4.2.3 |
//! | absolute-form of another scheme | 400 | nothing else is served here |
//! | `*` with another method than OPTIONS | 400 | 9112 3.2.4 |
//! | HTTP/1.2 to 1.9 | as 1.1 | 9110 2.5 |
//! | HTTP/0.9, 2.0, 3.0, `PRI * HTTP/2.0` | 505 | 9110 15.6.6 |
//! | a version in another form or case, or none | 400 | 9112 2.3 |
//! | whitespace before the colon, obs-fold, empty name | 400 | 9112 5.1, 5.2 |
//! | a control character other than HTAB in a value | 400 | 9110 5.5 |
//! | octets >= 0x80 in a value | served | 9110 5.5: obs-text, opaque |
//! | no Host in 1.1, two Hosts, a malformed one in any version | 400 | 9112 3.2 |
//! | an empty Host | served | 9112 3.2: the target has no authority |
//! | a comma in a Host | 400 | 3986 allows it in a name, but two joined Host fields look the same |
//! | repeated Content-Length or a list, equal or not | 400 | 9110 8.6 allows equal ones; no correct client sends them |
//! | a length above the limit, of any number of digits | 413 | 9110 8.6: any number of digits is valid |
//! | Content-Length and Transfer-Encoding | 400 | 9112 6.3, rule 3 |
//! | Transfer-Encoding in HTTP/1.0 | 400 | 9112 6.1: faulty framing |
//! | other codings before a final chunked | 501 | 9112 6.1 |
//! | no final chunked, chunked twice, with parameters, empty list members | 400 | 9112 6.3 rule 4, 7.1 |
//! | `close` and `keep-alive` together | close | 9112 9.3 |
//! | an expectation but 100-continue | 417 | 9110 10.1.1; in HTTP/1.0 every expectation is ignored |
//! | more than 16 digits of a chunk size | 400 | 9112 7.1; fewer, but above the limit of the body: 413 |
//! | whitespace after a chunk size | 400 | 9112 7.1.1 allows it only before an extension, where it is read |
//! | chunk extensions | discarded | 9112 7.1.1; malformed, or 16 KiB more of them than of data: 400 |
//! | trailer fields | discarded | 9112 7.1.2; malformed 400, more than 16 KiB of them 431 |
//!
//! Of a uwsgi packet, what is a field of HTTP has the rules of fields; the rest has these:
//!
//! | what arrives | response | reason |
//! |---|---|---|
//! | a modifier other than 0 | 400 | only WSGI requests are served; octets of HTTP have a sentence of their own |
//! | a packet on a port that speaks HTTP | 400 | the sentence says so |
//! | lengths that do not add up to the size of the packet | 400 | two readers would find other variables |
//! | variables larger than the limit of header fields | 431 | before they arrive; 64 KiB is all that the format allows |
//! | no `REQUEST_METHOD`, no `REQUEST_URI`, an empty one | 400 | nothing else is the request as the client sent it |
//! | the rules of methods, targets, Host, Content-Length | as in HTTP | the proxy may have looser ones |
//! | no `HTTP_HOST` | served | a proxy that speaks HTTP/3 has none |
//! | an empty `CONTENT_LENGTH` or `CONTENT_TYPE` | none | nginx sends both for requests without them |
//! | `HTTP_CONTENT_LENGTH`, `HTTP_CONTENT_TYPE`, `HTTP_TRANSFER_ENCODING` | ignored | nginx sends what its client sent |
//! | `HTTP_CONNECTION`, `HTTP_EXPECT` | no effect | they are between the proxy and its client |
//! | one of `REQUEST_METHOD`, `REQUEST_URI`, `CONTENT_LENGTH`, `CONTENT_TYPE`, `HTTP_HOST`, `REMOTE_ADDR`, `REMOTE_PORT`, `REMOTE_USER` twice | 400 | they decide who asks for what; uWSGI takes the last |
//! | another variable twice | the last; `HTTP_*` are joined | nginx sends both where a list that is included has it, and each field line of its client |
//! | a name with control characters, spaces, `=`, or an `HTTP_` name that is no token | 400 | |
//! | a `REMOTE_ADDR` that is neither an IP address, nor empty, nor `unix:` | 400 | who is trusted next depends on it |
//! | a NUL in a value | 400 | but for `PATH_INFO` and `SCRIPT_NAME`, which are decoded paths |
//! | a line end in a field, `QUERY_STRING`, `REMOTE_*`, `SERVER_NAME`, `SERVER_PORT` or `SERVER_PROTOCOL` | 400 | certificates and `SERVER_SIGNATURE` have some |
//!
//! For the application's responses:
//!
//! | what the application gives | effect | RFC or PEP and section, reason |
//! |---|---|---|
//! | a status from 200 to 999 | sent | 9110 15: 600 and more are invalid, but some are in use and clients accept them |
//! | 1xx, `20 OK`, a control character | a fault | PEP 3333: the status is final; 9112 4 |
//! | a status without a phrase | sent | 9112 4: the space stays |
//! | an invalid name, value or Content-Length | a fault | the caller sends a 500 instead; nothing of the head is sent |
//! | hop-by-hop fields | dropped and reported | PEP 3333; `Connection: close` is honored |
//! | HEAD without Content-Length | the total, if a body was given whole | 9110 8.6: an empty one is not that of GET |
//! | 204 with Content-Length | without | 9110 8.6 |
//! | 205 | `Content-Length: 0` | 9110 15.3.6 |
//! | 304 | the application's Content-Length or none | 9110 8.6: it would be that of the 200 |
//! | no length known | chunked; in HTTP/1.0 until close | 9112 6.3 |

pub mod body;
pub mod body_encoder;
pub mod coding;
pub mod compression;
pub mod conditional;
pub mod encode;
pub mod forwarded;
pub mod framing;
pub mod head;
pub mod identity;
pub mod limits;
pub mod named_file;
mod octets;
pub mod origin;
pub mod peer;
pub mod percent;
pub mod proxy_protocol;
pub mod query;
pub mod range;
pub mod request_head;
pub mod request_start;
pub mod selection;
pub mod static_path;
pub mod target;
pub mod trust;
pub mod uwsgi;
