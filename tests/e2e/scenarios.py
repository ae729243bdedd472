"""What must hold on AWS. Each function is a scenario; its docstring says what must hold, `run.py` calls all of them."""

import hashlib

import duckdb

import sources
from lake import CREATE, DATABASE, Lake, expect, until

OVER = "REFRESHED"


def same_rows(lake, name, *loads):
    wanted, found = sources.expected(*loads), lake.rows(name)
    expect(found == wanted, f"{name}: {len(found)} rows, not the {len(wanted)} of the model; first difference:", difference(found, wanted))


def same_table(lake, name, wanted):
    """As `same_rows`, of more rows than lists are for."""
    found = lake.table(name).scan().to_arrow().select(wanted.column_names)
    both = duckdb.connect().execute("SELECT count(*) FROM (FROM found EXCEPT ALL FROM wanted)").fetchone()
    expect(found.num_rows == wanted.num_rows and both == (0,), f"{name}: {found.num_rows} rows, not {wanted.num_rows}; wrong ones:", both)


def difference(found, wanted):
    missing, extra = sorted(set(wanted) - set(found))[:2], sorted(set(found) - set(wanted))[:2]
    return f"missing {missing}, too many {extra}, counted twice {len(found) - len(set(found))}"


def counts_hold(report):
    """Each source row counts once."""
    parts = (
        "rejected", "outside_range", "outside_retention", "skipped_chunk", "duplicates_collapsed", "in_source_conflicts",
        "kept_existing", "rows_written",
    )  # fmt: skip
    expect(sum(report[part] for part in parts) == report["rows_read"], "the counts do not sum to rows_read:", {p: report[p] for p in (*parts, "rows_read")})


def load(lake: Lake, name, key, body, readings, *options):
    lake.make_table(name)
    report = lake.backfill(name, lake.put(key, body), *options)
    expect(report["state"] == OVER and report["published"], "the job ended", report["state"], report.get("error"))
    counts_hold(report)
    same_rows(lake, name, readings)
    return report


def parquet(lake, **_):
    """Parquet on S3 of three months is loaded; the table has each row once, as PyIceberg reads it through Glue."""
    readings = sources.rows(months=3)
    report = load(lake, "parquet", "parquet/a.parquet", sources.parquet(readings), readings)
    expect(report["duplicates_collapsed"] == len(readings) - len(sources.expected(readings)), "repeated rows:", report["duplicates_collapsed"])
    feed = lake.table("parquet_changes").scan().to_arrow()
    expect(feed.num_rows == 3, "the feed of changed ranges has", feed.num_rows, "rows, not one for each month")


def csv(lake, **_):
    """CSV is landed first; its rows are those of the model too."""
    readings = sources.rows(months=2, seed=2)
    half = len(readings) // 2
    lake.put("csv/b.csv", sources.csv(readings[half:]))
    load(lake, "csv", "csv/a.csv", sources.csv(readings[:half]), readings[:half])
    report = lake.backfill("csv", "s3://exports/csv/")
    counts_hold(report)
    same_rows(lake, "csv", readings)


def no_row_and_one(lake, **_):
    """A source without rows ends without a commit; one row makes one unit."""
    name = "small"
    lake.make_table(name)
    before = lake.table(name).metadata.current_snapshot_id
    report = lake.backfill(name, lake.put("small/none.parquet", sources.parquet([])))
    expect(report["rows_read"] == 0 and not report["published"], "nothing was read, and yet:", report["state"], report["rows_read"])
    expect(lake.table(name).metadata.current_snapshot_id == before, "main moved for no row")
    one = sources.rows(months=1)[:1]
    report = lake.backfill(name, lake.put("small/one.parquet", sources.parquet(one)))
    expect(report["rows_written"] == 1 and report["plan"]["units"] == 1, report["rows_written"], report["plan"])
    same_rows(lake, name, one)


def again(lake, **_):
    """The same command on a published job changes nothing; live rows win over what is loaded."""
    name, live = "again", sources.rows(months=1, series=2, seed=3)
    lake.make_table(name)
    lake.table(name).append(sources.table(list({(r[0], r[1]): r for r in reversed(live)}.values())))
    readings = sources.rows(months=1, series=3, seed=4)
    uri = lake.put("again/a.parquet", sources.parquet(readings))
    report = lake.backfill(name, uri)
    counts_hold(report)
    expect(report["kept_existing"] > 0, "no row met a live one")
    same_rows(lake, name, live, readings)
    before = lake.table(name).metadata_location
    report = lake.backfill(name, uri)
    expect(report["already_published"] and lake.table(name).metadata_location == before, "loaded again:", report)


def dry_run(lake, **_):
    """A dry run tells units, files and rows of the run that follows, read in place or landed; neither it nor a job above
    --max-cost changes anything."""
    name, live = "dry", sources.rows(months=1, series=2, seed=12)
    lake.make_table(name)
    lake.table(name).append(sources.table(list({(r[0], r[1]): r for r in reversed(live)}.values())))
    loads = [live]
    for key, body, series in (("dry/a.parquet", sources.parquet, 5), ("dry/b.csv", sources.csv, 6)):
        readings = sources.rows(months=3, series=series, seed=series + 8)
        uri = lake.put(key, body(readings))
        before = lake.contents()
        told = lake.backfill(name, uri, "--dry-run")
        lake.backfill(name, uri, "--max-cost", "0.0000001", code=2)
        after = lake.contents()
        expect(after == before, "changed by a dry run:", sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k)))
        report = lake.backfill(name, uri)
        counts_hold(report)
        loads.append(readings)
        same_rows(lake, name, *loads)
        expect((told["job"], told["state"]) == (report["job"], report["state"]), told["job"], told["state"], "became", report["job"], report["state"])
        parts = {
            **{part: (told["plan"][part], report["plan"][part]) for part in ("units", "unit_rows_limit", "read_amplification")},
            **{part: (told["written"][part], report["written"][part]) for part in ("files", "bytes", "partitions")},
            **{part: (figure, report[part]) for part, figure in told["rows"].items()},
        }
        wrong = {part: both for part, both in parts.items() if both[0] != {"value": both[1], "basis": "exact"}}
        expect(not wrong and report["kept_existing"] > 0, "told and done:", wrong, report["kept_existing"])
        again = lake.backfill(name, uri, "--dry-run")
        expect(again["already_published"] and again["job"] == report["job"], "what is published is told as", again["state"], again["job"])


def resumed(lake, **_):
    """A command that is gone leaves the job running; the same command joins it, and there is one job."""
    name, readings = "resumed", sources.rows(months=3, seed=5)
    lake.make_table(name)
    uri = lake.put("resumed/a.parquet", sources.parquet(readings))
    job = lake.detached(name, uri)
    report = lake.backfill(name, uri)
    expect(report["job"] == job and report["gen"] == 1, "another job:", report["job"], "after", job)
    counts_hold(report)
    same_rows(lake, name, readings)


def cancelled(lake, **_):
    """A cancelled job leaves the table as it was: no row, no branch, no lock; the same command loads it afterwards."""
    name, readings = "cancelled", sources.rows(months=3, seed=6)
    lake.make_table(name)
    before = lake.table(name).metadata.current_snapshot_id
    uri = lake.put("cancelled/a.parquet", sources.parquet(readings))
    report = lake.backfill(name, uri, "--stage-only")
    expect(report["state"] == "STAGED", "the job is", report["state"])
    lake.run("backfill", "cancel", report["job"])
    metadata = lake.table(name).metadata
    expect(metadata.current_snapshot_id == before and list(metadata.refs) == ["main"], "left behind:", list(metadata.refs))
    expect(not lake.locks(name), "a lock is left")
    report = lake.backfill(name, uri)
    expect(report["gen"] == 2 and report["state"] == OVER, report["gen"], report["state"])
    same_rows(lake, name, readings)


def poison(lake, **_):
    """A unit whose message is given up becomes FAILED by its dead letter and holds its job; mended, it is resumed and
    only then published."""
    name, readings = "poison", sources.rows(months=3, seed=7)
    lake.make_table(name)
    body = sources.parquet(readings)
    uri = lake.put("poison/a.parquet", body)
    with lake.asleep("writer"):
        job = lake.detached(name, uri)
        lake.wait(job, "WRITING")
        queue = lake.stack.outputs["queue_urls"]["work"]
        # The consumer that never answers: each message is received as often as the queue allows.
        until("a unit's message is given up", lambda: given_up(lake, queue), 60)
        lake.wait(job, "HOLD")
        same_rows(lake, name)
    report = lake.run("backfill", "resume", job)
    expect(report["state"] == OVER, "after the resume the job is", report["state"], report.get("error"))
    counts_hold(report)
    same_rows(lake, name, readings)


def given_up(lake, queue):
    """Takes all messages once and gives them back; true when the queue has given up on all of them."""
    lake.sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, VisibilityTimeout=0)
    attributes = lake.sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    return int(attributes["ApproximateNumberOfMessages"]) + int(attributes["ApproximateNumberOfMessagesNotVisible"]) == 0


def changed_source(lake, **_):
    """A source that is replaced after planning holds the job: mixed data is never written, and the job can be
    given up."""
    name, readings = "changed", sources.rows(months=2, seed=8)
    lake.make_table(name)
    body = sources.parquet(readings)
    uri = lake.put("changed/a.parquet", body)
    with lake.asleep("writer"):
        job = lake.detached(name, uri)
        lake.wait(job, "WRITING")
        lake.put("changed/a.parquet", sources.parquet(readings[:-1]))
    lake.wait(job, "HOLD")
    units = lake.status(job)["units"]
    expect(any((u.get("error") or {}).get("reason") == "source_changed" for u in units), "no unit says source_changed:", units)
    same_rows(lake, name)
    lake.run("backfill", "cancel", job)
    expect(not lake.locks(name), "a lock is left")


def lost_commit(lake, proxy, **_):
    """The answer to a commit on Glue is lost on its way: it is looked at, not repeated blindly; each row is there once."""
    name, readings = "lost", sources.rows(months=2, seed=9)
    lake.make_table(name)
    rule = proxy.once("AWSGlue", "UpdateTable", "lose", needle=b'"lost"')
    report = lake.backfill(name, lake.put("lost/a.parquet", sources.parquet(readings)), "--stage-only")
    expect(rule.used.is_set(), "no commit was seen")
    publishing = proxy.once("AWSGlue", "UpdateTable", "lose", needle=b'"lost"')
    report = lake.run("backfill", "publish", report["job"])
    expect(publishing.used.is_set() and report["state"] == OVER, report["state"], report.get("error"))
    same_rows(lake, name, readings)


def same_bytes(lake, embedded, **_):
    """Several writers share a load; its data files are those of an embedded load of the same plan, byte for byte."""
    name, readings = "bytes", sources.many()
    body = sources.parquet(readings, group=50_000)
    lake.make_table(name)
    report = lake.backfill(name, lake.put("bytes/a.parquet", body))
    counts_hold(report)
    same_table(lake, name, readings)
    cloud = sorted(hashlib.sha256(lake.read(uri)).hexdigest() for uri in lake.files(name))
    expect(len(cloud) == 3 and report["plan"]["units"] == 3, "three months, and files:", len(cloud), "units:", report["plan"]["units"])
    plan = lake.folder / "plan.json"
    lake.run("backfill", "report", report["job"], "--plan", plan)
    folder = embedded(DATABASE, name, CREATE, body, "--plan", plan)
    local = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("warehouse/**/data/**/*.parquet"))
    expect(cloud == local, f"{len(cloud)} files on AWS and {len(local)} embedded differ in {len(set(cloud) ^ set(local))}")


def guarded(guarded, **_):
    """Where IAM is enforced, the functions' roles let them do all of a load, and somebody without rights nothing."""
    lake = guarded.lake()
    iam = lake.stack.client("iam")
    iam.create_user(UserName="nobody")
    key = iam.create_access_key(UserName="nobody")["AccessKey"]
    stranger = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    refused = lake.start("table", "list", "--json", environment=stranger)
    said = refused.communicate(timeout=60)
    expect(refused.returncode not in (0, 1), "somebody without rights was not refused:", refused.returncode, *said)
    readings = sources.rows(months=2, seed=11)
    load(lake, "parquet", "parquet/a.parquet", sources.parquet(readings), readings)
    load(lake, "csv", "csv/a.csv", sources.csv(readings), readings)
    lake.sweep()


ALL = (parquet, csv, no_row_and_one, again, dry_run, resumed, cancelled, poison, changed_source, lost_commit, same_bytes, guarded)
