"""The emulator of AWS of the tests: ends when its stdin closes, so it never outlives the test that started it."""

import os
import sys
import threading


def end_with_stdin():
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=end_with_stdin, daemon=True).start()
    from ministack.app import main

    sys.argv = ["ministack"]
    main()
