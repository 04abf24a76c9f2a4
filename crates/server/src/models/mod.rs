//! Models of what the threads of a server share. `make loom` runs each model in every order of its threads' steps, and
//! with every value that a thread may read under the memory model.
//!
//! `loom` reports a deadlock, a panic and a data race. Bounds keep the number of orders small: a model has two or three
//! threads with a few steps each, and only orders with a limited number of preemptions are run (a preemption is a
//! switch away from a thread that could continue).

#![allow(clippy::unwrap_used)]

mod delivery;
mod ownership;
mod roles;
mod run_queue;
mod wakeup;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Runs a model in each order with at most this many preemptions.
#[allow(clippy::print_stdout, reason = "the number of orders shows how much was tried")]
fn explore(name: &str, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    let orders = Arc::new(AtomicUsize::new(0));
    let counted = orders.clone();
    let began = Instant::now();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let (orders, seconds) = (orders.load(Ordering::Relaxed), began.elapsed().as_secs_f64());
    println!("{name}: {orders} orders with at most {preemptions} preemptions, {seconds:.1} s");
}
