//! Files that are served without the application, or where it names them: each a [`Responder`] on the I/O side, which takes no interpreter and no
//! application thread.
//!
//! A request for a file that is in the cache is answered at once. Any other is looked up at once as long as the system
//! has all that it needs in memory; otherwise a disk thread does it, and responds, so that a slow disk delays nobody
//! else.

mod cache;
mod candidates;
pub mod compress;
mod compressor;
pub mod config;
mod entry;
mod folders;
mod look_ups;
mod lookup;
mod named;
pub mod resolve;
mod respond;
mod slab;
pub mod types;

use std::io;
use std::sync::Arc;

use tailrace_http::limits::Refusal;
use tailrace_http::request_head::TargetForm;
use tailrace_http::static_path::{DotFiles, RelativePath, decode, encode};
use tailrace_os::clock::{Millis, monotonic_millis};
use tailrace_server::Disk;
use tailrace_server::Exchange;
use tailrace_server::representation::send_error;
use tailrace_server::{Disposition, Responder};

use crate::cache::Cache;
use crate::compressor::Compressor;
use crate::config::StaticConfig;
use crate::entry::Entry;
use crate::folders::{Folder, Folders, is_encoded};
use crate::look_ups::LookUps;
use crate::lookup::{Lookup, MustWait, Place, Purpose, Wait};
use crate::named::NamedFiles;
use crate::resolve::Root;
use crate::slab::Slab;

const NOT_FOUND: Refusal = Refusal::new(404, "There is no such file.");

/// Maximum number of files that are kept open. Python raises the limit of open files by as many (`open_files.py`).
pub const MAX_OPEN: usize = 512;

/// Any thread.
#[derive(Clone)]
pub(crate) struct StaticFiles(Arc<StaticParts>);

struct StaticParts {
    config: StaticConfig,
    folders: Folders,
    cache: Arc<Cache>,
    compressor: Option<Arc<Compressor>>,
    slab: Option<Arc<Slab>>,
    disk: Arc<Disk>,
    look_ups: Arc<LookUps>,
}

/// What is to be done with a request.
enum Outcome {
    /// The response is in the exchange.
    Responded,
    /// The application responds.
    Passed,
    /// A disk thread has to look.
    Unknown,
}

/// The responders for these files, in the order in which they are asked.
///
/// # Errors
/// A folder cannot be opened; the error names it.
pub fn responders(config: &StaticConfig, disk: &Arc<Disk>) -> io::Result<Vec<Box<dyn Responder>>> {
    let mut responders: Vec<Box<dyn Responder>> = Vec::new();
    if !config.named.is_empty() {
        responders.push(Box::new(NamedFiles::new(config, disk.clone())?));
    }
    if !config.mounts.is_empty() {
        responders.push(Box::new(StaticFiles::new(config.clone(), disk.clone())?));
    }
    Ok(responders)
}

impl StaticFiles {
    /// Opens the folders.
    ///
    /// # Errors
    /// One cannot be opened; the error names it.
    pub(crate) fn new(config: StaticConfig, disk: Arc<Disk>) -> io::Result<Self> {
        let folders = Folders::open(&config, &disk)?;
        let cache = Arc::new(Cache::new(config.memory, MAX_OPEN));
        let slab = Slab::new().ok();
        let compressor = || Arc::new(Compressor::new(disk.clone(), cache.clone(), slab.clone()));
        let compressor = config.compress.then(compressor);
        let look_ups = Arc::default();
        Ok(Self(Arc::new(StaticParts { config, folders, cache, compressor, slab, disk, look_ups })))
    }
}

impl Responder for StaticFiles {
    fn respond(&self, mut exchange: Exchange) -> Disposition {
        let shared = &self.0;
        match shared.respond(&mut exchange, Wait::No) {
            Outcome::Responded => {
                exchange.count_static();
                Disposition::Done(exchange.finish_here())
            }
            Outcome::Passed => Disposition::Passed(exchange),
            Outcome::Unknown => {
                shared.look_up(exchange);
                Disposition::Taken
            }
        }
    }
}

impl StaticParts {
    /// Has a disk thread look for the file of a request and respond, if none does that for the same path already.
    fn look_up(self: &Arc<Self>, exchange: Exchange) {
        let request = exchange.request();
        let path = request.head.path.of(&request.bytes);
        let share = self.folders.of(path).next().map(|(folder, _)| folder.share.clone());
        let Some((look_up, exchange)) = self.look_ups.begin(exchange) else { return };
        let shared = self.clone();
        let task = move || {
            let mut asked = vec![exchange];
            while !asked.is_empty() {
                for exchange in asked {
                    shared.respond_waiting(exchange);
                }
                asked = look_up.others();
            }
        };
        match share {
            Some(share) => share.run(task),
            None => self.disk.run(task),
        }
    }

    /// Responds to a request on a disk thread.
    fn respond_waiting(&self, mut exchange: Exchange) {
        match self.respond(&mut exchange, Wait::Yes) {
            Outcome::Responded => {
                exchange.count_static();
                exchange.finish_by_io();
            }
            Outcome::Passed | Outcome::Unknown => {
                exchange.pass_on_later();
            }
        }
    }

    fn respond(&self, exchange: &mut Exchange, wait: Wait) -> Outcome {
        let request = exchange.request();
        let path = match request.head.form {
            TargetForm::Origin | TargetForm::Absolute => request.head.path.of(&request.bytes),
            _ => return Outcome::Passed,
        };
        let is_read = matches!(request.head.method.of(&request.bytes), b"GET" | b"HEAD");
        let now = monotonic_millis();
        if is_read
            && !is_encoded(path)
            && let Some(known) = self.cache.get(path, now)
            && known.is_usable()
        {
            respond::send_entry(exchange, &known.entry, false);
            self.compress(exchange, None, &known.entry);
            return Outcome::Responded;
        }
        let path = path.to_vec();
        for (folder, rest) in self.folders.of(&path) {
            if !is_read {
                if folder.mount.is_overlay {
                    continue;
                }
                let allow = [("Allow", "GET, HEAD")];
                send_error(exchange, 405, "Files support only GET and HEAD.", &allow);
                return Outcome::Responded;
            }
            let found = match decode(rest, DotFiles::WellKnown) {
                Ok(names) => self.serve(exchange, folder, &self.folders.key(&path, folder, &names), &names, wait, now),
                Err(_) if folder.mount.is_overlay => Outcome::Passed,
                Err(error) => {
                    let refusal = error.refusal();
                    if refusal.status == 404 {
                        self.not_found(exchange, folder, wait)
                    } else {
                        send_error(exchange, refusal.status, refusal.reason, &[]);
                        Outcome::Responded
                    }
                }
            };
            if !matches!(found, Outcome::Passed) {
                return found;
            }
        }
        Outcome::Passed
    }

    /// Responds with what the path leads to below a folder.
    fn serve(
        &self,
        exchange: &mut Exchange,
        folder: &Folder,
        key: &[u8],
        path: &RelativePath,
        wait: Wait,
        now: Millis,
    ) -> Outcome {
        let known = self.cache.get(key, now);
        if let Some(known) = &known
            && known.is_usable()
        {
            self.send(exchange, key, &known.entry);
            return Outcome::Responded;
        }
        let root = match folder.root(self.config.symlinks, wait, now) {
            Ok(Some(root)) => root,
            Ok(None) => return self.missing(exchange, folder, path, wait),
            Err(MustWait) => return Outcome::Unknown,
        };
        let place = self.place(folder, &root, wait);
        let purpose = Purpose { status: "200 OK", known: known.as_ref().map(|known| &*known.entry) };
        let Ok(lookup) = place.find(path, purpose) else { return Outcome::Unknown };
        if known.is_some() && !matches!(lookup, Lookup::Entry(_)) {
            self.cache.forget(key);
        }
        match lookup {
            Lookup::Entry(entry) => {
                self.cache.keep(key, &entry, now);
                self.send(exchange, key, &entry);
            }
            Lookup::Redirect => respond::redirect(exchange, &with_slash(exchange)),
            Lookup::Missing => return self.missing(exchange, folder, path, wait),
            // The application may need nothing of what the system lacks.
            Lookup::Fault(_) if folder.mount.is_overlay => return Outcome::Passed,
            Lookup::Fault(fault) => {
                let sentence = format!("The server cannot read the file: {fault}.");
                send_error(exchange, 503, &sentence, &[("Retry-After", "1")]);
            }
        }
        Outcome::Responded
    }

    fn place<'a>(&'a self, folder: &'a Folder, root: &'a Root, wait: Wait) -> Place<'a> {
        let (config, slab) = (&self.config, self.slab.as_ref());
        Place { config, mount: &folder.mount, root, slab, share: &folder.share, wait }
    }

    /// Responds with a file. path: under which the cache has it.
    fn send(&self, exchange: &mut Exchange, path: &[u8], entry: &Entry) {
        respond::send_entry(exchange, entry, false);
        self.compress(exchange, Some(path), entry);
    }

    /// Has a file compressed for later requests, if this client would rather have it so. path: under which the cache
    /// has it; `None`: under that of the request.
    fn compress(&self, exchange: &Exchange, path: Option<&[u8]>, entry: &Entry) {
        let Some(compressor) = &self.compressor else { return };
        let request = exchange.request();
        if let Some(claim) = entry.claim(&request.head, &request.bytes) {
            compressor.add(path.unwrap_or_else(|| request.head.path.of(&request.bytes)), claim);
        }
    }

    /// Responds to a path that leads to no file.
    fn missing(&self, exchange: &mut Exchange, folder: &Folder, path: &RelativePath, wait: Wait) -> Outcome {
        if folder.mount.is_overlay {
            return Outcome::Passed;
        }
        let last = path.as_str().rsplit('/').next().unwrap_or_default();
        if let Some(fallback) = self.config.fallback.as_deref()
            && !last.contains('.')
            && let Some(outcome) = self.page(exchange, folder, fallback, "200 OK", wait)
        {
            return outcome;
        }
        self.not_found(exchange, folder, wait)
    }

    fn not_found(&self, exchange: &mut Exchange, folder: &Folder, wait: Wait) -> Outcome {
        if folder.mount.is_overlay {
            return Outcome::Passed;
        }
        if let Some(name) = self.config.not_found.as_deref()
            && let Some(outcome) = self.page(exchange, folder, name, "404 Not Found", wait)
        {
            return outcome;
        }
        send_error(exchange, NOT_FOUND.status, NOT_FOUND.reason, &[]);
        Outcome::Responded
    }

    /// Responds with a file that stands for others. `None`: it does not exist.
    fn page(&self, exchange: &mut Exchange, folder: &Folder, name: &str, status: &str, wait: Wait) -> Option<Outcome> {
        let now = monotonic_millis();
        let is_error = !status.starts_with("200");
        // No path begins like this.
        let key = format!("{status} {}/{name}", folder.mount.prefix);
        let known = self.cache.get(key.as_bytes(), now);
        if let Some(known) = &known
            && known.is_usable()
        {
            respond::send_entry(exchange, &known.entry, is_error);
            self.compress(exchange, Some(key.as_bytes()), &known.entry);
            return Some(Outcome::Responded);
        }
        let path = decode(format!("/{}", encode(name)).as_bytes(), DotFiles::Allowed).ok()?;
        let root = match folder.root(self.config.symlinks, wait, now) {
            Ok(root) => root?,
            Err(MustWait) => return Some(Outcome::Unknown),
        };
        let place = self.place(folder, &root, wait);
        let purpose = Purpose { status, known: known.as_ref().map(|known| &*known.entry) };
        match place.find(&path, purpose) {
            Err(_) => Some(Outcome::Unknown),
            Ok(Lookup::Entry(entry)) => {
                self.cache.keep(key.as_bytes(), &entry, now);
                respond::send_entry(exchange, &entry, is_error);
                self.compress(exchange, Some(key.as_bytes()), &entry);
                Some(Outcome::Responded)
            }
            Ok(_) => None,
        }
    }
}

/// The target of the request, with a slash at the end of its path.
fn with_slash(exchange: &Exchange) -> String {
    let request = exchange.request();
    // A path that a proxy has removed is still in the URL of the client.
    let prefix = request.peer.prefix.map_or("".into(), |prefix| String::from_utf8_lossy(prefix.of(&request.bytes)));
    let path = String::from_utf8_lossy(request.head.path.of(&request.bytes));
    let query = request.head.query.map(|query| String::from_utf8_lossy(query.of(&request.bytes)));
    match query {
        Some(query) => format!("{prefix}{path}/?{query}"),
        None => format!("{prefix}{path}/"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{self, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};
    use std::thread::{self, JoinHandle};
    use std::time::Duration;

    use tailrace_observe::level::Level;
    use tailrace_os::clock::{now, since};
    use tailrace_os::sync::lock;
    use tailrace_server::{
        Application, Config, Disk, Disposition, Exchange, ExecutorKind, Provided, Responder, Server, Turn,
    };

    use super::StaticFiles;
    use crate::config::{Mount, StaticConfig};
    use crate::resolve::Links;

    /// Has no responses of its own.
    struct Nobody;

    impl Application for Nobody {
        fn enter(&self, turn: &mut Turn<'_>) {
            while let Some(exchange) = turn.next() {
                drop(exchange);
            }
        }

        fn grow(&self) -> io::Result<()> {
            Ok(())
        }

        fn log(&self, _: Level, _: &str) {}
    }

    /// The files of a test, and how many requests they were asked for.
    struct Counted {
        files: StaticFiles,
        asked: Arc<AtomicUsize>,
    }

    impl Responder for Counted {
        fn respond(&self, exchange: Exchange) -> Disposition {
            let disposition = self.files.respond(exchange);
            self.asked.fetch_add(1, Ordering::SeqCst);
            disposition
        }
    }

    /// A server of the files of an empty folder, which is its own: what others keep in the folder of temporary files must
    /// not answer. Every path is looked up by a disk thread, as links are followed.
    struct Served {
        server: Arc<Server>,
        files: StaticFiles,
        asked: Arc<AtomicUsize>,
        io: JoinHandle<()>,
        folder: std::path::PathBuf,
        port: u16,
    }

    impl Served {
        fn new(name: &str, disk: Arc<Disk>) -> Self {
            let folder = std::env::temp_dir().join(format!("tailrace-static-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            let mount = Mount { prefix: String::new(), folder: folder.clone(), is_overlay: false };
            let config = StaticConfig { mounts: vec![mount], symlinks: Links::Follow, ..StaticConfig::default() };
            let files = StaticFiles::new(config, disk.clone()).unwrap();
            let asked = Arc::new(AtomicUsize::new(0));
            let counted = Counted { files: files.clone(), asked: asked.clone() };
            let provided = Provided { disk, responders: vec![Box::new(counted)], ..Provided::default() };
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let config = Config { executor: ExecutorKind::Inline, ..Config::default() };
            let server = Server::new(config, Arc::new(Nobody), vec![listener.into()], provided).unwrap();
            let io = server.clone();
            Self { server, files, asked, io: thread::spawn(move || io.run()), folder, port }
        }

        fn ask(&self, path: &str) -> TcpStream {
            let mut client = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            write!(client, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
            client
        }

        fn end(self) {
            self.server.stop(Duration::ZERO);
            self.io.join().unwrap();
            std::fs::remove_dir(self.folder).unwrap();
        }
    }

    fn response(mut client: TcpStream) -> String {
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        response
    }

    fn wait(is_so: impl Fn() -> bool) {
        let began = now();
        while !is_so() {
            assert!(since(began) < Duration::from_secs(20), "it does not come");
            thread::yield_now();
        }
    }

    #[test]
    fn a_path_is_looked_up_once_however_it_is_encoded() {
        let disk = Arc::new(Disk::new());
        let (hold, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..Disk::THREADS {
            let held = held.clone();
            disk.run(move || _ = lock(&held).recv());
        }
        let served = Served::new("once", disk);
        let clients = ["/ab", "/a%62", "/%61%62"].map(|path| served.ask(path));
        wait(|| served.asked.load(Ordering::SeqCst) == clients.len());
        assert_eq!(served.files.0.look_ups.len(), 1);
        drop(hold);
        for response in clients.map(response) {
            assert!(response.starts_with("HTTP/1.1 404 "), "{response}");
        }
        served.end();
    }

    #[test]
    fn a_look_up_by_a_disk_thread_leaves_nothing() {
        let served = Served::new("nothing", Arc::new(Disk::new()));
        let response = response(served.ask("/"));
        assert!(response.starts_with("HTTP/1.1 404 "), "{response}");
        // The server has them, and the test.
        wait(|| Arc::strong_count(&served.files.0) == 2);
        assert!(served.files.0.look_ups.len() == 0);
        served.end();
    }
}
