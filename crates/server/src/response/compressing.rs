//! The compression of one response: what its producer has sent and is not compressed, the encoder, and how far it is.
//!
//! Plain data behind the lock of [`crate::response::delivery`]. A disk thread takes a [`Step`], compresses without the
//! lock, and brings the result back. When it has compressed all that there is, it flushes the encoder, so that no block
//! waits for a later one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tailrace_http::body_encoder::BodyEncoder;
use tailrace_http::coding::Coding;

use crate::observe::record::Compressed;
use crate::os::clock;
use crate::request::memory::Budget;
use crate::response::content_encoder::ContentEncoder;
use crate::response::send_queue::{Batch, SendQueue};

/// Bytes that one step compresses at most; then other responses have their turn.
const STEP: usize = 128 * 1024;

/// How far the producer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// More may come.
    Open,
    /// All has come: the content is to be ended.
    Complete,
    /// No more comes, and the content is incomplete: it is not ended.
    Cut,
    /// All has been compressed.
    Done,
}

/// See the module.
pub(crate) struct Compressing {
    plain: SendQueue,
    /// `None` while a thread compresses, and at the end.
    encoder: Option<ContentEncoder>,
    framing: BodyEncoder,
    stage: Stage,
    /// The producer has ended its response.
    is_ended: bool,
    /// A disk thread has been asked to come.
    is_scheduled: bool,
    /// The owner of the connection waits for the end.
    is_awaited: bool,
    totals: Compressed,
}

/// What a thread compresses, without the lock.
pub(crate) struct Step {
    encoder: ContentEncoder,
    batch: Option<Batch>,
    /// What follows if all of the batch has been compressed.
    then: Then,
    framing: BodyEncoder,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Continue,
    Flush,
    Finish,
}

/// The result of a step.
pub(crate) struct Made {
    batch: Option<Batch>,
    /// Bytes of the batch that were compressed.
    taken: usize,
    /// `None`: it has ended the content, or failed.
    encoder: Option<ContentEncoder>,
    /// The bytes to send, from `at` on, framed.
    bytes: Vec<u8>,
    at: usize,
    /// Bytes of content among them.
    length: usize,
    time: Duration,
    is_ok: bool,
}

impl Compressing {
    pub(crate) fn new(coding: Coding, encoder: ContentEncoder, framing: BodyEncoder, budget: Arc<Budget>) -> Self {
        Self {
            plain: SendQueue::new(budget),
            encoder: Some(encoder),
            framing,
            stage: Stage::Open,
            is_ended: false,
            is_scheduled: false,
            is_awaited: false,
            totals: Compressed { coding, plain_bytes: 0, bytes: 0, time: Duration::ZERO },
        }
    }

    /// Where the producer's bytes go. `None`: it has ended.
    pub(crate) fn queue(&mut self) -> Option<&mut SendQueue> {
        (!self.is_ended).then_some(&mut self.plain)
    }

    /// True until the producer ends the response.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_ended
    }

    /// Bytes in memory that are not compressed.
    pub(crate) fn bytes(&self) -> usize {
        self.plain.bytes()
    }

    /// The producer has produced all of the response.
    pub(crate) fn complete(&mut self) {
        if self.stage == Stage::Open {
            self.stage = Stage::Complete;
        }
    }

    /// The producer sends nothing more.
    pub(crate) fn end(&mut self) {
        self.is_ended = true;
        if self.stage == Stage::Open {
            self.stage = Stage::Cut;
        }
    }

    /// The connection is broken: drops everything.
    pub(crate) fn break_off(&mut self) {
        self.plain.clear();
        self.stage = Stage::Done;
        self.encoder = None;
    }

    /// True while bytes are to come of what the producer has sent.
    pub(crate) fn is_pending(&self) -> bool {
        match self.stage {
            Stage::Open => self.encoder.is_none() || !self.plain.is_empty(),
            Stage::Complete | Stage::Cut => true,
            Stage::Done => false,
        }
    }

    /// True when a disk thread has to be asked to come, which counts as done.
    pub(crate) fn schedule(&mut self) -> bool {
        let is_due = self.is_pending() && self.encoder.is_some() && !self.is_scheduled;
        self.is_scheduled |= is_due;
        is_due
    }

    /// Called by the owner of the connection, which has sent everything. True: more comes, and it is notified.
    pub(crate) fn await_end(&mut self) -> bool {
        let waits = self.is_ended && self.is_pending();
        self.is_awaited |= waits;
        waits
    }

    /// True, once, when the owner of the connection waits and nothing more comes.
    pub(crate) fn take_awaited(&mut self) -> bool {
        !self.is_pending() && std::mem::take(&mut self.is_awaited)
    }

    /// Takes what is compressed next. `None`: nothing is.
    pub(crate) fn begin(&mut self) -> Option<Step> {
        self.is_scheduled = false;
        if !self.is_pending() {
            return None;
        }
        let encoder = self.encoder.take()?;
        let batch = self.plain.take();
        let then = match self.stage {
            _ if !self.plain.is_empty() => Then::Continue,
            Stage::Complete => Then::Finish,
            Stage::Open | Stage::Cut | Stage::Done => Then::Flush,
        };
        Some(Step { encoder, batch, then, framing: self.framing })
    }

    /// Takes the result of a step back. Returns the bytes to queue, and where they begin. `Err`: the response cannot
    /// continue.
    pub(crate) fn end_step(&mut self, made: Made) -> Result<(Vec<u8>, usize), ()> {
        let Made { batch, taken, encoder, bytes, at, length, time, is_ok } = made;
        if self.stage == Stage::Done {
            if let Some(batch) = batch {
                self.plain.drop_batch(batch);
            }
            return Err(());
        }
        if let Some(batch) = batch {
            self.plain.put_back(batch, taken);
        }
        self.totals.plain_bytes += taken as u64;
        self.totals.bytes += length as u64;
        self.totals.time += time;
        if !is_ok {
            return Err(());
        }
        let has_finished = encoder.is_none();
        self.encoder = encoder;
        if has_finished || (self.stage == Stage::Cut && self.plain.is_empty()) {
            self.stage = Stage::Done;
            self.encoder = None;
        }
        Ok((bytes, at))
    }

    /// What it has taken and gained, once it is done.
    pub(crate) fn result(&self) -> Option<Compressed> {
        (self.stage == Stage::Done).then_some(self.totals)
    }
}

impl Step {
    /// Compresses. Takes as long as [`STEP`] bytes take.
    pub(crate) fn run(self) -> Made {
        let Self { mut encoder, batch, then, framing } = self;
        let from = clock::now();
        let (mut taken, mut is_all) = (0, true);
        let compressed = match &batch {
            Some(batch) => batch.read(STEP, &mut |bytes| {
                taken += bytes.len();
                encoder.write(bytes)
            }),
            None => Ok(true),
        };
        let made = compressed.and_then(|all| {
            is_all = all;
            match then {
                Then::Finish if all => Ok((encoder.finish()?, None)),
                Then::Flush if all => {
                    encoder.flush()?;
                    Ok((encoder.take()?, Some(encoder)))
                }
                _ => Ok((encoder.take()?, Some(encoder))),
            }
        });
        let time = clock::now().saturating_duration_since(from);
        match made.and_then(|(bytes, encoder)| Ok((framed(bytes, framing, encoder.is_none())?, encoder))) {
            Ok(((bytes, at, length), encoder)) => Made { batch, taken, encoder, bytes, at, length, time, is_ok: true },
            Err(_) => Made { batch, taken, encoder: None, bytes: Vec::new(), at: 0, length: 0, time, is_ok: false },
        }
    }
}

/// Frames what an encoder has made: the bytes, where they begin, and the length of the content.
fn framed(mut bytes: Vec<u8>, framing: BodyEncoder, is_last: bool) -> io::Result<(Vec<u8>, usize, usize)> {
    let length = bytes.len() - BodyEncoder::BEFORE;
    let at = framing.begin_in_front(length, &mut bytes, BodyEncoder::BEFORE);
    let (behind, end) = (framing.behind(length), if is_last { framing.end() } else { b"" });
    bytes.try_reserve(behind.len() + end.len())?;
    bytes.extend_from_slice(behind);
    bytes.extend_from_slice(end);
    Ok((bytes, at, length))
}
