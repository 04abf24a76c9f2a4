//! Which thread leads the loop: one atomic word, which threads pass to each other without a lock.
//!
//! A thread leads for a **term**. While it runs the application, the term is *lent*: another thread may take the lead,
//! which begins the next term, and the former leader finds this out when it comes back. A term may be lent many times,
//! and each time looks different, so that a watcher can distinguish a leader that stays away from one that comes and
//! goes. At most one thread has a term that is not over.
//!
//! No lock, condition, clock or thread is here: `roles` has those.

use tailrace_os::sync::atomic::{AtomicU64, Ordering, fence};

// The word: term << 32 | lends << 1 | lent. `lends` makes two lends of one term differ.
const LENT: u64 = 1;
const LEND: u64 = 2;
const TERM: u64 = 1 << 32;

#[derive(Default)]
pub(crate) struct Leadership(AtomicU64);

/// A term of leadership, of the thread that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term(u64);

/// The word at the time of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen(u64);

impl Seen {
    /// True when the leader was away.
    pub(crate) fn is_lent(self) -> bool {
        self.0 & LENT == LENT
    }
}

impl Leadership {
    /// The term of a thread that leads when nobody else does: the first one.
    pub(crate) fn begin(&self) -> Term {
        Term(self.0.load(Ordering::Acquire))
    }

    /// The leader stops polling, and may resume. A thread that sees this also sees what the leader did before.
    pub(crate) fn lend(&self, term: &mut Term) {
        term.0 = (term.0 & !(TERM - 1)) | ((term.0 + LEND) & (TERM - 1)) | LENT;
        self.0.store(term.0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The leader is back. False: another thread has taken the lead.
    pub(crate) fn try_resume(&self, term: &mut Term) -> bool {
        let back = term.0 & !LENT;
        let is_kept = self.0.compare_exchange(term.0, back, Ordering::AcqRel, Ordering::Acquire).is_ok();
        term.0 = back;
        is_kept
    }

    /// The leader stops polling for good.
    pub(crate) fn offer(&self, mut term: Term) {
        term.0 |= LENT;
        self.0.store(term.0, Ordering::SeqCst);
    }

    /// Takes the lead from a leader that was seen to be away. `None`: it is back, or another thread leads.
    pub(crate) fn take(&self, lent: Seen) -> Option<Term> {
        let next = (lent.0 & !(TERM - 1)).wrapping_add(TERM);
        let is_lent =
            lent.is_lent() && self.0.compare_exchange(lent.0, next, Ordering::AcqRel, Ordering::Acquire).is_ok();
        is_lent.then_some(Term(next))
    }

    /// As it is now.
    pub(crate) fn look(&self) -> Seen {
        Seen(self.0.load(Ordering::SeqCst))
    }

    /// True while the leader is not away: it polls, or is about to.
    pub(crate) fn is_led(&self) -> bool {
        !self.look().is_lent()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::Leadership;

    #[test]
    fn a_leader_that_comes_back_in_time_keeps_its_term() {
        let leadership = Leadership::default();
        let mut term = leadership.begin();
        assert!(leadership.is_led());
        leadership.lend(&mut term);
        assert!(!leadership.is_led());
        let first = leadership.look();
        assert!(leadership.try_resume(&mut term));
        assert!(leadership.is_led());
        leadership.lend(&mut term);
        assert_ne!(leadership.look(), first, "it was back meanwhile");
        assert!(leadership.take(first).is_none());
        assert!(leadership.try_resume(&mut term));
    }

    #[test]
    fn a_term_that_was_taken_is_over() {
        let leadership = Leadership::default();
        let mut first = leadership.begin();
        assert!(leadership.take(leadership.look()).is_none(), "it is not lent");
        leadership.lend(&mut first);
        let lent = leadership.look();
        let mut second = leadership.take(lent).unwrap();
        assert!(leadership.is_led());
        assert!(leadership.take(lent).is_none(), "it was taken");
        leadership.lend(&mut second);
        assert!(!leadership.try_resume(&mut first));
        assert!(leadership.try_resume(&mut second));
        assert_eq!(leadership.begin(), second);
    }

    #[test]
    fn a_term_that_is_offered_may_be_taken() {
        let leadership = Leadership::default();
        let term = leadership.begin();
        leadership.offer(term);
        assert!(!leadership.is_led());
        assert_ne!(leadership.take(leadership.look()).unwrap(), term);
    }

    #[test]
    fn a_term_may_be_lent_so_often_that_the_count_begins_anew() {
        let leadership = Leadership::default();
        let mut term = leadership.begin();
        term.0 |= super::TERM - super::LEND;
        leadership.lend(&mut term);
        assert_eq!(leadership.look().0, super::LENT);
        assert!(leadership.try_resume(&mut term));
    }

    #[test]
    fn two_threads_never_lead_at_once() {
        const ROUNDS: usize = 50_000;
        let leadership = Leadership::default();
        let leaders = AtomicUsize::new(0);
        let lead = || {
            assert_eq!(leaders.fetch_add(1, Ordering::SeqCst), 0, "two lead");
            leaders.fetch_sub(1, Ordering::SeqCst);
        };
        thread::scope(|scope| {
            for number in 0..2 {
                let (leadership, lead) = (&leadership, &lead);
                scope.spawn(move || {
                    let mut own = (number == 0).then(|| leadership.begin());
                    for _ in 0..ROUNDS {
                        match &mut own {
                            Some(term) => {
                                lead();
                                leadership.lend(term);
                                if !leadership.try_resume(term) {
                                    own = None;
                                }
                            }
                            None => own = leadership.take(leadership.look()),
                        }
                    }
                    if let Some(term) = own {
                        leadership.offer(term);
                    }
                });
            }
        });
    }
}
