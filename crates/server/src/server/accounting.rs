//! What becomes of a request when its response has left, or never will: who follows its record is told, the access log
//! has its line, and a request that the end of the server has cut is kept for the server's own log.
//!
//! Any thread.

use std::io;
use std::sync::{Arc, Mutex};

use crate::connection::context::Context;
use crate::connection::spares;
use crate::connection::transaction::Transaction;
use crate::executor::application::{Application, Level};
use crate::observe::access_log::AccessLog;
use crate::observe::record::{Ending, Record};
use crate::os::panics::{catch, write_stderr};
use crate::os::sync::lock;
use crate::request::Request;

/// Characters of a request's name.
const NAME: usize = 200;

/// A request that the end of the server has cut.
#[derive(Clone, Debug)]
pub struct CutRequest {
    /// Method and target, printable.
    pub request: String,
    /// How long it had run.
    pub seconds: f64,
}

/// See the module.
pub(super) struct Accounting {
    context: Arc<Context>,
    access_log: Option<AccessLog>,
    /// Requests that the end of the server has cut.
    cut: Mutex<Vec<CutRequest>>,
}

impl Accounting {
    /// Nothing is to be accounted for yet.
    ///
    /// # Errors
    /// The access log cannot be opened.
    pub(super) fn new(context: Arc<Context>, application: Arc<dyn Application>) -> io::Result<Self> {
        let access_log = match context.config.access_log.clone() {
            Some(config) => {
                let error_log = Box::new(move |message: &str| application.log(Level::Warning, message));
                Some(AccessLog::open(config, error_log)?)
            }
            None => None,
        };
        Ok(Self { context, access_log, cut: Mutex::default() })
    }

    /// A response has left, or never will.
    pub(super) fn account(&self, mut transaction: Box<Transaction>, writes: u32) {
        if transaction.record.ending != Ending::Complete {
            self.note_cut(&mut transaction);
        }
        if self.access_log.is_some() || transaction.follower.is_some() {
            transaction.record.writes += writes;
            transaction.record.drained = Some(self.context.clock.read());
        }
        if let Some(follower) = &transaction.follower {
            *lock(follower) = transaction.record;
        }
        if let Some(log) = &self.access_log {
            log.write(&transaction.request, transaction.response.head.bytes(), &transaction.record);
        }
        spares::give(transaction);
    }

    /// The same for a request whose transaction somebody has who may not come back.
    pub(super) fn account_abandoned(&self, request: &Request, record: &Record) {
        self.name_cut(request, record);
        if let Some(log) = &self.access_log {
            log.write(request, &[], record);
        }
    }

    /// A response did not reach its end: after the end of the server that is ours.
    fn note_cut(&self, transaction: &mut Transaction) {
        let ending = &mut transaction.record.ending;
        if self.context.has_ended() && *ending != Ending::TimedOut {
            *ending = Ending::Cut;
        }
        if *ending == Ending::Cut {
            self.name_cut(&transaction.request, &transaction.record);
        }
    }

    fn name_cut(&self, request: &Request, record: &Record) {
        let mut name = request.line();
        if name.len() > NAME {
            // ASCII, as it was escaped.
            name.truncate(NAME);
            name.push_str("...");
        }
        let seconds = self.context.clock.since(record.started.unwrap_or(record.queued)).as_secs_f64();
        lock(&self.cut).push(CutRequest { request: name, seconds });
    }

    /// The requests that the end of the server has cut, told once.
    pub(super) fn take_cut(&self) -> Vec<CutRequest> {
        std::mem::take(&mut lock(&self.cut))
    }

    /// Opens the access log anew, after it was rotated.
    pub(super) fn reopen_log(&self) {
        if let Some(log) = &self.access_log {
            log.reopen();
        }
    }

    /// No more lines are written.
    pub(super) fn close_log(&self) {
        if let Some(log) = &self.access_log {
            log.close();
        }
    }

    /// What is in the access log's buffer is written before the process ends by force.
    pub(super) fn save_log(&self) {
        if let Err(panic) = catch(|| self.close_log()) {
            write_stderr(&format!("and the access log was not written to its end: {panic}"));
        }
    }
}
