#!/usr/bin/env bash
# polars 2.1.0: DataFrame(rows) turns a reward of 0.5 into 0 when the first hundred rows hold whole numbers, also with strict=True.
#
# Expected: as for a list of values (polars.Series raises a TypeError there), a value that does not fit the type found in the first rows is refused, or the type becomes Float64.
# Seen: for rows given as dictionaries the type is found in the first 100 rows (Int64), and every later 0.5 or 0.99 is cut to 0 without a word.
# Who meets it: whoever makes a table from the records of a run: rewards that are 0 or 1 at first and fractions later give another mean.
#   infer_schema_length=None or a schema gives the right one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet polars==2.1.0
"$work/venv/bin/python" - <<'P'
import polars as pl

rewards = [0] * 100 + [.5, .99, 1]
rows = [{'reward': r} for r in rewards]
ways = {'DataFrame(rows)': lambda: pl.DataFrame(rows), 'DataFrame(rows, strict=True)': lambda: pl.DataFrame(rows, strict=True), 'from_dicts(rows)': lambda: pl.from_dicts(rows),
        'DataFrame(rows, infer_schema_length=None)': lambda: pl.DataFrame(rows, infer_schema_length=None)}
found = {name: (way()['reward'].to_list()[-3:], str(way().schema['reward'])) for name, way in ways.items()}
print('given'.ljust(43), rewards[-3:])
for name, (last, kind) in found.items(): print(name.ljust(43), last, kind)
try: pl.Series(rewards)
except TypeError as e: print('Series(rewards)'.ljust(43), str(e).splitlines()[0])
else: raise AssertionError('a Series takes it now')
assert list(found.values()) == [([0, 0, 1], 'Int64')] * 3 + [([.5, .99, 1.], 'Float64')], f'the behaviour has changed: {found}'
P
# Output seen on 2026-11-27:
# given                                       [0.5, 0.99, 1]
# DataFrame(rows)                             [0, 0, 1] Int64
# DataFrame(rows, strict=True)                [0, 0, 1] Int64
# from_dicts(rows)                            [0, 0, 1] Int64
# DataFrame(rows, infer_schema_length=None)   [0.5, 0.99, 1.0] Float64
# Series(rewards)                             unexpected value while building Series of type Int64; found value of type Float64: 0.5
