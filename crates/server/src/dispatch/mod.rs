//! Complete requests on their way to whoever answers them: responders, the run queue, who may run the application, and
//! the deadlines of requests.

pub(crate) mod admission;
pub(crate) mod dispatcher;
pub(crate) mod responder;
pub(crate) mod run_queue;
pub(crate) mod runners;
