//! The client against servers of every temper.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tailrace_load::{Address, Load, Outcome, run};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const PONG: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong";

/// Serves each connection by `serve`, on a thread of its own, for as long as the test runs.
fn serving(serve: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, serve) = (stream.unwrap(), serve.clone());
            thread::spawn(move || serve(&mut stream));
        }
    });
    address
}

/// Reads one request. False: the client has gone.
fn asked(stream: &mut impl Read) -> bool {
    let mut request = [0; REQUEST.len()];
    stream.read_exact(&mut request).is_ok_and(|()| request == REQUEST)
}

/// Asks until this many answers, or faults, have been counted by the server.
fn asks(address: SocketAddr, connections: usize, count: &Arc<AtomicU64>, until: u64) -> Outcome {
    let load = Load {
        address: Address::Tcp(address),
        request: REQUEST.to_vec(),
        connections,
        time: Duration::from_secs(60),
        patience: Duration::from_secs(30),
    };
    run(&load, || count.load(Ordering::SeqCst) >= until).unwrap()
}

fn counter() -> (Arc<AtomicU64>, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    (count.clone(), count)
}

fn no_errors(outcome: &Outcome) -> bool {
    (outcome.connect_errors, outcome.read_errors, outcome.write_errors, outcome.timeouts) == (0, 0, 0, 0)
}

#[test]
fn each_connection_asks_again_when_it_has_its_response() {
    let (count, counted) = counter();
    let connections = Arc::new(AtomicU64::new(0));
    let accepted = connections.clone();
    let address = serving(move |stream| {
        accepted.fetch_add(1, Ordering::SeqCst);
        while asked(stream) {
            counted.fetch_add(1, Ordering::SeqCst);
            // In two pieces.
            let _ = stream.write_all(&PONG[..20]).and_then(|()| stream.write_all(&PONG[20..]));
        }
    });
    let outcome = asks(address, 5, &count, 500);
    assert!(no_errors(&outcome), "{outcome:?}");
    assert_eq!(connections.load(Ordering::SeqCst), 5);
    let served = count.load(Ordering::SeqCst);
    // What was on its way at the end does not count.
    assert!(outcome.answers <= served && outcome.answers + 5 >= 500, "{} of {served}", outcome.answers);
    assert_eq!(outcome.latencies.len() as u64, outcome.answers);
    assert!(outcome.latencies.is_sorted());
    assert_eq!(outcome.refusals, 0);
    assert!(outcome.bytes >= outcome.answers * PONG.len() as u64);
}

#[test]
fn a_connection_that_is_closed_after_its_response_is_made_again() {
    let (count, counted) = counter();
    let address = serving(move |stream| {
        if asked(stream) {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\nnothing here");
        }
    });
    let outcome = asks(address, 3, &count, 100);
    assert!(no_errors(&outcome), "{outcome:?}");
    assert!(outcome.answers >= 90, "{outcome:?}");
    assert_eq!(outcome.refusals, outcome.answers);
}

#[test]
fn broken_responses_are_counted_and_the_client_goes_on() {
    for broken in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\npong"[..],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npong\r\n",
        b"HTTP/1.1 200 OK\r\nContent-",
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    ] {
        let (count, counted) = counter();
        let address = serving(move |stream| {
            if asked(stream) {
                counted.fetch_add(1, Ordering::SeqCst);
                let _ = stream.write_all(broken);
            }
        });
        let outcome = asks(address, 2, &count, 20);
        assert_eq!(outcome.answers, 0, "{broken:?}");
        assert!(outcome.read_errors >= 10, "{broken:?}: {outcome:?}");
    }
}

#[test]
fn a_server_that_never_answers_is_a_timeout_for_each_connection() {
    let address = serving(|stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let load = Load {
        address: Address::Tcp(address),
        request: REQUEST.to_vec(),
        connections: 4,
        time: Duration::from_millis(700),
        patience: Duration::from_millis(200),
    };
    let outcome = run(&load, || false).unwrap();
    assert_eq!((outcome.answers, outcome.timeouts, outcome.read_errors), (0, 4, 0), "{outcome:?}");
}

#[test]
fn a_port_where_nobody_listens_is_a_connect_error() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let load = Load {
        address: Address::Tcp(address),
        request: REQUEST.to_vec(),
        connections: 2,
        time: Duration::from_millis(200),
        patience: Duration::from_secs(1),
    };
    let outcome = run(&load, || false).unwrap();
    assert!(outcome.connect_errors >= 2 && outcome.answers == 0 && outcome.write_errors == 0, "{outcome:?}");
}

#[test]
fn a_unix_socket_is_asked_too_and_an_interruption_ends_the_run() {
    let path = std::env::temp_dir().join(format!("tailrace-load-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let answered = Arc::new(AtomicBool::new(false));
    let is_answered = answered.clone();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while asked(&mut stream) {
            let _ = stream.write_all(PONG);
            answered.store(true, Ordering::SeqCst);
        }
    });
    let load = Load {
        address: Address::Unix(path.clone()),
        request: REQUEST.to_vec(),
        connections: 1,
        time: Duration::from_secs(60),
        patience: Duration::from_secs(1),
    };
    let outcome = run(&load, || is_answered.load(Ordering::SeqCst)).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(no_errors(&outcome) && outcome.answers >= 1, "{outcome:?}");
}
