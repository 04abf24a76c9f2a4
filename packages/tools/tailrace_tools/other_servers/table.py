"""The table of other servers' options: the equivalent in Tailrace, the reason why none is needed, or the remedy.

Error messages, `tailrace migrate` and docs/migrate.md derive from it. A test compares it with what the installed
servers print as their help.
"""

from __future__ import annotations

from typing import Final

from tailrace_tools.other_servers import values
from tailrace_tools.other_servers.rows import Row, elsewhere, needless, option

_ADDRESS: Final = "as in 127.0.0.1:8000"
_TIMEOUT: Final = (
    "--request-timeout limits the time of a request; --hang-timeout replaces a worker that does not respond"
)


def _hook(gunicorn: str, ours: str, when: str) -> Row:
    """A hook of gunicorn. ours: the function; when: when it is called."""
    reason = f"write it as `{ours}` in your `hooks` module; it {when}"
    says = f"`{ours}` in the {{ours}} module {when}"
    return option("hooks", says=says, gunicorn=gunicorn, convert=values.part_of(reason=reason))


TABLE: Final[tuple[Row, ...]] = (
    # Addresses.
    option(
        "bind",
        gunicorn="-b/--bind=",
        convert=values.gunicorn_bind,
    ),
    option(
        "bind",
        _ADDRESS,
        waitress="--host= --port=",
        convert=values.host_and_port("0.0.0.0", 8080),
    ),
    option("bind", _ADDRESS, mod_wsgi="--host= --port=", convert=values.host_and_port("0.0.0.0", 8000)),
    option(
        "bind",
        _ADDRESS,
        granian="--host= --port=",
        other="--host= --port= --address= --insecure-bind=",
        convert=values.host_and_port("127.0.0.1", 8000),
    ),
    option("bind", _ADDRESS, waitress="--listen=", convert=values.waitress_listen),
    option("bind", _ADDRESS, uwsgi="--http= --http-socket= --http11-socket=", convert=values.uwsgi_bind("http")),
    option(
        "bind",
        says="{ours} uwsgi://127.0.0.1:3031 speaks the uwsgi protocol",
        uwsgi="-s/--socket=",
        convert=values.uwsgi_bind("any"),
    ),
    option(
        "bind",
        says="{ours} uwsgi://127.0.0.1:3031 speaks the uwsgi protocol",
        uwsgi="--uwsgi-socket=",
        convert=values.uwsgi_bind("uwsgi"),
    ),
    option(
        "bind",
        says="{ours} uwsgi://127.0.0.1:3031 speaks the uwsgi protocol",
        uwsgi="--protocol/--socket-protocol=",
        convert=values.part_of("socket", reason="an address without a protocol speaks HTTP"),
    ),
    option(
        "bind",
        says="{ours} uwsgi://127.0.0.1:3031 speaks the uwsgi protocol",
        gunicorn="--protocol=",
        convert=values.gunicorn_protocol,
    ),
    option("bind", "as in unix:/run/app.sock", waitress="--unix-socket=", convert=values.to("bind", "unix:")),
    option(
        "bind",
        "as in unix:/run/app.sock",
        granian="--uds=",
        other="--uds=",
        convert=values.to("bind", "unix:"),
    ),
    option("bind", "as in fd://3", other="--fd=", convert=values.to("bind", "fd://")),
    option(
        "bind",
        says="set it as an option of the address: {ours} 'http://127.0.0.1:8000?proxy=any'",
        gunicorn="--proxy-protocol=?",
        convert=values.gunicorn_protocol,
    ),
    option(
        "bind",
        says="set it as an option of the address: {ours} 'http://127.0.0.1:8000?proxy=any'",
        uwsgi="--enable-proxy-protocol --http-enable-proxy-protocol",
        convert=values.part_of(
            "http_socket", reason='set it as an option of the address: `bind = ["http://127.0.0.1:8000?proxy=any"]`'
        ),
    ),
    option(
        "bind",
        says="set it as an option of the address: {ours} '127.0.0.1:8000?backlog=4096'",
        gunicorn="--backlog=",
        uwsgi="-l/--listen=",
        mod_wsgi="--server-backlog=",
        granian="--backlog=",
        waitress="--backlog=",
        other="--backlog=",
        convert=values.to("backlog"),
    ),
    option(
        "bind",
        says="set it as an option of the address: {ours} 'unix:/run/app.sock?mode=660'",
        uwsgi="-C/--chmod-socket/--chmod=?",
        granian="--uds-permissions=",
        waitress="--unix-socket-perms=",
        other="--unix-socket-perms=",
        convert=values.socket_mode,
    ),
    option(
        "bind",
        says="set it as an option of a UNIX socket's address, 777 without the bits of the umask: {ours} "
        "'unix:/run/app.sock?mode=770'",
        gunicorn="-m/--umask=",
        convert=values.gunicorn_umask,
    ),
    option("umask", uwsgi="--umask="),
    elsewhere(
        "the socket belongs to the user that starts the server: start it as that user, or write --bind "
        "'unix:/run/app.sock?mode=660'",
        uwsgi="--chown-socket=",
    ),
    option(
        "trusted_proxies",
        gunicorn="--forwarded-allow-ips= --proxy-allow-from=:proxy_allow_ips --uwsgi-allow-from=:uwsgi_allow_ips "
        "$FORWARDED_ALLOW_IPS",
        mod_wsgi="--trust-proxy=",
        waitress="--trusted-proxy=",
        other="--forwarded-allow-ips= --trusted-hosts=",
        convert=values.trusted,
    ),
    option(
        "forwarded_headers",
        mod_wsgi="--trust-proxy-header=",
        waitress="--trusted-proxy-headers=",
        convert=values.forwarded_headers,
    ),
    elsewhere(
        "--forwarded-headers chooses the headers of trusted proxies; --root-path sets SCRIPT_NAME",
        gunicorn="--forwarder-headers=",
    ),
    elsewhere(
        "the scheme comes from X-Forwarded-Proto and Forwarded, if sent by --trusted-proxies; --url-scheme https sets "
        "it for all requests",
        gunicorn=":secure_scheme_headers",
    ),
    needless(
        "forwarding headers from untrusted proxies are removed by default, with a warning",
        waitress="--clear-untrusted-proxy-headers --log-untrusted-proxy-headers",
    ),
    elsewhere(
        "the client's address is the last one in X-Forwarded-For that is not in --trusted-proxies",
        waitress="--trusted-proxy-count=",
    ),
    elsewhere("--trusted-proxies names the proxies whose header fields are trusted", other="--proxy-headers"),
    needless("the workers share the listening sockets of the master", gunicorn="--reuse-port", uwsgi="--reuse-port"),
    elsewhere(
        "`localhost:8000` listens on IPv4 and IPv6; to choose one, give its address",
        waitress="--ipv4 --ipv6",
    ),
    elsewhere(
        "Tailrace speaks HTTP and uwsgi only: configure the web server to use `proxy_pass` or `uwsgi_pass`",
        uwsgi="--fastcgi-socket= --fastcgi-nph-socket= --scgi-socket= --scgi-nph-socket= --raw-socket= "
        "--puwsgi-socket= "
        "--fastcgi* --scgi*",
    ),
    elsewhere("open the socket in the parent process, and name it as --bind fd://3", uwsgi="--shared-socket="),
    # The application.
    option(
        "app",
        says="give the application as an argument: `tailrace mysite.wsgi:application`, or `tailrace ./hello.py`",
        gunicorn=":wsgi_app",
        mod_wsgi="--entry-point=",
    ),
    option(
        "app",
        says="give the application as an argument: `tailrace mysite.wsgi:application`, or `tailrace ./hello.py`",
        uwsgi="-w/--module/--wsgi= --wsgi-file/--file=",
        convert=values.uwsgi_app,
    ),
    option(
        "app",
        says="give the application as an argument: `tailrace mysite.wsgi:application`, or `tailrace ./hello.py`",
        uwsgi="--callable=",
        mod_wsgi="--callable-object=",
        convert=values.part_of(
            "module",
            "wsgi_file",
            "mount",
            "entry_point",
            reason='the name of the application follows its module: `app = "module:name"`',
        ),
    ),
    option("app", "without its path; set that with --root-path /app", uwsgi="--mount=", convert=values.uwsgi_mount),
    option(
        "root_path",
        waitress="--url-prefix=",
        granian="--url-path-prefix=",
        mod_wsgi="--mount-point=",
        gunicorn="--root-path= $SCRIPT_NAME",
        other="--root-path=",
    ),
    needless(
        "--root-path is removed from PATH_INFO; SCRIPT_NAME in a uwsgi packet is honored",
        uwsgi="--manage-script-name --ignore-script-name",
    ),
    option(
        "factory",
        waitress="--call",
        granian="--factory",
        other="--factory",
        convert=values.switch("factory"),
    ),
    option(
        "chdir",
        gunicorn="--chdir=",
        uwsgi="--chdir=",
        mod_wsgi="--working-directory=",
        granian="--working-dir=",
    ),
    elsewhere("--chdir changes to a directory before the application is loaded, for good", uwsgi="--chdir2="),
    option(
        "chdir",
        says="{ours} changes to a directory and imports modules from it; PYTHONPATH adds further directories",
        gunicorn="--pythonpath=",
        uwsgi="--pythonpath/--python-path/--pp=",
        mod_wsgi="--python-path=",
        other="--app-dir=",
        convert=values.search_path,
    ),
    option(
        "env_file",
        says="set the variable in the environment, or in a file, with {ours}",
        gunicorn="-e/--env=:raw_env",
        uwsgi="--env=",
        convert=values.variables,
    ),
    option("env_file", granian="--env-files=", other="--env-file="),
    elsewhere(
        "set the variable in the environment, or in a file, with --env-file; the application reads os.environ",
        mod_wsgi="--setenv== --passenv= --envvars-script= --locale=",
    ),
    elsewhere("--env-file reads NAME=value lines from a file", uwsgi="--envdir= --early-envdir= --unenv="),
    elsewhere(
        "run the `tailrace` command of the virtual environment",
        uwsgi="-H/--home/--virtualenv/--venv/--pyhome= --py-programname/--py-program-name= --pyexecutable= "
        "--py-executable/--py-sys-executable=",
    ),
    elsewhere(
        "--config takes a TOML file with the options; `tailrace migrate` converts this file to it",
        gunicorn="-c/--config=:",
        uwsgi="--ini= -x/--xml/--xmlconfig= -y/--yaml/--yml= -j/--json= --config= --include= --inherit= "
        "--fallback-config= "
        "--inject-before= --inject-after=",
    ),
    elsewhere(
        "`tailrace config` checks the settings and prints them",
        gunicorn="--check-config --print-config",
        uwsgi="--show-config --get= --dump-options",
    ),
    elsewhere(
        "`pserve` reads the file; its section [server:main] needs `use = egg:tailrace`",
        gunicorn="--paste/--paster= --paste-global=:raw_paste_global_conf",
        uwsgi="--paste= --paste-logger --ini-paste= --ini-paste-logged= --pecan=",
    ),
    elsewhere(
        "name a module, or the path of a .py or .wsgi file; `pserve` serves PasteDeploy files",
        mod_wsgi="--application-type=",
    ),
    needless(
        "Tailrace serves WSGI applications only",
        granian="--interface=",
        other="--interface=",
    ),
    elsewhere(
        "WSGI applications have no lifespan events, and their libraries set the limits of WebSockets",
        gunicorn="--asgi-loop= --asgi-lifespan= --asgi-disconnect-grace-period= --websocket-max-message-size=",
        granian="--ws:WEBSOCKETS",
        uwsgi="--http-websockets --asyncio= --greenlet --http-raw-body --websocket*",
        other="--ws= --ws-max-size= --ws-ping-interval= --ws-ping-timeout= --ws-max-queue= --lifespan=",
    ),
    needless("the server does not start without an application", uwsgi="--need-app"),
    elsewhere(
        "import the module in the application, or in the --hooks module",
        uwsgi="--import/--pyimport/--py-import/--python-import= "
        "--shared-import/--shared-pyimport/--shared-py-import/--shared-python-import= --eval= --pymodule-alias= "
        "--pyargv= "
        "--post-pymodule-alias=",
    ),
    # Processes.
    option(
        "workers",
        gunicorn="-w/--workers= $WEB_CONCURRENCY",
        uwsgi="-p/--processes/--workers=",
        mod_wsgi="--processes=",
        granian="--workers=",
        other="--workers= --processes=",
        convert=values.cpus,
    ),
    needless("a master process runs by default; --workers sets the number of its workers", uwsgi="-M/--master"),
    option("preload", gunicorn="--preload:preload_app", convert=values.switch("preload")),
    needless(
        "each worker loads the application by default; --preload loads it before the fork",
        uwsgi="--lazy-apps --lazy",
    ),
    option(
        "user",
        gunicorn="-u/--user=",
        uwsgi="--uid= --immediate-uid=",
        mod_wsgi="--user=",
        convert=values.as_text("user"),
    ),
    option(
        "group",
        gunicorn="-g/--group=",
        uwsgi="--gid= --immediate-gid=",
        mod_wsgi="--group=",
        convert=values.as_text("group"),
    ),
    needless(
        "Tailrace does not need it",
        gunicorn="--initgroups --no-initgroups --http-parser= --suppress-ragged-eofs --do-handshake-on-connect",
        uwsgi="--plugin/--plugins/--need-plugin/--need-plugins= --plugins-dir/--plugin-dir= --autoload "
        "-i/--single-interpreter "
        "--thunder-lock --strict --no-initgroups --skip-atexit --skip-atexit-teardown "
        "--close-on-exec --close-on-exec2 --wsgi-accept-buffer/--wsgi-accept-buffers "
        "--wsgi-env-behaviour/--wsgi-env-behavior= "
        "--py-call-osafterfork --py-call-uwsgi-fork-hooks --reload-os-env --max-vars= --max-apps= --max-fd= "
        "--tcp-nodelay "
        "--so-keepalive --lock-engine= --locks= --ftok= --no-fd-passing --safe-fd= --honour-stdin --no-threads-wait "
        "--threads-stacksize/--thread-stacksize= --freebind --map-socket= --cgi-mode --no-default-app --no-site "
        "--no-defer-accept --signal-bufsize= --reaper --enable-metrics --clock= --sharedarea= --wsgi-strict "
        "-r/--refork "
        "--socket-sndbuf= --socket-rcvbuf= --http-modifier1= --http-socket-modifier1= --skip-zero "
        "--buffer-size2= --auto-weight --weight= --die-on-no-workers --http-processes/--http-workers= "
        "--http-buffer-size= --http-quiet --shutdown-sockets --flock= --flock2= --force-cwd= --master-as-root "
        "--notify-socket= --abstract-socket --tcp-fast-open/--tcp-fastopen= --mode=",
        mod_wsgi="--application-group= --process-group= --server-root= --server-mpm= --embedded-mode --socket-prefix= "
        "--httpd-executable= --shell-executable= --rotatelogs-executable= --modules-directory= --orphan-interpreter "
        "--python-eggs= --daemon-backlog= --send-buffer-size= --receive-buffer-size= --header-buffer-size= "
        "--response-buffer-size= --response-flush-delay= --connect-timeout= --map-head-to-get= --switch-interval= "
        "--chunked-request --initial-workers= --minimum-spare-workers= --maximum-spare-workers= --enable-docs "
        "--free-threading --gdb-executable= --allow-localhost",
        waitress="--recv-bytes= --send-bytes= --asyncore-loop-timeout= --asyncore-use-poll --cleanup-interval= "
        "--channel-request-lookahead= --log-socket-errors",
    ),
    option(
        "pidfile",
        gunicorn="-p/--pid=:pidfile",
        uwsgi="--pidfile= --pidfile2= --safe-pidfile= --safe-pidfile2=",
        mod_wsgi="--pid-file=",
        granian="--pid-file=",
        other="--pid-file=",
    ),
    option(
        "max_requests",
        gunicorn="--max-requests=",
        uwsgi="-R/--max-requests=",
        mod_wsgi="--maximum-requests=",
        other="--limit-max-requests=",
    ),
    needless(
        "--max-requests varies by up to 10 % at random, so that workers are not all replaced at once",
        gunicorn="--max-requests-jitter=",
        uwsgi="--max-requests-delta=",
        other="--limit-max-requests-jitter=",
    ),
    option(
        "max_lifetime", uwsgi="--max-worker-lifetime=", mod_wsgi="--restart-interval=", granian="--workers-lifetime="
    ),
    needless(
        "a worker's lifetime varies by up to 10 %, so that workers are not all replaced at once",
        uwsgi="--max-worker-lifetime-delta= --min-worker-lifetime=",
    ),
    option(
        "max_rss",
        "with a unit: 512MiB",
        uwsgi="--reload-on-rss= --evil-reload-on-rss=",
        granian="--workers-max-rss=",
        convert=values.to("max_rss", suffix="MiB"),
    ),
    elsewhere(
        "--max-rss limits the resident memory of a worker", uwsgi="--reload-on-as= --evil-reload-on-as= --limit-as="
    ),
    needless(
        "--max-rss is checked every few seconds",
        granian="--rss-sample-interval= --rss-samples=",
        uwsgi="--mem-collector-freq=",
    ),
    elsewhere(
        "the number of workers does not adapt to the load; --workers sets it, and SIGTTIN and SIGTTOU change it by one",
        uwsgi="--cheaper= --cheaper-initial= --cheaper-step= --cheaper-algo= --cheaper* --cheap --idle= --die-on-idle",
        mod_wsgi="--inactivity-timeout= --ignore-activity=",
    ),
    needless("workers that die are replaced by default", granian="--respawn-failed-workers --respawn-interval="),
    needless("SIGTERM stops the server by default", uwsgi="--die-on-term --exit-on-reload"),
    needless("UNIX socket files are removed by default", uwsgi="--vacuum"),
    needless("if the master dies, its workers finish their requests and exit", uwsgi="--no-orphans"),
    elsewhere(
        "Tailrace stays in the foreground; to run it in the background, use systemd, a container or `setsid tailrace "
        "... &`",
        gunicorn="-D/--daemon",
        uwsgi="-d/--daemonize= --daemonize2=",
        other="--daemon",
    ),
    elsewhere(
        "`pip install 'tailrace[title]'` makes `ps` show the application",
        gunicorn="-n/--name=:proc_name :default_proc_name",
        uwsgi="--auto-procname --procname= --procname-prefix= --procname-prefix-spaced= --procname-append= "
        "--procname-master=",
        mod_wsgi="--process-name=",
        granian="--process-name=",
    ),
    needless("heartbeats are in shared memory and need no file", gunicorn="--worker-tmp-dir="),
    elsewhere("TMPDIR sets the directory for temporary files", gunicorn=":tmp_upload_dir"),
    elsewhere(
        "`--status ADDRESS` serves the state of the server; signals to the master control it",
        gunicorn="--control-socket= --control-socket-mode= --no-control-socket:control_socket_disable",
        uwsgi="--master-fifo= --fifo= --stop= --reload= --pause= --suspend= --resume= --signal= --ping=",
    ),
    elsewhere(
        "SIGHUP to the master replaces the workers; for development, --reload watches the code and the files that "
        "--reload-include names",
        uwsgi="--touch-reload= --touch-workers-reload= --touch-chain-reload= --fs-reload= --fs-brutal-reload= "
        "--reload-on-fd= "
        "--touch-mules-reload= --touch-spoolers-reload= --touch-exec= --touch-signal= --propagate-touch",
        mod_wsgi="--disable-reloading",
    ),
    elsewhere("SIGUSR1 to the master reopens the logs", uwsgi="--touch-logreopen= --touch-logrotate="),
    elsewhere(
        "run the task in a separate service, such as a systemd timer, Celery or RQ",
        uwsgi="--mule= --mules= --mule* --farm= --cron= --cron2= --unique-cron= --legion* --spooler= --spooler* "
        "--timer= --rbtimer= --attach-daemon= "
        "--attach-daemon2= --smart-attach-daemon= --smart-attach-daemon2= --attach* --smart* --exec* --worker-exec= "
        "--python-worker-override= "
        "--queue= --queue-store= --rpc*",
        gunicorn="--dirty-app=:dirty_apps --dirty-workers= --dirty-timeout= --dirty-threads= --dirty-graceful-timeout= "
        ":on_dirty_starting :dirty_post_fork :dirty_worker_init :dirty_worker_exit",
        mod_wsgi="--service-script== --service-user== --service-group== --service-log-file==",
    ),
    elsewhere(
        "run one server per site, started by systemd (`deploy/tailrace.service`)",
        uwsgi="--emperor= --emperor* --early-emperor --vassal* --vassals* --zerg= --zerg* --zergpool= --vhost "
        "--vhost-host --heartbeat= --imperial*",
    ),
    elsewhere(
        "use a proxy in front for routing, and nginx or HAProxy to balance the load between servers",
        uwsgi="--route= --route* --error-route* --final-route* --response-route* --fastrouter= --fastrouter* "
        "--rawrouter= --rawrouter* "
        "--subscribe= --subscribe* --subscription* --subscribe2= --http-subscription-server= --http-to= --http-to* "
        "--http-var= --sslrouter* --forkpty* --tuntap*",
    ),
    elsewhere(
        "use a cache in the application, such as Redis",
        uwsgi="--cache= --cache2= --cache* --load-file-in-cache= --check-cache=",
    ),
    elsewhere(
        "configure this in systemd or the container (`CPUAffinity=`, `Nice=`, `LimitNPROC=`, `RootDirectory=`)",
        uwsgi="--cpu-affinity= --prio= --limit-nproc= --chroot= --pivot-root= --ksm= --never-swap --ns= --ns* "
        "--namespace* --cgroup* "
        "--unshare= --add-gid= --cap= --jailed --wait-for-* --wait-interface= --check-mountpoint= --setns* --mount-*",
        mod_wsgi="--cpu-time-limit=",
    ),
    elsewhere(
        "--hooks names a module with functions that the master and the workers call",
        uwsgi="--hook-* --call-* --exception-handler= "
        "--reload-on-exception --reload-on-exception* --after-request-hook= --on-start=",
    ),
    # Hooks of gunicorn.
    _hook(":on_starting", "on_start()", "runs before the first fork"),
    _hook(":post_fork", "post_fork(worker)", "runs in each new worker"),
    _hook(
        ":post_worker_init :when_ready",
        "worker_start(worker)",
        "runs in each worker, once the application is loaded; systemd is notified with `Type=notify-reload`",
    ),
    _hook(":pre_request", "pre_request(environ)", "runs in the request's thread, before the application"),
    _hook(":post_request", "post_request(record)", "runs after each response, with its delivery record"),
    _hook(":worker_exit :worker_int", "worker_stop(worker)", "runs in each worker after its last request"),
    _hook(":child_exit", "worker_exit(worker)", "runs in the master after a worker has ended"),
    _hook(":on_exit", "on_exit()", "runs last, in the master"),
    elsewhere(
        "there is no such hook; --request-timeout logs the stack of a request that takes too long, and --hang-timeout "
        "logs the stacks of a worker that hangs",
        gunicorn=":worker_abort",
    ),
    elsewhere("there is no such hook", gunicorn=":pre_fork :on_reload :pre_exec :nworkers_changed"),
    # Threads.
    option(
        "threads",
        gunicorn="--threads=",
        uwsgi="--threads=",
        mod_wsgi="--threads=",
        granian="--blocking-threads=",
        waitress="--threads=",
    ),
    needless("idle threads exit by default", granian="--blocking-threads-idle-timeout="),
    needless("threads that the application starts run by default", uwsgi="-T/--enable-threads"),
    option(
        "gevent",
        says="requests run in threads by default; {ours} runs them in greenlets, --threads 1 one at a time",
        gunicorn="-k/--worker-class=",
        convert=values.worker_class,
    ),
    option("gevent", "and --max-greenlets limits their number", uwsgi="--gevent=", convert=values.uwsgi_gevent),
    needless(
        "--gevent patches the standard library before the application is loaded",
        uwsgi="--gevent-monkey-patch --gevent-early-monkey-patch --gevent-wait-for-hub",
    ),
    elsewhere(
        "--gevent runs each request in a greenlet; Tailrace has no other loop engine",
        uwsgi="--async= --ugreen --loop= --eventlet= --tornado= --fiber --stackless",
    ),
    option(
        "max_greenlets",
        says="with --gevent, {ours} limits concurrent requests; the limit of open files limits connections",
        gunicorn="--worker-connections=",
        convert=values.worker_connections,
    ),
    needless(
        "Tailrace has a single built-in event loop; --threads limits the application threads",
        granian="--loop= --runtime-mode= --runtime-threads= --runtime-blocking-threads= --task-impl=",
        other="--loop=",
    ),
    needless(
        "responses and files are sent without additional threads",
        uwsgi="--offload-threads/--offload-thread=",
    ),
    option(
        "max_queue",
        says="--threads limits concurrent requests, {ours} queued requests",
        granian="--backpressure=",
        convert=values.part_of(reason="`threads` limits concurrent requests, `max_queue` queued requests"),
    ),
    elsewhere(
        "--max-queue limits queued requests, and further requests get 503; the limit of open files limits connections",
        other="--limit-concurrency=",
    ),
    needless(
        "a worker keeps as many connections as its limit of open files allows, up to 100,000",
        waitress="--connection-limit=",
        mod_wsgi="--max-clients=",
    ),
    # Limits.
    option("max_body", uwsgi="--limit-post=", mod_wsgi="--limit-request-body=", waitress="--max-request-body-size="),
    needless(
        "request bodies are read before the application is called, and large ones go to a file (--client-memory)",
        waitress="--inbuf-overflow=",
        uwsgi="--post-buffering= --post-buffering-bufsize= --http-chunked-input --body-read-warning= "
        "--upload-progress=",
    ),
    needless(
        "responses wait in memory, and then in a file, while their client is slow (--client-memory)",
        waitress="--outbuf-high-watermark= --outbuf-overflow=",
    ),
    option("request_line_limit", gunicorn="--limit-request-line="),
    elsewhere("a request may have up to 128 header fields", gunicorn="--limit-request-fields="),
    option(
        "header_bytes_limit",
        "which limits all header fields together",
        uwsgi="-b/--buffer-size=",
        granian="--http1-buffer-size=",
        convert=values.header_bytes,
    ),
    option("header_bytes_limit", waitress="--max-request-header-size=", other="--h11-max-incomplete-event-size="),
    option(
        "header_bytes_limit",
        says="{ours} limits the total size of a request's header fields",
        gunicorn="--limit-request-field_size=",
        convert=values.header_bytes,
    ),
    # Times.
    option(
        "request_timeout",
        says=_TIMEOUT.replace("--request-timeout", "{ours}"),
        gunicorn="-t/--timeout=",
        convert=values.gunicorn_timeout,
    ),
    option("request_timeout", uwsgi="-t/--harakiri=", mod_wsgi="--request-timeout="),
    needless(
        "the log contains the stack of each request that --request-timeout ends",
        uwsgi="--harakiri-verbose --harakiri-graceful-timeout= --harakiri-graceful-signal= "
        "--harakiri-queue-threshold= --harakiri-no-arh/--no-harakiri-arh "
        "--py-tracebacker= --backtrace-depth=",
        mod_wsgi="--interrupt-timeout=",
    ),
    option("hang_timeout", mod_wsgi="--deadlock-timeout=", other="--timeout-worker-healthcheck="),
    elsewhere("the log names a worker that takes more than a minute to load", mod_wsgi="--startup-timeout="),
    option(
        "graceful_timeout",
        gunicorn="--graceful-timeout=",
        uwsgi="--reload-mercy= --worker-reload-mercy=",
        mod_wsgi="--graceful-timeout=",
        granian="--workers-kill-timeout=",
        other="--timeout-graceful-shutdown=",
    ),
    needless(
        "--graceful-timeout is the limit for all requests in flight", mod_wsgi="--shutdown-timeout= --eviction-timeout="
    ),
    option(
        "keepalive_timeout",
        gunicorn="--keep-alive=:keepalive",
        uwsgi="--http-keepalive=?",
        mod_wsgi="--keep-alive-timeout=",
        waitress="--channel-timeout=",
        other="--timeout-keep-alive= --keep-alive=",
        convert=values.if_positive(
            "keepalive_timeout",
            "keep-alive cannot be turned off; a client that does not want it sends `Connection: close`",
        ),
    ),
    needless("Tailrace serves HTTP without a router process", uwsgi="--httprouter= --http-*"),
    needless(
        "keep-alive is on by default; --keepalive-timeout limits it",
        granian="--http1-keep-alive",
        uwsgi="--add-header-keepalive --http-auto-chunked --http-manage-expect=",
    ),
    option(
        "header_timeout",
        "in seconds, or with a unit: 500ms",
        granian="--http1-header-read-timeout=",
        convert=values.to("header_timeout", suffix="ms"),
    ),
    option("header_timeout", mod_wsgi="--header-timeout=", uwsgi="--http-headers-timeout="),
    option("body_timeout", mod_wsgi="--body-timeout="),
    needless(
        "--header-timeout and --body-timeout limit how slowly a request may arrive",
        mod_wsgi="--header-max-timeout= --header-min-rate= --body-max-timeout= --body-min-rate=",
    ),
    option(
        "write_timeout",
        mod_wsgi="--response-socket-timeout=",
        uwsgi="--so-send-timeout/--socket-send-timeout/--so-write-timeout/--socket-write-timeout=",
    ),
    elsewhere(
        "--body-timeout and --write-timeout limit how long a client may pause; --request-timeout limits the "
        "application",
        uwsgi="-z/--socket-timeout= --http-timeout= --http-connect-timeout=",
        mod_wsgi="--socket-timeout=",
    ),
    option("queue_timeout", mod_wsgi="--queue-timeout="),
    # Requests and responses.
    option("url_scheme", waitress="--url-scheme="),
    option("server_header", waitress="--ident="),
    option("server_header", says="an empty value removes the field: {ours} ''", other="--no-server-header"),
    option(
        "underscore_headers",
        says="{ours} drops, keeps or rejects header fields with an underscore in their name",
        gunicorn="--header-map=",
        convert=values.header_map,
    ),
    elsewhere(
        "Tailrace rejects such requests, and has no option to accept them",
        gunicorn="--strip-header-spaces --permit-obsolete-folding --permit-unconventional-http-method "
        "--permit-unconventional-http-version --casefold-http-method",
    ),
    elsewhere(
        "add response fields in the application, or in a proxy in front",
        uwsgi="--add-header= --rem-header/--del-header= --collect-header= --response-headers-limit= --pull-header=",
        mod_wsgi="--hsts-policy= --error-document== --error-override",
        other="--header= --headers=",
    ),
    needless(
        "Tailrace uses sendfile whenever the result is the same as with the file's read()",
        gunicorn="--no-sendfile:sendfile",
        uwsgi="--disable-sendfile --wsgi-disable-file-wrapper --fileserve-mode=",
        mod_wsgi="--enable-sendfile",
    ),
    needless(
        "blocks of a response are sent at once, and small ones are coalesced",
        granian="--http1-pipeline-flush",
        uwsgi="--start_response-nodelay",
    ),
    elsewhere(
        "Tailrace speaks HTTP/1.1; for HTTP/2, put a proxy in front",
        gunicorn="--http-protocols= --http2-cleartext= --http2*= --http2-max-concurrent-streams= "
        "--http2-initial-window-size= "
        "--http2-max-frame-size= --http2-max-header-list-size=",
        granian="--http= --http2*= --http2-adaptive-window",
        mod_wsgi="--http2",
        uwsgi="--https2=",
        other="--http2",
    ),
    option(
        "certfile",
        "with https:// before the address in --bind",
        gunicorn="--certfile=",
        granian="--ssl-certificate=",
        mod_wsgi="--ssl-certificate-file=",
        other="--ssl-certfile=",
    ),
    option(
        "keyfile",
        gunicorn="--keyfile=",
        granian="--ssl-keyfile=",
        mod_wsgi="--ssl-certificate-key-file=",
        other="--ssl-keyfile=",
    ),
    elsewhere(
        "--client-ca names the authorities that sign the certificates of clients, and --client-cert optional serves "
        "clients without one",
        gunicorn="--cert-reqs= --ca-certs=",
        mod_wsgi="--ssl-ca-certificate-file= --ssl-verify-client=",
        granian="--ssl-ca= --ssl-client-verify",
        other="--ssl-ca-certs= --ssl-cert-reqs=",
    ),
    option(
        "tls_min",
        says="{ours} sets the minimum TLS version, 1.2 by default",
        gunicorn="--ssl-version=",
        granian="--ssl-protocol-min=",
        convert=values.tls_version,
    ),
    elsewhere(
        "Tailrace speaks TLS at addresses that begin with https://; see --certfile, --keyfile, --tls-min, "
        "--keyfile-password-file and --redirect-http",
        gunicorn="--ciphers= :ssl_context",
        uwsgi="--https= --https-socket= --ssl-socket= --suwsgi-socket= --https* --ssl* --sni* --http-to-https=",
        mod_wsgi="--https-port= --https-only --ssl-certificate= --ssl-certificate-chain-file= --ssl-environment",
        granian="--ssl-keyfile-password= --ssl-crl=",
        other="--ssl-keyfile-password= --ssl-version= --ssl-ciphers= --keyfile-password= --https= --https-port=",
    ),
    elsewhere(
        "configure this in a proxy in front, such as nginx or Apache",
        mod_wsgi="--server-name= --server-alias= --allow-override= --proxy-mount-point== --proxy-virtual-host== "
        "--proxy-timeout= --host-access-script= --auth-user-script= --auth-type= --auth-group-script= --auth-group= "
        "--include-file= --rewrite-rules= --add-handler== --with-cgi --compress-responses --setup-only",
        uwsgi="--http-auto-gzip --error-page-403= --error-page-404= --error-page-500=",
    ),
    # Static files.
    option(
        "static",
        "which answers 404 for missing files",
        uwsgi="--static-map=",
        convert=values.static_map,
    ),
    option(
        "static",
        "with the folder that contains the files: /a=FOLDER/a",
        uwsgi="--static-map2=",
        convert=values.static_map2,
    ),
    option("static", "with path and folder: /static=FOLDER", mod_wsgi="--url-alias==", convert=values.alias),
    option(
        "static", "with path and folder: /static=FOLDER", granian="--static-path-mount=", convert=values.granian_static
    ),
    option(
        "static",
        "with path and folder: /static=FOLDER",
        granian="--static-path-route=",
        convert=values.part_of("static_path_mount", reason="this route has no folder"),
    ),
    option("static", "with path and folder: /static=FOLDER", other="--static-dir= --static-folder="),
    option("overlay", uwsgi="--check-static/--static-check=", mod_wsgi="--document-root="),
    elsewhere("--overlay serves the files of the folder that you name", uwsgi="--check-static-docroot"),
    option(
        "static_index", uwsgi="--static-index=", granian="--static-path-dir-to-file=", mod_wsgi="--directory-index="
    ),
    elsewhere("list the files of a folder in the application", mod_wsgi="--directory-listing"),
    option("static_cache", "as in /static=1d", granian="--static-path-expires=", convert=values.static_expires),
    option(
        "static_cache",
        says="{ours} '*.css=1d' sets the Cache-Control of files by their name or path",
        uwsgi="--static-expires= --static-expires* --static-expires-uri= --static-expires-type=",
        convert=values.part_of(
            reason='`static_cache = ["*.css=1d"]` sets the Cache-Control of files by their name or path'
        ),
    ),
    needless(
        "precompressed files such as app.js.gz are always sent to clients that accept them",
        uwsgi="--static-gzip= --static-gzip-all --static-gzip*",
    ),
    option(
        "mime",
        says="{ours} .EXT=TYPE sets the type of one extension, and may be repeated",
        uwsgi="--mimefile/--mime-file=",
        mod_wsgi="--mime-types=",
        convert=values.part_of(
            reason='`mime = [".data=text/plain"]` sets the type of one extension; the usual ones are known'
        ),
    ),
    needless(
        "each worker keeps up to 512 files open, and small ones in memory (--static-memory)",
        uwsgi="--static-cache-paths= --static-cache-paths-name=",
    ),
    needless("range requests are supported by default", uwsgi="--honour-range"),
    elsewhere(
        "--static-symlinks controls which symbolic links are followed",
        uwsgi="--static-safe= --static-skip-ext=",
    ),
    option(
        "sendfile_root",
        "with the folder whose files may be sent",
        other="--x-sendfile --xsendfile --xsendfilepath= --x-sendfile-path=",
    ),
    # Logs and figures.
    option("access_log", gunicorn="--access-logfile=:accesslog", other="--access-logfile="),
    option(
        "access_log",
        "with a file, or - for standard output",
        mod_wsgi="--access-log",
        granian="--access-log:LOG_ACCESS_ENABLED",
        convert=lambda value, others: {"access_log": "-"} if values.is_on(value) else {},
    ),
    option(
        "access_log",
        "with a path, syslog or journal",
        uwsgi="--req-logger= --logger-req=",
        convert=values.uwsgi_logger("access_log"),
    ),
    needless(
        "there is no access log by default; --access-log writes one",
        uwsgi="-L/--disable-logging",
        gunicorn="--disable-redirect-access-to-syslog",
        other="--no-access-log --disable-logging",
    ),
    option("access_log_format", gunicorn="--access-logformat=:access_log_format", other="--access-log-format="),
    option(
        "access_log_format",
        says="{ours} takes fields such as {client} and {status}, and gunicorn's atoms",
        granian="--access-log-fmt=:LOG_ACCESS_FMT",
        mod_wsgi="--access-log-format=",
        uwsgi="--log-format/--logformat= --logformat-strftime --log-format-strftime",
        convert=values.part_of(
            reason="`access_log_format` takes fields such as {client} and {status}, and gunicorn's atoms"
        ),
    ),
    option(
        "log_level",
        gunicorn="--log-level=:loglevel",
        granian="--log-level=",
        mod_wsgi="--log-level=",
        other="--log-level=",
        convert=values.log_level,
    ),
    option(
        "log",
        gunicorn="--error-logfile/--log-file=:errorlog",
        uwsgi="--logto= --logto2=",
        other="--log-file= --error-log=",
        convert=values.log_file,
    ),
    option("log", "with a path, syslog or journal", uwsgi="--logger=", convert=values.uwsgi_logger("log")),
    option("log", "as in --log syslog", uwsgi="--syslog=? --log-syslog=?", convert=values.uwsgi_syslog),
    option("log", "as in --log syslog://HOST:514", uwsgi="--rsyslog= --rsyslog*", convert=values.uwsgi_rsyslog),
    option("log", "as in --log syslog", gunicorn="--log-syslog:syslog", convert=values.gunicorn_syslog),
    option(
        "log",
        says="{ours} takes them in its value, as in syslog://HOST:514?facility=local0&tag=shop",
        gunicorn="--log-syslog-to=:syslog_addr --log-syslog-prefix=:syslog_prefix "
        "--log-syslog-facility=:syslog_facility",
        convert=values.part_of("syslog", reason='`log = "syslog"` sends the log to syslog'),
    ),
    option("log", "as in --log syslog", other="--syslog="),
    elsewhere(
        "SIGUSR1 reopens the file of --log, for logrotate; nothing waits for the log",
        uwsgi="--log-master --threaded-logger --log-maxsize= --log-backupname= "
        "--log-truncate --log-reopen --logdate= --logfile-chown= --logfile-chmod= --log-socket=",
    ),
    elsewhere(
        "--log and --access-log name files, syslog or the journal; SIGUSR1 reopens the files, for logrotate",
        mod_wsgi="--error-log-format= --error-log-name= --access-log-name= --startup-log-name= --startup-log "
        "--log-to-terminal "
        "--log-directory= --rotate-logs --max-log-size=",
    ),
    elsewhere(
        "the application's output goes to standard output and standard error: redirect them, as in `tailrace ... "
        ">>server.log 2>&1`",
        gunicorn="--capture-output -R/--enable-stdio-inheritance",
    ),
    option(
        "log_config",
        gunicorn="--log-config-json=:logconfig_json",
        granian="--log-config=",
        convert=values.log_config,
    ),
    elsewhere(
        "write it as a dictionary of logging.config.dictConfig in a TOML or JSON file, and name that in --log-config",
        gunicorn="--log-config=:logconfig :logconfig_dict",
    ),
    elsewhere(
        "attach handlers to the loggers tailrace, tailrace.error and tailrace.access, as with --log-config",
        gunicorn="--logger-class=",
    ),
    needless("the server's log is always on, from --log-level up", granian="--log:LOG_ENABLED"),
    needless(
        "the access log contains all responses, and the server's log the failed ones, depending on --log-level",
        uwsgi="--log-4xx --log-5xx --log-slow= --log-big= --log-zero --log-date= --log-prefix= --log-x-forwarded-for "
        "--log-micros "
        "--log-sendfile --ignore-sigpipe --ignore-write-errors --write-errors-tolerance= --disable-write-exception "
        "--write-errors-exception-only -m/--memory-report --quiet --log-ioerror --log-encoder= --log-route= "
        "--log-req-route=",
    ),
    option("slow_request_log", mod_wsgi="--slow-requests="),
    needless("the server's log has no colors", other="--use-colors"),
    option("status", "which has its own format", uwsgi="--stats/--stats-server=", convert=values.stats),
    needless(
        "--status answers HTTP requests with JSON",
        uwsgi="--stats-http --stats-minified/--stats-min --stats-no-cores --stats-no-metrics",
    ),
    option(
        "status",
        says="{ours} ADDRESS answers /metrics for Prometheus",
        granian="--metrics:METRICS_ENABLED --metrics-address= --metrics-port= --metrics-scrape-interval=",
        mod_wsgi="--server-metrics --server-status --telemetry-service= --enable-telemetry --telemetry-ui-port= "
        "--telemetry-interval= --telemetry-options=",
        other="--metrics",
        convert=values.part_of(reason='`status = "127.0.0.1:9000"` answers /metrics for Prometheus'),
    ),
    elsewhere(
        "--status ADDRESS answers /metrics for Prometheus, and --statsd sends the same figures",
        uwsgi="--carbon= --carbon* --stats-push= --stats-pusher* --metric= --metric* --snmp= --snmp* --udp= --nagios "
        "--rrdtool* --alarm= --alarm* --log-alarm=",
        gunicorn="--enable-backlog-metric",
    ),
    option("statsd", gunicorn="--statsd-host=", convert=values.statsd),
    elsewhere(
        "--statsd sends names that begin with `tailrace.`: the agent can rename and tag them",
        gunicorn="--statsd-prefix= --dogstatsd-tags=",
    ),
    # Development.
    option(
        "reload",
        gunicorn="--reload",
        mod_wsgi="--reload-on-changes",
        granian="--reload",
        other="--reload",
        convert=values.switch("reload"),
    ),
    option(
        "reload",
        "without a number",
        uwsgi="--py-autoreload/--py-auto-reload/--python-autoreload/--python-auto-reload=?",
        convert=lambda value, others: {} if str(value).strip() == "0" else {"reload": True},
    ),
    option(
        "reload_include",
        gunicorn="--reload-extra-file=:reload_extra_files",
        granian="--reload-paths=",
        other="--reload-dir= --reload-dirs=",
    ),
    option(
        "reload_include",
        "with an exclamation mark: '!PATH'",
        granian="--reload-ignore-paths=",
        convert=values.ignored(),
    ),
    option(
        "reload_include",
        "with an exclamation mark and a glob: '!**/NAME'",
        granian="--reload-ignore-dirs=",
        convert=values.ignored("**/"),
    ),
    elsewhere("--reload-include '!GLOB' takes globs, not regular expressions", granian="--reload-ignore-patterns="),
    elsewhere(
        "--reload watches the .py and .so files of the current directory, of the application's directory and of "
        "editable packages; --reload-include '!GLOB' ignores some of them",
        uwsgi="--py-auto-reload-ignore=",
    ),
    needless(
        "the kernel notifies --reload of changes, and the application is loaded 0.1 s after the last one",
        gunicorn="--reload-engine=",
        granian="--reload-tick= --reload-ignore-worker-failure",
        other="--reload-delay=",
    ),
    option(
        "debug",
        says="{ours} shows tracebacks in the browser",
        waitress="--expose-tracebacks",
        uwsgi="--catch-exceptions",
        convert=values.part_of(reason="`debug = true` shows tracebacks in the browser, for development only"),
    ),
    option(
        "debug",
        says="{ours} runs the application on the main thread, where breakpoint() works",
        mod_wsgi="--debug-mode --enable-debugger --debugger-startup",
        uwsgi="--pyshell --pyshell-oneshot --honour-stdin-debug",
        convert=values.part_of(
            reason="`tailrace MODULE:CALLABLE --debug` runs the application on the main thread, where breakpoint() "
            "works"
        ),
    ),
    elsewhere(
        "run a tool such as py-spy or coverage on the process: `coverage run -m tailrace app:app --debug`",
        gunicorn="--spew",
        uwsgi="--profiler= --python-profiler=",
        mod_wsgi="--enable-coverage --coverage-directory= --enable-profiler --profiler-directory= --enable-recorder "
        "--recorder-directory= --enable-gdb",
    ),
    elsewhere(
        "set PYTHONWARNINGS or PYTHONOPTIMIZE in the environment",
        mod_wsgi="--python-warnings=",
        uwsgi="-O/--optimize=",
    ),
    # The grammar of uWSGI's files, which `tailrace migrate` reads.
    needless(
        "`tailrace migrate` replaces placeholders with their values",
        uwsgi="-S/--set= --set-placeholder/--set-ph= --declare-option= --print= --iprint=",
    ),
    elsewhere(
        "a tailrace.toml has no conditions: write one file per case, and select it with --config",
        uwsgi="--if-* --ifenv= --ifexists= --ifplugin= --ifdir= --endif --end-if --for= --for-* --endfor --end-for "
        "--blacklist= --whitelist=",
    ),
)
