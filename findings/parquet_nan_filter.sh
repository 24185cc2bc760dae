#!/usr/bin/env bash
# pyarrow 26.0.1 and duckdb 2.0.1: a filter on a parquet file loses rows whose value is NaN, while the same filter on the same table in memory finds them.
#
# Expected: is_nan(loss) finds the NaN that is in the file; a filter gives the same rows before and after a table was written.
# Seen: the statistics of a row group leave NaN out (here min = max = 0.9), and the readers skip groups by them: is_nan answers with no row at all,
#   "not 0.9" and "not above 0.5" lose row 0. DuckDB, for which NaN is above every number, loses it for "> 0.95". A file written without statistics is right.
# Who meets it: whoever asks a log or a table of rewards in parquet whether it holds a NaN: the answer is no, and the broken step is not found.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pyarrow==26.0.1 duckdb==2.0.1
cd "$work"
"$work/venv/bin/python" - <<'P'
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

table = pa.table({'row': [0, 1, 2, 3], 'loss': [float('nan'), .9, .9, .1]})
pq.write_table(table, 'with.parquet', row_group_size=2)
pq.write_table(table, 'without.parquet', row_group_size=2, write_statistics=False)
loss, found = pc.field('loss'), {}
for name, where in {'is_nan': pc.is_nan(loss), '!= 0.9': loss != .9, 'not > 0.5': ~(loss > .5)}.items():
    found[name] = [t['row'].to_pylist() for t in (table.filter(where), pq.read_table('with.parquet', filters=where), pq.read_table('without.parquet', filters=where))]
found['duckdb: > 0.95'] = [[r for r, in duckdb.sql(f'select "row" from {source} where loss > 0.95').fetchall()] for source in ('"table"', "'with.parquet'", "'without.parquet'")]
for name, (memory, file, plain) in found.items(): print(name.ljust(15), 'in memory', memory, '| file', file, '| file without statistics', plain)
assert all(memory == plain for memory, _, plain in found.values())
assert [file for _, file, _ in found.values()] == [[], [3], [3], []], f'the behaviour has changed: {found}'
P
# Output seen on 2026-11-27:
# is_nan          in memory [0] | file [] | file without statistics [0]
# != 0.9          in memory [0, 3] | file [3] | file without statistics [0, 3]
# not > 0.5       in memory [0, 3] | file [3] | file without statistics [0, 3]
# duckdb: > 0.95  in memory [0] | file [] | file without statistics [0]
