//! Objects that a thread keeps from one request to the next: strings, the `start_response` callable, the stream of an
//! empty body.
//!
//! Taken while requests run, and put back for the next thread or greenlet that runs some. Attached threads.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::call::input::Input;
use crate::call::start_response::StartResponse;
use crate::call::string_cache::StringCache;

/// Caches that are kept.
const MAX_CACHES: usize = 256;

#[derive(Default)]
pub(crate) struct ThreadCache {
    pub(crate) strings: StringCache,
    pub(crate) start_response: Option<StartResponse>,
    pub(crate) empty_input: Option<Py<Input>>,
}

/// The unused caches.
#[derive(Default)]
pub(crate) struct ThreadCaches(Mutex<Vec<ThreadCache>>);

impl ThreadCaches {
    pub(crate) fn take(&self) -> ThreadCache {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    pub(crate) fn put_back(&self, cache: ThreadCache) {
        let mut caches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if caches.len() < MAX_CACHES {
            caches.push(cache);
        }
    }
}
