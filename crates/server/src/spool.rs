//! A request body on its way in: memory up to a limit, then an unlinked temporary file.
//!
//! Belongs to the thread that carries the connection.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

use crate::budget::Charge;
use crate::request::RequestBody;
use crate::sys;

/// Memory that is set aside at once for a body whose length is known, at most.
const FIRST_RESERVE: usize = 64 * 1024;
/// So much of a body is in memory however many bodies there are: most are smaller, and a file costs more than that.
const SMALL: usize = 16 * 1024;

/// The part of a request body that has come.
pub(crate) struct Spool {
    memory: Vec<u8>,
    charge: Charge,
    file: Option<(File, u64)>,
}

/// How much may be in memory.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Of one body.
    pub(crate) one: usize,
    /// Of all bodies together.
    pub(crate) all: usize,
}

impl Spool {
    /// A spool for a body of `expected` bytes, if that is known.
    pub(crate) fn new(expected: Option<u64>, charge: Charge) -> Self {
        let reserve = expected.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(FIRST_RESERVE).min(FIRST_RESERVE));
        Self { memory: Vec::with_capacity(reserve), charge, file: None }
    }

    /// Appends bytes; past the limits everything moves to a temporary file.
    ///
    /// # Errors
    /// The temporary folder cannot be written or has no space.
    pub(crate) fn append(&mut self, bytes: &[u8], limits: Limits) -> io::Result<()> {
        if let Some((file, length)) = &mut self.file {
            file.write_all(bytes)?;
            *length += bytes.len() as u64;
            return Ok(());
        }
        let length = self.memory.len() + bytes.len();
        if length <= limits.one && (length <= SMALL || self.charge.all() + bytes.len() <= limits.all) {
            self.memory.extend_from_slice(bytes);
            self.charge.set(self.memory.capacity());
            return Ok(());
        }
        let mut file = sys::temporary_file()?;
        file.write_all(&self.memory)?;
        file.write_all(bytes)?;
        self.file = Some((file, length as u64));
        self.memory = Vec::new();
        self.charge.set(0);
        Ok(())
    }

    /// The whole body, for the application to read from its start.
    ///
    /// # Errors
    /// The temporary file cannot be rewound.
    pub(crate) fn finish(self) -> io::Result<RequestBody> {
        match self.file {
            Some((mut file, length)) => {
                file.seek(SeekFrom::Start(0))?;
                Ok(RequestBody::File { file, length })
            }
            None if self.memory.is_empty() => Ok(RequestBody::Empty),
            None => Ok(RequestBody::Memory { bytes: self.memory, charge: self.charge }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::Read;
    use std::sync::Arc;

    use super::{Limits, SMALL, Spool};
    use crate::budget::{Budget, Charge};
    use crate::request::RequestBody;

    fn spool(expected: Option<u64>) -> Spool {
        Spool::new(expected, Charge::new(Arc::default()))
    }

    const LIMITS: Limits = Limits { one: 6, all: usize::MAX };

    #[test]
    fn past_the_memory_of_all_bodies_only_small_ones_stay_in_it() {
        let budget = Arc::new(Budget::default());
        let limits = Limits { one: 10 * SMALL, all: 5 * SMALL };
        let mut spools: Vec<_> = (0..4).map(|_| Spool::new(None, Charge::new(budget.clone()))).collect();
        for spool in &mut spools[..3] {
            for _ in 0..2 * SMALL / 1024 {
                spool.append(&[0; 1024], limits).unwrap();
            }
        }
        spools[3].append(&[0; SMALL], limits).unwrap();
        assert!(budget.used() <= 6 * SMALL, "{}", budget.used());
        let kinds: Vec<_> =
            spools.into_iter().map(|spool| matches!(spool.finish().unwrap(), RequestBody::Memory { .. })).collect();
        assert_eq!(kinds, [true, true, false, true]);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_body_within_the_limit_stays_in_memory() {
        let mut spool = spool(Some(6));
        spool.append(b"abc", LIMITS).unwrap();
        spool.append(b"def", LIMITS).unwrap();
        match spool.finish().unwrap() {
            RequestBody::Memory { bytes, .. } => assert_eq!(bytes, b"abcdef"),
            _ => panic!("not in memory"),
        }
    }

    #[test]
    fn a_larger_body_is_in_a_file_from_its_start() {
        let mut spool = spool(None);
        for _ in 0..3 {
            spool.append(b"abc", LIMITS).unwrap();
        }
        match spool.finish().unwrap() {
            RequestBody::File { mut file, length } => {
                let mut all = String::new();
                file.read_to_string(&mut all).unwrap();
                assert_eq!((all.as_str(), length), ("abcabcabc", 9));
            }
            _ => panic!("not in a file"),
        }
    }

    #[test]
    fn an_empty_body_is_no_body() {
        assert!(matches!(spool(Some(0)).finish().unwrap(), RequestBody::Empty));
    }
}
