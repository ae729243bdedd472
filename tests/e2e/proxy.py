"""Stands between the functions and the emulator: counts their calls, and does to one of them what a scenario asks for.

A rule is asked about each call (`service`, `action`, `body`); the first that wants it has it, once. `lose` performs the
call and drops the answer; `kill` ends the function's process that made the call, before or after the call is performed; `hold` lets it wait until the rule is `free`."""

import collections
import http.client
import os
import re
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "expect"}
CALL_SECONDS = 120


class Answering(BaseHTTPRequestHandler):
    """A handler that says nothing, keeps connections, and takes it easy when one ends."""

    protocol_version = "HTTP/1.1"
    # Several writes per answer would wait for acknowledgements.
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True


class Rule:
    def __init__(self, matches, do, passes):
        self.matches, self.do, self.passes = matches, do, passes
        self.used, self.free = threading.Event(), threading.Event()


class Proxy:
    def __init__(self, port):
        """`port`: the emulator's."""
        self.calls = collections.Counter()
        self.rules, self.lock = [], threading.Lock()
        proxy = self

        class Handler(Answering):
            def carry(self):
                proxy.carry(self, port)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = carry

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def once(self, service, action, do, needle=b"", passes=0):
        """The next call of this kind whose body holds `needle`, or one after so many that pass; its `used` says that it came."""
        rule = Rule(lambda s, a, body: s == service and a == action and needle in body, do, passes)
        with self.lock:
            self.rules.append(rule)
        return rule

    def rule_for(self, service, action, body):
        with self.lock:
            for rule in self.rules:
                if rule.matches(service, action, body):
                    if rule.passes:
                        rule.passes -= 1
                        continue
                    self.rules.remove(rule)
                    return rule
        return None

    def carry(self, request, port):
        body = read_body(request)
        service, action = named(request)
        self.calls[service, action] += 1
        rule = self.rule_for(service, action, body)
        if rule is not None and rule.do == "kill before":
            kill_caller(request.client_address[1])
            request.close_connection = True
            rule.used.set()
            return
        if rule is not None and rule.do == "hold":
            rule.used.set()
            rule.free.wait(CALL_SECONDS)
            rule = None
        upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=CALL_SECONDS)
        try:
            # The host stays as it was signed.
            upstream.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in HOP and name.lower() != "content-length":
                    upstream.putheader(name, value)
            upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body)
            answer = upstream.getresponse()
            content = answer.read()
        finally:
            upstream.close()
        if rule is not None:
            if rule.do == "kill after":
                kill_caller(request.client_address[1])
            request.close_connection = True
            rule.used.set()
            return
        request.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP and (name.lower() != "content-length" or request.command == "HEAD"):
                request.send_header(name, value)
        if request.command != "HEAD" and answer.status not in (204, 304):
            request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content)
        request.wfile.flush()


def read_body(request):
    if "chunked" not in request.headers.get("Transfer-Encoding", ""):
        if request.headers.get("Expect", "").lower() == "100-continue":
            request.send_response_only(100)
            request.end_headers()
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    parts = []
    while size := int(request.rfile.readline().split(b";")[0], 16):
        parts.append(request.rfile.read(size))
        request.rfile.readline()
    while request.rfile.readline().strip():
        pass
    return b"".join(parts)


def named(request):
    """(`AWSGlue`, `UpdateTable`); calls of S3 by their method."""
    target = request.headers.get("X-Amz-Target", "")
    if "." in target:
        service, action = target.rsplit(".", 1)
        return re.sub(r"_\d+$", "", service), action
    return "S3", request.command


def kill_caller(port):
    """Ends the process that holds this end of a connection on this machine."""
    # Of older connections from this port only the number is left, without a holder (inode 0).
    held = set()
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if int(fields[1].split(":")[1], 16) == port and fields[9] != "0":
            held.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            # Only a function of ours: its executable is called bootstrap.
            if Path(os.readlink(process / "exe")).name != "bootstrap":
                continue
            if any(os.readlink(fd) in held for fd in (process / "fd").iterdir()):
                os.kill(int(process.name), signal.SIGKILL)
                return
        except OSError:
            continue
    raise RuntimeError(f"nobody holds port {port}")
