//! The responders of a server, in the order in which they are asked, and the two of them that every server has.

use std::sync::Arc;

use crate::connection::exchange::Exchange;
use crate::dispatch::dispatcher::Dispatcher;
use crate::dispatch::responder::{Responder, Response};
use crate::executor::Executor;

/// All of them. What answers without the application stands before [`Full`]: it needs no place in the run queue.
pub(super) fn in_order(dispatcher: &Arc<Dispatcher>, executor: &Arc<dyn Executor>) -> Vec<Box<dyn Responder>> {
    vec![
        Box::new(Full { dispatcher: dispatcher.clone() }),
        Box::new(Queue { dispatcher: dispatcher.clone(), executor: executor.clone() }),
    ]
}

/// Refuses requests for which the run queue has no room: 503.
struct Full {
    dispatcher: Arc<Dispatcher>,
}

impl Responder for Full {
    fn respond(&self, exchange: Exchange) -> Response {
        if self.dispatcher.has_room() {
            return Response::Passed(exchange);
        }
        exchange.refuse();
        Response::Taken
    }
}

/// Has the application answer, as soon as a runner takes the request from the run queue.
struct Queue {
    dispatcher: Arc<Dispatcher>,
    executor: Arc<dyn Executor>,
}

impl Responder for Queue {
    fn respond(&self, exchange: Exchange) -> Response {
        self.dispatcher.queue.push(exchange);
        self.executor.wake_runners();
        Response::Taken
    }
}
