//! The listening sockets that a server is given: duplicates of their descriptors, and what `environ` shows of each.

use std::os::fd::{AsFd, OwnedFd, RawFd};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tailrace_http::proxy_protocol::Versions;
use tailrace_os::descriptor;
use tailrace_os::process::host_name;
use tailrace_os::socket::local_address;
use tailrace_server::{ListenerConfig, ListenerProtocol};

use crate::call::environ::ShownListener;
use crate::python::exceptions::os_error;
use crate::runtime::certificates::PythonCertificates;

/// Duplicates the descriptors of listening sockets.
///
/// # Errors
/// `ValueError` for a number that cannot be a descriptor; `OSError` if it is not open or cannot be duplicated.
pub(crate) fn duplicate(descriptors: impl IntoIterator<Item = RawFd>) -> PyResult<Vec<OwnedFd>> {
    let mut sockets = Vec::new();
    for number in descriptors {
        if number < 0 {
            return Err(PyValueError::new_err(format!("{number} is not a descriptor")));
        }
        sockets.push(descriptor::duplicate(number).map_err(os_error)?);
    }
    Ok(sockets)
}

/// A listening socket that a server is given, and what arrives there.
#[pyclass(frozen, name = "ListeningSocket", module = "tailrace._tailrace")]
pub(crate) struct ListeningSocket {
    pub(crate) descriptor: RawFd,
    pub(crate) config: ListenerConfig,
    pub(crate) certificates: Option<Py<PythonCertificates>>,
}

#[pymethods]
impl ListeningSocket {
    /// descriptor: of the socket; `Server` duplicates it. protocol: "http", "uwsgi", "publish" for requests that publish,
    /// or "internal" for those of other processes of the server. proxy: the version of the PROXY header that each
    /// connection begins with ("v1", "v2", "any"); None: no header. certificates: connections are encrypted with these,
    /// which are the same for all sockets of a server; None: they are not. redirect: requests are redirected to `https://`
    /// at this port of the same host; None: they are not. Raises ValueError.
    #[new]
    #[pyo3(signature = (descriptor, protocol="http", proxy=None, certificates=None, redirect=None))]
    fn new(
        descriptor: RawFd,
        protocol: &str,
        proxy: Option<&str>,
        certificates: Option<Py<PythonCertificates>>,
        redirect: Option<u16>,
    ) -> PyResult<Self> {
        let config = ListenerConfig { is_encrypted: certificates.is_some(), redirect, ..config_of(protocol, proxy)? };
        Ok(Self { descriptor, config, certificates })
    }
}

/// What arrives at a listener.
///
/// # Errors
/// `ValueError` for a name that is not known.
fn config_of(protocol: &str, proxy: Option<&str>) -> PyResult<ListenerConfig> {
    let publishes = protocol == "publish";
    let protocol = match protocol {
        "http" | "publish" => ListenerProtocol::Http,
        "uwsgi" => ListenerProtocol::Uwsgi,
        "internal" => ListenerProtocol::Internal,
        other => return Err(PyValueError::new_err(format!("{other:?} is not a protocol of a listener"))),
    };
    let proxy = match proxy {
        None => None,
        Some("v1") => Some(Versions::V1),
        Some("v2") => Some(Versions::V2),
        Some("any") => Some(Versions::Any),
        Some(other) => return Err(PyValueError::new_err(format!("{other:?} is not a version of the PROXY header"))),
    };
    Ok(ListenerConfig { protocol, proxy, is_encrypted: false, redirect: None, publishes })
}

/// What `environ` shows of a listener. `SERVER_NAME` and `SERVER_PORT` are never empty (PEP 3333): a wildcard address
/// is replaced by the name of the host, a UNIX socket stands for "localhost" and the scheme's port.
pub(crate) fn describe(socket: &OwnedFd, url_scheme: &str, is_encrypted: bool) -> PyResult<ShownListener> {
    let url_scheme = if is_encrypted { "https" } else { url_scheme };
    Ok(match local_address(socket.as_fd())? {
        Some(address) => {
            let name = if address.ip().is_unspecified() {
                host_name().unwrap_or_else(|| String::from("localhost"))
            } else {
                address.ip().to_canonical().to_string()
            };
            ShownListener { name, port: address.port().to_string(), has_addresses: true, is_encrypted }
        }
        None => ShownListener {
            name: String::from("localhost"),
            port: String::from(if url_scheme == "https" { "443" } else { "80" }),
            has_addresses: false,
            is_encrypted,
        },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_tcp_listener_has_its_address() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port().to_string();
        let listener = describe(&socket.into(), "http", false).unwrap();
        assert_eq!(
            listener,
            ShownListener { name: String::from("127.0.0.1"), port, has_addresses: true, is_encrypted: false }
        );
    }

    #[test]
    fn a_wildcard_has_a_name() {
        let socket = TcpListener::bind("0.0.0.0:0").unwrap();
        let listener = describe(&socket.into(), "http", false).unwrap();
        assert!(!listener.name.is_empty() && listener.name != "0.0.0.0", "{listener:?}");
    }

    #[test]
    fn a_unix_socket_has_sensible_values() {
        let path = std::env::temp_dir().join(format!("tailrace-listeners-{}", std::process::id()));
        let socket = UnixListener::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let listener = describe(&socket.into(), "https", false).unwrap();
        assert_eq!((listener.name.as_str(), listener.port.as_str()), ("localhost", "443"));
        assert!(!listener.has_addresses);
    }

    #[test]
    fn a_bad_descriptor_is_an_error() {
        assert!(duplicate([-1]).is_err());
        assert!(duplicate([1_000_000]).is_err());
    }

    #[test]
    fn a_listener_has_a_protocol_and_a_version_of_the_proxy_header_that_are_known() {
        let config = config_of("http", Some("v2")).unwrap();
        assert_eq!(
            config,
            ListenerConfig {
                protocol: ListenerProtocol::Http,
                proxy: Some(Versions::V2),
                is_encrypted: false,
                redirect: None,
                publishes: false
            }
        );
        assert_eq!(config_of("http", None).unwrap(), ListenerConfig::default());
        assert_eq!(config_of("uwsgi", None).unwrap().protocol, ListenerProtocol::Uwsgi);
        assert!(config_of("https", None).is_err());
        assert!(config_of("http", Some("v3")).is_err());
    }
}
