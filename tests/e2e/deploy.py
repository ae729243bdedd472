"""infra/examples/localstack by terraform, with all that terraform keeps in a folder of the run."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from needs import Missing

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "infra" / "examples" / "localstack"
APPLY_SECONDS = 300
NAME = "e2e"
INSTALL = "terraform 1.9 or newer is needed: https://developer.hashicorp.com/terraform/install"


class Stack:
    """What terraform made. `functions_endpoint`: where functions believe AWS to be."""

    def __init__(self, emulator, folder, zips, functions_endpoint=None, timeouts=None):
        self.emulator, self.folder = emulator, Path(folder)
        self.folder.mkdir(parents=True)
        if shutil.which("terraform") is None:
            raise Missing(INSTALL)
        # A copy, because init leaves a lock file beside the sources.
        copy = self.folder / "infra"
        shutil.copytree(ROOT / "infra", copy, ignore=shutil.ignore_patterns(".terraform*", "terraform.tfstate*"))
        self.example = copy / EXAMPLE.relative_to(ROOT / "infra")
        variables = {
            "endpoint": emulator.endpoint, "functions_endpoint": functions_endpoint or emulator.endpoint, "name": NAME, "zips": str(Path(zips).resolve()),
            "functions": {name: {"timeout_seconds": seconds} for name, seconds in (timeouts or {}).items()}, "sweep_minutes": 2,
            "concurrency": {"work": 4},
        }  # fmt: skip
        (self.example / "run.auto.tfvars.json").write_text(json.dumps(variables), encoding="utf-8")
        self._terraform("init", "-input=false", "-no-color")
        self._terraform("apply", "-input=false", "-auto-approve", "-no-color", "-parallelism=30")
        outputs = json.loads(self._terraform("output", "-json"))
        self.outputs = {name: output["value"] for name, output in outputs.items()}
        self.config = self.folder / "timelake.toml"
        self.config.write_text(self.outputs["timelake_toml"], encoding="utf-8")

    def _terraform(self, *arguments):
        done = subprocess.run(
            ["terraform", f"-chdir={self.example}", *arguments],
            capture_output=True, text=True, timeout=APPLY_SECONDS, check=False,
            env={**os.environ, "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"},
        )  # fmt: skip
        with (self.folder / "terraform.log").open("a", encoding="utf-8") as log:
            log.write(done.stdout + done.stderr)
        if done.returncode:
            raise RuntimeError(f"terraform {arguments[0]} failed: {done.stderr.strip()[-1500:]}")
        return done.stdout

    def client(self, service):
        return self.emulator.client(service)

    def function(self, name):
        return self.outputs["function_names"][name]
