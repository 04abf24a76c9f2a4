//! The calling thread runs the application.

use crate::executor::application::{Application, Level};
use crate::executor::turn::Turn;
use crate::os::panics::catch;

/// Runs the application until its turn is over. A panic costs the request that it was running.
pub(super) fn run_application(application: &dyn Application, mut turn: Turn<'_>) {
    if let Err(panic) = catch(|| application.enter(&mut turn)) {
        application.log(
            Level::Error,
            &format!("a request ended in a panic of the server; its connection was closed: {panic}"),
        );
    }
}
