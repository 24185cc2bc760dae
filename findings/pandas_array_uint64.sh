#!/usr/bin/env bash
# pandas 3.1.1: pd.array(..., dtype='uint64') changes integers above 2**63 without a word, where smaller ones stand beside them.
#
# Expected: 64-bit hashes given as Python integers, with the dtype that holds them, are kept as they are, as pd.Series and np.array do with the same arguments.
# Seen: 2**63 + 1 becomes 2**63, and 2**64 - 1 becomes 0 (on x86-64). The same list through pd.Series(dtype='uint64') or pd.array(dtype='UInt64') is right.
# Who meets it: whoever stores hashes of prompts or positions in a column and looks them up later; nothing is found, and nothing says why.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pandas==3.1.1 numpy==2.4.6
"$work/venv/bin/python" - <<'P'
import numpy as np
import pandas as pd

hashes = [2**63 + 1, 5, 2**64 - 1]
ways = {"pd.array(dtype='uint64')": pd.array(hashes, dtype='uint64'), "pd.array(dtype='UInt64')": pd.array(hashes, dtype='UInt64'),
        "pd.Series(dtype='uint64')": pd.Series(hashes, dtype='uint64'), "np.array(dtype='uint64')": np.array(hashes, dtype='uint64')}
print('given'.ljust(28), hashes)
for way, found in ways.items(): print(way.ljust(28), [int(x) for x in found], found.dtype)
kept = {way: [int(x) for x in found] == hashes for way, found in ways.items()}
assert kept == {way: way != "pd.array(dtype='uint64')" for way in ways}, f'the behaviour has changed: {kept}'
P
# Output seen on 2026-11-27, x86-64:
# given                        [9223372036854775809, 5, 18446744073709551615]
# pd.array(dtype='uint64')     [9223372036854775808, 5, 0] uint64
# pd.array(dtype='UInt64')     [9223372036854775809, 5, 18446744073709551615] UInt64
# pd.Series(dtype='uint64')    [9223372036854775809, 5, 18446744073709551615] uint64
# np.array(dtype='uint64')     [9223372036854775809, 5, 18446744073709551615] uint64
