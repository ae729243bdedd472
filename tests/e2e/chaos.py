"""`make chaos`: what may go wrong on AWS, each with what must hold afterwards. Too slow for every commit."""

import json
import threading
import time

import sources
from lake import POLL_SECONDS, SOURCES, Lake, expect, until
from scenarios import OVER, counts_hold, same_rows, same_table

LIVE_SECONDS = 0.2


# The message of a writer that was killed stays hidden for six times the writer's timeout (30 s).
OVER_SECONDS = 300


def over(lake, name, job):
    """Sweeps until the job is over, as the schedule would."""
    until(f"job {job} is over", lambda: lake.sweep() is not None and lake.state(job) == OVER, OVER_SECONDS)
    report = lake.run("backfill", "report", job)
    counts_hold(report)
    present(lake, name)
    return report


def finish(lake, name, job, *loads):
    report = over(lake, name, job)
    same_rows(lake, name, *loads)
    return report


def present(lake, name):
    """No file that main names is missing."""
    for uri in lake.files(name):
        bucket, key = uri.removeprefix("s3://").split("/", 1)
        lake.s3.head_object(Bucket=bucket, Key=key)


def begin(lake: Lake, name, seed, months=3):
    readings = sources.rows(months=months, seed=seed)
    lake.make_table(name)
    return readings, lake.put(f"{name}/a.parquet", sources.parquet(readings))


def killed_at_its_end(lake, proxy, name, seed, when, months=3):
    """A load whose writer dies at the transaction that ends its unit."""
    readings, uri = begin(lake, name, seed, months)
    rule = proxy.once("DynamoDB", "TransactWriteItems", f"kill {when}", needle=b'"DONE"')
    job = lake.detached(name, uri)
    until("a writer died", rule.used.is_set)
    finish(lake, name, job, readings)


def writer_killed_before_its_transaction(lake, proxy, **_):
    """A writer that dies after its upload, before it ends its unit: another attempt ends it; each row once."""
    killed_at_its_end(lake, proxy, "killedbefore", 21, "before")


def writer_killed_after_its_transaction(lake, proxy, **_):
    """A writer that dies after its unit ended, before the message is acknowledged: the message does nothing the next time."""
    killed_at_its_end(lake, proxy, "killedafter", 22, "after")


def last_writer_dies(lake, proxy, **_):
    """The last of several writers dies right after its transaction, and the stream is off: the sweeper closes the round."""
    name, readings = "lastwriter", sources.many()
    lake.make_table(name)
    uri = lake.put(f"{name}/a.parquet", sources.parquet(readings, group=50_000))
    with lake.asleep("sweeper", source=":dynamodb:"):
        rule = proxy.once("DynamoDB", "TransactWriteItems", "kill after", needle=b'"DONE"', passes=2)
        job = lake.detached(name, uri)
        until("the last writer died", rule.used.is_set)
        units = lake.status(job)["units"]
        expect(len(units) == 3 and all(unit["state"] == "DONE" for unit in units), "units of three writers:", units)
        expect(lake.state(job) == "WRITING", "closed although nobody could:", lake.state(job))
        over(lake, name, job)
    same_table(lake, name, readings)


def planner_killed_while_enqueuing(lake, proxy, **_):
    """A planner dies at its first or second batch of messages, before it is sent or after: the next one goes on; each row once."""
    for number, (passes, when) in enumerate(((0, "before"), (1, "after"))):
        name, readings = f"enqueuing{number}", sources.rows(months=1, seed=46 + number)
        lake.make_table(name)
        # Each file is a unit of landing: more than two batches of them.
        part = len(readings) // 25 + 1
        for at in range(0, len(readings), part):
            lake.put(f"{name}/{at:06}.csv", sources.csv(readings[at : at + part]))
        rule = proxy.once("AmazonSQS", "SendMessageBatch", f"kill {when}", needle=b'\\"land\\"', passes=passes)
        job = lake.detached(name, f"s3://{SOURCES}/{name}/")
        until("a planner died", rule.used.is_set)
        finish(lake, name, job, readings)


def same_message_twice(lake, proxy, **_):
    """Every unit's message comes twice: each unit is counted once."""
    readings, uri = begin(lake, "twice", 24)
    job = lake.detached("twice", uri)
    until("the job has units", lambda: lake.status(job)["units"])
    key = {"job": job, "gen": 1, "phase": "write", "group": "all", "round": 0}
    queue = lake.stack.outputs["queue_urls"]["work"]
    for unit in lake.status(job)["units"]:
        for _ in range(2):
            lake.sqs.send_message(QueueUrl=queue, MessageBody=json.dumps({"key": {**key, "group": unit["group"]}, "unit": unit["unit"]}))
    finish(lake, "twice", job, readings)


def two_planners(lake, proxy, **_):
    """Two planners at once, one of which dies: one plan, one job."""
    readings, uri = begin(lake, "planners", 25)
    job = lake.detached("planners", uri)
    event = {"action": "plan", "request": {"table": "iot.planners", "rows": {"from": [uri]}}, "options": {}}
    answers = []
    callers = [threading.Thread(target=lambda: answers.append(lake.invoke("planner", event))) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(90)
    expect([answer["job"] for answer in answers] == [job, job], "the planners said", answers)
    finish(lake, "planners", job, readings)


def live_commits(lake, proxy, **_):
    """Live rows are committed every 200 ms while the job is published: none is lost, none is there twice."""
    readings, uri = begin(lake, "live", 26)
    stop, live, failures = threading.Event(), [], []
    moment = max(r[0] for r in readings).replace(month=6, day=1)

    def ingest():
        for step in range(10_000):
            if stop.is_set():
                return
            row = (moment.replace(microsecond=step), "live", 1.0, 192)
            try:
                lake.table("live").append(sources.table([row]))
                live.append(row)
            except Exception as error:
                failures.append(str(error))
            time.sleep(LIVE_SECONDS)

    thread = threading.Thread(target=ingest)
    thread.start()
    try:
        report = lake.backfill("live", uri)
    finally:
        stop.set()
        thread.join(30)
    counts_hold(report)
    same_rows(lake, "live", readings, live)
    expect(len(live) > 3, "too few live commits to tell:", len(live), failures[:1])


def cancel_at_many_moments(lake, proxy, **_):
    """A job is cancelled at any moment: either all of its rows are there, or none and no lock."""
    seen = set()
    for step in range(8):
        name = f"cancel{step}"
        readings, uri = begin(lake, name, 30 + step, months=1)
        job = lake.detached(name, uri)
        time.sleep(step * POLL_SECONDS)
        process = lake.start("backfill", "cancel", job, "--json")
        process.communicate(timeout=90)
        state = lake.wait(job, "CANCELLED", "PUBLISHED", "REFRESHED")
        seen.add(state)
        same_rows(lake, name, *([] if state == "CANCELLED" else [readings]))
        expect(not lake.locks(name), f"cancelled after {step * POLL_SECONDS} s, and locked:", lake.locks(name))
        present(lake, name)
    expect("CANCELLED" in seen, "no cancel was in time:", seen)


def stale_writer(lake, proxy, **_):
    """A unit is given up while its writer still works; the writer's end comes too late and changes nothing."""
    readings, uri = begin(lake, "stale", 41, months=1)
    rule = proxy.once("DynamoDB", "TransactWriteItems", "hold", needle=b'"DONE"')
    job = lake.detached("stale", uri)
    until("a writer is at its end", rule.used.is_set)
    unit = lake.status(job)["units"][0]
    letter = {"key": {"job": job, "gen": 1, "phase": "write", "group": unit["group"], "round": unit["round"]}, "unit": unit["unit"]}
    lake.sqs.send_message(QueueUrl=lake.stack.outputs["queue_urls"]["work"] + "-dead", MessageBody=json.dumps(letter))
    until("the unit is FAILED", lambda: any(u["state"] == "FAILED" for u in lake.status(job)["units"]) or lake.state(job) == "HOLD")
    rule.free.set()
    finish(lake, "stale", job, readings)


def two_finalizers(lake, proxy, **_):
    """Several are told at once to publish a staged job: it is published once."""
    readings, uri = begin(lake, "finalizers", 42)
    job = lake.backfill("finalizers", uri, "--stage-only")["job"]
    publishing = [lake.start("backfill", "publish", job, "--json") for _ in range(3)]
    for process in publishing:
        out, err = process.communicate(timeout=120)
        expect(process.returncode == 0, "a publish ended with", process.returncode, out, err)
    finish(lake, "finalizers", job, readings)
    tags = [ref for ref in lake.table("finalizers").metadata.refs if ref.startswith("timelake/published/")]
    expect(len(tags) == 1, "published as", tags)


def old_writers(lake, proxy, **_):
    """A cancelled job is loaded again while messages of its first life still come: they change nothing."""
    readings, uri = begin(lake, "oldlife", 43)
    job = lake.backfill("oldlife", uri, "--stage-only")["job"]
    units = lake.status(job)["units"]
    lake.run("backfill", "cancel", job)
    again = lake.detached("oldlife", uri)
    for unit in units:
        old = {"key": {"job": job, "gen": 1, "phase": "write", "group": unit["group"], "round": unit["round"]}, "unit": unit["unit"]}
        lake.sqs.send_message(QueueUrl=lake.stack.outputs["queue_urls"]["work"], MessageBody=json.dumps(old))
    report = finish(lake, "oldlife", again, readings)
    expect(report["gen"] == 2, "this is life", report["gen"])


def large_and_small(lake, proxy, **_):
    """A small job that comes after a large one comes to its end too, and both hold each row once."""
    large = sources.rows(months=6, series=24, per_day=48, seed=44)
    lake.make_table("large")
    first = lake.detached("large", lake.put("large/a.parquet", sources.parquet(large, group=20_000)))
    readings, uri = begin(lake, "little", 45, months=1)
    counts_hold(lake.backfill("little", uri))
    same_rows(lake, "little", readings)
    finish(lake, "large", first, large)


ALL = (
    writer_killed_before_its_transaction, writer_killed_after_its_transaction, last_writer_dies, same_message_twice, two_planners,
    planner_killed_while_enqueuing, live_commits, cancel_at_many_moments, stale_writer, two_finalizers, old_writers, large_and_small,
)  # fmt: skip
