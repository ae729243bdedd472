"""What the run needs beside the repository; what is missing is named with the step that installs it."""

import importlib.util
import os
import shutil
from pathlib import Path

PACKAGES = ("ministack", "pyiceberg", "pyarrow", "duckdb", "botocore", "boto3")


class Missing(Exception):
    """Something that is not installed or not built."""


def check():
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        raise Missing(f"the Python packages {', '.join(absent)} are needed: make venv, then run with .venv/bin/python")
    if shutil.which("terraform") is None:
        raise Missing("terraform 1.9 or newer is needed: https://developer.hashicorp.com/terraform/install")
    return command()


def command():
    binary = Path(os.environ.get("TIMELAKE_BIN", "target/ci/timelake"))
    if not binary.exists():
        raise Missing(f"there is no {binary}: make build, or TIMELAKE_BIN=...")
    return binary.resolve()
