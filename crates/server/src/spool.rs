//! A request body on its way in: memory up to a limit, then an unlinked temporary file.
//!
//! Belongs to the thread that carries the connection.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

use crate::request::RequestBody;
use crate::sys;

/// Memory that is set aside at once for a body whose length is known, at most.
const FIRST_RESERVE: usize = 64 * 1024;

/// The part of a request body that has come.
#[derive(Default)]
pub(crate) struct Spool {
    memory: Vec<u8>,
    file: Option<(File, u64)>,
}

impl Spool {
    /// A spool for a body of `expected` bytes, if that is known.
    pub(crate) fn new(expected: Option<u64>) -> Self {
        let reserve = expected.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(FIRST_RESERVE).min(FIRST_RESERVE));
        Self { memory: Vec::with_capacity(reserve), file: None }
    }

    /// Appends bytes; past `limit` bytes everything moves to a temporary file.
    ///
    /// # Errors
    /// The temporary folder cannot be written or has no space.
    pub(crate) fn append(&mut self, bytes: &[u8], limit: usize) -> io::Result<()> {
        if let Some((file, length)) = &mut self.file {
            file.write_all(bytes)?;
            *length += bytes.len() as u64;
            return Ok(());
        }
        if self.memory.len() + bytes.len() <= limit {
            self.memory.extend_from_slice(bytes);
            return Ok(());
        }
        let mut file = sys::temporary_file()?;
        file.write_all(&self.memory)?;
        file.write_all(bytes)?;
        self.file = Some((file, (self.memory.len() + bytes.len()) as u64));
        self.memory = Vec::new();
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
            None => Ok(RequestBody::Memory(self.memory)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::Spool;
    use crate::request::RequestBody;
    use std::io::Read;

    #[test]
    fn a_body_within_the_limit_stays_in_memory() {
        let mut spool = Spool::new(Some(6));
        spool.append(b"abc", 6).unwrap();
        spool.append(b"def", 6).unwrap();
        match spool.finish().unwrap() {
            RequestBody::Memory(bytes) => assert_eq!(bytes, b"abcdef"),
            _ => panic!("not in memory"),
        }
    }

    #[test]
    fn a_larger_body_is_in_a_file_from_its_start() {
        let mut spool = Spool::new(None);
        for _ in 0..3 {
            spool.append(b"abc", 6).unwrap();
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
        assert!(matches!(Spool::new(Some(0)).finish().unwrap(), RequestBody::Empty));
    }
}
