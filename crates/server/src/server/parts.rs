//! What a server consists of.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use crate::config::Config;
use crate::connection::context::Context;
use crate::dispatch::dispatcher::Dispatcher;
use crate::dispatch::responder::Responder;
use crate::executor::Executor;
use crate::executor::application::Application;
use crate::executor::greenlets::{self, Greenlets};
use crate::executor::inline::{self, Inline};
use crate::executor::threads::{self, Threads};
use crate::observe::scoreboard::Section;
use crate::server::accepting::Accepting;
use crate::server::accounting::Accounting;
use crate::server::guard::Guard;
use crate::server::publishing::Publishing;
use crate::server::responders;

/// See the module. Any thread.
pub(super) struct Parts {
    pub(super) context: Arc<Context>,
    pub(super) dispatcher: Arc<Dispatcher>,
    pub(super) application: Arc<dyn Application>,
    pub(super) executor: Arc<dyn Executor>,
    /// The executor, where it is this one: the thread that it takes is the caller's.
    pub(super) greenlets: Option<Arc<Greenlets>>,
    pub(super) responders: Vec<Box<dyn Responder>>,
    pub(super) accepting: Accepting,
    pub(super) accounting: Accounting,
    pub(super) publishing: Publishing,
    pub(super) guard: Arc<Guard>,
    pub(super) place: Option<Section>,
    /// This is a process of a master, which replaces it when it ends.
    pub(super) has_master: AtomicBool,
    /// Why the server ended though nobody asked it to.
    pub(super) fault: Mutex<Option<String>>,
}

impl Parts {
    /// All parts of a server; the one place that chooses its executor.
    pub(super) fn new(
        config: Config,
        application: Arc<dyn Application>,
        sockets: Vec<OwnedFd>,
        place: Option<Section>,
    ) -> io::Result<Self> {
        let (is_greenlets, is_inline) = (config.hub, config.single_thread && !config.hub);
        let policy = match (is_greenlets, is_inline) {
            (true, _) => greenlets::POLICY,
            (_, true) => inline::POLICY,
            _ => threads::POLICY,
        };
        let context = Arc::new(Context::new(config, policy)?);
        let runners = if is_inline { 1 } else { context.config.threads };
        let dispatcher = Arc::new(Dispatcher::new(context.clone(), runners, place));
        let greenlets = if is_greenlets { Some(Arc::new(Greenlets::new(dispatcher.clone())?)) } else { None };
        let executor: Arc<dyn Executor> = match &greenlets {
            Some(greenlets) => greenlets.clone(),
            None if is_inline => Arc::new(Inline::new(dispatcher.clone(), application.clone())),
            None => Arc::new(Threads::new(dispatcher.clone(), application.clone())),
        };
        let guard = Arc::new(Guard::new(context.clone(), application.clone()));
        Ok(Self {
            accepting: Accepting::new(context.clone(), application.clone(), guard.clone(), sockets, place)?,
            accounting: Accounting::new(context.clone(), application.clone())?,
            publishing: Publishing::new(place),
            responders: responders::in_order(&dispatcher, &executor),
            greenlets,
            executor,
            guard,
            place,
            has_master: AtomicBool::new(false),
            fault: Mutex::default(),
            application,
            dispatcher,
            context,
        })
    }
}
