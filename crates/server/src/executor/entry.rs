//! The calling thread runs the application.

use tailrace_observe::level::Level;
use tailrace_os::panics::catch;

use crate::executor::application::Application;
use crate::executor::turn::Turn;

/// Runs the application until its turn is over. A panic costs the request that it was running.
pub(super) fn run_application(application: &dyn Application, mut turn: Turn<'_>) {
    if let Err(panic) = catch(|| application.enter(&mut turn)) {
        application.log(
            Level::Error,
            &format!("a request ended in a panic of the server; its connection was closed: {panic}"),
        );
    }
}
