"""`serve`: the service on a socket until a signal ends it.

The first SIGTERM, SIGINT or SIGHUP drains: `/ready` says so, new work is refused and streams end while the listener
still answers, the running job may finish within `H3_DRAIN_SECONDS`, then the engine and the listener go and the exit
code is 0, `LAST_SECONDS` after that time at the latest. A second SIGTERM or SIGINT ends everything at once; SIGHUP does
not, since a terminal that closes sends it two or three times. uvicorn is run in this process with one worker: two would
load the weights twice. Its h11 is Python; 100 requests a second to `/live` take 6 % of a core, and 3.5 % with httptools
(one core of a cloud CPU), which is no reason for another dependency.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import structlog
import uvicorn

from h3runtime import __version__
from h3runtime.api.app import create_app
from h3runtime.api.auth import exposure_warning
from h3runtime.api.connections import BACKLOG, ServerConfig
from h3runtime.api.service import Service
from h3runtime.errors import Offence, SettingsError
from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.observe import logs
from h3runtime.observe.cores import engine_threads
from h3runtime.observe.spans import configure_spans
from h3runtime.settings import Settings

ENGINE = "h3runtime.engine:create"
"""Called in the engine process as `create(settings, threads)`. Named, not imported: no torch in this process."""
LAST_SECONDS = 13.0
"""After the drain's time the process ends whatever still holds it up; 15 s is what an operator is promised."""
LEFT_SECONDS = 0.5
"""What a thread gets to end when everything else has."""

log = structlog.get_logger("h3runtime.serve")


def serve(settings: Settings, factory: str = ENGINE) -> int:
    """Serve until a signal; the exit code. `SettingsError` if the address or the data folder can't be used.

    factory: `package.module:function` of the engine; it gets the settings and how many threads it may use.
    """
    _configure_logs(settings)
    configure_spans(settings.otlp_endpoint, "h3runtime")
    # The folder before the address: with both taken, the server that holds the folder is the one to name.
    service = Service(settings, EngineRecipe(factory, (settings, engine_threads()), settings.log_file))
    try:
        with _listen(settings.host, settings.port) as listener:
            _Server(service).run(sockets=[listener])
    finally:
        service.supervisor.kill()
        service.close()
    log.info("stopped")
    _abandon_threads()
    return 0


def _abandon_threads() -> None:
    """End without the threads that still judge media: a slow medium may hold one for minutes, past every deadline. What
    reads it in a child ends with its pipe."""
    rest = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    for thread in rest:
        thread.join(LEFT_SECONDS)
    if any(thread.is_alive() for thread in rest):
        sys.stdout.flush()
        os._exit(0)


def _configure_logs(settings: Settings) -> None:
    try:
        secrets = [settings.api_key.get_secret_value()] if settings.api_key else []
        logs.configure("stdout", file=settings.log_file, prompts=settings.log_prompts, secrets=secrets)
    except OSError as error:
        message = f"the log file {settings.log_file} can't be opened: {error.strerror or error}"
        raise SettingsError(
            message, [Offence("H3_LOG_FILE", message, "a file in a folder that can be written to")]
        ) from error


class _Server(uvicorn.Server):
    """uvicorn with our way of ending: it closes its listener only after the drain."""

    def __init__(self, service: Service) -> None:
        app = create_app(service)
        # Made at its first use it would hold up everybody for a tenth of a second.
        app.openapi()
        # What is there by now stays: a full collection that looked at it would hold up everybody for 50 ms.
        gc.collect()
        gc.freeze()
        settings = service.settings
        config = ServerConfig(app, settings.read_seconds, tls_context(settings))
        super().__init__(config)
        self._service = service
        self._drain: threading.Thread | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen first, so that the health of a loading engine can be asked for; signals are ours by now."""
        await super().startup(sockets)
        scheme = "https" if self.config.ssl else "http"
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            log.info("listening", url=f"{scheme}://{shown}:{port}", version=__version__, pid=os.getpid())
        if warning := exposure_warning(self._service.settings):
            log.warning("exposed", message=warning)
        self._service.start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The library's own are SIGTERM and SIGINT; it too leaves them alone in another thread than the main one."""
        is_main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGHUP)
        is_ours = is_main and before not in (signal.SIG_IGN, None)
        with super().capture_signals():
            if is_ours:
                signal.signal(signal.SIGHUP, self.handle_exit)
            try:
                yield
            finally:
                if is_ours:
                    signal.signal(signal.SIGHUP, before)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # the library's signature
        if self._drain is not None:
            if sig == signal.SIGHUP:
                return
            self._service.supervisor.kill()
            os._exit(128 + sig)
        self._drain = threading.Thread(target=self._leave, args=(sig,), name="drain", daemon=True)
        self._drain.start()
        threading.Thread(target=self._end, name="last", daemon=True).start()

    def _leave(self, sig: int) -> None:
        log.info("draining", signal=signal.Signals(sig).name, seconds=self._service.settings.drain_seconds)
        try:
            self._service.supervisor.drain(self._service.settings.drain_seconds)
        finally:
            self.should_exit = True

    def _end(self) -> None:
        """Whatever still runs by then is nothing that a restart couldn't take up."""
        time.sleep(self._service.settings.drain_seconds + LAST_SECONDS)
        log.warning("ended_late")
        self._service.supervisor.kill()
        sys.stdout.flush()
        os._exit(0)


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """None without a certificate. `SettingsError` for files that can't be used."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password of ours the library would ask for one on the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except OSError as error:
        why = f"the certificate or its key can't be used: {error.strerror or error}"
        legal = "a PEM certificate, and the unencrypted key that belongs to it"
        raise SettingsError(f"H3_TLS_CERT: {why}", [Offence("H3_TLS_CERT", why, legal)]) from error
    return context


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _unusable(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _unusable(host, port, error) from error
    return listener


def _unusable(host: str, port: int, error: OSError) -> SettingsError:
    message = f"can't listen on {host}:{port}: {error.strerror or error}"
    return SettingsError(message, [Offence("H3_PORT", message, "a free port on an address of this machine")])
