//! Where a log goes, as operators write it: `stdout`, `stderr`, the path of a file, `syslog:...`, `journal` or `logging`.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use tailrace_os::file::{error_text, open_to_append};
use tailrace_os::log_socket::{LogSocket, Receiver, resolve};

/// The socket of the local syslog daemon.
const SYSLOG: &str = "/dev/log";
/// The port of syslog by UDP (RFC 5426 section 3.3).
const SYSLOG_PORT: u16 = 514;
/// The socket of systemd's journal, in its own protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL).
const JOURNAL: &str = "/run/systemd/journal/socket";
/// The name of the program in the entries of both.
const TAG: &str = "tailrace";
/// The facility `daemon` (RFC 5424 section 6.2.1).
const DAEMON: u8 = 3;
/// The length of APP-NAME (RFC 5424 section 6).
const LONGEST_TAG: usize = 48;
/// The names of facilities with their numbers.
const FACILITIES: &[(&str, u8)] = &[
    ("kern", 0),
    ("user", 1),
    ("mail", 2),
    ("daemon", DAEMON),
    ("auth", 4),
    ("syslog", 5),
    ("lpr", 6),
    ("news", 7),
    ("uucp", 8),
    ("cron", 9),
    ("authpriv", 10),
    ("ftp", 11),
    ("local0", 16),
    ("local1", 17),
    ("local2", 18),
    ("local3", 19),
    ("local4", 20),
    ("local5", 21),
    ("local6", 22),
    ("local7", 23),
];

/// Where a log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The standard output.
    Stdout,
    /// The standard error.
    Stderr,
    /// Appended to this file.
    Path(PathBuf),
    /// A syslog daemon.
    Syslog(Syslog),
    /// systemd's journal.
    Journal {
        /// The daemon's socket.
        socket: PathBuf,
        /// `SYSLOG_IDENTIFIER` of the entries.
        tag: String,
    },
    /// The application: only an access log can go there.
    Application,
}

/// A syslog daemon, and how entries are marked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syslog {
    pub(crate) daemon: Daemon,
    pub(crate) facility: u8,
    pub(crate) tag: String,
}

/// Where a syslog daemon listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Daemon {
    Socket(PathBuf),
    Udp(String, u16),
}

/// A destination that has been opened.
pub(crate) enum Opened {
    Stdout,
    Stderr,
    File(OwnedFd),
    Socket(LogSocket),
}

impl Destination {
    /// Reads a destination. `-` is standard output.
    ///
    /// # Errors
    /// One line that says what is wrong, and what is right.
    pub fn parse(given: &OsStr) -> Result<Self, String> {
        let Some(text) = given.to_str() else { return Ok(Self::Path(given.into())) };
        match text {
            "" => return Err("must not be empty".to_owned()),
            "-" | "stdout" => return Ok(Self::Stdout),
            "stderr" => return Ok(Self::Stderr),
            "logging" => return Ok(Self::Application),
            _ => {}
        }
        let (place, query) = text.split_once('?').map_or((text, None), |(place, query)| (place, Some(query)));
        match place.split_once(':').map_or((place, None), |(kind, rest)| (kind, Some(rest))) {
            ("syslog", rest) => syslog(rest, query),
            ("journal", rest) => journal(rest, query),
            ("file", Some(path)) => Err(format!("write only the path of a file: {path}")),
            (kind, Some(rest)) if rest.starts_with("//") && !kind.contains('/') => Err(format!(
                "unknown destination {kind}://; choose from stderr, stdout, the path of a file, syslog, \
                 syslog:/dev/log, syslog://HOST:514 (UDP) and journal"
            )),
            _ => Ok(Self::Path(text.into())),
        }
    }

    /// Opens it. Looking up the name of a host may take a while.
    ///
    /// # Errors
    /// It cannot be opened: with its name, why, and what to do.
    pub(crate) fn open(&self) -> io::Result<Opened> {
        let socket = |receiver, name: &str, path: &Path| {
            let named = |fault: io::Error| with_remedy(&fault, name, path);
            LogSocket::connect(receiver).map(Opened::Socket).map_err(named)
        };
        match self {
            Self::Stdout => Ok(Opened::Stdout),
            Self::Stderr => Ok(Opened::Stderr),
            Self::Path(path) => Ok(Opened::File(open_file(path)?)),
            Self::Syslog(Syslog { daemon: Daemon::Socket(path), .. }) => {
                socket(Receiver::Path(path.clone()), "syslog", path)
            }
            Self::Syslog(Syslog { daemon: Daemon::Udp(host, port), .. }) => {
                let named = |fault: io::Error| {
                    io::Error::new(fault.kind(), format!("syslog://{host}:{port}: {}", error_text(&fault)))
                };
                let address = resolve(host, *port).map_err(named)?;
                LogSocket::connect(Receiver::Udp(address)).map(Opened::Socket).map_err(named)
            }
            Self::Journal { socket: path, .. } => socket(Receiver::Path(path.clone()), "journal", path),
            Self::Application => {
                Err(io::Error::other("only --access-log can go to logging; to name a file like that, write ./logging"))
            }
        }
    }
}

/// Opens a file to append to it.
///
/// # Errors
/// Its path, why, and what to do.
fn open_file(path: &Path) -> io::Result<OwnedFd> {
    open_to_append(path).map_err(|fault| {
        let why = match (fault.kind(), path.parent().filter(|directory| !directory.as_os_str().is_empty())) {
            (io::ErrorKind::NotFound, Some(directory)) => {
                format!("the directory {} does not exist; create it", directory.display())
            }
            // open(2) says the same of both.
            _ if Errno::from_io_error(&fault) == Some(Errno::NXIO) => format!(
                "this is a named pipe that no process reads, or a socket; write syslog:{} for a log daemon's socket, \
                 and stdout or stderr for a standard stream",
                path.display()
            ),
            _ => error_text(&fault),
        };
        io::Error::new(fault.kind(), format!("{}: {why}", path.display()))
    })
}

fn with_remedy(fault: &io::Error, name: &str, path: &Path) -> io::Error {
    let remedy = match fault.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
            "; no {name} daemon is listening there. Name its socket, as in {name}:{}, or log to stderr",
            if name == "journal" { JOURNAL } else { SYSLOG }
        ),
        // EPROTOTYPE
        _ if fault.raw_os_error() == Some(91) => String::from(
            "; this is a stream socket. Have the daemon listen on a datagram socket, or use syslog://HOST:514 (UDP)",
        ),
        _ => String::new(),
    };
    io::Error::new(fault.kind(), format!("{name}: {}: {}{remedy}", path.display(), error_text(fault)))
}

/// `syslog`, `syslog:/dev/log`, `syslog://host:514`; the text after the colon, and the one after a question mark.
fn syslog(rest: Option<&str>, query: Option<&str>) -> Result<Destination, String> {
    let mut marks = (DAEMON, TAG.to_owned());
    options(query, &mut |name, value| match name {
        "facility" => {
            let found = FACILITIES.iter().find(|(facility, _)| *facility == value);
            let known = || FACILITIES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            marks.0 = found.ok_or_else(|| format!("unknown facility {value:?}; choose from {}", known()))?.1;
            Ok(())
        }
        "tag" => tag(value).map(|tag| marks.1 = tag),
        _ => Err(format!("syslog has no option {name:?}; choose from facility and tag")),
    })?;
    let daemon = match rest {
        None => Daemon::Socket(SYSLOG.into()),
        Some(rest) => match rest.strip_prefix("//") {
            Some(address) => {
                let (host, port) = host_and_port(address)?;
                Daemon::Udp(host, port)
            }
            None => Daemon::Socket(socket_path(rest, "syslog", SYSLOG)?),
        },
    };
    let (facility, tag) = marks;
    Ok(Destination::Syslog(Syslog { daemon, facility, tag }))
}

/// `journal`, `journal:/run/systemd/journal.web/socket`.
fn journal(rest: Option<&str>, query: Option<&str>) -> Result<Destination, String> {
    let mut name = TAG.to_owned();
    options(query, &mut |option, value| match option {
        "tag" => tag(value).map(|tag| name = tag),
        _ => Err(format!("journal has no option {option:?}; the only one is tag")),
    })?;
    let socket = rest.map_or_else(|| Ok(JOURNAL.into()), |path| socket_path(path, "journal", JOURNAL))?;
    Ok(Destination::Journal { socket, tag: name })
}

/// Reads `a=b&c=d`.
fn options(query: Option<&str>, set: &mut dyn FnMut(&str, &str) -> Result<(), String>) -> Result<(), String> {
    for option in query.unwrap_or_default().split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').ok_or_else(|| format!("{option:?} must be NAME=VALUE"))?;
        set(name, value)?;
    }
    Ok(())
}

fn tag(text: &str) -> Result<String, String> {
    let is_fit = |byte: u8| byte.is_ascii_graphic() && !b"[]:".contains(&byte);
    if text.is_empty() || text.len() > LONGEST_TAG || !text.bytes().all(is_fit) {
        return Err(format!(
            "the tag {text:?} must have 1 to {LONGEST_TAG} visible ASCII characters, none of which is a colon or a bracket"
        ));
    }
    Ok(text.to_owned())
}

fn socket_path(path: &str, kind: &str, example: &str) -> Result<PathBuf, String> {
    if path.starts_with('/') {
        return Ok(path.into());
    }
    Err(format!("{kind}: must be followed by the absolute path of a socket, as in {kind}:{example}"))
}

/// `host`, `host:port`, `[::1]:port`.
fn host_and_port(address: &str) -> Result<(String, u16), String> {
    let fault = || format!("{address:?} must be HOST or HOST:PORT, as in syslog://logs.example.com:514");
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(fault)?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or_else(fault)?) })
        }
        None => address.split_once(':').map_or((address, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Ok(SYSLOG_PORT), str::parse).map_err(|_| fault())?;
    if host.is_empty() || port == 0 || host.contains('/') {
        return Err(fault());
    }
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::UnixDatagram;
    use std::path::PathBuf;

    use super::{Daemon, Destination, Syslog};

    fn read(text: &str) -> Result<Destination, String> {
        Destination::parse(OsStr::new(text))
    }

    fn syslog(daemon: Daemon, facility: u8, tag: &str) -> Destination {
        Destination::Syslog(Syslog { daemon, facility, tag: tag.to_owned() })
    }

    #[test]
    fn destinations_are_read_as_operators_write_them() {
        let local = |path: &str| Daemon::Socket(path.into());
        let udp = |host: &str, port| Daemon::Udp(host.to_owned(), port);
        let journal = |socket: &str, tag: &str| Destination::Journal { socket: socket.into(), tag: tag.to_owned() };
        for (text, wanted) in [
            ("-", Destination::Stdout),
            ("stdout", Destination::Stdout),
            ("stderr", Destination::Stderr),
            ("logging", Destination::Application),
            ("./logging", Destination::Path("./logging".into())),
            ("/var/log/a b", Destination::Path("/var/log/a b".into())),
            ("./syslog", Destination::Path("./syslog".into())),
            ("log:1?x", Destination::Path("log:1?x".into())),
            ("a/b://c", Destination::Path("a/b://c".into())),
            ("syslog", syslog(local("/dev/log"), 3, "tailrace")),
            ("syslog?tag=shop", syslog(local("/dev/log"), 3, "shop")),
            ("syslog:/run/log?facility=local7&tag=a", syslog(local("/run/log"), 23, "a")),
            ("syslog://logs.example.com", syslog(udp("logs.example.com", 514), 3, "tailrace")),
            ("syslog://10.0.0.1:5514?facility=user", syslog(udp("10.0.0.1", 5514), 1, "tailrace")),
            ("syslog://[::1]:5514", syslog(udp("::1", 5514), 3, "tailrace")),
            ("syslog://[::1]", syslog(udp("::1", 514), 3, "tailrace")),
            ("journal", journal("/run/systemd/journal/socket", "tailrace")),
            ("journal:/run/j?tag=shop", journal("/run/j", "shop")),
        ] {
            assert_eq!(read(text), Ok(wanted), "{text}");
        }
        let bytes = OsStr::from_bytes(b"/var/log/\xff");
        assert_eq!(Destination::parse(bytes), Ok(Destination::Path(PathBuf::from(bytes))));
    }

    #[test]
    fn a_wrong_destination_says_what_is_right() {
        let long = format!("syslog?tag={}", "a".repeat(49));
        for (text, said) in [
            ("", "empty"),
            ("tcp://logs:514", "syslog://HOST:514 (UDP)"),
            ("file:/var/log/x", "/var/log/x"),
            ("syslog:relative", "syslog:/dev/log"),
            ("journal:relative", "journal:/run/systemd"),
            ("syslog?facility=local8", "local7"),
            ("syslog?color=red", "facility and tag"),
            ("journal?facility=user", "the only one is tag"),
            ("syslog?tag", "NAME=VALUE"),
            ("syslog?tag=a:b", "colon"),
            ("syslog?tag=", "1 to 48"),
            (&long, "1 to 48"),
            ("syslog://", "HOST:PORT"),
            ("syslog://host:0", "HOST:PORT"),
            ("syslog://host:x", "HOST:PORT"),
            ("syslog://host/x", "HOST:PORT"),
            ("syslog://[::1", "HOST:PORT"),
            ("syslog://[::1]514", "HOST:PORT"),
        ] {
            let fault = read(text).unwrap_err();
            assert!(fault.contains(said), "{text}: {fault}");
        }
    }

    #[test]
    fn what_cannot_be_opened_says_why_and_what_to_do() {
        for (text, said) in [
            ("/nowhere/at/all/log", "/nowhere/at/all/log: the directory /nowhere/at/all does not exist; create it"),
            ("/", "/: Is a directory"),
            ("syslog:/nowhere", "syslog: /nowhere: No such file or directory; no syslog daemon is listening there"),
            ("journal:/nowhere", "as in journal:/run/systemd/journal/socket, or log to stderr"),
        ] {
            let fault = read(text).unwrap().open().err().unwrap().to_string();
            assert!(fault.contains(said), "{text}: {fault}");
        }
        assert!(Destination::Application.open().is_err());
        let path = std::env::temp_dir().join(format!("tailrace-stream-of-syslog-{}", std::process::id()));
        let stream = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let fault = read(&format!("syslog:{}", path.display())).unwrap().open().err().unwrap().to_string();
        assert!(fault.contains("listen on a datagram socket"), "{fault}");
        drop(stream);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_socket_that_is_named_as_a_file_says_what_to_write() {
        let path = std::env::temp_dir().join(format!("tailrace-log-destination-{}", std::process::id()));
        let socket = UnixDatagram::bind(&path).unwrap();
        let fault = Destination::Path(path.clone()).open().err().unwrap().to_string();
        assert!(fault.contains(&format!("or a socket; write syslog:{}", path.display())), "{fault}");
        drop(socket);
        std::fs::remove_file(&path).unwrap();
    }
}
