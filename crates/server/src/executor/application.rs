//! The application, as the server sees it: the trait of the code that responds to requests.
//!
//! `wsgi` implements [`Application`] for Python; a Rust echo implements it in a dozen lines, so the whole server is
//! tested and measured without an interpreter.

use std::io;

use tailrace_observe::level::Level;
use tailrace_observe::record::Record;
use tailrace_os::clock;

pub use crate::dispatch::runners::{Disconnected, Interruption, Overdue, Slow};
use crate::executor::turn::Turn;
use crate::request::Request;

/// Responds to the requests of a server. Shared by all its threads.
pub trait Application: Send + Sync + 'static {
    /// Runs complete requests on the calling thread.
    ///
    /// Acquires whatever the application needs to run (the interpreter), then calls [`Turn::next`] until it answers
    /// `None`, and responds to each [`crate::connection::exchange::Exchange`] it gets. What it has acquired is not
    /// released between two requests. May block before the first `next`: at most one thread of the server is there at a
    /// time.
    fn enter(&self, turn: &mut Turn<'_>);

    /// Starts one more thread that calls [`Server::run`](crate::Server::run). Called inside [`Application::enter`],
    /// from [`Turn::next`], by a thread that holds the application.
    ///
    /// # Errors
    /// When the operating system refuses a thread; the server then goes on with those it has.
    fn grow(&self) -> io::Result<()>;

    /// True when the calling loop must end (an interpreter signal raised an exception). Asked only by a single-threaded
    /// loop, after `epoll_wait` was interrupted by a signal.
    fn interrupted(&self) -> bool {
        false
    }

    /// Checks whether the application is available: lets a thread of the application acquire what a request needs (the
    /// interpreter) and then call [`Server::application_answers`](crate::Server::application_answers). Called by the
    /// I/O side: must not block. False: that will not be called.
    fn ask(&self) -> bool {
        false
    }

    /// This many bytes held for clients have been freed; the allocator may be asked to return them to the system.
    /// Called by the I/O side: must not block.
    fn freed(&self, _bytes: usize) {}

    // Reports on requests and responses, and the error log.

    /// A request's deadline has come while a thread still works on it. Called by the I/O side, which does not hold the
    /// application: must not block.
    fn overdue(&self, request: Overdue) {
        let Overdue { request, since, .. } = request;
        let seconds = clock::now().saturating_duration_since(since);
        self.log(Level::Error, &format!("{request}: still in the application after {:.3} s", seconds.as_secs_f64()));
    }

    /// A request has run for as long as `--slow-request-log` says, and still runs. Called by the I/O side, which does not
    /// hold the application: must not block.
    fn slow(&self, request: Slow) {
        self.log(Level::Warning, &request.to_string());
    }

    /// The client of a request has left while a thread still works on it. Called by the I/O side, or by the runner that
    /// takes such a request: must not block.
    fn disconnected(&self, _request: Disconnected) {}

    /// True when [`Application::delivered`] is to be called.
    fn follows_deliveries(&self) -> bool {
        false
    }

    /// A response has ended, complete or not. `line`: its line of an access log that goes to the application. Called by
    /// the thread that accounts for it: must not block.
    fn delivered(&self, _request: &Request, _record: &Record, _line: Option<String>) {}

    /// A line for the error log, from a thread that does not hold the application.
    fn log(&self, level: Level, message: &str);
}
