"""Starts what the scenarios need, plays them one after the other, and keeps the logs of a run that failed."""

import os
import shutil
import subprocess
import threading
import time
import traceback
from pathlib import Path

import chaos
import scenarios
from deploy import APPLY_SECONDS, Stack
from emulator import Emulator
from lake import SOURCES, Lake
from pack import pack
from proxy import Proxy

# Of the functions: a message stays hidden for six times as long.
TIMEOUTS = {"planner": 60, "writer": 30, "finalizer": 60, "refresher": 30, "sweeper": 30}


def embedded(command, folder):
    def load(database, name, create, body, *options):
        """A load of the same bytes into a lake in a folder; gives that folder."""
        home = Path(folder, f"embedded-{name}")
        home.mkdir()
        (home / "a.parquet").write_bytes(body)
        environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
        for words in (["table", "create", f"{database}.{name}", *create], ["backfill", f"{database}.{name}", "--from", "a.parquet", *options]):
            subprocess.run([command, *map(str, words), "--json"], cwd=home, env=environment, check=True, capture_output=True, timeout=120)
        return home / "lake"

    return load


class Guarded:
    """A second emulator, which enforces IAM: it is deployed while the first one is used."""

    def __init__(self, command, folder, zips):
        self.command, self.folder, self.zips = command, folder, zips
        self.emulator, self.stack, self.error = Emulator(folder / "emulator", guarded=True), None, None
        self.thread = threading.Thread(target=self._deploy)
        self.thread.start()

    def _deploy(self):
        try:
            self.stack = Stack(self.emulator, self.folder / "stack", self.zips, timeouts=TIMEOUTS)
        except Exception as error:  # is raised where it is waited for
            self.error = error

    def lake(self):
        self.thread.join(APPLY_SECONDS)
        if self.error:
            raise self.error
        lake = Lake(self.stack, self.command, self.folder)
        lake.s3.create_bucket(Bucket=SOURCES)
        return lake

    def stop(self):
        self.emulator.stop()
        self.thread.join()


def run(command, options, folder, say):
    begin = time.monotonic()
    known = chaos.ALL if options.chaos else scenarios.ALL
    chosen = options.only.split(",") if options.only else [s.__name__ for s in known]
    unknown = set(chosen) - {s.__name__ for s in known}
    if unknown:
        say(f"error: there is no scenario {', '.join(sorted(unknown))}; there are {', '.join(s.__name__ for s in known)}")
        return 2
    zips = options.zips
    if not zips:
        zips = folder / "zips"
        sizes = pack(options.bins, zips)
        say("zips: " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items()))
    emulator = Emulator(folder / "emulator")
    proxy = Proxy(emulator.port)
    guarded = Guarded(command, folder / "guarded", zips) if "guarded" in chosen else None
    failed = []
    try:
        stack = Stack(emulator, folder / "stack", zips, proxy.endpoint, TIMEOUTS)
        say(f"deployed in {time.monotonic() - begin:.0f} s")
        lake = Lake(stack, command, folder)
        lake.s3.create_bucket(Bucket=SOURCES)
        for scenario in known:
            if scenario.__name__ not in chosen:
                continue
            start = time.monotonic()
            try:
                scenario(lake=lake, proxy=proxy, guarded=guarded, embedded=embedded(command, folder))
                say(f"ok      {scenario.__name__:<38} {time.monotonic() - start:5.1f} s")
            except Exception as error:
                failed.append(scenario.__name__)
                say(f"FAILED  {scenario.__name__:<38} {time.monotonic() - start:5.1f} s  {' '.join(str(error).split())[:600]}")
                with (folder / "failures.log").open("a", encoding="utf-8") as log:
                    log.write(f"--- {scenario.__name__}: {scenario.__doc__}\n{traceback.format_exc()}\n")
        if failed:
            emulator.keep_logs(folder)
            if guarded:
                guarded.emulator.keep_logs(guarded.folder)
    except BaseException:
        say(f"logs are in {folder}")
        raise
    finally:
        proxy.stop()
        emulator.stop()
        if guarded:
            guarded.stop()
    say(f"{len(chosen) - len(failed)} of {len(chosen)} scenarios hold, {time.monotonic() - begin:.0f} s")
    if failed:
        say(f"logs are in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0
