#!/usr/bin/env bash
# Compares two commits by the instructions that one whole command executes, not by seconds: the figures do not depend
# on what else the machine does, and differ by less than a thousandth from run to run.
#
#   bench/compare.sh FROM TO [ROWS]      needs valgrind; builds each commit once
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { sed -n '2,6p' "$0" >&2; exit 2; }
command -v valgrind >/dev/null || { echo "valgrind is needed (Debian and Ubuntu: apt-get install valgrind)" >&2; exit 1; }
rows=${3:-200000}
work=$PWD/bench/work
python=${TIMELAKE_PYTHON:-$PWD/.venv/bin/python}
mkdir -p "$work"
for workload in a b; do
  source=$work/workload-$workload-$rows
  [ -e "$source/_complete" ] || (cd bench && "$python" -c "
import run, pathlib
run.source_of('$workload', $rows, pathlib.Path('$work'))")
done

binary() { # commit: builds it and says where its command is
  local commit=$1 tree=$work/commit-$1
  [ -d "$tree" ] || git worktree add --detach --quiet "$tree" "$commit"
  (cd "$tree" && CARGO_TARGET_DIR=$work/target cargo build --quiet --profile ci -p timelake-cli)
  cp "$work/target/ci/timelake" "$tree/timelake"
  echo "$tree/timelake"
}

instructions() { # binary, workload
  local lake=$work/compare-lake options=()
  [ "$2" = b ] && options=(--decimal ,)
  rm -rf "$lake"
  "$1" table create iot.sensor --columns ts:timestamptz,device_id:string,value:double,quality:int --time-column ts \
    --series-key device_id --partition 'month(ts),bucket(4,device_id)' --lake "$lake" >/dev/null
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$1" backfill iot.sensor --from "$work/workload-$2-$rows" \
    --map ts=timestamp,device_id=tag_name --tz Europe/Berlin --nonexistent shift --ambiguous later \
    --on-source-conflict first --threads 1 --json --lake "$lake" "${options[@]}" 2>"$work/callgrind.log" >/dev/null
  rm -rf "$lake"
  awk '/Collected/ {print $NF}' "$work/callgrind.log"
}

from=$(git rev-parse --short "$1") to=$(git rev-parse --short "$2")
old=$(binary "$from") new=$(binary "$to")
printf '%-10s %16s %16s %9s\n' workload "$from" "$to" change
for workload in a b; do
  a=$(instructions "$old" $workload) b=$(instructions "$new" $workload)
  printf '%-10s %16s %16s %+8.1f%%\n' $workload "$a" "$b" "$(awk "BEGIN {print ($b - $a) * 100 / $a}")"
done
