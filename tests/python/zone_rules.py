"""The local times around every change of every zone, as zoneinfo has them, for the property test of zones.

Writes to stdout, per set of zones with the same rules: a line of JSON {"zones": [...], "rows": n}, then n rows of three
little-endian 64-bit integers: the wall clock in seconds (read as if it were UTC), the offset with fold=0, the offset
with fold=1. Only the tzdata package is used, never the system's files, whose build differs from system to system.
"""

import array
import datetime
import json
import pathlib
import struct
import sys
import zoneinfo

import tzdata

FIRST = int(datetime.datetime(1900, 1, 1, tzinfo=datetime.timezone.utc).timestamp())
LAST = int(datetime.datetime(2100, 1, 1, tzinfo=datetime.timezone.utc).timestamp())
EPOCH = datetime.datetime(1970, 1, 1)
WEEK = 7 * 86_400
NEAR = [0, 1, -1, 59, -59, 900, -900, 1_800, -1_800, 3_599, -3_599, 3_600, -3_600, 43_200, -43_200]


def stored_changes(data):
    """Instants of the changes in a TZif file (version 2 or later)."""

    def counts(at):
        return struct.unpack_from(">6l", data, at + 20)

    isut, isstd, leap, times, types, chars = counts(0)
    second = 44 + times * 5 + types * 6 + chars + leap * 8 + isstd + isut
    times = counts(second)[3]
    return struct.unpack_from(f">{times}q", data, second + 44)


def main():
    if sys.argv[1:] == ["--version"]:
        print(tzdata.IANA_VERSION)
        return
    zoneinfo.reset_tzpath(to=[])
    root = pathlib.Path(tzdata.__file__).parent / "zoneinfo"
    same = {}
    for name in sorted(zoneinfo.available_timezones()):
        same.setdefault((root / name).read_bytes(), []).append(name)
    out = sys.stdout.buffer
    for data, names in same.items():
        zone = zoneinfo.ZoneInfo(names[0])

        def offset_at(instant):
            moment = datetime.datetime.fromtimestamp(instant, datetime.timezone.utc)
            return int(moment.astimezone(zone).utcoffset().total_seconds())

        changes = set(stored_changes(data))
        # What follows from the rule at the file's end, if it has changes, by bisection.
        start = max([FIRST, *changes]) if b"," in data.rstrip().rsplit(b"\n", 1)[-1] else LAST
        before = offset_at(start)
        while start < LAST:
            low, high = start, start + WEEK
            after = offset_at(high)
            if before != after:
                while high - low > 1:
                    middle = (low + high) // 2
                    if offset_at(middle) == before:
                        low = middle
                    else:
                        high = middle
                changes.add(high)
            before = after
            start += WEEK
        clocks = {FIRST, 0, LAST - 1}
        for change in changes:
            if FIRST <= change < LAST:
                for offset in {offset_at(change - 1), offset_at(change)}:
                    clocks.update(change + offset + near for near in NEAR)
        rows = array.array("q")
        for clock in sorted(clocks):
            local = (EPOCH + datetime.timedelta(seconds=clock)).replace(tzinfo=zone)
            rows.extend([clock, int(local.utcoffset().total_seconds()), int(local.replace(fold=1).utcoffset().total_seconds())])
        if sys.byteorder != "little":
            rows.byteswap()
        out.write(json.dumps({"zones": names, "rows": len(rows) // 3}).encode() + b"\n")
        out.write(rows.tobytes())


if __name__ == "__main__":
    main()
