//! What one send writes: small parts are copied to a staging buffer, large blocks are referred to.
//!
//! A plan belongs to the thread that runs the request. Later requests of the thread use it again, with its capacity.

use std::io::IoSlice;

use tailrace_http::body_encoder::BodyEncoder;
use tailrace_os::socket::Io;

use crate::response::outbox::Outbox;
use crate::response::payload::Payload;
use crate::response::send_queue::NoMemory;
use crate::transport::Transport;

/// Blocks below this size are copied, which costs less than a slice of their own in the system call.
const COPY_BELOW: usize = 2048;
/// The unsent rest of a large block is copied below this size, and kept by reference from this size on.
const KEEP_FROM: usize = 4096;
/// The unsent rest of the staging buffer is copied up to this size; a larger one is queued with the buffer.
const MAX_COPIED: usize = 64 * 1024;
/// At most this many slices are sent by one write.
const SLICES: usize = 64;

/// A part of the write.
struct Piece {
    /// The index of the block; `None`: the staging buffer.
    block: Option<usize>,
    at: usize,
    end: usize,
}

impl Piece {
    fn bytes<'a>(&self, staging: &'a [u8], blocks: &[&'a [u8]]) -> &'a [u8] {
        match self.block {
            None => &staging[self.at..self.end],
            Some(index) => &blocks[index][self.at..self.end],
        }
    }
}

/// See the module. If there are no pieces, everything is in the staging buffer.
#[derive(Default)]
pub(crate) struct WritePlan {
    staging: Vec<u8>,
    pieces: Vec<Piece>,
    /// How much has been written: the number of pieces, or, if there are none, of bytes of the staging buffer.
    written: usize,
}

impl WritePlan {
    /// Empties the plan but keeps its capacity. Returns that of the staging buffer, in bytes.
    pub(crate) fn clear(&mut self) -> usize {
        self.staging.clear();
        self.pieces.clear();
        self.written = 0;
        self.staging.capacity()
    }

    /// The memory of the plan, in bytes.
    pub(crate) fn room(&self) -> usize {
        self.staging.capacity() + self.pieces.capacity() * size_of::<Piece>()
    }

    /// Reserves memory for these blocks and `more` bytes.
    pub(crate) fn reserve(&mut self, blocks: &[&[u8]], more: usize) -> Result<(), NoMemory> {
        let (mut small, mut large) = (more, 0);
        for block in blocks {
            if block.len() < COPY_BELOW {
                small += block.len();
            } else {
                large += 1;
            }
        }
        let staging = &mut self.staging;
        if staging.try_reserve(small).is_err() && staging.try_reserve_exact(small).is_err() {
            return Err(NoMemory);
        }
        // Small blocks may come before each large one and after the last one.
        if large > 0 {
            self.pieces.try_reserve(2 * large + 2).map_err(|_| NoMemory)?;
        }
        Ok(())
    }

    /// Bytes that are planned and not written.
    pub(crate) fn len(&self) -> usize {
        if self.pieces.is_empty() {
            self.staging.len() - self.written
        } else {
            self.pieces[self.written..].iter().map(|piece| piece.end - piece.at).sum()
        }
    }

    /// The staging buffer. It may be appended to until a block is added.
    pub(crate) fn staging(&mut self) -> &mut Vec<u8> {
        &mut self.staging
    }

    /// Adds the first `allowed` bytes of the blocks, framed once.
    pub(crate) fn add_blocks(&mut self, blocks: &[&[u8]], mut allowed: usize, encoder: BodyEncoder) {
        let behind = encoder.behind(allowed);
        encoder.begin(allowed, &mut self.staging);
        let mut from = 0;
        for (index, block) in blocks.iter().enumerate() {
            let length = block.len().min(allowed);
            allowed -= length;
            if length < COPY_BELOW {
                self.staging.extend_from_slice(&block[..length]);
            } else {
                self.close_piece(&mut from);
                self.pieces.push(Piece { block: Some(index), at: 0, end: length });
            }
            if allowed == 0 {
                break;
            }
        }
        self.staging.extend_from_slice(behind);
        if !self.pieces.is_empty() {
            self.close_piece(&mut from);
        }
    }

    /// Makes a piece of the staged bytes from `from` on.
    fn close_piece(&mut self, from: &mut usize) {
        if self.staging.len() > *from {
            self.pieces.push(Piece { block: None, at: *from, end: self.staging.len() });
            *from = self.staging.len();
        }
    }

    /// Adds the end of the body.
    pub(crate) fn add_end(&mut self, encoder: BodyEncoder) {
        let mut from = self.staging.len();
        self.staging.extend_from_slice(encoder.end());
        if !self.pieces.is_empty() {
            self.close_piece(&mut from);
        }
    }

    /// Writes as much as the socket accepts. Returns the number of write calls and the result of the last one; `None`:
    /// there was nothing to write. `most`: makes a single write, of at most this many bytes. `more`: something follows
    /// at once, so that the kernel may wait for it to send both in one segment.
    pub(crate) fn write(
        &mut self,
        socket: &dyn Transport,
        blocks: &[&[u8]],
        most: Option<usize>,
        more: bool,
    ) -> (u32, Option<Io>) {
        let mut writes = 0;
        let mut last = None;
        while !self.is_written() {
            let moved = if self.pieces.is_empty() {
                self.write_staging(socket, most, more)
            } else {
                self.write_pieces(socket, blocks, most, more)
            };
            writes += 1;
            last = Some(moved);
            if most.is_some() || !matches!(moved, Io::Moved(_)) {
                break;
            }
        }
        (writes, last)
    }

    fn is_written(&self) -> bool {
        if self.pieces.is_empty() { self.written == self.staging.len() } else { self.written == self.pieces.len() }
    }

    /// The fast path: everything is in one buffer.
    fn write_staging(&mut self, socket: &dyn Transport, most: Option<usize>, more: bool) -> Io {
        let end = most.map_or(self.staging.len(), |most| most.min(self.staging.len()));
        let moved = socket.transmit(&[IoSlice::new(&self.staging[self.written..end])], more);
        if let Io::Moved(count) = moved {
            self.written += count;
        }
        moved
    }

    fn write_pieces(&mut self, socket: &dyn Transport, blocks: &[&[u8]], most: Option<usize>, more: bool) -> Io {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut count = 0;
        let mut room = most.unwrap_or(usize::MAX);
        for (slice, piece) in slices.iter_mut().zip(&self.pieces[self.written..]) {
            let bytes = piece.bytes(&self.staging, blocks);
            *slice = IoSlice::new(&bytes[..bytes.len().min(room)]);
            room -= bytes.len().min(room);
            count += 1;
            if room == 0 {
                break;
            }
        }
        let moved = socket.transmit(&slices[..count], more);
        if let Io::Moved(mut moved) = moved {
            while let Some(piece) = self.pieces.get_mut(self.written).filter(|_| moved > 0) {
                let step = moved.min(piece.end - piece.at);
                piece.at += step;
                moved -= step;
                if piece.at == piece.end {
                    self.written += 1;
                }
            }
        }
        moved
    }

    /// Queues what has not been written, and empties the plan. `most` as in [`WritePlan::write`].
    pub(crate) fn queue_rest(
        &mut self,
        outbox: &mut Outbox,
        blocks: &[&[u8]],
        most: Option<usize>,
        keep: &mut dyn FnMut(usize) -> Box<dyn Payload>,
    ) {
        if !self.is_written() {
            if self.pieces.is_empty() {
                self.queue_staging(outbox, most);
            } else {
                for piece in &self.pieces[self.written..] {
                    match piece.block {
                        Some(index) if piece.end - piece.at >= KEEP_FROM => {
                            outbox.push(|queue| queue.push_kept(keep(index), piece.at, piece.end));
                        }
                        _ => outbox.push(|queue| queue.push_copy(piece.bytes(&self.staging, blocks))),
                    }
                }
            }
        }
        self.clear();
    }

    fn queue_staging(&mut self, outbox: &mut Outbox, most: Option<usize>) {
        if self.staging.len() - self.written > most.unwrap_or(MAX_COPIED) {
            // A runner that must not spend the time to write more must not copy it either, and the system may have no
            // memory for a copy.
            let staging = std::mem::take(&mut self.staging);
            let waits = !outbox.takes_writes();
            outbox.push(|queue| queue.push_buffer(staging, self.written, waits));
        } else {
            outbox.push(|queue| queue.push_copy(&self.staging[self.written..]));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::Read;
    use std::sync::Arc;

    use super::{BodyEncoder, COPY_BELOW, WritePlan};
    use crate::response::outbox::Flush;
    use crate::response::testing::{Owned, Queued, socket};
    use crate::transport::Transport as _;

    #[test]
    fn large_blocks_are_not_copied_and_small_ones_are_copied_once() {
        let large = [7; COPY_BELOW];
        let mut plan = WritePlan::default();
        plan.staging().extend_from_slice(b"head ");
        plan.add_blocks(&[b"small ", &large, b"end"], usize::MAX, BodyEncoder::default());
        assert_eq!(plan.staging, b"head small end");
        let pieces: Vec<_> = plan.pieces.iter().map(|piece| (piece.block, piece.at, piece.end)).collect();
        assert_eq!(pieces, [(None, 0, 11), (Some(1), 0, COPY_BELOW), (None, 11, 14)]);
    }

    #[test]
    fn the_unsent_rest_of_a_large_block_is_kept_by_reference() {
        let (socket, mut client) = socket();
        let large: &'static [u8] = Vec::leak((0..8 << 20).map(|at| (at % 251) as u8).collect());
        let mut out = Queued::new(Arc::default());
        let mut plan = WritePlan::default();
        plan.staging().extend_from_slice(b"head ");
        plan.add_blocks(&[large], usize::MAX, BodyEncoder::default());
        let mut kept = Vec::new();
        out.transmit(&mut plan, &socket, &[large], None, &mut |index| {
            kept.push(index);
            Box::new(Owned(large.to_vec()))
        });
        assert_eq!(kept, [0]);
        assert!(out.0.socket.is_blocked() && out.0.queue.bytes() > 1 << 20);
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; 5 + (8 << 20)];
            client.read_exact(&mut all).unwrap();
            all
        });
        while !out.0.queue.is_empty() {
            out.flush(&socket);
            socket.wait_writable(std::time::Duration::from_secs(1));
        }
        let all = reader.join().unwrap();
        assert!(all[..5] == *b"head " && all[5..] == *large);
    }

    #[test]
    fn a_send_with_a_limit_is_one_write_and_the_rest_is_queued() {
        const MOST: usize = 10_000;
        let large: &'static [u8] = Vec::leak((0..20_000).map(|at| (at % 251) as u8).collect());
        let small: &[u8] = &[5; COPY_BELOW - 1];
        for blocks in [vec![large; 3], vec![small; 20], vec![small, large]] {
            let (socket, mut client) = socket();
            let mut out = Queued::new(Arc::default());
            let mut plan = WritePlan::default();
            plan.add_blocks(&blocks, usize::MAX, BodyEncoder::default());
            let writes = out.transmit(&mut plan, &socket, &blocks, Some(MOST), &mut |index| {
                assert_eq!(blocks[index].len(), large.len());
                Box::new(Owned(large.to_vec()))
            });
            assert_eq!(writes, 1);
            let all = blocks.concat();
            assert_eq!(out.0.queue.bytes(), all.len() - MOST);
            // It does not write while something is queued.
            plan.add_blocks(&[b"last"], usize::MAX, BodyEncoder::default());
            assert_eq!(out.transmit(&mut plan, &socket, &[b"last"], Some(MOST), &mut |_| panic!("it is small")), 0);
            assert!(!out.0.socket.is_blocked());
            assert_eq!(out.flush(&socket), Flush::Empty);
            drop(socket);
            let mut received = Vec::new();
            client.read_to_end(&mut received).unwrap();
            assert!(received == [all.as_slice(), b"last"].concat());
        }
    }

    #[test]
    fn bytes_beyond_the_allowed_number_are_not_written() {
        let (socket, mut client) = socket();
        let mut out = Queued::new(Arc::default());
        let mut plan = WritePlan::default();
        let large = [b'x'; COPY_BELOW];
        plan.add_blocks(&[b"ab", &large, b"cd"], COPY_BELOW, BodyEncoder::CHUNKED);
        plan.add_end(BodyEncoder::CHUNKED);
        out.transmit(&mut plan, &socket, &[b"ab", &large, b"cd"], None, &mut |_| panic!("all of it fits"));
        drop(socket);
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        let body = [b"ab".as_slice(), &large[2..]].concat();
        assert_eq!(all, [b"800\r\n", body.as_slice(), b"\r\n0\r\n\r\n"].concat());
    }
}
