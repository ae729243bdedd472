"""A lake on AWS by the command line, its tables by PyIceberg, its services by botocore."""

import contextlib
import json
import os
import subprocess
import time

import duckdb
import pyarrow as pa
from pyiceberg.catalog.glue import GlueCatalog

from deploy import NAME
from emulator import REGION, payload

COMMAND_SECONDS = 60
POLL_SECONDS = 0.5
DATABASE, SOURCES = "iot", "exports"
COLUMNS = "ts:timestamptz,device_id:string,value:double,quality:int"
CREATE = ["--time-column", "ts", "--series-key", "device_id", "--columns", COLUMNS, "--partition", "month(ts)"]


class Failed(AssertionError):
    """What a scenario expected did not hold."""


def expect(condition, *said):
    if not condition:
        raise Failed(" ".join(str(part) for part in said))


def until(what, look, seconds=60):
    """Waits until `look()` gives something true, and gives that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(POLL_SECONDS)
    raise Failed(f"{what}: not within {seconds} s")


class Lake:
    def __init__(self, stack, command, folder):
        self.stack, self.binary, self.folder = stack, command, folder
        endpoint = stack.emulator.endpoint
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": endpoint, "TIMELAKE_CONFIG": str(stack.config), "TIMELAKE_LAKE": f"aws:{NAME}",
        }  # fmt: skip
        self.s3, self.sqs, self.functions = stack.client("s3"), stack.client("sqs"), stack.client("lambda")
        self.dynamo, self.glue, self.machine = stack.client("dynamodb"), stack.client("glue"), stack.client("stepfunctions")
        self.catalog = GlueCatalog(
            "glue",
            **{
                "glue.endpoint": endpoint, "glue.region": REGION, "glue.access-key-id": "test", "glue.secret-access-key": "test",
                "s3.endpoint": endpoint, "s3.region": REGION, "s3.access-key-id": "test", "s3.secret-access-key": "test",
            },
        )  # fmt: skip

    def start(self, *arguments, environment=None):
        return subprocess.Popen(
            [self.binary, *map(str, arguments)], cwd=self.folder, env={**self.environment, **(environment or {})}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments, code=0, environment=None):
        """The command, and what it says as one JSON object."""
        process = self.start(*arguments, "--json", environment=environment)
        try:
            out, err = process.communicate(timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise Failed(f"timelake {' '.join(map(str, arguments))} took more than {COMMAND_SECONDS} s: {err[-1500:]}") from None
        expect(process.returncode == code, f"timelake {' '.join(map(str, arguments))} ended with {process.returncode}, not {code}:", err[-1500:], out[-1500:])
        return json.loads(out) if out.strip() else {}

    def backfill(self, table, source, *options, code=0):
        return self.run("backfill", f"{DATABASE}.{table}", "--from", source, *options, code=code)

    def detached(self, table, source, *options):
        return self.backfill(table, source, "--detach", *options)["job"]

    def make_table(self, name):
        return self.run("table", "create", f"{DATABASE}.{name}", *CREATE)

    def put(self, key, body):
        self.s3.put_object(Bucket=SOURCES, Key=key, Body=body)
        return f"s3://{SOURCES}/{key}"

    def status(self, job):
        return self.run("backfill", "status", job)

    def state(self, job):
        return self.status(job)["job"]["state"]

    def wait(self, job, *states, seconds=90):
        return until(f"job {job} is {'/'.join(states)}", lambda: (s := self.state(job)) in states and s, seconds)

    def invoke(self, function, event):
        answer = self.functions.invoke(FunctionName=self.stack.function(function), Payload=json.dumps(event))
        body = payload(answer)
        expect("FunctionError" not in answer, f"{function}:", body)
        return body

    @contextlib.contextmanager
    def asleep(self, function, source=":sqs:"):
        """While it lasts, the function is not called by its queue (or by another source)."""
        mappings = self.functions.list_event_source_mappings(FunctionName=self.stack.function(function))["EventSourceMappings"]
        uuid = next(m["UUID"] for m in mappings if source in m["EventSourceArn"])
        self.functions.update_event_source_mapping(UUID=uuid, Enabled=False)
        try:
            yield
        finally:
            self.functions.update_event_source_mapping(UUID=uuid, Enabled=True)

    def locks(self, name):
        return [key for key in self.table(name).metadata.properties if key.startswith("timelake.lock.")]

    def sweep(self):
        return self.invoke("sweeper", {"source": "aws.events", "detail-type": "Scheduled Event", "detail": {}})

    def contents(self):
        """All that a command could change, by name."""
        found = {}
        for page in self.dynamo.get_paginator("scan").paginate(TableName=self.stack.outputs["ledger_table"], ConsistentRead=True):
            found |= {f"item {item['pk']} {item['sk']}": item for item in page["Items"]}
        for bucket in (self.stack.outputs["bucket"], SOURCES):
            for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
                found |= {f"s3://{bucket}/{o['Key']}": (o["ETag"], o["LastModified"]) for o in page.get("Contents", [])}
        for page in self.glue.get_paginator("get_tables").paginate(DatabaseName=DATABASE):
            found |= {f"table {t['Name']}": (t.get("VersionId"), t["Parameters"].get("metadata_location")) for t in page["TableList"]}
        for name, url in self.stack.outputs["queue_urls"].items():
            attributes = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
            found[f"queue {name}"] = {key: value for key, value in attributes.items() if key.startswith("ApproximateNumber")}
        executions = self.machine.list_executions(stateMachineArn=self.stack.outputs["state_machine_arn"])["executions"]
        found["executions"] = sorted(execution["name"] for execution in executions)
        return found

    def table(self, name):
        return self.catalog.load_table(f"{DATABASE}.{name}")

    def rows(self, name):
        return normal(self.table(name).scan().to_arrow())

    def files(self, name):
        return [task.file.file_path for task in self.table(name).scan().plan_files()]

    def read(self, uri):
        bucket, key = uri.removeprefix("s3://").split("/", 1)
        return self.s3.get_object(Bucket=bucket, Key=key)["Body"].read()


def normal(rows: pa.Table):
    """Rows in an order of their own, so that tables can be compared."""
    assert rows.num_columns == 4
    query = "SELECT epoch_us(ts) AS ts, device_id, value, quality FROM rows ORDER BY ALL"
    return duckdb.connect().execute(query).fetchall()
