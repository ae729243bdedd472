"""What the units of a job ask of SQS and DynamoDB, on an emulator, beside what the cost model says; how fast they go."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from cloud import started

HERE = Path(__file__).parent
# Of the model's figure.
MOST_OFF = 0.1


def total(requests, what, service=None):
    return sum(r[what] for r in requests if service in (None, r["service"]))


def compared(found):
    """Per unit: (what, measured, model)."""
    opening, working, listing = found["opening"]["requests"], found["working"]["requests"], found["listing"]
    listed = total(listing["requests"], "read_units") * listing["times"]
    measured = {
        "queue_requests": total(opening + working, "requests", "SQS"),
        "write_units": total(opening + working, "write_units"),
        "read_units": total(opening + working, "read_units") + listed,
    }
    names = {"queue_requests": "SQS requests", "write_units": "DynamoDB write units", "read_units": "DynamoDB read units"}
    return [(name, measured[key] / found["units"], found["model"][key] / found["units"]) for key, name in names.items()]


def tell(found):
    units, opening, working = found["units"], found["opening"], found["working"]
    print(f"{units:,} units, {found['counters']} counters, {found['writers']} writers that take {found['at_once']} at once; {found['twice']:,} messages came twice\n")
    print("| | units | wall | units/s | CPU of our process |\n|---|--:|--:|--:|--:|")
    for name, count, cost in (("opened and announced", opening["announced"], opening), ("worked off", units, working)):
        print(f"| {name} | {count:,} | {cost['wall_s']:.2f} s | {count / cost['wall_s']:,.0f} | {cost['cpu_s']:.2f} s |")

    print("\n| per unit | measured | model | ratio | within 10 % |\n|---|--:|--:|--:|---|")
    for name, measured, model in found["compared"]:
        ratio = measured / model
        print(f"| {name} | {measured:.2f} | {model:.2f} | {ratio:.2f} | {'yes' if abs(ratio - 1) <= MOST_OFF else '**no**'} |")

    print("\n| service | operation | opening | working | refused | write units | read units |\n|---|---|--:|--:|--:|--:|--:|")
    rows = {}
    for place, requests in enumerate((opening["requests"], working["requests"])):
        for r in requests:
            row = rows.setdefault((r["service"], r["operation"]), [0, 0, 0, 0, 0])
            row[place] += r["requests"]
            for at, what in enumerate(("refused", "write_units", "read_units"), 2):
                row[at] += r[what]
    for (service, operation), row in sorted(rows.items()):
        print(f"| {service} | {operation} | " + " | ".join(f"{value:,.0f}" for value in row) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("--units", type=int, default=20_000)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=1, help="messages of a receive: 1 as infra/ has it, at most 10")
    parser.add_argument("--json", action="store_true", help="all figures as JSON, instead of tables")
    parser.add_argument("--no-save", action="store_true", help="do not write bench/results-units.json")
    arguments = parser.parse_args()
    with started() as cloud:
        command = [arguments.program.resolve(), arguments.units, arguments.writers, arguments.at_once]
        done = subprocess.run([str(word) for word in command], env=cloud.environment, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"{arguments.program} failed")
    found = json.loads(done.stdout)
    found["compared"] = compared(found)
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        tell(found)
    if not arguments.no_save:
        (HERE / "results-units.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
