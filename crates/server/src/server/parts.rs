//! The parts of a server, and how they are made and connected.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use tailrace_observe::endpoints::EndpointTable;
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
        let adopting = match sessions(&context, owners, worker_slot) {
            Some(sessions) => {
                let address = sessions.own_address();
                let _ = context.sessions.set(sessions);
                Some(Adopting::start(context.clone(), &address)?)
            }
            None => None,
        };
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
        Ok(Self {
            accepting: Accepting::new(
                context.clone(),
                application.clone(),
                guard.clone(),
                sockets,
                worker_slot,
                needs_application,
                adopting,
            )?,
            accounting: Accounting::new(context.clone(), application.clone(), worker_slot, endpoints)?,
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

/// What this worker knows of sessions. `None`: requests are not passed.
fn sessions(context: &Context, owners: Option<Owners>, slot: Option<WorkerSlot>) -> Option<Sessions> {
    let (name, owners) = (context.config.sticky.as_deref()?, owners?);
    Some(Sessions::new(name, owners, owners.join(slot?.number())?))
}
