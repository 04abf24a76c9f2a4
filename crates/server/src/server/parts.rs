//! The parts of a server, and how they are made and connected.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use tailrace_observe::endpoints::EndpointTable;
use tailrace_observe::level::Level;
use tailrace_observe::scoreboard::WorkerSlot;

use crate::clients::Clients;
use crate::clients::connections::ConnectionLimit;
use crate::config::Config;
use crate::connection::context::Context;
use crate::dispatch::dispatcher::Dispatcher;
use crate::dispatch::responder::Responder;
use crate::executor::Executor;
use crate::executor::application::Application;
use crate::executor::greenlets::Greenlets;
use crate::request::disk::Disk;
use crate::server::accepting::Accepting;
use crate::server::accounting::Accounting;
use crate::server::adopting::Adopting;
use crate::server::executors::{self, Chosen};
use crate::server::guard::Guard;
use crate::server::publishing::Publishing;
use crate::server::responders;
use crate::sticky::Sessions;
use crate::sticky::owners::Owners;

/// What a server is given beside its settings, its application and its sockets.
#[derive(Default)]
pub struct Provided {
    /// Its slot of the scoreboard.
    pub worker_slot: Option<WorkerSlot>,
    /// The counts of clients over all workers. `None`: no client is limited.
    pub clients: Option<Clients>,
    /// The owners of sessions over all workers. `None`: requests are not passed.
    pub owners: Option<Owners>,
    /// The threads for its files.
    pub disk: Arc<Disk>,
    /// Those that respond before the application, or after it. They are asked in this order.
    pub responders: Vec<Box<dyn Responder>>,
}

/// Any thread.
pub(super) struct Parts {
    pub(super) context: Arc<Context>,
    pub(super) dispatcher: Arc<Dispatcher>,
    pub(super) application: Arc<dyn Application>,
    pub(super) executor: Arc<dyn Executor>,
    /// `executor`, if that is the executor of greenlets.
    pub(super) greenlets: Option<Arc<Greenlets>>,
    pub(super) responders: Vec<Box<dyn Responder>>,
    pub(super) accepting: Accepting,
    pub(super) accounting: Accounting,
    pub(super) publishing: Publishing,
    pub(super) guard: Arc<Guard>,
    /// The slot of this process on the scoreboard.
    pub(super) worker_slot: Option<WorkerSlot>,
    /// True when this process is a worker: its master replaces it when it ends.
    pub(super) has_master: AtomicBool,
    /// The reason if the server ended without a request to stop.
    pub(super) fault: Mutex<Option<String>>,
}

impl Parts {
    /// Makes all parts of a server.
    ///
    /// # Errors
    /// No descriptors left, or the access log cannot be opened.
    pub(super) fn new(
        config: Config,
        application: Arc<dyn Application>,
        sockets: Vec<OwnedFd>,
        provided: Provided,
    ) -> io::Result<Self> {
        let Provided { worker_slot, clients, owners, disk, responders } = provided;
        let kind = config.executor;
        let runners = executors::most_runners(&config);
        let context = Arc::new(Context::new(config, executors::policy(kind), disk)?);
        if let (Some(slot), Some(clients), most @ 1..) = (&worker_slot, clients, context.config.client_connections) {
            let Clients { secret, connections, .. } = clients;
            let _ = context.connection_limit.set(ConnectionLimit::new(secret, connections, slot.number(), most));
        }
        if let Some(sessions) = sessions(&context, owners, worker_slot) {
            let _ = context.sessions.set(sessions);
        }
        if let Some(fields) =
            responders.iter().map(|responder| responder.delegation_fields()).find(|fields| !fields.is_empty())
        {
            context.delegation_fields.get_or_init(|| fields);
        }
        let needs_application = responders.iter().all(|responder| !responder.delegation_fields().is_empty());
        // If there is only one slot, no master reads them.
        let endpoints =
            worker_slot.filter(|slot| !slot.is_alone()).map(|slot| Arc::new(EndpointTable::new(slot.endpoints())));
        let dispatcher = Arc::new(Dispatcher::new(context.clone(), runners, worker_slot, endpoints.clone()));
        let Chosen { executor, greenlets } = executors::make(kind, &dispatcher, &application)?;
        let guard = Arc::new(Guard::new(context.clone(), application.clone()));
        let accounting = Accounting::new(context.clone(), application.clone(), worker_slot, endpoints)?;
        let mut accepting = Accepting::new(
            context.clone(),
            application.clone(),
            guard.clone(),
            sockets,
            worker_slot,
            needs_application,
        )?;
        // At last, since it starts a thread.
        accepting.adopt_from(adopting(&context, &*application));
        Ok(Self {
            accepting,
            accounting,
            publishing: Publishing::new(worker_slot),
            responders: responders::in_order(&context, &dispatcher, executor.clone(), clients, responders),
            greenlets,
            executor,
            guard,
            worker_slot,
            has_master: AtomicBool::new(false),
            fault: Mutex::default(),
            application,
            dispatcher,
            context,
        })
    }
}

/// Takes what other workers pass from now on. `None`: they pass nothing here, or cannot.
fn adopting(context: &Arc<Context>, application: &dyn Application) -> Option<Arc<Adopting>> {
    let sessions = context.sessions.get()?;
    match Adopting::start(context.clone(), &sessions.own_address()) {
        Ok(adopting) => Some(adopting),
        Err(fault) => {
            // It still passes requests to others.
            sessions.leave();
            let text = format!(
                "--sticky: this worker cannot take requests from other workers, so sessions that it opens may fail; \
                 restart it: {fault}"
            );
            application.log(Level::Warning, &text);
            None
        }
    }
}

/// What this worker knows of sessions. `None`: requests are not passed.
fn sessions(context: &Context, owners: Option<Owners>, slot: Option<WorkerSlot>) -> Option<Sessions> {
    let (key, owners) = (context.config.sticky.clone()?, owners?);
    Some(Sessions::new(key, owners, owners.join(slot?.number())?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io;
    use std::sync::{Arc, Mutex};

    use tailrace_observe::level::Level;
    use tailrace_observe::scoreboard::Scoreboard;
    use tailrace_os::passing;

    use super::{adopting, sessions};
    use crate::config::Config;
    use crate::connection::context::Context;
    use crate::executor::application::Application;
    use crate::executor::inline;
    use crate::executor::turn::Turn;
    use crate::request::Request;
    use crate::sticky::key::SessionKey;
    use crate::sticky::owners::Owners;
    use crate::sticky::testing::query;

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl Application for Log {
        fn enter(&self, _: &mut Turn<'_>) {}

        fn grow(&self) -> io::Result<()> {
            Ok(())
        }

        fn log(&self, _: Level, message: &str) {
            self.0.lock().unwrap().push(message.to_owned());
        }
    }

    #[test]
    fn a_worker_whose_name_is_taken_starts_and_says_so() {
        let config = Config { sticky: SessionKey::parse("query:sid"), ..Config::default() };
        let context = Arc::new(Context::new(config, inline::POLICY, Arc::default()).unwrap());
        let board = Scoreboard::new(2, 1).unwrap();
        let owners = Owners::new(2).unwrap();
        let [own, other] = [0, 1].map(|slot| sessions(&context, Some(owners), board.worker_slot(slot)).unwrap());
        let _taken = passing::listen_at(&own.own_address()).unwrap();
        let own = context.sessions.get_or_init(|| own);
        let log = Log::default();
        assert!(adopting(&context, &log).is_none());
        assert!(log.0.lock().unwrap()[0].contains("cannot take requests from other workers"));
        own.note_block(&Request::default(), 200, br#"0{"sid":"a"}"#, || 0);
        assert!(other.other_owner(&query("sid=a"), || 0).is_none(), "its sessions are not passed to it");
    }
}
