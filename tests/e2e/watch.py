"""Runs a command with the environment of the functions that `make deploy-local` deployed: `watch.py EXAMPLE COMMAND...`."""

import json
import os
import subprocess
import sys

# A function's environment is the planner's but for its memory, so each of them may run with it.
FUNCTION = 'module.timelake.module.function["planner"].aws_lambda_function.this'


def deployed(example):
    shown = subprocess.run(["terraform", f"-chdir={example}", "show", "-json"], capture_output=True, text=True, check=True).stdout
    pending = [json.loads(shown).get("values", {}).get("root_module", {})]
    while pending:
        module = pending.pop()
        for resource in module.get("resources", []):
            if resource["address"] == FUNCTION:
                return resource["values"]["environment"][0]["variables"]
        pending += module.get("child_modules", [])
    sys.exit("error: no function is deployed\nhint: start an emulator, then make deploy-local")


if __name__ == "__main__":
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    os.execvpe(sys.argv[2], sys.argv[2:], {**keys, **os.environ, **deployed(sys.argv[1])})
