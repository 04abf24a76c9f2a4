//! The responders of a server, in the order in which they are asked for the response to a request.

use std::io;
use std::sync::Arc;

use crate::connection::context::Context;
use crate::connection::exchange::Exchange;
use crate::dispatch::dispatcher::Dispatcher;
use crate::dispatch::responder::{Disposition, Responder};
use crate::executor::Turns;
use crate::os::allocator;
use crate::static_files::StaticFiles;
use crate::static_files::named::NamedFiles;

/// All responders. One that responds without the application must come before [`Full`], since it needs no place in the
/// run queue.
///
/// # Errors
/// A folder of static files cannot be opened.
pub(super) fn in_order(
    context: &Context,
    dispatcher: &Arc<Dispatcher>,
    executor: Arc<dyn Turns>,
) -> io::Result<Vec<Box<dyn Responder>>> {
    let config = &context.config.static_files;
    let mut responders: Vec<Box<dyn Responder>> = Vec::new();
    if !config.named.is_empty() {
        context.asking_fields.get_or_init(|| config.naming_fields());
        responders.push(Box::new(NamedFiles::new(config, context.disk.clone())?));
    }
    if !config.mounts.is_empty() {
        let position = responders.len();
        responders.push(Box::new(StaticFiles::new(config.clone(), context.disk.clone(), position)?));
    }
    responders.push(Box::new(Full { dispatcher: dispatcher.clone() }));
    responders.push(Box::new(Queue { dispatcher: dispatcher.clone(), executor }));
    Ok(responders)
}

/// Responds 503 to requests for which the run queue has no room or the process has no memory.
struct Full {
    dispatcher: Arc<Dispatcher>,
}

impl Responder for Full {
    fn respond(&self, exchange: Exchange) -> Disposition {
        let has_memory = !allocator::is_short() && self.dispatcher.queue.has_memory();
        if has_memory && self.dispatcher.has_room() {
            return Disposition::Passed(exchange);
        }
        exchange.refuse();
        Disposition::Taken
    }
}

/// Puts the request into the run queue, from which a runner takes it and calls the application.
struct Queue {
    dispatcher: Arc<Dispatcher>,
    executor: Arc<dyn Turns>,
}

impl Responder for Queue {
    fn respond(&self, exchange: Exchange) -> Disposition {
        self.dispatcher.queue.push(exchange);
        self.executor.wake_runners();
        Disposition::Taken
    }
}
