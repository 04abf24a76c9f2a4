//! Whether the process has been idle: its processor time against the clock.
//!
//! Tells an application that waits (for a database, a lock, the clock) from one that computes, which the interpreter
//! lock alone does not: both hold a thread.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A moment, with the processor time that all threads of the process had used by then.
pub(crate) struct Load {
    at: Instant,
    used: Duration,
}

impl Load {
    /// Now.
    pub(crate) fn now() -> Self {
        Self { at: Instant::now(), used: processor_time() }
    }

    /// True when the process has used less than half a processor since.
    pub(crate) fn was_idle(&self) -> bool {
        processor_time().saturating_sub(self.used) * 2 < self.at.elapsed()
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::Load;
    use std::time::{Duration, Instant};

    #[test]
    fn a_process_that_sleeps_is_idle() {
        // Other tests of this process may run at the same time; one idle look in many is enough.
        let idle = (0..50).any(|_| {
            let load = Load::now();
            std::thread::sleep(Duration::from_millis(20));
            load.was_idle()
        });
        assert!(idle);
    }

    #[test]
    fn a_process_that_computes_is_not() {
        // The processor may be taken away meanwhile; one busy look in many is enough.
        let busy = (0..50).any(|_| {
            let load = Load::now();
            let until = Instant::now() + Duration::from_millis(10);
            while Instant::now() < until {}
            !load.was_idle()
        });
        assert!(busy);
    }
}
