//! The strings that a thread last created for `environ`, for reuse.
//!
//! Similar requests of one client repeat most of their head, and comparing bytes is cheaper than creating a `str`. A
//! string is reused only for exactly the same bytes. One per thread cache.

use std::net::SocketAddr;

use pyo3::prelude::*;
use pyo3::types::PyString;
use tailrace_http::request_head::TargetForm;

use crate::ffi::latin1::latin1;

/// Fields are remembered at this many positions, and values up to this size.
const POSITIONS: usize = 32;
const REMEMBERED_VALUE: usize = 1024;

/// Fields that were seen at each position.
#[derive(Default)]
pub(crate) struct KnownFields(Vec<Option<KnownField>>);

#[derive(Default)]
pub(crate) struct StringCache {
    pub(crate) fields: KnownFields,
    /// Variables of uwsgi packets, whose names are the keys.
    pub(crate) variables: KnownFields,
    pub(crate) target: Option<KnownTarget>,
    pub(crate) peer: Option<KnownPeer>,
    pub(crate) host: Option<(Vec<u8>, Py<PyString>)>,
}

pub(crate) struct KnownField {
    pub(crate) name: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// Key and value; `None` for a field that `environ` does not show.
    pub(crate) item: Option<(Py<PyString>, Py<PyString>)>,
}

pub(crate) struct KnownTarget {
    pub(crate) target: Vec<u8>,
    pub(crate) form: TargetForm,
    pub(crate) raw: Py<PyString>,
    pub(crate) path: Py<PyString>,
    pub(crate) query: Py<PyString>,
}

pub(crate) struct KnownPeer {
    pub(crate) address: SocketAddr,
    pub(crate) host: Py<PyString>,
    pub(crate) port: Py<PyString>,
}

impl KnownFields {
    /// The entry at this position, if name and value are the same.
    pub(crate) fn get(&self, position: usize, name: &[u8], value: &[u8]) -> Option<&KnownField> {
        self.0.get(position)?.as_ref().filter(|known| known.value == value && known.name == name)
    }

    pub(crate) fn remember(
        &mut self,
        position: usize,
        name: &[u8],
        value: &[u8],
        item: Option<(Py<PyString>, Py<PyString>)>,
    ) {
        if position >= POSITIONS || value.len() > REMEMBERED_VALUE {
            return;
        }
        if self.0.len() <= position {
            self.0.resize_with(position + 1, || None);
        }
        match &mut self.0[position] {
            Some(known) => {
                known.name.clear();
                known.name.extend_from_slice(name);
                known.value.clear();
                known.value.extend_from_slice(value);
                known.item = item;
            }
            empty => *empty = Some(KnownField { name: name.to_vec(), value: value.to_vec(), item }),
        }
    }
}

impl StringCache {
    pub(crate) fn peer(&mut self, py: Python<'_>, address: SocketAddr) -> PyResult<&KnownPeer> {
        let known = match self.peer.take() {
            Some(known) if known.address == address => known,
            other => {
                let host = match other {
                    Some(known) if known.address.ip() == address.ip() => known.host,
                    _ => latin1(py, address.ip().to_canonical().to_string().as_bytes())?.unbind(),
                };
                let port = latin1(py, address.port().to_string().as_bytes())?.unbind();
                KnownPeer { address, host, port }
            }
        };
        Ok(self.peer.insert(known))
    }

    pub(crate) fn host(&mut self, py: Python<'_>, value: &[u8]) -> PyResult<&Py<PyString>> {
        let known = match self.host.take() {
            Some(known) if known.0 == value => known,
            _ => (value.to_vec(), latin1(py, value)?.unbind()),
        };
        Ok(&self.host.insert(known).1)
    }
}
