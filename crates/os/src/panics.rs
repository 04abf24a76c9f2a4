//! Catching panics, with their message and place, and the last way to report an error.
//!
//! Each thread of the server runs under [`catch`], around its whole body or around each of its pieces of work. Any
//! thread may call everything here.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::time::Duration;

use crate::log_stream::LogStream;

/// How long [`write_stderr`] waits for standard error to accept the line.
const STDERR_WAIT: Duration = Duration::from_millis(200);

thread_local! {
    static LATEST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `work`. The error contains the panic's message and location.
///
/// # Errors
/// `work` panicked.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    record_places();
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let recorded = LATEST.with(RefCell::take);
        if recorded.is_empty() { message_of(panic.as_ref()).to_owned() } else { recorded }
    })
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown")
}

/// From now on, the message and location of each panic are recorded for [`catch`]; the hook that was set before runs as
/// well.
fn record_places() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic: &PanicHookInfo<'_>| {
            let message = message_of(panic.payload());
            let place =
                panic.location().map_or_else(String::new, |place| format!(" ({}:{})", place.file(), place.line()));
            // While the thread ends, its thread-local storage may be gone: then the place is not recorded.
            let _ = LATEST.try_with(|latest| latest.replace(format!("{message}{place}")));
            before(panic);
        }));
    });
}

/// Writes a line to standard error. For places that must not wait for the application's log; it waits for standard
/// error for `STDERR_WAIT` at most.
pub fn write_stderr(message: &str) {
    let stream = LogStream::stderr();
    stream.write(format!("tailrace: {message}\n").as_bytes());
    stream.flush(STDERR_WAIT);
}

/// A place where a test can make the server panic, once per process: `TAILRACE_TEST_PANIC` names such places. Does
/// nothing in builds without debug assertions.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn may_panic(_: &str) {}

/// Panics if `TAILRACE_TEST_PANIC` names this place.
#[cfg(debug_assertions)]
#[allow(clippy::panic)]
pub fn may_panic(place: &str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    // The places, and whether each has panicked.
    static PLACES: LazyLock<Vec<(String, AtomicBool)>> = LazyLock::new(|| {
        let names = std::env::var("TAILRACE_TEST_PANIC").unwrap_or_default();
        names.split(',').map(|name| (name.to_owned(), AtomicBool::new(false))).collect()
    });
    if PLACES.iter().any(|(name, is_done)| name == place && !is_done.swap(true, Ordering::Relaxed)) {
        panic!("asked to panic in {place}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use super::catch;

    #[test]
    fn a_panic_is_reported_with_its_message_and_place() {
        let number = 7;
        let report = catch(|| {
            assert_ne!(number, 7, "number {number}");
        });
        let line = line!() - 2;
        let report = report.err().unwrap_or_default();
        assert!(report.contains("number 7") && report.ends_with(&format!(" ({}:{line})", file!())), "{report}");
        assert_eq!(catch(|| number), Ok(7));
    }
}
