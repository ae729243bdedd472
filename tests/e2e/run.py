"""`make e2e`: the functions' zips on an emulator, deployed by terraform and driven by the command line."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import needs


def say(text):
    print(text, flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bins", default="target/ci", help="folder of the functions' executables")
    parser.add_argument("--zips", help="folder of zips as cargo-lambda leaves them, instead of packing executables")
    parser.add_argument("--chaos", action="store_true", help="what may go wrong, instead of what is done every day")
    parser.add_argument("--only", help="names of scenarios, with commas between")
    return parser.parse_args()


def main():
    if os.environ.get("SKIP_E2E") == "1":
        print("SKIP_E2E=1: the tests on an emulator of AWS are skipped", file=sys.stderr)
        return 0
    options = arguments()
    try:
        command = needs.check()
        # They need the packages that were looked for just now.
        import suite

        return suite.run(command, options, Path(tempfile.mkdtemp(prefix="timelake-e2e-")), say)
    except needs.Missing as missing:
        print(f"error: {missing}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
