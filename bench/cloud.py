"""An emulator of AWS with a table, a bucket and queues as terraform makes them, for as long as a bench runs."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from emulator import REGION, Emulator  # noqa: E402

NAME = "bench"
# A message that is lost comes again; none is.
VISIBILITY_SECONDS = 60
QUEUES = ("work", "land-close", "close", "refresh")


class Cloud:
    """`environment`: what every function is told."""

    def __init__(self, emulator):
        self.emulator, self.folder = emulator, emulator.folder
        self.s3, self.sqs = emulator.client("s3"), emulator.client("sqs")
        self.s3.create_bucket(Bucket=NAME)
        emulator.client("dynamodb").create_table(
            TableName=NAME, BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")],
        )  # fmt: skip
        attributes = {"VisibilityTimeout": str(VISIBILITY_SECONDS)}
        self.queues = {name: self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"] for name in QUEUES}
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": REGION, "AWS_ENDPOINT_URL": emulator.endpoint, "AWS_EC2_METADATA_DISABLED": "true",
            "TIMELAKE_NAME": NAME, "TIMELAKE_LEDGER_TABLE": NAME, "TIMELAKE_WAREHOUSE": f"s3://{NAME}/warehouse", "TIMELAKE_JOBS": f"s3://{NAME}/jobs",
            **{f"TIMELAKE_{name.upper().replace('-', '_')}_QUEUE_URL": url for name, url in self.queues.items()},
        }  # fmt: skip

    def lake(self):
        """A file by which the command finds this lake as `aws:bench`."""
        lines = [f"[lakes.{NAME}]", f'region = "{REGION}"', f'endpoint_url = "{self.emulator.endpoint}"', f'ledger_table = "{NAME}"']
        lines += [f'{name.replace("-", "_")}_queue_url = "{url}"' for name, url in self.queues.items()]
        lines += [f'warehouse = "s3://{NAME}/warehouse"', f'jobs = "s3://{NAME}/jobs"']
        # Functions are called by the bench itself.
        lines += [f'state_machine_arn = "arn:aws:states:{REGION}:000000000000:stateMachine:{NAME}"']
        path = self.folder / "timelake.toml"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path


@contextlib.contextmanager
def started():
    with tempfile.TemporaryDirectory(prefix="timelake-bench-") as folder:
        emulator = Emulator(Path(folder, "emulator"))
        try:
            yield Cloud(emulator)
        finally:
            emulator.stop()
