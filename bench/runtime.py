"""Plays Lambda to one function: starts its executable and hands it events by the runtime API."""

import json
import queue
import subprocess
import threading
import time
import uuid
from http.server import ThreadingHTTPServer
from pathlib import Path

# cloud.py says where it is.
from proxy import Answering, read_body

NEXT = "/2018-06-01/runtime/invocation/next"
START_SECONDS = 30
CALL_SECONDS = 900


class Function:
    """A process of a function. `init_s`: from its start until it asks for its first event."""

    def __init__(self, name, executable, environment, memory_mb, log):
        self.events, self.answers, self.asked = queue.Queue(), queue.Queue(), queue.Queue()
        function = self

        # The function may be ended while it waits.
        class Handler(Answering):
            def answer(self, status, body=b"", headers=()):
                self.send_response_only(status)
                for key, value in headers:
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                self.wfile.flush()

            def do_GET(self):
                function.asked.put(time.monotonic())
                event = function.events.get() if self.path == NEXT else None
                if event is None:
                    self.close_connection = True
                    return
                deadline = int((time.time() + CALL_SECONDS) * 1000)
                arn = f"arn:aws:lambda:us-east-1:000000000000:function:{name}"
                headers = [("Lambda-Runtime-Aws-Request-Id", str(uuid.uuid4())), ("Lambda-Runtime-Deadline-Ms", str(deadline))]
                headers += [("Lambda-Runtime-Invoked-Function-Arn", arn), ("Content-Type", "application/json")]
                self.answer(200, json.dumps(event).encode(), headers)

            def do_POST(self):
                body = read_body(self)
                function.answers.put((self.path.rsplit("/", 1)[-1], json.loads(body or b"null")))
                self.answer(202)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        environment = {
            **environment, "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self.server.server_address[1]}", "AWS_LAMBDA_FUNCTION_NAME": name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(memory_mb), "TIMELAKE_MEMORY_MB": str(memory_mb),
            "TIMELAKE_WRITER_MEMORY_MB": str(memory_mb),
        }  # fmt: skip
        begin = time.monotonic()
        self.process = subprocess.Popen([executable], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.init_s = self.asked.get(timeout=START_SECONDS) - begin

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.events.put(None)
        self.server.shutdown()
        self.server.server_close()

    def call(self, event):
        self.events.put(event)
        kind, answer = self.answers.get(timeout=CALL_SECONDS)
        if kind != "response":
            raise RuntimeError(f"the function answered with an error: {answer}")
        return answer

    def peak_bytes(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
