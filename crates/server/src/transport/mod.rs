//! How bytes move: sockets that listen, and the connections of clients.

pub(crate) mod listener;
pub(crate) mod plain;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
pub(crate) mod tls;

use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tailrace_os::socket::Io;
use tailrace_tls::facts::Facts;

/// The first byte of a TLS record with a handshake (RFC 8446 section 5.1).
pub(crate) const HANDSHAKE: u8 = 22;

/// One connection to a client, which moves bytes and does not know what they mean. Dropping it closes the connection.
///
/// What each implementation must keep:
/// - Nothing blocks but [`Transport::wait_readable`] and [`Transport::wait_writable`].
/// - The thread that owns the connection receives; the thread that holds the lock of the send queue transmits. Both may
///   happen at the same time on two threads. The other methods are for any thread at any time.
/// - After [`Io::WouldBlock`] the socket reports an event (epoll, edge-triggered) when the call can succeed. An
///   implementation with buffers of its own must not return [`Io::WouldBlock`] while it could move bytes from or to
///   them, and one whose reads need a write (as TLS may) must have tried it.
/// - A read that does not fill the buffer has taken all that was available, unless [`Transport::has_paused`] is set.
///   After a read that fills it, more bytes may be available.
/// - Bytes that [`Transport::transmit`] has accepted are not given again, and those that it has not are given again at
///   the next call. An implementation with buffers of its own accepts bytes when they have left these, so that a
///   response that is accepted is one that the socket has.
/// - In a child that the application forks every operation fails with [`Io::Broken`] or does nothing: the client is
///   served by the parent alone, and must not notice the child, also not when the child ends.
pub(crate) trait Transport: Send + Sync {
    /// The socket, to be watched for events; `None` in a child.
    fn socket(&self) -> Option<BorrowedFd<'_>>;

    /// From now on fewer bytes than these need not be an event, unless they are the last ones. The thread that owns the
    /// connection calls this.
    fn set_low_water(&self, bytes: u32);

    /// Reads what the client has sent into `buffer`.
    fn receive(&self, buffer: &mut [u8]) -> Io;

    /// The last [`Transport::receive`] moved bytes and stopped, so that other connections get their turn or because the
    /// stream has ended: more may be available, and no event follows.
    fn has_paused(&self) -> bool {
        false
    }

    /// Writes slices in order, as far as the socket accepts them. `more`: further bytes follow at once.
    fn transmit(&self, slices: &[IoSlice<'_>], more: bool) -> Io;

    /// Sends `count` bytes of a file from `offset`, as far as the socket accepts them. [`Io::End`]: the file has no
    /// more.
    fn transmit_file(&self, file: BorrowedFd<'_>, offset: u64, count: usize) -> Io;

    /// The socket may accept bytes again. An implementation with buffers of its own sends what is in them.
    fn notify_writable(&self) {}

    /// What came in plain text is over: from now on bytes are encrypted, these first, which came with it. False: the
    /// connection has no encryption.
    fn secure(&self, _rest: &[u8]) -> bool {
        false
    }

    /// Bytes buffered for an incomplete handshake. 0: none, or the connection is in use.
    fn held_of_handshake(&self) -> usize {
        0
    }

    /// Frees the buffer of an incomplete handshake, and breaks the connection. False: there is none.
    fn shed_handshake(&self) -> bool {
        false
    }

    /// What the handshake has shown. `None`: the connection is not encrypted, or its handshake is not complete.
    fn facts(&self) -> Option<Arc<Facts>> {
        None
    }

    /// Blocks until bytes or the end of the stream can be read, for at most `time`. False: they cannot.
    fn wait_readable(&self, time: Duration) -> bool;

    /// Blocks until bytes can be written or the connection is broken, for at most `time`.
    fn wait_writable(&self, time: Duration);

    /// Ends the direction to the client, which reads end-of-file after the last byte.
    fn end_sending(&self);

    /// Ends both directions at once.
    fn shut_down(&self);

    /// Ends the direction from the client: readers get what it has sent, and then the end.
    fn end_receiving(&self) {}

    /// A duplicate of the socket, for another party. `None`: the bytes of the socket are not those of the connection.
    ///
    /// # Errors
    /// No descriptors left.
    fn duplicate(&self) -> Option<io::Result<OwnedFd>> {
        None
    }

    /// From now on another party reads and writes. Has the system find out when the client has vanished, or accepts nothing
    /// for `write_timeout`. Both directions end when the connection is closed, whoever has duplicates of the socket.
    fn give_away(&self, _write_timeout: Duration) {}

    /// Another process has the connection: that it is closed here changes nothing for its client.
    fn leave_open(&self) {}

    /// Breaks the connection at once, in a way that the client sees.
    fn abort(&self);

    /// The close will be a reset, so that the client sees that a body which ends with the connection is not whole.
    fn reset_on_close(&self);
}
