"""Prints the sizes of the functions' zips; fails where one is larger than it may be."""

import sys
from pathlib import Path

FUNCTIONS = ("planner", "writer", "finalizer", "refresher", "sweeper")
WRITER_BYTES = 15_000_000

if __name__ == "__main__":
    sizes = {name: Path(sys.argv[1], name, "bootstrap.zip").stat().st_size for name in FUNCTIONS}
    for name, size in sizes.items():
        print(f"{name:<10} {size / 1e6:5.1f} MB")
    if sizes["writer"] > WRITER_BYTES:
        sys.exit(f"error: the writer's zip has {sizes['writer']:,} bytes, more than {WRITER_BYTES:,}")
