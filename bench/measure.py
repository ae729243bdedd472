"""Runs one command and says what the kernel counted: `python measure.py STDOUT COMMAND...` prints one JSON line.

A process of its own, and a small one: a child's peak memory starts at that of the process it was forked from.
"""

import json
import os
import subprocess
import sys
import time

if __name__ == "__main__":
    with open(sys.argv[1], "w") as stdout:
        start = time.perf_counter()
        process = subprocess.Popen(sys.argv[2:], stdout=stdout)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    print(json.dumps({
        "exit_code": process.returncode, "wall_s": wall, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_bytes": usage.ru_maxrss * 1024,
    }))  # fmt: skip
