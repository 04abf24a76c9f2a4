//! Waking the greenlet thread: no reason is lost between its answer and its look, and a thread that waits for its
//! answer continues.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use tailrace_os::sync::atomic::{AtomicBool, Ordering};

use super::explore;
use crate::executor::greenlets::wakeup::{Look, Wakeup};

fn wakeup() -> Arc<Wakeup> {
    Arc::new(Wakeup::new().unwrap())
}

#[test]
fn no_ticket_is_lost() {
    explore("wakeup: tickets", 3, || {
        let wakeup = wakeup();
        let reporters = [1, 2].map(|ticket| {
            let wakeup = wakeup.clone();
            thread::spawn(move || assert!(wakeup.try_report_ticket(ticket)))
        });
        let mut tickets = Vec::new();
        while tickets.len() < 2 {
            wakeup.wait();
            tickets.extend(wakeup.take().unwrap_or_default().tickets);
        }
        tickets.sort_unstable();
        assert_eq!(tickets, [1, 2]);
        reporters.into_iter().for_each(|reporter| reporter.join().unwrap());
    });
}

#[test]
fn a_store_before_a_wakeup_is_visible_after_it() {
    explore("wakeup: notes", 3, || {
        let shared = Arc::new((Wakeup::new().unwrap(), [(); 2].map(|()| AtomicBool::new(false))));
        let reporters = [0, 1].map(|number| {
            let shared = shared.clone();
            thread::spawn(move || {
                let (wakeup, notes) = &*shared;
                notes[number].store(true, Ordering::Relaxed);
                wakeup.wake();
            })
        });
        let (wakeup, notes) = &*shared;
        // A look may find a note before its wake-up has been sent, but a look follows the last wake-up.
        while !notes.iter().all(|note| note.load(Ordering::Relaxed)) {
            wakeup.wait();
            wakeup.take();
        }
        reporters.into_iter().for_each(|reporter| reporter.join().unwrap());
    });
}

#[test]
fn a_resting_io_thread_continues() {
    explore("wakeup: rest", 3, || {
        let wakeup = wakeup();
        let io = wakeup.clone();
        let io = thread::spawn(move || {
            for _ in 0..2 {
                io.wake();
                io.rest(Duration::MAX);
            }
            io.report_end();
        });
        loop {
            wakeup.wait();
            let has_ended = wakeup.take().is_some_and(|wakeups| wakeups.ended);
            wakeup.note_idle();
            if has_ended {
                break;
            }
        }
        io.join().unwrap();
    });
}

#[test]
fn the_watching_thread_learns_of_the_answer() {
    explore("wakeup: watch", 3, || {
        let wakeup = wakeup();
        let watching = wakeup.clone();
        let watching = thread::spawn(move || {
            let Look::Unanswered(sent, _) = watching.watch(Duration::ZERO, 0, || false) else { return false };
            matches!(watching.watch(Duration::MAX, sent, || false), Look::Answered(_))
        });
        let waking = wakeup.clone();
        let waking = thread::spawn(move || waking.wake());
        wakeup.wait();
        wakeup.take();
        waking.join().unwrap();
        // The watching thread may have begun after this wake-up, and then waits for the next one.
        wakeup.report_end();
        watching.join().unwrap();
    });
}
