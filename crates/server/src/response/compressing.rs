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
use tailrace_observe::record::Compressed;
use tailrace_os::clock;

use crate::request::memory::Budget;
use crate::response::content_encoder::ContentEncoder;
use crate::response::send_queue::{Batch, SendQueue};

/// Bytes that one step compresses at most; then other responses have their turn.
const STEP: usize = 128 * 1024;

/// How far the producer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// The response is not compressed.
    #[default]
    Unused,
    /// More may come.
    Open,
    /// All has come: the content is to be ended.
    Complete,
    /// No more comes, and the content is incomplete: it is not ended.
    Cut,
    /// All has been compressed.
    Done,
}

/// The compression of a response. Each connection has one, which is used from the head of a compressed response until its result is
/// taken.
#[derive(Default)]
pub(crate) struct Compressing {
    stage: Stage,
    /// The producer has ended its response.
    is_ended: bool,
    /// A disk thread has been asked to come.
    is_scheduled: bool,
    /// The owner of the connection waits for the end.
    is_awaited: bool,
    /// `None` if unused, so that an idle connection takes little memory.
    content: Option<Box<CompressedContent>>,
}

/// The content of a response that is compressed.
struct CompressedContent {
    plain: SendQueue,
    /// `None` while a thread compresses, and at the end.
    encoder: Option<ContentEncoder>,
    framing: BodyEncoder,
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
    /// From now on the content of the response is compressed.
    pub(crate) fn begin(&mut self, coding: Coding, encoder: ContentEncoder, framing: BodyEncoder, budget: Arc<Budget>) {
        let totals = Compressed { coding, plain_bytes: 0, bytes: 0, time: Duration::ZERO };
        let content = CompressedContent { plain: SendQueue::new(budget), encoder: Some(encoder), framing, totals };
        *self = Self { stage: Stage::Open, content: Some(Box::new(content)), ..Self::default() };
    }

    /// Where the producer's bytes go. `None`: they are not compressed, or it has ended.
    pub(crate) fn queue(&mut self) -> Option<&mut SendQueue> {
        self.content.as_mut().filter(|_| !self.is_ended).map(|content| &mut content.plain)
    }

    /// True from the head of a compressed response until its producer ends it.
    pub(crate) fn is_open(&self) -> bool {
        self.stage != Stage::Unused && !self.is_ended
    }

    /// Bytes in memory that are not compressed.
    pub(crate) fn bytes(&self) -> usize {
        self.content.as_ref().map_or(0, |content| content.plain.bytes())
    }

    /// The producer has produced all of the response.
    pub(crate) fn complete(&mut self) {
        if self.stage == Stage::Open {
            self.stage = Stage::Complete;
        }
    }

    /// The producer sends nothing more.
    pub(crate) fn end(&mut self) {
        self.is_ended = self.stage != Stage::Unused;
        if self.stage == Stage::Open {
            self.stage = Stage::Cut;
        }
    }

    /// The connection is broken: drops everything.
    pub(crate) fn break_off(&mut self) {
        if let Some(content) = &mut self.content {
            content.plain.clear();
            content.encoder = None;
            self.stage = Stage::Done;
        }
    }

    /// True while bytes are to come of what the producer has sent.
    pub(crate) fn is_pending(&self) -> bool {
        match self.stage {
            Stage::Open => self.content.as_ref().is_some_and(|content| content.has_work()),
            Stage::Complete | Stage::Cut => true,
            Stage::Unused | Stage::Done => false,
        }
    }

    /// True when a disk thread has to be asked to come, which counts as done.
    pub(crate) fn must_schedule(&mut self) -> bool {
        let is_idle = self.content.as_ref().is_some_and(|content| content.encoder.is_some());
        let is_due = is_idle && !self.is_scheduled && self.is_pending();
        self.is_scheduled |= is_due;
        is_due
    }

    /// Called by the owner of the connection, which has sent everything. True: more comes, and it is notified.
    pub(crate) fn must_be_awaited(&mut self) -> bool {
        let waits = self.is_ended && self.is_pending();
        self.is_awaited |= waits;
        waits
    }

    /// True, once, when the owner of the connection waits and nothing more comes.
    pub(crate) fn must_notify_owner(&mut self) -> bool {
        !self.is_pending() && std::mem::take(&mut self.is_awaited)
    }

    /// Takes what is compressed next. `None`: nothing is.
    pub(crate) fn begin_step(&mut self) -> Option<Step> {
        self.is_scheduled = false;
        if !self.is_pending() {
            return None;
        }
        let content = self.content.as_mut()?;
        let encoder = content.encoder.take()?;
        let batch = content.plain.take();
        let then = match self.stage {
            _ if !content.plain.is_empty() => Then::Continue,
            Stage::Complete => Then::Finish,
            Stage::Unused | Stage::Open | Stage::Cut | Stage::Done => Then::Flush,
        };
        Some(Step { encoder, batch, then, framing: content.framing })
    }

    /// Takes the result of a step back. Returns the bytes to queue, and where they begin. `Err`: the response cannot
    /// continue.
    pub(crate) fn end_step(&mut self, made: Made) -> Result<(Vec<u8>, usize), ()> {
        let Made { batch, taken, encoder, bytes, at, length, time, is_ok } = made;
        // The connection broke meanwhile, and the response may have been accounted for.
        let Some(content) = &mut self.content else { return Err(()) };
        if self.stage == Stage::Done {
            if let Some(batch) = batch {
                content.plain.drop_batch(batch);
            }
            return Err(());
        }
        if let Some(batch) = batch {
            content.plain.put_back(batch, taken);
        }
        content.totals.plain_bytes += taken as u64;
        content.totals.bytes += length as u64;
        content.totals.time += time;
        if !is_ok {
            return Err(());
        }
        let has_finished = encoder.is_none();
        content.encoder = encoder;
        if has_finished || (self.stage == Stage::Cut && content.plain.is_empty()) {
            self.stage = Stage::Done;
            content.encoder = None;
        }
        Ok((bytes, at))
    }

    /// What it has taken and gained, once, when it is done.
    pub(crate) fn take_result(&mut self) -> Option<Compressed> {
        let totals = self.content.take_if(|_| self.stage == Stage::Done)?.totals;
        *self = Self::default();
        Some(totals)
    }
}

impl CompressedContent {
    /// True while a thread compresses, or something is left to compress.
    fn has_work(&self) -> bool {
        self.encoder.is_none() || !self.plain.is_empty()
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
