//! The paths that disk threads look up, with the requests for them: a file whose disk does not respond occupies one
//! thread, however many clients ask for it, and however they encode its path.
//!
//! Any thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tailrace_os::sync::lock;
use tailrace_server::Exchange;

/// The paths are decoded.
#[derive(Default)]
pub(super) struct LookUps(Mutex<HashMap<Box<[u8]>, Vec<Exchange>>>);

impl LookUps {
    /// Begins to look up the path of a request, which is given back. `None`: another thread does that, and has the
    /// request.
    pub(super) fn begin(self: &Arc<Self>, exchange: Exchange) -> Option<(LookUp, Exchange)> {
        let request = exchange.request();
        let path = decoded(request.head.path.of(&request.bytes));
        let mut waiting = lock(&self.0);
        if let Some(others) = waiting.get_mut(&path) {
            others.push(exchange);
            return None;
        }
        waiting.insert(path.clone(), Vec::new());
        drop(waiting);
        Some((LookUp { all: self.clone(), path }, exchange))
    }

    /// How many paths are looked up.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

/// A path that is looked up.
pub(super) struct LookUp {
    all: Arc<LookUps>,
    path: Box<[u8]>,
}

impl LookUp {
    /// The other requests for the path. If there are none, the next one is looked up by itself.
    pub(super) fn others(&self) -> Vec<Exchange> {
        let mut waiting = lock(&self.all.0);
        let others = waiting.get_mut(&self.path).map(std::mem::take).unwrap_or_default();
        if others.is_empty() {
            waiting.remove(&self.path);
        }
        others
    }
}

/// After a panic the other requests are answered 500, as the one that caused it.
impl Drop for LookUp {
    fn drop(&mut self) {
        // Without a panic there are none, and another thread may look the path up by now.
        if std::thread::panicking() {
            let others = lock(&self.all.0).remove(&self.path);
            drop(others);
        }
    }
}

/// The octets that a path stands for. What is no encoding stays.
fn decoded(path: &[u8]) -> Box<[u8]> {
    let digit = |at: usize| path.get(at).and_then(|&octet| char::from(octet).to_digit(16));
    let (mut octets, mut at) = (Vec::with_capacity(path.len()), 0);
    while let Some(&octet) = path.get(at) {
        let encoded = if octet == b'%' { digit(at + 1).zip(digit(at + 2)) } else { None };
        let value = encoded.and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
        octets.push(value.unwrap_or(octet));
        at += if value.is_some() { 3 } else { 1 };
    }
    octets.into()
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn a_path_is_decoded_once_and_what_is_no_encoding_stays() {
        for (path, octets) in [("/%61%2fb", "/a/b"), ("/a%4", "/a%4"), ("/%zz%", "/%zz%"), ("/%2541", "/%41")] {
            assert_eq!(&*decoded(path.as_bytes()), octets.as_bytes());
        }
    }
}
