//! Makes the executor that the configuration names.

use std::io;
use std::sync::Arc;

use crate::config::{Config, ExecutorKind};
use crate::dispatch::dispatcher::Dispatcher;
use crate::executor::Executor;
use crate::executor::application::Application;
use crate::executor::greenlets::{self, Greenlets};
use crate::executor::inline::{self, Inline};
use crate::executor::threads::{self, Threads};
use crate::response::policy::Policy;

/// The executor of a server.
pub(super) struct Chosen {
    pub(super) executor: Arc<dyn Executor>,
    /// The executor, if it is that of greenlets: the caller provides the thread that runs the application, and
    /// calls this executor there.
    pub(super) greenlets: Option<Arc<Greenlets>>,
}

/// How responses are delivered with this executor.
pub(super) fn policy(kind: ExecutorKind) -> Policy {
    match kind {
        ExecutorKind::Threads => threads::POLICY,
        ExecutorKind::Greenlets => greenlets::POLICY,
        ExecutorKind::Inline => inline::POLICY,
    }
}

/// The most runners that run the application at once.
pub(super) fn most_runners(config: &Config) -> usize {
    match config.executor {
        ExecutorKind::Threads | ExecutorKind::Greenlets => config.threads,
        ExecutorKind::Inline => 1,
    }
}

/// Makes the executor.
///
/// # Errors
/// No descriptors left.
pub(super) fn make(
    kind: ExecutorKind,
    dispatcher: &Arc<Dispatcher>,
    application: &Arc<dyn Application>,
) -> io::Result<Chosen> {
    let (dispatcher, application) = (dispatcher.clone(), application.clone());
    Ok(match kind {
        ExecutorKind::Threads => Chosen { executor: Arc::new(Threads::new(dispatcher, application)), greenlets: None },
        ExecutorKind::Greenlets => {
            let greenlets = Arc::new(Greenlets::new(dispatcher)?);
            Chosen { executor: greenlets.clone(), greenlets: Some(greenlets) }
        }
        ExecutorKind::Inline => Chosen { executor: Arc::new(Inline::new(dispatcher, application)), greenlets: None },
    })
}
