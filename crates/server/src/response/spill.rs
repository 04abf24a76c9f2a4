//! Unlinked temporary files for bytes that slow clients have not read, from which the bytes are sent later.
//!
//! The thread that waits for its client writes the file, with the interpreter released. For a greenlet, or for a
//! response whose producer has ended, a disk thread writes it. All files of a process together may have the
//! bytes of [`Quota`]; a file returns its bytes when it is closed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tailrace_os::descriptor::is_among_the_last;
use tailrace_os::file::write_all_at;

use crate::request::disk::{Disk, Quota, TemporaryFile};
use crate::request::share::Share;
use crate::response::payload::Payload;

/// An unfinished response may use this fraction (1 / `SHARE`) of the limit, so that an endless one does not use it up.
const SHARE: u64 = 64;
/// The fraction is at least this many bytes.
const LEAST_SHARE: u64 = 16 << 20;
/// Size of one write in bytes. Between two writes it is checked whether the client has disconnected.
const STEP: usize = 1 << 20;

/// Successive blocks of a queue, all in memory, for the thread that writes them to a file. They stay in the queue and may
/// be sent from it meanwhile.
pub(crate) struct Backlog {
    pub(crate) parts: Vec<(Arc<dyn Payload>, usize, usize)>,
    /// The number of the first block in the queue.
    pub(crate) first: u64,
    /// The file of the block before or behind, if that is in a spill file.
    pub(crate) file: Option<Arc<SpillFile>>,
}

impl Backlog {
    /// Number of bytes in all blocks.
    pub(crate) fn len(&self) -> u64 {
        self.parts.iter().map(|(_, at, end)| (end - at) as u64).sum()
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|(payload, at, end)| payload.bytes().get(*at..*end).unwrap_or(&[]))
    }

    /// The file to which the blocks may be appended.
    pub(crate) fn file(&self) -> Option<&Arc<SpillFile>> {
        self.file.as_ref()
    }
}

/// Writes spill files, within the quota of all of them.
pub(crate) struct Spill {
    quota: Arc<Quota>,
    disk: Arc<Disk>,
    /// Limits the disk threads that may write at once, so that others are left for request bodies.
    share: Arc<Share>,
}

/// The file of one response. One thread at a time appends; any thread may send from it.
pub(crate) struct SpillFile {
    file: TemporaryFile,
    end: AtomicU64,
    quota: Arc<Quota>,
}

impl Spill {
    pub(crate) fn new(limit: u64, disk: Arc<Disk>) -> Self {
        Self { quota: Quota::new(limit), share: Share::new(disk.clone()), disk }
    }

    /// Has a disk thread run `task`, which calls [`Spill::write`].
    pub(crate) fn run(&self, task: impl FnOnce() + Send + 'static) {
        self.share.run(task);
    }

    /// True when responses may be written to files at all.
    pub(crate) fn is_allowed(&self) -> bool {
        self.quota.limit() > 0
    }

    /// Appends a backlog to its file, or writes it to a new one. Returns the file and the offset of the backlog;
    /// `None`: there is no room, or no descriptor to spare. `is_whole`: the response is complete. Stops writing when
    /// `is_wanted`, which is called before each write, returns false. Blocks on the disk.
    ///
    /// # Errors
    /// The disk is full or broken; no room is used.
    pub(crate) fn write(
        &self,
        backlog: &Backlog,
        is_whole: bool,
        is_wanted: impl Fn() -> bool,
    ) -> io::Result<Option<(Arc<SpillFile>, u64)>> {
        let bytes = backlog.len();
        let before = backlog.file().map_or(0, |file| file.end.load(Ordering::Relaxed));
        let limit = self.quota.limit();
        let most = if is_whole { limit } else { (limit / SHARE).max(LEAST_SHARE).min(limit) };
        if before + bytes > most || !self.quota.reserve(bytes) {
            return Ok(None);
        }
        let file = match backlog.file() {
            Some(file) => file.clone(),
            None => match TemporaryFile::create(&self.disk) {
                Ok(file) if is_among_the_last(file.as_fd()) => {
                    self.quota.give_back(bytes);
                    return Ok(None);
                }
                Ok(file) => Arc::new(SpillFile { file, end: AtomicU64::new(0), quota: self.quota.clone() }),
                Err(fault) => {
                    self.quota.give_back(bytes);
                    return Err(fault);
                }
            },
        };
        // From here on the file returns the reserved bytes when it is dropped.
        file.end.store(before + bytes, Ordering::Relaxed);
        let written = file.write_at(backlog, before, is_wanted);
        if written.is_err() {
            file.end.store(before, Ordering::Relaxed);
            self.quota.give_back(bytes);
        }
        written.map(|()| Some((file, before)))
    }
}

impl SpillFile {
    fn write_at(&self, backlog: &Backlog, mut at: u64, is_wanted: impl Fn() -> bool) -> io::Result<()> {
        for part in backlog.parts() {
            for piece in part.chunks(STEP) {
                if !is_wanted() {
                    return Ok(());
                }
                write_all_at(&self.file, piece, at)?;
                at += piece.len() as u64;
            }
        }
        Ok(())
    }
}

impl AsFd for SpillFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        self.quota.give_back(self.end.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use tailrace_os::socket::Io;

    use super::{LEAST_SHARE, Spill};
    use crate::request::disk::Disk;
    use crate::request::memory::Budget;
    use crate::response::outbox::{Flush, Writing, WritingEnd};
    use crate::response::testing::{Queued, socket};
    use crate::transport::plain::Plain;

    fn spill(limit: u64) -> Spill {
        Spill::new(limit, Arc::new(Disk::new()))
    }

    fn used(spill: &Spill) -> u64 {
        spill.quota.used()
    }

    /// Queues blocks of all kinds, and returns their bytes.
    fn push(out: &mut Queued, seed: usize) -> Vec<u8> {
        let bytes =
            |length: usize, salt: usize| (0..length).map(|at| (at * 31 + seed + salt) as u8).collect::<Vec<_>>();
        let (copy, buffer, kept) = (bytes(1_000, 1), bytes(60_000, 2), bytes(300_000, 3));
        out.push_copy(&copy);
        out.push_buffer(buffer.clone(), 10);
        out.push_kept(kept.clone(), 7);
        [&copy, &buffer[10..], &kept[7..]].concat()
    }

    /// Reads `wanted` bytes at the client, and flushes the queue meanwhile.
    fn take(out: &mut Queued, socket: &Plain, client: &mut UnixStream, wanted: usize) -> Vec<u8> {
        let mut got = vec![0; wanted];
        let mut filled = 0;
        while filled < wanted {
            assert!(matches!(out.flush(socket), Flush::Empty | Flush::Blocked | Flush::More));
            filled += client.read(&mut got[filled..]).unwrap();
        }
        got
    }

    #[test]
    fn bytes_sent_while_they_are_written_to_a_file_are_sent_once_and_in_order() {
        // The client reads this many bytes while the backlog is being written to the file.
        for meanwhile in [0, 1, 900, 1_000, 61_000, 200_000, 360_000, 700_000, 721_000] {
            let (socket, mut client) = socket();
            let budget = Arc::new(Budget::default());
            let spill = spill(1 << 30);
            let mut out = Queued::new(budget.clone());
            let mut all = push(&mut out, 1);
            let mut got = Vec::new();
            for round in 0..3 {
                all.extend(push(&mut out, 10 + round));
                let backlog = out.backlog().unwrap();
                assert!(out.backlog().is_none(), "a second backlog while one is written");
                let wanted = meanwhile.min(all.len() - got.len());
                got.extend(take(&mut out, &socket, &mut client, wanted));
                let (file, offset) = spill.write(&backlog, false, || true).unwrap().unwrap();
                // Blocks that are queued meanwhile stay after the backlog.
                all.extend(push(&mut out, 20 + round));
                out.spill(&backlog, file, offset);
            }
            got.extend(take(&mut out, &socket, &mut client, all.len() - got.len()));
            assert!(got == all, "{meanwhile}");
            assert!(out.0.queue.is_empty() && out.0.queue.bytes() == 0);
            drop(out);
            assert_eq!((budget.used(), used(&spill)), (0, 0), "{meanwhile}");
        }
    }

    #[test]
    fn bytes_in_a_file_are_no_longer_in_memory() {
        let budget = Arc::new(Budget::default());
        let spill = spill(1 << 30);
        let mut out = Queued::new(budget.clone());
        let length = push(&mut out, 1).len() as u64;
        let backlog = out.backlog().unwrap();
        let (file, offset) = spill.write(&backlog, true, || true).unwrap().unwrap();
        out.spill(&backlog, file, offset);
        drop(backlog);
        assert_eq!((out.0.queue.bytes(), budget.used(), used(&spill)), (0, 0, length));
        assert!(out.0.queue.is_behind() && out.0.queue.has_file());
        out.0.break_off();
        assert_eq!(used(&spill), 0);
    }

    #[test]
    fn a_batch_that_is_put_back_before_its_rest_in_a_file_goes_to_that_file_too() {
        let (socket, mut client) = socket();
        let budget = Arc::new(Budget::default());
        let spill = spill(1 << 30);
        let mut out = Queued::new(budget.clone());
        // More blocks than one write sends, and more bytes than the socket accepts.
        let blocks: Vec<Vec<u8>> = (0..80).map(|number| vec![number; 50_000]).collect();
        blocks.iter().for_each(|block| out.push_kept(block.clone(), 0));
        assert_eq!(out.0.socket.begin_writing(), Writing::Mine);
        let batch = out.0.queue.take().unwrap();
        let spill_all = |out: &mut Queued| {
            let backlog = out.backlog().unwrap();
            let (file, offset) = spill.write(&backlog, true, || true).unwrap().unwrap();
            assert!(out.spill(&backlog, file, offset));
        };
        spill_all(&mut out);
        assert!(out.0.wrote(batch, Io::WouldBlock).is_some());
        assert_eq!(out.0.socket.end_writing(), WritingEnd::Alone);
        assert!(out.0.queue.bytes() > 3_000_000);
        spill_all(&mut out);
        assert_eq!((out.0.queue.bytes(), budget.used()), (0, 0));
        let files = out.0.queue.spill_files();
        assert_eq!(files, [files[0]; 2], "one file");
        let all = blocks.concat();
        assert!(take(&mut out, &socket, &mut client, all.len()) == all);
    }

    #[test]
    fn a_backlog_without_room_in_files_stays_in_memory() {
        let spill = spill(500_000);
        let (mut first, mut second) = (Queued::new(Arc::default()), Queued::new(Arc::default()));
        push(&mut first, 1);
        push(&mut second, 2);
        let backlog = first.backlog().unwrap();
        let (file, offset) = spill.write(&backlog, true, || true).unwrap().unwrap();
        first.spill(&backlog, file, offset);
        let backlog = second.backlog().unwrap();
        assert!(spill.write(&backlog, true, || true).unwrap().is_none());
        second.0.queue.keep();
        assert!(second.0.queue.bytes() > 0 && !second.0.queue.is_behind());
        // The first client has disconnected.
        first.0.break_off();
        assert!(spill.write(&backlog, true, || true).unwrap().is_some());
    }

    #[test]
    fn an_unfinished_response_uses_its_share_of_the_limit_and_no_more() {
        let spill = spill(2 * LEAST_SHARE);
        let mut out = Queued::new(Arc::default());
        let mut written = 0;
        loop {
            written += push(&mut out, 1).len() as u64;
            let backlog = out.backlog().unwrap();
            let Some((file, offset)) = spill.write(&backlog, false, || true).unwrap() else { break };
            out.spill(&backlog, file, offset);
            assert_eq!(used(&spill), written);
        }
        assert!(written > LEAST_SHARE && used(&spill) <= LEAST_SHARE);
        // Its last part may use the rest of the limit.
        out.0.queue.keep();
        let backlog = out.backlog().unwrap();
        assert!(spill.write(&backlog, true, || true).unwrap().is_some());
    }
}
