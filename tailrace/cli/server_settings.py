"""The settings of one server: the value of each option, typed and frozen, and what follows from several of them.

`settings.effective` builds them, once. A field is the row of the same name in `options`; a test compares both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tailrace.cli.options import OPTIONS
from tailrace.cli.static_values import FINGERPRINTED
from tailrace.system.cgroup import Machine

# The default of --client-memory. Where a cgroup limits the memory, all workers together have at most this share of it.
CLIENT_MEMORY: Final = 512 << 20
CLIENT_SHARE: Final = 1 / 4
# With --max-rss auto, this share of a cgroup's memory may be in use. The rest is for what grows between two checks, and
# for memory that counts and cannot be seen here, such as that of a file system or of the network.
_MEMORY_SHARE: Final = 0.9
# With less, large responses and bodies would always be in files.
_LEAST_CLIENT_MEMORY: Final = 16 << 20
# What a browser need not ask for again: another content has another name.
FINGERPRINTED_FOREVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class ServerSettings:
    """Option values, and the machine that some defaults depend on.

    Sizes are in bytes and times in seconds; None is what the option's text says for no value."""

    machine: Machine
    app: str | None
    factory: bool
    chdir: str | None
    env_file: str | None
    reload: bool
    reload_include: tuple[str, ...]
    reload_exclude: tuple[str, ...]
    debug: bool
    bind: tuple[str, ...]
    trusted_proxies: tuple[str, ...]
    forwarded_fields: tuple[str, ...]
    backlog: int
    umask: int | None
    socket_mode: int | None
    certfile: tuple[str, ...]
    keyfile: tuple[str, ...]
    keyfile_password_file: str | None
    ocsp_file: tuple[str, ...]
    tls_min: str
    client_ca: str | None
    client_cert: str
    self_signed: bool
    redirect_http: tuple[str, ...]
    hsts: str
    workers: int | Literal["auto"]
    preload: bool
    refork: tuple[int, ...]
    gc: Literal["default", "freeze", "idle"]
    warmup: tuple[str, ...]
    hooks: str | None
    user: str | None
    group: str | None
    pidfile: str | None
    max_requests: int
    max_requests_jitter: int
    max_lifetime: float
    max_rss: int | Literal["auto"]
    hang_timeout: float
    status: str | None
    agent: str | None
    statsd: str | None
    otlp_endpoint: str | None
    otlp_sample: float
    threads: int
    gevent: bool
    max_greenlets: int
    hub_warn: float
    request_line_limit: int
    header_bytes_limit: int
    header_count_limit: int
    max_body: int
    client_memory: int | None
    body_memory: int | None
    body_buffer: int | None
    stream_body: bool
    response_queue: int
    response_buffer: int | None
    response_spill: int
    max_queue: int
    max_connections: int
    max_connections_per_client: int
    max_requests_per_client: tuple[int, int] | None
    request_timeout: float
    cancel_on_disconnect: Literal["off", "safe", "all"]
    half_close: Literal["continue", "disconnect"]
    queue_timeout: float
    header_timeout: float
    body_timeout: float
    idle_timeout: float
    write_timeout: float
    min_body_rate: int
    min_response_rate: int
    graceful_timeout: float
    shutdown_delay: float
    reload_trial: float
    hold_writes: float
    root_path: str
    url_scheme: str
    underscore_headers: str
    server_header: str
    server_timing: bool
    early_hints: bool
    compress: bool
    compress_types: tuple[str, ...]
    compress_min_size: int
    request_id: str
    static: tuple[tuple[str, str], ...]
    overlay: str | None
    spa: str | None
    sendfile_root: tuple[tuple[str | None, str], ...]
    static_index: tuple[str, ...]
    static_listing: bool
    static_404: str | None
    static_cache: tuple[tuple[str, str], ...]
    mime: tuple[tuple[str, str], ...]
    static_symlinks: str
    static_dotfiles: str
    static_precompressed: bool
    static_compress: bool
    static_memory: int
    static_memory_file: int
    static_descriptors: int
    access_log: str | None
    access_log_format: str
    slow: float
    query_masking: str
    log: str
    log_format: str
    log_level: str
    log_config: str | None

    @property
    def worker_count(self) -> int:
        """The number of workers; `auto` is one for each CPU that may be used."""
        return self.machine.cpus if self.workers == "auto" else int(self.workers)

    @property
    def memory_in_use_limit(self) -> int | None:
        """Bytes that may be in use in the cgroup with `--max-rss auto`; None: any number."""
        if self.max_rss != "auto" or self.machine.memory is None:
            return None
        return int(self.machine.memory * _MEMORY_SHARE)

    @property
    def concurrency(self) -> int:
        """The number of requests that a worker runs at once: threads, or greenlets."""
        return self.max_greenlets if self.gevent else self.threads

    @property
    def memory(self) -> tuple[int, int, int]:
        """Bytes that a worker holds for its clients in all, and of these, bytes for responses and for request
        bodies."""
        total = self._default_client_memory if self.client_memory is None else self.client_memory
        responses = total // 2 if self.response_buffer is None else self.response_buffer
        bodies = total // 4 if self.body_buffer is None else self.body_buffer
        if self.client_memory is None:
            # A quarter of the total is kept for heads and small bodies.
            total = max(total, (responses + bodies) * 4 // 3)
        return total, responses, bodies

    @property
    def _default_client_memory(self) -> int:
        if self.machine.memory is None:
            return CLIENT_MEMORY
        share = int(self.machine.memory * CLIENT_SHARE) // self.worker_count
        return max(_LEAST_CLIENT_MEMORY, min(CLIENT_MEMORY, share))

    @property
    def static_mounts(self) -> list[tuple[str, str, bool]]:
        """Path of the URLs, folder, and whether the application gets what the folder does not have."""
        mounts = [(prefix, folder, False) for prefix, folder in self.static]
        return [*mounts, ("", self.overlay, True)] if self.overlay is not None else mounts

    def core(self, worker: int = 1) -> dict[str, object]:
        """The settings of the Rust core. worker: its number, from 1."""
        total, responses, bodies = self.memory
        body = max(1 << 20, min(64 << 20, bodies // 2)) if self.body_memory is None else self.body_memory
        return {option.core: getattr(self, option.name) for option in OPTIONS if option.core is not None} | {
            "worker": worker,
            "trace_share": None if self.otlp_endpoint is None else self.otlp_sample,
            "strict_transport": f"max-age={self.hsts}" if self.hsts else "",
            "executor": "greenlets" if self.gevent else "inline" if self.debug else "threads",
            "threads": self.concurrency,
            "client_memory": total,
            "response_buffer": responses,
            "body_memory": body,
            "body_buffer": bodies,
            "static_mounts": self.static_mounts,
            "static_named": list(self.sendfile_root),
            "static_cache": [rule for rule in self.static_cache if rule[0] != FINGERPRINTED],
            "static_fingerprinted": dict(self.static_cache).get(FINGERPRINTED, FINGERPRINTED_FOREVER),
            "multithread": self.gevent or (self.threads > 1 and not self.debug),
            "multiprocess": self.worker_count > 1 and not self.debug,
        }
