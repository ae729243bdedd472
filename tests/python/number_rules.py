"""What Python's float and Decimal make of texts, for the property test of numbers.

Reads one text per line as JSON; writes for each: the bits of float(text) in hexadecimal, a blank, and Decimal(text)
in millionths if it is a whole number of them. `-` where Python refuses the text, `~` where it has no such millionths.
"""

import decimal
import json
import struct
import sys


def bits(text):
    try:
        return struct.pack(">d", float(text)).hex()
    except ValueError:
        return "-"


def millionths(text):
    try:
        value = decimal.Decimal(text)
    except decimal.InvalidOperation:
        return "-"
    if not value.is_finite():
        return "~"
    if value == 0:
        return "0"
    if not -60 < value.adjusted() < 40:
        return "~"
    scaled = value.scaleb(6)
    return str(int(scaled)) if scaled == scaled.to_integral_value() else "~"


def main():
    decimal.getcontext().prec = 200
    sys.stdin.reconfigure(encoding="utf-8")
    for line in sys.stdin:
        text = json.loads(line)
        print(bits(text), millionths(text))


if __name__ == "__main__":
    main()
