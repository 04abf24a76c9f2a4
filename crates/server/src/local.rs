//! What each thread keeps for itself between requests: a read buffer, spare exchanges, the `Date` of this second.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use crate::answer::Answer;
use crate::timers::DateCache;

/// Bytes read from a socket at once.
pub(crate) const SCRATCH: usize = 64 * 1024;
/// Spare exchanges a thread keeps.
const SPARE: usize = 64;

/// Exchanges for reuse: the box itself, which travels with a request, is what is kept.
#[allow(clippy::vec_box, reason = "the box itself is what is reused")]
type Spares = Vec<Box<Answer>>;

thread_local! {
    static READ: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static ANSWERS: RefCell<Spares> = const { RefCell::new(Vec::new()) };
    static POST: Cell<Option<usize>> = const { Cell::new(None) };
    static LEADING: Cell<bool> = const { Cell::new(false) };
    static DATE: RefCell<DateCache> = const { RefCell::new(DateCache::new()) };
}

/// Runs `work` with the thread's read buffer of [`SCRATCH`] bytes. Not to be nested.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    READ.with_borrow_mut(|buffer| {
        if buffer.is_empty() {
            buffer.resize(SCRATCH, 0);
        }
        work(buffer)
    })
}

/// True unless the calling thread is inside [`with_scratch`].
pub(crate) fn is_scratch_free() -> bool {
    READ.with(|buffer| buffer.try_borrow_mut().is_ok())
}

/// Runs `work` with the 29 bytes of the `Date` of `now`.
pub(crate) fn with_date<T>(now: Instant, work: impl FnOnce(&[u8]) -> T) -> T {
    DATE.with_borrow_mut(|date| work(date.at(now)))
}

/// An empty exchange.
pub(crate) fn take_answer() -> Box<Answer> {
    ANSWERS.with_borrow_mut(Vec::pop).unwrap_or_else(|| Box::new(Answer::new()))
}

/// Gives an exchange back for reuse.
pub(crate) fn give_answer(mut answer: Box<Answer>) {
    if answer.clear() {
        ANSWERS.with_borrow_mut(|spare| {
            if spare.len() < SPARE {
                spare.push(answer);
            }
        });
    }
}

/// The thread's post among those of its server.
pub(crate) fn post() -> Option<usize> {
    POST.get()
}

pub(crate) fn set_post(post: Option<usize>) {
    POST.set(post);
}

/// Runs what the thread does as the leader.
pub(crate) fn leading<T>(work: impl FnOnce() -> T) -> T {
    LEADING.set(true);
    let done = work();
    LEADING.set(false);
    done
}

/// True while the thread leads: it will look around by itself before it waits.
pub(crate) fn is_leading() -> bool {
    LEADING.get()
}
