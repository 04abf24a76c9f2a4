//! Leadership: never two threads lead, and while an application waits, another thread takes the lead.

use std::sync::Arc;

use loom::thread;
use tailrace_os::clock::Load;
use tailrace_os::model::Exclusive;
use tailrace_os::sync::{Condvar, Mutex, lock, wait};

use super::explore;
use crate::executor::threads::leadership::{Leadership, Term};
use crate::executor::threads::roles::{Role, Roles, Watched};

/// Data that only the leader touches.
#[derive(Default)]
struct Loop(Exclusive<u32>);

impl Loop {
    fn lead(&self) {
        self.0.with(|turns| *turns += 1);
    }
}

#[test]
fn two_threads_never_lead_at_once() {
    explore("leadership: a leader and two that take", 3, || {
        let shared = Arc::new((Leadership::default(), Loop::default()));
        let takers = [(); 2].map(|()| {
            let shared = shared.clone();
            thread::spawn(move || {
                let (leadership, work) = &*shared;
                for _ in 0..2 {
                    if let Some(term) = leadership.take(leadership.look()) {
                        work.lead();
                        leadership.offer(term);
                    }
                }
            })
        });
        let (leadership, work) = &*shared;
        let mut term = leadership.begin();
        let is_kept = (0..2).all(|_| {
            work.lead();
            leadership.lend(&mut term);
            leadership.try_resume(&mut term)
        });
        if is_kept {
            work.lead();
            leadership.offer(term);
        }
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        assert!(leadership.take(leadership.look()).is_some(), "no thread can take the lead any more");
    });
}

/// What the watcher sees of a server whose processor is idle or busy.
struct Seen {
    is_idle: bool,
}

impl Watched for Seen {
    fn wants_this_thread(&self) -> bool {
        false
    }

    fn was_idle(&self, _: &Load) -> bool {
        self.is_idle
    }

    fn relieve(&mut self) {}
}

#[derive(Default)]
struct Server {
    roles: Roles,
    work: Loop,
    /// The number of leaders whose application waits. When all of them wait, the last one wakes the others.
    away: Mutex<u32>,
    came: Condvar,
}

impl Server {
    fn of(threads: usize) -> Arc<Self> {
        let server = Arc::new(Self::default());
        (0..threads).for_each(|_| _ = server.roles.join());
        server
    }

    /// Starts a thread of the server, which takes roles until the server ends.
    fn spawn(self: &Arc<Self>, mut lead: impl FnMut(&Self, Term) + 'static) -> thread::JoinHandle<()> {
        let server = self.clone();
        thread::spawn(move || server.take_roles(&mut lead))
    }

    fn take_roles(&self, lead: &mut impl FnMut(&Self, Term)) {
        let mut role = self.roles.next_role();
        loop {
            role = match role {
                Role::Lead(term) => {
                    self.work.lead();
                    lead(self, term);
                    self.roles.next_role()
                }
                Role::Watch => self.roles.watch(&mut Seen { is_idle: true }),
                Role::Retire => return,
            };
        }
    }

    /// The application of the leader waits until `leaders` threads have led.
    fn run(&self, mut term: Term, at_once: bool, leaders: u32) {
        let mut away = lock(&self.away);
        *away += 1;
        if *away == leaders {
            drop(away);
            self.came.notify_all();
            return self.roles.end();
        }
        drop(away);
        assert!(self.roles.try_lend(&mut term, at_once), "another thread is free");
        let mut away = lock(&self.away);
        while *away < leaders {
            away = wait(&self.came, away);
        }
        drop(away);
        assert!(!self.roles.try_resume(&mut term), "a thread kept the lead while its application waited");
    }
}

#[test]
fn another_thread_takes_the_lead_when_the_application_waits() {
    for at_once in [false, true] {
        explore(&format!("roles: the leader waits, at once: {at_once}"), 3, move || {
            let server = Server::of(2);
            let other = server.spawn(move |server, term| server.run(term, at_once, 2));
            server.take_roles(&mut |server, term| server.run(term, at_once, 2));
            other.join().unwrap();
        });
    }
}

#[test]
fn an_alert_does_not_hide_that_the_leader_waits() {
    explore("roles: an alert, and the leader waits", 3, || {
        let server = Server::of(2);
        let other = server.spawn(|server, term| server.run(term, false, 2));
        let alerting = server.clone();
        let alerting = thread::spawn(move || alerting.roles.alert());
        server.take_roles(&mut |server, term| server.run(term, false, 2));
        alerting.join().unwrap();
        other.join().unwrap();
    });
}

#[test]
fn a_parked_thread_watches_when_the_watcher_leads() {
    explore("roles: two leaders wait", 3, || {
        let server = Server::of(3);
        let others = [(); 2].map(|()| server.spawn(|server, term| server.run(term, false, 3)));
        server.take_roles(&mut |server, term| server.run(term, false, 3));
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn a_leader_that_lends_and_resumes_leads_alone() {
    explore("roles: the leader comes and goes", 3, || {
        let server = Server::of(2);
        fn come_and_go(server: &Server, mut term: Term) {
            for _ in 0..2 {
                server.work.lead();
                // The application of the other thread may run itself; then no thread can take over.
                if server.roles.try_lend(&mut term, false) && !server.roles.try_resume(&mut term) {
                    return;
                }
            }
            server.work.lead();
            server.roles.end();
        }
        let other = server.spawn(come_and_go);
        server.take_roles(&mut come_and_go);
        other.join().unwrap();
    });
}

#[test]
fn an_offer_is_taken() {
    explore("roles: the leader offers the lead", 3, || {
        let server = Server::of(2);
        // The first one offers, the second one ends the server.
        fn offer(server: &Server, term: Term) {
            let mut away = lock(&server.away);
            *away += 1;
            if *away == 1 {
                drop(away);
                server.roles.offer(term);
            } else {
                drop(away);
                server.roles.end();
            }
        }
        let other = server.spawn(offer);
        server.take_roles(&mut offer);
        other.join().unwrap();
    });
}

#[test]
fn all_threads_learn_of_the_end() {
    explore("roles: the end", 2, || {
        let server = Server::of(3);
        assert!(matches!(server.roles.next_role(), Role::Lead(_)));
        let others = [(); 2].map(|()| server.spawn(|_, _| unreachable!()));
        server.roles.end();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}
