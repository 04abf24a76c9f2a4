//! What one `send` writes: small parts copied next to each other in a staging buffer, large blocks by reference.
//!
//! Belongs to the thread that carries the exchange. Reused, with its room, by later requests of the thread.

use std::io::IoSlice;

use penstock_http::encode;

use crate::outbox::{Outbox, Payload};
use crate::sys::Io;
use crate::wire::Wire;

/// Blocks below this size are copied next to each other: cheaper than a slice of their own for the kernel.
const COPY_BELOW: usize = 2048;
/// What the socket did not take of a large block is copied below this size, held by reference from it on.
const KEEP_FROM: usize = 4096;
/// Slices of one write.
const SLICES: usize = 64;

/// A part of what is written.
struct Piece {
    /// `None`: in the staging buffer; else in the block of this index.
    block: Option<usize>,
    at: usize,
    end: usize,
}

/// See the module. Without pieces, everything is in the staging buffer.
#[derive(Default)]
pub(crate) struct Layout {
    staging: Vec<u8>,
    pieces: Vec<Piece>,
}

impl Layout {
    /// Forgets everything but its room, of which it answers the size.
    pub(crate) fn clear(&mut self) -> usize {
        self.staging.clear();
        self.pieces.clear();
        self.staging.capacity()
    }

    /// The staging buffer, to append to before any block is added.
    pub(crate) fn staging(&mut self) -> &mut Vec<u8> {
        &mut self.staging
    }

    /// The line before a chunk.
    pub(crate) fn add_chunk_header(&mut self, length: usize) {
        let mut line = [0; 20];
        let end = encode::chunk_header(length, &mut line);
        self.staging.extend_from_slice(&line[..end]);
    }

    /// The first `allowed` bytes of the blocks, as one chunk if `chunked`.
    pub(crate) fn add_blocks(&mut self, blocks: &[&[u8]], mut allowed: usize, chunked: bool) {
        if chunked {
            self.add_chunk_header(allowed);
        }
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
        if chunked {
            self.staging.extend_from_slice(encode::CHUNK_END);
        }
        if !self.pieces.is_empty() {
            self.close_piece(&mut from);
        }
    }

    /// What has been staged since `from` becomes a piece.
    fn close_piece(&mut self, from: &mut usize) {
        if self.staging.len() > *from {
            self.pieces.push(Piece { block: None, at: *from, end: self.staging.len() });
            *from = self.staging.len();
        }
    }

    /// The last chunk.
    pub(crate) fn add_last_chunk(&mut self) {
        let mut from = self.staging.len();
        self.staging.extend_from_slice(encode::LAST_CHUNK);
        if !self.pieces.is_empty() {
            self.close_piece(&mut from);
        }
    }

    /// Writes it, unless something waits before it, as far as the socket takes it; queues the rest; is empty afterwards.
    /// Answers the number of write calls. `most`: a single write is made, of so many bytes at most; `None`: all is written.
    pub(crate) fn transmit(
        &mut self,
        wire: &Wire,
        out: &mut Outbox,
        blocks: &[&[u8]],
        most: Option<usize>,
        keep: &mut dyn FnMut(usize) -> Box<dyn Payload>,
    ) -> u32 {
        let writes = if self.pieces.is_empty() {
            self.transmit_staging(wire, out, most)
        } else {
            self.transmit_pieces(wire, out, blocks, most, keep)
        };
        self.clear();
        writes
    }

    /// The short way: everything is in one buffer.
    fn transmit_staging(&mut self, wire: &Wire, out: &mut Outbox, most: Option<usize>) -> u32 {
        let mut sent = 0;
        let mut writes = 0;
        let end = most.map_or(self.staging.len(), |most| most.min(self.staging.len()));
        while out.takes_writes() && sent < self.staging.len() {
            writes += 1;
            match wire.transmit(&[IoSlice::new(&self.staging[sent..end])], false) {
                Io::Moved(count) => sent += count,
                Io::WouldBlock => out.set_blocked(true),
                Io::End | Io::Broken => out.break_off(),
            }
            if most.is_some() {
                break;
            }
        }
        if most.is_some_and(|most| self.staging.len() - sent > most) {
            // Whoever must not write more than that has no time to copy it either.
            out.push_buffer(std::mem::take(&mut self.staging), sent);
        } else {
            out.push_copy(&self.staging[sent..]);
        }
        writes
    }

    fn transmit_pieces(
        &mut self,
        wire: &Wire,
        out: &mut Outbox,
        blocks: &[&[u8]],
        most: Option<usize>,
        keep: &mut dyn FnMut(usize) -> Box<dyn Payload>,
    ) -> u32 {
        let staging = &self.staging;
        let bytes_of = |piece: &Piece| match piece.block {
            None => &staging[piece.at..piece.end],
            Some(index) => &blocks[index][piece.at..piece.end],
        };
        let mut first = 0;
        let mut writes = 0;
        while out.takes_writes() && first < self.pieces.len() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            let mut room = most.unwrap_or(usize::MAX);
            for (slice, piece) in slices.iter_mut().zip(&self.pieces[first..]) {
                let bytes = bytes_of(piece);
                *slice = IoSlice::new(&bytes[..bytes.len().min(room)]);
                room -= bytes.len().min(room);
                count += 1;
                if room == 0 {
                    break;
                }
            }
            writes += 1;
            match wire.transmit(&slices[..count], false) {
                Io::Moved(mut moved) => {
                    while let Some(piece) = self.pieces.get_mut(first).filter(|_| moved > 0) {
                        let step = moved.min(piece.end - piece.at);
                        piece.at += step;
                        moved -= step;
                        if piece.at == piece.end {
                            first += 1;
                        }
                    }
                }
                Io::WouldBlock => out.set_blocked(true),
                Io::End | Io::Broken => out.break_off(),
            }
            if most.is_some() {
                break;
            }
        }
        for piece in &self.pieces[first..] {
            match piece.block {
                Some(index) if piece.end - piece.at >= KEEP_FROM => out.push_kept(keep(index), piece.at, piece.end),
                _ => out.push_copy(bytes_of(piece)),
            }
        }
        writes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::{COPY_BELOW, Layout};
    use crate::outbox::{Outbox, Payload};
    use crate::wire::Wire;

    /// Stands for a block of the application's; says where its bytes are.
    struct Here(&'static [u8]);

    impl Payload for Here {
        fn bytes(&self) -> &[u8] {
            self.0
        }
    }

    fn wire() -> (Wire, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Wire::new(ours.into()), theirs)
    }

    #[test]
    fn large_blocks_are_never_copied_small_ones_once() {
        let large = [7; COPY_BELOW];
        let mut layout = Layout::default();
        layout.staging().extend_from_slice(b"head ");
        layout.add_blocks(&[b"small ", &large, b"end"], usize::MAX, false);
        assert_eq!(layout.staging, b"head small end");
        let pieces: Vec<_> = layout.pieces.iter().map(|piece| (piece.block, piece.at, piece.end)).collect();
        assert_eq!(pieces, [(None, 0, 11), (Some(1), 0, COPY_BELOW), (None, 11, 14)]);
    }

    #[test]
    fn what_the_socket_does_not_take_of_a_large_block_is_kept_where_it_is() {
        let (wire, mut client) = wire();
        let large: &'static [u8] = Vec::leak((0..8 << 20).map(|at| (at % 251) as u8).collect());
        let mut out = Outbox::new(Arc::default());
        let mut layout = Layout::default();
        layout.staging().extend_from_slice(b"head ");
        layout.add_blocks(&[large], usize::MAX, false);
        let mut kept = Vec::new();
        layout.transmit(&wire, &mut out, &[large], None, &mut |index| {
            kept.push(index);
            Box::new(Here(large))
        });
        assert_eq!(kept, [0]);
        assert!(out.is_blocked() && out.bytes() > 1 << 20);
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; 5 + (8 << 20)];
            client.read_exact(&mut all).unwrap();
            all
        });
        while !out.is_empty() {
            out.flush_all(&wire);
            wire.wait_writable(std::time::Duration::from_secs(1));
        }
        let all = reader.join().unwrap();
        assert!(all[..5] == *b"head " && all[5..] == *large);
    }

    #[test]
    fn a_bounded_send_is_one_write_and_the_rest_is_kept() {
        const MOST: usize = 10_000;
        let large: &'static [u8] = Vec::leak((0..20_000).map(|at| (at % 251) as u8).collect());
        let small: &[u8] = &[5; COPY_BELOW - 1];
        for blocks in [vec![large; 3], vec![small; 20], vec![small, large]] {
            let (wire, mut client) = wire();
            let mut out = Outbox::new(Arc::default());
            let mut layout = Layout::default();
            layout.add_blocks(&blocks, usize::MAX, false);
            let writes = layout.transmit(&wire, &mut out, &blocks, Some(MOST), &mut |index| {
                assert_eq!(blocks[index].len(), large.len());
                Box::new(Here(large))
            });
            assert_eq!(writes, 1);
            let all = blocks.concat();
            assert_eq!(out.bytes(), all.len() - MOST);
            // Nor does it write while something waits.
            layout.add_blocks(&[b"last"], usize::MAX, false);
            assert_eq!(layout.transmit(&wire, &mut out, &[b"last"], Some(MOST), &mut |_| panic!("it is small")), 0);
            assert!(!out.is_blocked());
            out.flush_all(&wire);
            drop(wire);
            let mut received = Vec::new();
            client.read_to_end(&mut received).unwrap();
            assert!(received == [all.as_slice(), b"last"].concat());
        }
    }

    #[test]
    fn blocks_beyond_the_promised_length_are_cut() {
        let (wire, mut client) = wire();
        let mut out = Outbox::new(Arc::default());
        let mut layout = Layout::default();
        let large = [b'x'; COPY_BELOW];
        layout.add_blocks(&[b"ab", &large, b"cd"], COPY_BELOW, true);
        layout.add_last_chunk();
        layout.transmit(&wire, &mut out, &[b"ab", &large, b"cd"], None, &mut |_| panic!("all of it fits"));
        drop(wire);
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        let body = [b"ab".as_slice(), &large[2..]].concat();
        assert_eq!(all, [b"800\r\n", body.as_slice(), b"\r\n0\r\n\r\n"].concat());
    }
}
