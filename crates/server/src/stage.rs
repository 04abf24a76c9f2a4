//! The stages of a connection, with the data of each inside its variant, and what a client's bytes come to in them.
//!
//! Runs on the thread that holds the connection's claim.

use std::sync::Arc;

use penstock_http::body::{BodyDecoder, BodyStep};
use penstock_http::framing::{self, BodyLength, RequestFacts};
use penstock_http::head::{HeadParser, HeadStep};
use penstock_http::limits::Refusal;

use crate::answer::Answer;
use crate::budget::Charge;
use crate::connection::{Connection, LINGER, within_rate};
use crate::handler::Level;
use crate::inflow::{BodyStream, Inflow};
use crate::local;
use crate::request::{Part, RequestBody};
use crate::spool::{self, Spool};
use crate::timers::{Millis, millis};

/// What follows when a response has been taken by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The next request.
    Keep,
    /// The end of the connection.
    Close,
    /// The end, and unread bytes of the client are awaited so that it can read the response.
    Linger,
    /// The end by a reset: the body had no other way to be seen as broken.
    Reset,
}

/// Bytes of the client that came after its request.
#[derive(Default)]
pub(crate) struct Ahead {
    pub(crate) bytes: Vec<u8>,
    /// There may be more in the socket that no event will tell of.
    pub(crate) unread: bool,
}

/// A request head that has come in part.
pub(crate) struct Heading {
    pub(crate) answer: Box<Answer>,
    pub(crate) parser: HeadParser,
}

/// A request whose body is on its way.
pub(crate) struct Upload {
    pub(crate) answer: Box<Answer>,
    pub(crate) decoder: BodyDecoder,
    pub(crate) spool: Spool,
    /// When the head was complete, and the body bytes that have come since.
    pub(crate) since: Millis,
    pub(crate) received: u64,
}

/// A response that the client has not taken whole.
pub(crate) struct Leaving {
    pub(crate) then: Then,
    pub(crate) ahead: Ahead,
    /// The body has not been read to its end, which this decoder will know.
    pub(crate) unread_body: Option<BodyDecoder>,
    /// So many bytes of it have been dropped while the client did not take the response, and since when.
    pub(crate) dropped: u64,
    pub(crate) dropping_since: Option<Millis>,
    /// The finished exchange, for the log. None after a refusal.
    pub(crate) answer: Option<Box<Answer>>,
}

impl Leaving {
    /// Bytes of the client that came before its response has left.
    pub(crate) fn pass_over(&mut self, bytes: &[u8]) {
        let Some(decoder) = &mut self.unread_body else { return };
        match decoder.skip(bytes) {
            BodyStep::Done { consumed } => {
                self.unread_body = None;
                self.ahead.bytes = bytes[consumed..].to_vec();
            }
            BodyStep::Refused(_) => {
                self.unread_body = None;
                self.then = Then::Linger;
            }
            BodyStep::NeedMore { .. } | BodyStep::Data { .. } => {}
        }
    }
}

pub(crate) enum Stage {
    Idle,
    Head(Box<Heading>),
    Body(Box<Upload>),
    /// Queued or answered by the application.
    Running(Ahead),
    Draining(Box<Leaving>),
    /// Reads and drops the rest of a body that the application did not want, before the next request.
    Dropping(Box<BodyDecoder>),
    /// Until this time at most.
    Lingering(Millis),
    Closed,
}

/// What the owner does next.
pub(crate) enum Next {
    /// Queue the request; ownership goes with it.
    Run(Box<Answer>),
    /// Let go until the next event.
    Rest,
    /// There is more to send now, but it is the others' turn.
    Later,
    /// Close.
    Close,
}

/// What some bytes came to.
pub(crate) enum Intake {
    /// All are taken in.
    More,
    /// A request is complete after so many of them.
    Complete(Box<Answer>, usize),
    /// They are refused.
    Refused(Refusal, Box<Answer>),
    /// They leave no way to tell where the next request begins.
    Unusable,
}

impl Stage {
    /// Takes out a request that has begun and is not complete.
    pub(crate) fn take_unfinished(&mut self) -> Option<(Box<Answer>, Part)> {
        match std::mem::replace(self, Self::Idle) {
            Self::Head(heading) if heading.parser.started() => Some((heading.answer, Part::Head)),
            Self::Body(upload) => Some((upload.answer, Part::Body)),
            other => {
                *self = other;
                None
            }
        }
    }
}

fn refused(stage: &mut Stage, refusal: Refusal) -> Intake {
    match stage.take_unfinished() {
        Some((answer, _)) => Intake::Refused(refusal, answer),
        None => Intake::More,
    }
}

impl Connection {
    /// Gives bytes of the client to the stage.
    pub(crate) fn take_in(&self, stage: &mut Stage, bytes: &[u8]) -> Intake {
        match stage {
            Stage::Idle => {
                let mut answer = local::take_answer();
                let mut parser = HeadParser::default();
                let limits = &self.reactor().config().limits;
                match parser.parse(bytes, limits, &mut answer.request.head) {
                    HeadStep::NeedMore => {
                        answer.request.bytes.extend_from_slice(bytes);
                        *stage = Stage::Head(Box::new(Heading { answer, parser }));
                        self.due_in(millis(self.reactor().config().header_timeout));
                        Intake::More
                    }
                    HeadStep::Complete => {
                        let length = answer.request.head.length;
                        answer.request.bytes.extend_from_slice(&bytes[..length]);
                        self.begin_body(stage, answer, bytes, length)
                    }
                    HeadStep::Refused(refusal) => {
                        answer.request.bytes.extend_from_slice(bytes);
                        Intake::Refused(refusal, answer)
                    }
                }
            }
            Stage::Head(heading) => {
                let limits = &self.reactor().config().limits;
                let Heading { answer, parser } = &mut **heading;
                let before = answer.request.bytes.len();
                answer.request.bytes.extend_from_slice(bytes);
                match parser.parse(&answer.request.bytes, limits, &mut answer.request.head) {
                    HeadStep::NeedMore => Intake::More,
                    HeadStep::Complete => {
                        let length = answer.request.head.length;
                        answer.request.bytes.truncate(length);
                        let Stage::Head(heading) = std::mem::replace(stage, Stage::Idle) else { return Intake::More };
                        self.begin_body(stage, heading.answer, bytes, length - before)
                    }
                    HeadStep::Refused(refusal) => {
                        let Stage::Head(heading) = std::mem::replace(stage, Stage::Idle) else { return Intake::More };
                        Intake::Refused(refusal, heading.answer)
                    }
                }
            }
            Stage::Body(_) => self.take_body(stage, bytes, 0),
            Stage::Dropping(decoder) => match decoder.skip(bytes) {
                BodyStep::Done { consumed } => {
                    *stage = Stage::Idle;
                    self.due_in(millis(self.reactor().config().idle_timeout));
                    match self.take_in_after(stage, bytes, consumed) {
                        Intake::Complete(answer, more) => Intake::Complete(answer, consumed + more),
                        other => other,
                    }
                }
                BodyStep::Refused(_) => Intake::Unusable,
                BodyStep::NeedMore { .. } | BodyStep::Data { .. } => Intake::More,
            },
            Stage::Lingering(until) => {
                let left = until.saturating_sub(self.reactor().clock().now());
                self.due_in(LINGER.min(left));
                Intake::More
            }
            Stage::Running(_) | Stage::Draining(_) | Stage::Closed => Intake::More,
        }
    }

    /// The first bytes of the next request, if there are any.
    fn take_in_after(&self, stage: &mut Stage, bytes: &[u8], at: usize) -> Intake {
        if at == bytes.len() { Intake::More } else { self.take_in(stage, &bytes[at..]) }
    }

    /// The head is complete; `bytes[at..]` is what came after it.
    fn begin_body(&self, stage: &mut Stage, mut answer: Box<Answer>, bytes: &[u8], at: usize) -> Intake {
        let request = &mut answer.request;
        let limits = &self.reactor().config().limits;
        request.framing = match framing::request_framing(&request.bytes, &request.head, limits) {
            Ok(framing) => framing,
            Err(refusal) => {
                return Intake::Refused(refusal, answer);
            }
        };
        answer.facts = RequestFacts::of(&request.bytes, &request.head, &request.framing);
        let expected = match request.framing.body {
            BodyLength::None | BodyLength::Known(0) => return Intake::Complete(answer, at),
            BodyLength::Known(length) => Some(length),
            BodyLength::Chunked => None,
        };
        let continue_due = request.framing.expects_continue && at == bytes.len();
        let has_come = expected.is_some_and(|length| length <= (bytes.len() - at) as u64);
        if self.reactor().config().stream_body && !has_come {
            let decoder = BodyDecoder::new(request.framing.body, limits.body);
            let inflow = Arc::new(Inflow::new(decoder, bytes[at..].to_vec(), continue_due));
            request.body = RequestBody::Stream(BodyStream(inflow.clone()));
            answer.inflow = Some(inflow);
            return Intake::Complete(answer, bytes.len());
        }
        if continue_due {
            self.say_continue();
        }
        let decoder = BodyDecoder::new(request.framing.body, limits.body);
        *stage = Stage::Body(Box::new(Upload {
            answer,
            decoder,
            spool: Spool::new(expected, Charge::new(self.reactor().bodies().clone())),
            since: self.reactor().clock().now(),
            received: 0,
        }));
        self.take_body(stage, bytes, at)
    }

    fn take_body(&self, stage: &mut Stage, bytes: &[u8], mut at: usize) -> Intake {
        let Stage::Body(upload) = stage else { return Intake::More };
        let config = self.reactor().config();
        let limits = spool::Limits { one: config.body_memory, all: config.body_buffer };
        loop {
            match upload.decoder.decode(&bytes[at..]) {
                BodyStep::Data { consumed, data } => {
                    let data = &bytes[at..][data];
                    if let Err(fault) = upload.spool.append(data, limits) {
                        let refusal = self.spool_fault(&fault);
                        return refused(stage, refusal);
                    }
                    upload.received += data.len() as u64;
                    at += consumed;
                }
                BodyStep::NeedMore { .. } => {
                    let (config, now) = (self.reactor().config(), self.reactor().clock().now());
                    let pause = millis(config.body_timeout);
                    let due = within_rate(now, upload.since, pause, upload.received, config.min_body_rate);
                    self.due_in(due.saturating_sub(now));
                    return Intake::More;
                }
                BodyStep::Done { consumed } => {
                    let Stage::Body(upload) = std::mem::replace(stage, Stage::Idle) else { return Intake::More };
                    let Upload { mut answer, spool, .. } = *upload;
                    match spool.finish() {
                        Ok(body) => answer.request.body = body,
                        Err(fault) => return Intake::Refused(self.spool_fault(&fault), answer),
                    }
                    return Intake::Complete(answer, at + consumed);
                }
                BodyStep::Refused(refusal) => return refused(stage, refusal),
            }
        }
    }

    fn spool_fault(&self, fault: &std::io::Error) -> Refusal {
        self.reactor().log(
            Level::Error,
            &format!("a request body could not be stored in {}: {fault}", std::env::temp_dir().display()),
        );
        Refusal::new(507, "The server cannot store the request body.")
    }
}
