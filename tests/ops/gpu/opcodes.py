#!/usr/bin/env python3
"""opcodes.py: counts tensor-core instructions in each kernel of a cubin, where no disassembler is at hand.

An instruction is 16 bytes; its low 12 bits name it (HMMA: 0x23c, as cuobjdump shows it for sm_80 to sm_90; HGMMA of sm_90a:
0x9f0, and 0xdf0 with a side from registers).
Prints `kernel count` lines.
"""
import struct
import sys

MATRIX = (0x23C, 0x9F0, 0xDF0)


def sections(elf):
    offset, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + i * size) for i in range(count)]
    table = headers[names][4]
    for header in headers:
        start = table + header[0]
        yield elf[start:elf.index(b"\0", start)].decode(), elf[header[4]:header[4] + header[5]]


def main():
    with open(sys.argv[1], "rb") as f:
        elf = f.read()
    for name, code in sections(elf):
        if name.startswith(".text."):
            count = sum(1 for i in range(0, len(code) - 15, 16) if struct.unpack_from("<H", code, i)[0] & 0xFFF in MATRIX)
            print(name[len(".text."):], count)


main()
