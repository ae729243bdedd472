"""The emulator of AWS: a process of its own on a free loopback port, with an environment that holds nothing else."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import botocore.config
import botocore.session

REGION = "us-east-1"
START_SECONDS = 30
SCRIPT = Path(__file__).parent.parent / "python" / "emulator.py"


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Emulator:
    def __init__(self, folder, guarded=False):
        """`guarded`: it enforces IAM."""
        self.folder = Path(folder)
        self.folder.mkdir(parents=True)
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.log = self.folder / "emulator.log"
        # Functions inherit all of this. AWS_ENDPOINT_URL is not among it: it would replace the one they are deployed with.
        environment = {
            "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(self.folder), "TMPDIR": str(self.folder), "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port), "S3_DATA_DIR": str(self.folder / "s3"), "STATE_DIR": str(self.folder / "state"),
            "AUTH": "true" if guarded else "false", "SFN_WAIT_SCALE": "0.2", "LOG_LEVEL": "INFO",
        }  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT)], env=environment, cwd=self.folder, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        self._wait()

    def _wait(self):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the emulator ended at once: {self.log}")
            try:
                with urllib.request.urlopen(f"{self.endpoint}/_localstack/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"the emulator did not start in {START_SECONDS} s: {self.log}")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def client(self, service, endpoint=None):
        return botocore.session.get_session().create_client(
            service, endpoint_url=endpoint or self.endpoint, region_name=REGION, aws_access_key_id="test", aws_secret_access_key="test",
            config=botocore.config.Config(s3={"addressing_style": "path"}, retries={"max_attempts": 2}, read_timeout=120),
        )  # fmt: skip

    def keep_logs(self, folder):
        """What the functions said, one file each."""
        logs = self.client("logs")
        for group in logs.get_paginator("describe_log_groups").paginate().search("logGroups[].logGroupName"):
            lines = []
            for event in logs.get_paginator("filter_log_events").paginate(logGroupName=group).search("events[]"):
                lines.append(f"{event['timestamp']} {event['message'].rstrip()}\n")
            Path(folder, group.strip("/").replace("/", "-") + ".log").write_text("".join(lines), encoding="utf-8")


def payload(answer):
    return json.loads(answer["Payload"].read() or b"null")
