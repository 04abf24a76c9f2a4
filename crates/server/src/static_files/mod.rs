//! Files that are served without the application: a [`Responder`] on the I/O side, which takes no interpreter and no
//! application thread.
//!
//! A request for a file that is in the cache is answered at once. Any other is looked up at once as long as the system
//! has all that it needs in memory; otherwise a disk thread does it, and responds, so that a slow disk delays nobody
//! else.

mod cache;
mod candidates;
pub(crate) mod compress;
mod compressor;
mod concurrency_limit;
mod entry;
mod folders;
mod listing;
mod look_ups;
mod lookup;
pub(crate) mod named;
mod respond;
mod slab;
pub(crate) mod types;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use tailrace_http::limits::Refusal;
use tailrace_http::request_head::TargetForm;
use tailrace_http::static_path::{self, RelativePath, decode, encode};

use crate::connection::exchange::Exchange;
use crate::connection::representation::send_error;
use crate::dispatch::responder::{Disposition, Responder};
use crate::os::clock::{Millis, monotonic_millis};
use crate::os::resolve::Root;
use crate::request::disk::Disk;
use crate::static_config::StaticConfig;
use crate::static_files::cache::Cache;
use crate::static_files::compressor::Compressor;
use crate::static_files::concurrency_limit::ConcurrencyLimit;
use crate::static_files::entry::Entry;
use crate::static_files::folders::{Folder, Folders, is_encoded};
use crate::static_files::look_ups::LookUps;
use crate::static_files::lookup::{Lookup, MustWait, Place, Purpose, Wait};
use crate::static_files::slab::Slab;

const NOT_FOUND: Refusal = Refusal::new(404, "There is no such file.");

/// See the module. Any thread.
#[derive(Clone)]
pub(crate) struct StaticFiles(Arc<Shared>);

struct Shared {
    config: StaticConfig,
    folders: Folders,
    cache: Arc<Cache>,
    compressor: Option<Arc<Compressor>>,
    slab: Option<Arc<Slab>>,
    /// Of those that make pages of folders.
    listing_limit: ConcurrencyLimit,
    disk: Arc<Disk>,
    look_ups: Arc<LookUps>,
    /// How many responders are asked before this one.
    position: usize,
}

/// What is to be done with a request.
enum Outcome {
    /// The response is in the exchange.
    Responded,
    /// The application responds.
    Passed,
    /// A disk thread has to look.
    Unknown,
    /// The page of a folder has to be made, when there is a permit.
    Waiting,
}

impl StaticFiles {
    /// Opens the folders. `position`: how many responders are asked before this one.
    ///
    /// # Errors
    /// One cannot be opened; the error names it.
    pub(crate) fn new(config: StaticConfig, disk: Arc<Disk>, position: usize) -> io::Result<Self> {
        let folders = Folders::open(&config, &disk)?;
        let cache = Arc::new(Cache::new(config.memory, config.descriptors));
        let slab = Slab::new().ok();
        let compressor = || Arc::new(Compressor::new(disk.clone(), cache.clone(), slab.clone()));
        let compressor = config.compress.then(compressor);
        let listing_limit = ConcurrencyLimit::new(disk.clone());
        let look_ups = Arc::default();
        Ok(Self(Arc::new(Shared { config, folders, cache, compressor, slab, listing_limit, disk, look_ups, position })))
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
            Outcome::Unknown | Outcome::Waiting => {
                shared.look_up(exchange);
                Disposition::Taken
            }
        }
    }
}

impl Shared {
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
    fn respond_waiting(self: &Arc<Self>, mut exchange: Exchange) {
        match self.respond(&mut exchange, Wait::Yes) {
            Outcome::Responded => {
                exchange.count_static();
                exchange.finish_by_io();
            }
            Outcome::Passed | Outcome::Unknown => {
                exchange.set_passed_on(self.position + 1);
                exchange.dispatch_later();
            }
            Outcome::Waiting => {
                let again = self.clone();
                self.listing_limit.wait(move || again.respond_waiting(exchange));
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
            let found = match decode(rest, self.config.dot_files) {
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
            Lookup::Folder(_) if self.config.listing && wait == Wait::No => return Outcome::Unknown,
            Lookup::Folder(descriptor) if self.config.listing => {
                let Some(_permit) = self.listing_limit.take() else { return Outcome::Waiting };
                let Ok(rows) = listing::rows(&root, path, descriptor.as_fd(), self.config.dot_files) else {
                    return self.missing(exchange, folder, path, wait);
                };
                let has_parent = !path.as_str().is_empty();
                let slash = if has_parent { "/" } else { "" };
                let shown = format!("{}/{}{slash}", folder.mount.prefix, path.as_str());
                respond::send_listing(exchange, &shown, has_parent, rows);
            }
            Lookup::Folder(_) | Lookup::Missing => return self.missing(exchange, folder, path, wait),
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
        let path = decode(format!("/{}", encode(name)).as_bytes(), static_path::DotFiles::Allowed).ok()?;
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
    use std::io::Read;
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};
    use std::thread;
    use std::time::Duration;

    use super::StaticFiles;
    use crate::config::Config;
    use crate::dispatch::responder::{Disposition, Responder};
    use crate::executor::greenlets::testing::Served;
    use crate::os::clock::{now, since};
    use crate::os::resolve::Links;
    use crate::os::sync::lock;
    use crate::request::disk::{Disk, THREADS};
    use crate::static_config::{Mount, StaticConfig};

    /// An empty folder of its own: what others keep in the folder of temporary files must not answer.
    fn mount(name: &str) -> Mount {
        let folder = std::env::temp_dir().join(format!("tailrace-static-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Mount { prefix: String::new(), folder, is_overlay: false }
    }

    #[test]
    fn a_path_is_looked_up_once_however_it_is_encoded() {
        let served = Served::new(Config::default());
        let mount = mount("once");
        let folder = mount.folder.clone();
        let config = StaticConfig { mounts: vec![mount], symlinks: Links::Follow, ..StaticConfig::default() };
        let disk = Arc::new(Disk::new());
        let (hold, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..THREADS {
            let held = held.clone();
            disk.run(move || _ = lock(&held).recv());
        }
        let files = StaticFiles::new(config, disk, 0).unwrap();
        let clients: Vec<_> = ["/ab", "/a%62", "/%61%62"]
            .into_iter()
            .map(|path| {
                let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                let client = served.ask_with(head.as_bytes());
                assert!(matches!(files.respond(served.next()), Disposition::Taken));
                client
            })
            .collect();
        assert_eq!(files.0.look_ups.len(), 1);
        drop(hold);
        for mut client in clients {
            let mut response = String::new();
            client.read_to_string(&mut response).unwrap();
            assert!(response.starts_with("HTTP/1.1 404 "), "{response}");
        }
        served.end();
        std::fs::remove_dir(folder).unwrap();
    }

    #[test]
    fn a_look_up_by_a_disk_thread_leaves_nothing() {
        let served = Served::new(Config::default());
        // With such links every path is looked up by a disk thread.
        let mount = mount("nothing");
        let folder = mount.folder.clone();
        let config = StaticConfig { mounts: vec![mount], symlinks: Links::Follow, ..StaticConfig::default() };
        let files = StaticFiles::new(config, Arc::new(Disk::new()), 0).unwrap();
        let (mut client, exchange) = served.exchange();
        assert!(matches!(files.respond(exchange), Disposition::Taken));
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 404 "), "{response}");
        let began = now();
        while Arc::strong_count(&files.0) > 1 {
            assert!(since(began) < Duration::from_secs(20), "the look-up keeps the files");
            thread::yield_now();
        }
        assert!(files.0.look_ups.len() == 0);
        served.end();
        std::fs::remove_dir(folder).unwrap();
    }
}
