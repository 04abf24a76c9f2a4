//! Models of what the threads of a server share: `make loom` runs each in every order in which its threads may take
//! their steps, and with every value that the memory of a weak machine may show them.
//!
//! `loom` stops at a thread that waits for ever, at a panic, and at memory that two threads touch without an order
//! between them. Bounds keep the number of orders small: a model has two or three threads, each takes a few steps, and
//! of the orders those with at most so many preemptions are run, where a thread has to wait that could go on.

#![allow(clippy::unwrap_used)]

mod claim;
mod delivery;
mod roles;
mod run_queue;
mod wakeup;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Runs a model, in each order with at most so many preemptions.
#[allow(clippy::print_stdout, reason = "the number of orders is what the run is about")]
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
