"""Zips of the functions from executables that are built already: `pack.py FROM TO` makes TO/<function>/bootstrap.zip."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from needs import Missing

FUNCTIONS = ("planner", "writer", "finalizer", "refresher", "sweeper")
# Zips of the same executables are the same, byte for byte.
DATE = (1980, 1, 1, 0, 0, 0)


def pack(built, zips):
    """Gives the bytes of each zip by function."""
    sizes = {}
    for name in FUNCTIONS:
        executable = Path(built, name)
        if not executable.exists():
            raise Missing(f"there is no {executable}: make build")
        target = Path(zips, name, "bootstrap.zip")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            small = Path(folder, "bootstrap")
            shutil.copyfile(executable, small)
            if shutil.which("strip"):
                subprocess.run(["strip", "--strip-debug", str(small)], check=True)
            entry = zipfile.ZipInfo("bootstrap", DATE)
            entry.external_attr = 0o100755 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            with zipfile.ZipFile(target, "w") as archive:
                archive.writestr(entry, small.read_bytes(), compresslevel=1)
        sizes[name] = target.stat().st_size
    return sizes


if __name__ == "__main__":
    for function, size in pack(sys.argv[1], sys.argv[2]).items():
        print(f"{function:<10} {size / 1e6:5.1f} MB")
