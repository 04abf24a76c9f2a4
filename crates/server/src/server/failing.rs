//! Ends a server that cannot continue: its master has ended, or the loop has failed. Neither needs the interpreter.
//!
//! If the loop fails in a worker, its process ends, and the master replaces it. Without a master the server ends, and
//! [`Server::fault`](crate::server::Server::fault) has the reason, which the caller raises.
//!
//! The loop fails by an error or a panic of the wait for events, or by a panic while threads change their roles: it
//! would happen again, or no thread would lead the loop. Panics in the stages of the loop are caught, see `guard`.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use tailrace_observe::level::Level;
use tailrace_os::clock;
use tailrace_os::panics::{catch, write_stderr};
use tailrace_os::poll;
use tailrace_os::process;
use tailrace_os::process::Unshared;
use tailrace_os::sync::lock;

use crate::server::ending;
use crate::server::parts::Parts;

/// The exit status of a worker whose loop has failed: `EX_SOFTWARE` of sysexits.h.
pub(super) const PANICKED: i32 = 70;
/// The exit status of a worker that did not end in time after its master.
pub(super) const ORPHANED: i32 = 1;

/// Runs `then` when the other end of the pipe `lives`, which only the master holds, is closed.
///
/// # Errors
/// No thread can be started.
pub(super) fn watch_master(lives: OwnedFd, then: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let lives = Unshared::new(lives);
    // A thread of its own, since the thread of the loop may also be the one that runs the application (`--debug`).
    let body = move || {
        if let Some(lives) = lives.here() {
            poll::wait_for_end(lives);
        }
        then();
    };
    thread::Builder::new().name(String::from("tailrace-alone")).stack_size(256 * 1024).spawn(body).map(drop)
}

/// The master has ended: closes the listeners and gives requests in flight `graceful` to finish. If the process has not
/// ended `leaving` later, ends it by force.
pub(super) fn end_without_master(parts: &Parts, graceful: Duration, leaving: Duration) {
    let began = clock::now();
    // A process whose server has ended may still run functions of the application.
    if !parts.context.lifecycle.has_ended() {
        let seconds = graceful.as_secs_f64();
        parts.application.log(
            Level::Warning,
            &format!("the master has ended: this worker finishes its requests within {seconds} s and ends"),
        );
        ending::stop(&parts.context, graceful);
        parts.accepting.close_for_the_leader();
        parts.executor.interrupt();
    }
    let most = graceful.saturating_add(leaving);
    thread::sleep(most.saturating_sub(clock::now().saturating_duration_since(began)));
    let id = process::id();
    write_stderr(&format!("process {id}, whose master has ended, did not end in time and is ended by force"));
    for request in parts.worker_slot.map(|slot| slot.in_flight()).unwrap_or_default() {
        write_stderr(&format!(
            "process {id} was running the request {}",
            request.line(parts.context.config.query_masking)
        ));
    }
    parts.accounting.save_log();
    process::end_process(ORPHANED);
}

/// Ends a server whose loop has failed. `why`: the reason, one line.
pub(super) fn fail(parts: &Parts, why: &str) {
    let id = process::id();
    if parts.has_master.load(Ordering::Acquire) {
        write_stderr(&format!("process {id} ends, and its master replaces it: {why}"));
        parts.accounting.save_log();
        process::end_process(PANICKED);
    }
    lock(&parts.fault).get_or_insert_with(|| why.to_owned());
    parts.application.log(Level::Error, &format!("the server ends: {why}"));
    if let Err(panic) = catch(|| ending::end(parts)) {
        write_stderr(&format!("the end of the server failed, too: {panic}"));
    }
    // Also when `end` has failed before it came to this: those who wait for the end must not wait for ever.
    ending::announce(parts);
}

/// Ends the server now. If that panics, those who wait for its end are still woken.
pub(super) fn end(parts: &Parts) {
    if let Err(panic) = catch(|| ending::end(parts)) {
        fail(parts, &format!("a panic while the server ended: {panic}"));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]
    use std::io::{self, BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
    use std::sync::{Arc, Mutex, OnceLock, PoisonError};
    use std::thread;
    use std::time::{Duration, Instant};

    use tailrace_observe::access_log::{AccessLogConfig, Destination, Format};
    use tailrace_observe::level::Level;
    use tailrace_observe::scoreboard::Scoreboard;
    use tailrace_os::panics::write_stderr;

    use crate::config::{Config, ExecutorKind};
    use crate::executor::application::Application;
    use crate::executor::turn::Turn;
    use crate::response::producer::Position;
    use crate::server::{Provided, Server};

    /// Responds 204 to every request, to `/busy` after it has computed, but never to `/wait`; `/stop` stops the server.
    #[derive(Default)]
    struct Echo {
        server: OnceLock<Arc<Server>>,
        /// Stands for the interpreter's lock. Without one, a server whose thread was off the processor for a while
        /// would assume for ever that the application waits, and would no longer hold responses.
        interpreter: Mutex<()>,
    }

    impl Application for Echo {
        fn enter(&self, turn: &mut Turn<'_>) {
            let mut interpreter = Some(self.interpreter.lock().unwrap_or_else(PoisonError::into_inner));
            while let Some(mut exchange) = turn.next() {
                if exchange.request_line().contains("/wait") {
                    interpreter.take();
                    thread::sleep(Duration::from_secs(3600));
                }
                if exchange.request_line().contains("/stop") {
                    self.server.get().unwrap().stop(Duration::from_secs(3600));
                }
                if exchange.request_line().contains("/busy") {
                    let until = Instant::now() + Duration::from_micros(300);
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                }
                exchange.response_mut().head().status(b"204 No Content").unwrap();
                exchange.response_mut().push(&[], Position::Last, &mut |_| unreachable!());
                exchange.finish().unwrap();
            }
        }

        fn grow(&self) -> io::Result<()> {
            let server = self.server.get().unwrap().clone();
            thread::Builder::new().spawn(move || server.run()).map(drop)
        }

        fn log(&self, _: Level, message: &str) {
            write_stderr(message);
        }
    }

    /// Not a test: the main function of a server in a process of its own, which panics where `TAILRACE_TEST_PANIC`
    /// says. The end of its standard input stands for the end of its master.
    #[test]
    #[ignore = "the other tests run it in a process of its own"]
    fn serve() {
        let mode = std::env::var("TAILRACE_TEST_MODE").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let echo = Arc::new(Echo::default());
        let config = Config {
            threads: 8,
            executor: match () {
                () if mode.contains("greenlets") => ExecutorKind::Greenlets,
                () if mode.contains("inline") => ExecutorKind::Inline,
                () => ExecutorKind::Threads,
            },
            access_log: mode.contains("log").then(|| AccessLogConfig {
                destination: Destination::Stdout,
                format: Format::parse("the log has {path}").unwrap(),
            }),
            keepalive_timeout: Duration::from_millis(if mode.contains("impatient") { 50 } else { 75_000 }),
            ..Config::default()
        };
        let board = Scoreboard::new(1, config.threads).unwrap();
        let provided = Provided { worker_slot: board.worker_slot(0), ..Provided::default() };
        let server = Server::new(config, echo.clone(), vec![listener.into()], provided).unwrap();
        assert!(echo.server.set(server.clone()).is_ok());
        if mode.contains("master") {
            let graceful = Duration::from_millis(200);
            let lives = rustix::io::dup(io::stdin()).unwrap();
            server.watch_master(lives, graceful, graceful).unwrap();
        }
        println!("port {port}");
        if mode.contains("inline") {
            server.run();
        } else if mode.contains("greenlets") {
            let io = server.clone();
            thread::spawn(move || io.run());
        } else {
            for _ in 0..3 {
                echo.grow().unwrap();
            }
        }
        server.join(None);
        println!("ended {:?}", server.fault());
        io::stdout().flush().unwrap();
        if mode.contains("lingers") {
            // As a process in which a request never ends.
            thread::sleep(Duration::from_secs(3600));
        }
        std::process::exit(0);
    }

    struct Process {
        child: Child,
        output: BufReader<ChildStdout>,
        errors: BufReader<ChildStderr>,
        port: u16,
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    impl Process {
        fn start(mode: &str, panics: &str) -> Self {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "server::failing::tests::serve", "--ignored", "--nocapture"])
                .env("TAILRACE_TEST_MODE", mode)
                .env("TAILRACE_TEST_PANIC", panics)
                // Printing a backtrace takes longer than the process has for its end.
                .env("RUST_BACKTRACE", "0")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            let errors = BufReader::new(child.stderr.take().unwrap());
            let mut line = String::new();
            while !line.contains("port ") {
                line.clear();
                assert!(output.read_line(&mut line).unwrap() > 0, "it did not start");
            }
            let port = line.rsplit(' ').next().unwrap().trim().parse().unwrap();
            Self { child, output, errors, port }
        }

        /// Sends a request, and returns what comes until the connection is closed.
        fn ask(&self, target: &str) -> String {
            let mut answer = String::new();
            if let Ok(mut client) = TcpStream::connect(("127.0.0.1", self.port)) {
                client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                let asked = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                let _ = client.write_all(asked.as_bytes());
                let _ = client.read_to_string(&mut answer);
            }
            answer
        }

        /// Reads its log up to the first line that contains `wanted`, and returns that.
        fn await_error(&mut self, wanted: &str) -> String {
            let errors = self.errors.by_ref().lines().map(Result::unwrap);
            let mut seen = Vec::new();
            for line in errors {
                if line.contains(wanted) {
                    return line;
                }
                seen.push(line);
            }
            panic!("{wanted} is missing: {seen:?}");
        }

        /// Its exit status, and all that it wrote.
        fn wait(mut self) -> (Option<i32>, String) {
            let until = Instant::now() + Duration::from_secs(20);
            while self.child.try_wait().unwrap().is_none() {
                if Instant::now() >= until {
                    self.child.kill().unwrap();
                    panic!("it hangs");
                }
                thread::sleep(Duration::from_millis(5));
            }
            let mut text = String::new();
            self.output.read_to_string(&mut text).unwrap();
            self.errors.read_to_string(&mut text).unwrap();
            (self.child.wait().unwrap().code(), text)
        }
    }

    /// Modes and places of panics that end the process: no thread would wait for events or lead the loop afterwards.
    const PLACES: [(&str, &str); 5] =
        [("", "thread"), ("", "lead"), ("", "watch"), ("greenlets", "greenlets"), ("inline", "inline")];

    /// Places of panics that cost a connection or a request at most: all stages of the loop.
    const STAGES: [&str; 10] = [
        "events",
        "connection",
        "accept",
        "open",
        "flush",
        "dispatches",
        "deadlines",
        "late requests",
        "memory",
        "scoreboard",
    ];

    #[test]
    fn a_panic_of_the_wait_or_of_the_roles_ends_the_process_of_a_master() {
        for (mode, place) in PLACES {
            let process = Process::start(&format!("{mode} master"), place);
            process.ask("/");
            let (status, text) = process.wait();
            assert_eq!(status, Some(super::PANICKED), "{place}: {text}");
            assert!(text.contains("ends, and its master replaces it: "), "{place}: {text}");
            assert!(text.contains(&format!("panicked: asked to panic in {place} (")), "{place}: {text}");
            assert!(text.contains("panics.rs:"), "{place}: {text}");
        }
    }

    #[test]
    fn without_a_master_it_ends_the_server_which_says_why() {
        for (mode, place) in PLACES {
            let process = Process::start(mode, place);
            process.ask("/");
            let (status, text) = process.wait();
            assert_eq!(status, Some(0), "{place}: {text}");
            assert!(text.contains(&format!("panicked: asked to panic in {place} (")), "{place}: {text}");
            assert!(text.contains("ended Some("), "{place}: {text}");
        }
    }

    #[test]
    fn nobody_waits_for_a_server_whose_end_panics() {
        let process = Process::start("", "lead,end");
        let (status, text) = process.wait();
        assert_eq!(status, Some(0), "{text}");
        assert!(text.contains("the end of the server failed, too"), "{text}");
    }

    #[test]
    fn a_panic_in_a_stage_of_the_loop_costs_a_connection_at_most() {
        for mode in ["", "inline"] {
            for stage in STAGES {
                let mut process = Process::start(&format!("{mode} master"), stage);
                // The events of this one are reported: it has to wait for its request.
                let _silent = TcpStream::connect(("127.0.0.1", process.port)).unwrap();
                // The first connection may be the one that the panic closes.
                let first = process.ask("/");
                assert!(first.is_empty() || first.starts_with("HTTP/1.1 204"), "{stage}: {first}");
                assert!(process.ask("/").starts_with("HTTP/1.1 204"), "{mode} {stage}");
                let told = process.await_error(&format!("asked to panic in {stage} ("));
                let said = ["a connection was closed after a panic", "the server continues"];
                assert!(said.iter().any(|text| told.contains(text)), "{stage}: {told}");
            }
        }
    }

    #[test]
    fn a_panic_at_a_deadline_closes_the_connection() {
        let mut process = Process::start("impatient", "deadline");
        let mut client = TcpStream::connect(("127.0.0.1", process.port)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        process.await_error("(deadlines); the server continues: asked to panic in deadline (");
        assert!(process.ask("/").starts_with("HTTP/1.1 204"));
    }

    /// Sends a request on each connection, and keeps those that get a response. Those that are closed are dropped.
    fn ask_all(clients: &mut Vec<TcpStream>) {
        for client in clients.iter_mut() {
            client.write_all(b"GET /busy HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        }
        clients.retain_mut(|client| {
            let mut response = Vec::new();
            while !response.ends_with(b"\r\n\r\n") {
                let mut part = [0; 4096];
                match client.read(&mut part) {
                    Ok(0) => {
                        assert!(response.is_empty(), "{}", response.escape_ascii());
                        return false;
                    }
                    Ok(count) => response.extend_from_slice(&part[..count]),
                    Err(fault) => panic!("{fault}"),
                }
            }
            assert!(response.starts_with(b"HTTP/1.1 204"), "{}", response.escape_ascii());
            true
        });
    }

    #[test]
    fn a_panic_while_a_held_response_is_sent_closes_its_connection_alone() {
        // More than the server reads at once, so that it has little time to spare even if clients come late.
        const CLIENTS: usize = 64;
        let mut process = Process::start("", "held");
        let connect = |_| {
            let client = TcpStream::connect(("127.0.0.1", process.port)).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            client
        };
        let mut clients: Vec<_> = (0..CLIENTS).map(connect).collect();
        let until = Instant::now() + Duration::from_secs(120);
        while clients.len() == CLIENTS {
            assert!(Instant::now() < until, "no response was held");
            ask_all(&mut clients);
        }
        for _ in 0..20 {
            assert_eq!(clients.len(), CLIENTS - 1);
            ask_all(&mut clients);
        }
        process.await_error("a connection ended in a panic of the server: asked to panic in held (");
        drop(clients);
        // It would wait for the connection if it still counted it.
        assert!(process.ask("/stop").starts_with("HTTP/1.1 204"));
        let (status, text) = process.wait();
        assert_eq!(status, Some(0), "{text}");
        assert!(text.contains("ended None"), "{text}");
    }

    #[test]
    fn a_panic_while_it_drains_puts_that_off() {
        for mode in ["master", "inline"] {
            let mut process = Process::start(mode, "drain");
            let idle = TcpStream::connect(("127.0.0.1", process.port)).unwrap();
            assert!(process.ask("/").starts_with("HTTP/1.1 204"));
            if mode == "inline" {
                assert!(process.ask("/stop").starts_with("HTTP/1.1 204"));
            }
            drop(process.child.stdin.take());
            process.await_error("(drain); the server continues: asked to panic in drain (");
            let (status, text) = process.wait();
            assert_eq!(status, Some(0), "{mode}: {text}");
            assert!(text.contains("ended None"), "{mode}: {text}");
            drop(idle);
        }
    }

    #[test]
    fn a_panic_of_the_access_log_costs_the_line() {
        let mut process = Process::start("log", "log");
        assert!(process.ask("/panics").starts_with("HTTP/1.1 204"));
        process.await_error("a line of the access log was lost, as rendering it panicked: ");
        assert!(process.ask("/fine").starts_with("HTTP/1.1 204"));
        let mut line = String::new();
        process.output.read_line(&mut line).unwrap();
        assert_eq!(line, "the log has /fine\n");
    }

    #[test]
    fn a_panic_that_ends_the_process_leaves_no_line_of_the_access_log_behind() {
        const REQUESTS: usize = 40;
        let mut process = Process::start("master log", "end");
        // Nobody reads the log yet: lines that its pipe does not accept wait in the process.
        let target = format!("/{}", "x".repeat(4_000));
        for _ in 0..REQUESTS {
            assert!(process.ask(&target).starts_with("HTTP/1.1 204"));
        }
        drop(process.child.stdin.take());
        process.await_error("ends, and its master replaces it: ");
        // It waits until the log is read, for a limited time.
        thread::sleep(Duration::from_millis(100));
        assert!(process.child.try_wait().unwrap().is_none(), "it has ended");
        let lines = process.output.by_ref().lines().map(Result::unwrap);
        assert_eq!(lines.filter(|line| *line == format!("the log has {target}")).count(), REQUESTS);
    }

    #[test]
    fn without_its_master_a_process_leaves_the_address_and_ends_by_force() {
        for mode in ["master lingers", "greenlets master", "inline master"] {
            let mut process = Process::start(mode, "");
            let client = TcpStream::connect(("127.0.0.1", process.port)).unwrap();
            (&client).write_all(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            drop(process.child.stdin.take());
            let until = Instant::now() + Duration::from_secs(20);
            while TcpListener::bind(("127.0.0.1", process.port)).is_err() {
                assert!(Instant::now() < until, "{mode}: the address is in use");
                thread::sleep(Duration::from_millis(5));
            }
            let (status, text) = process.wait();
            assert!(text.contains("the master has ended"), "{mode}: {text}");
            if mode == "inline master" {
                assert_eq!(status, None, "ended by SIGTERM, for which it has no handler: {text}");
            }
            if mode == "master lingers" {
                assert_eq!(status, Some(super::ORPHANED), "{mode}: {text}");
                assert!(text.contains("is ended by force"), "{mode}: {text}");
            }
        }
    }
}
