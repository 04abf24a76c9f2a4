//! The server without an interpreter: answers "pong" with 15 fields, or with the request body. Its speed is the
//! ceiling for every application. `cargo run --release -p tailrace-server --example echo [address] [threads]`.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::io::{self, Read};
use std::net::TcpListener;
use std::sync::{Arc, OnceLock};

use tailrace_observe::level::Level;
use tailrace_observe::scoreboard::Scoreboard;
use tailrace_server::{Application, Config, Exchange, Payload, Position, Provided, RequestBody, Server, Turn};

struct Echo {
    server: OnceLock<Arc<Server>>,
}

struct Owned(Vec<u8>);

impl Payload for Owned {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn answer(mut exchange: Exchange) {
    let body = match exchange.take_body() {
        RequestBody::Empty => b"pong".to_vec(),
        RequestBody::Memory(bytes) => bytes.into_vec(),
        RequestBody::File { mut file, .. } => {
            let mut all = Vec::new();
            file.read_to_end(&mut all).unwrap();
            all
        }
        RequestBody::Stream(mut stream) => {
            let mut all = Vec::new();
            let mut block = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = stream.read(&mut block) {
                all.extend_from_slice(&block[..read]);
            }
            all
        }
    };
    let head = exchange.response_mut().head();
    head.status(b"200 OK").unwrap();
    head.field(b"Content-Type", b"text/plain").unwrap();
    for number in 0..12_u8 {
        head.field(&[b'X', b'-', b'a' + number], b"some ordinary value of a field").unwrap();
    }
    exchange.response_mut().push(&[&body], Position::Last, &mut |_| Box::new(Owned(body.clone())));
    exchange.finish().unwrap();
}

impl Application for Echo {
    fn enter(&self, turn: &mut Turn<'_>) {
        while let Some(exchange) = turn.next() {
            answer(exchange);
        }
    }

    fn grow(&self) -> io::Result<()> {
        let server = self.server.get().unwrap().clone();
        std::thread::Builder::new().spawn(move || server.run()).map(drop)
    }

    fn log(&self, level: Level, message: &str) {
        eprintln!("{level:?}: {message}");
    }
}

fn main() {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8000".to_owned());
    let threads = std::env::args().nth(2).map_or(128, |text| text.parse().unwrap());
    let listener = TcpListener::bind(&address).unwrap();
    rustix::net::sockopt::set_tcp_nodelay(&listener, true).unwrap();
    let echo = Arc::new(Echo { server: OnceLock::new() });
    let config = Config { threads, ..Config::default() };
    // The Python server has one, too.
    let worker_slot = Scoreboard::new(1, threads).unwrap().worker_slot(0);
    let provided = Provided { worker_slot, ..Provided::default() };
    let server = Server::new(config, echo.clone(), vec![listener.into()], provided).unwrap();
    assert!(echo.server.set(server.clone()).is_ok());
    for _ in 0..2 {
        echo.grow().unwrap();
    }
    eprintln!("http://{address}");
    server.join(None);
}
