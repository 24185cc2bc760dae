"""rookworld_data as a shell sees it: killed and started again, damaged, asked for something else,
and read back."""
import json
import os
import signal
from types import SimpleNamespace
from unittest.mock import patch
import pyarrow.parquet as pq
import pytest
import runs
from rookworld_nb.config import DataConfig
from rookworld_nb.chess import synthetic
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.engine import find_engine
from rookworld_nb.chess.synthetic import KINDS

engine = pytest.mark.skipif(find_engine() is None, reason='needs Stockfish')


def call(line, cwd): return runs.call('data', *line.split(), cwd=cwd)


def finished(directory):
    "How many shards the manifest lists."
    manifest = directory/'manifest.json'
    return len(json.loads(manifest.read_text())['files']) if manifest.exists() else 0


STOPS = '''
import signal, time
from rookworld_nb.chess import synthetic
rows = synthetic._rows
def stopping(config, todo):
    for i, row in enumerate(rows(config, todo)):
        if i == {row}: time.sleep(1000)
        yield row
synthetic._rows = stopping
'''

def kill_after(shards, line, cwd, directory, row, how=signal.SIGKILL, before=''):
    """Start a command, which will not get beyond a certain row, and end it as soon as so many
    shards are listed: its exit code and what it said."""
    process = runs.Started('data', *line.split(), cwd=cwd, before=STOPS.format(row=row) + before)
    try: runs.wait_until(lambda: finished(directory) >= shards, process)
    finally:
        if how == signal.SIGKILL: os.killpg(process.pid, how)
        else: process.send_signal(how)
        _, err = process.communicate()
    return process.returncode, err


def contents(directory): return {f.name: f.read_bytes() for f in directory.iterdir()}


def test_a_killed_run_goes_on(tmp_path):
    line = '--kind openings --positions 600 --shard_size 100 --output '
    code, _ = kill_after(3, line + 'killed', tmp_path, tmp_path/'killed', 370)
    assert code == -signal.SIGKILL and finished(tmp_path/'killed') == 3
    kept = (tmp_path/'killed'/'rows-00000.parquet').stat().st_mtime_ns
    assert call(line + 'killed',
                tmp_path) == (0, 'Rows: killed\nManifest: killed/manifest.json\n', '')
    assert (tmp_path/'killed'/'rows-00000.parquet').stat().st_mtime_ns == kept
    assert runs.call_alone('data', *line.split(), 'whole', cwd=tmp_path)[0] == 0
    assert len(contents(tmp_path/'whole')) == 7
    assert contents(tmp_path/'killed') == contents(tmp_path/'whole')


def test_a_killed_run_into_one_file_goes_on(tmp_path):
    line = '--kind openings --positions 600 --shard_size 100 --output '
    kill_after(3, line + 'killed.parquet', tmp_path, tmp_path/'killed.parquet.parts', 370)
    assert not (tmp_path/'killed.parquet').exists()
    for name in ('killed', 'whole'):
        assert call(line + f'{name}.parquet', tmp_path) == (0, f'Rows: {name}.parquet\n', '')
    assert sorted(f.name for f in tmp_path.iterdir()) == ['killed.parquet', 'whole.parquet']
    assert (tmp_path/'killed.parquet').read_bytes() == (tmp_path/'whole.parquet').read_bytes()


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
# SIG_IGN: a script started it in the background
@pytest.mark.parametrize('inherited', ['SIG_DFL', 'SIG_IGN'])
def test_ctrl_c_says_what_is_kept(inherited, number, tmp_path):
    before = f'signal.signal({int(number)}, signal.{inherited})'
    code, err = kill_after(2, '--kind openings --positions 600 --shard_size 100 --output rows',
                           tmp_path, tmp_path/'rows', 270, number, before)
    assert code == 130
    assert err == 'rookworld_data: interrupted; 2 of 6 shards are finished in rows: the same command goes on from there\n'


@engine
def test_labels_killed_or_not_with_one_engine_or_two(tmp_path):
    line = '--positions 40 --shard_size 10 --output '
    assert call(line + 'one --workers 1', tmp_path)[0] == 0
    assert call(line + 'two --workers 2', tmp_path)[0] == 0
    kill_after(1, line + 'killed --workers 1', tmp_path, tmp_path/'killed', 25)
    assert 1 <= finished(tmp_path/'killed') <= 2
    assert call(line + 'killed --workers 1', tmp_path)[0] == 0
    assert contents(tmp_path/'one') == contents(tmp_path/'two') == contents(tmp_path/'killed')
    manifest = json.loads((tmp_path/'one'/'manifest.json').read_text())
    assert manifest['engine'].startswith('Stockfish') and sum(
        manifest['counts'].values()) == manifest['positions'] == 40
    assert [f['rows'] for f in manifest['files']] == [10] * 4


@pytest.mark.parametrize('damage', ['cut short', 'another byte', 'gone', 'not listed'])
def test_a_damaged_shard_is_made_again(damage, tmp_path):
    line, rows = '--kind castling --positions 30 --shard_size 10 --output rows', tmp_path/'rows'
    assert call(line, tmp_path)[0] == 0
    whole, shard = contents(rows), rows/'rows-00001.parquet'
    content = bytearray(whole[shard.name])
    if damage == 'cut short': shard.write_bytes(content[:50])
    if damage == 'another byte':
        content[20] ^= 1
        shard.write_bytes(content)
    if damage == 'gone': shard.unlink()
    if damage == 'not listed':
        manifest = json.loads((rows/'manifest.json').read_text())
        (rows/'manifest.json').write_text(json.dumps(manifest | {'files': manifest['files'][:1]}))
    (rows/'rows-00002.parquet.tmp').write_bytes(b'half a file')
    assert call(line, tmp_path)[0] == 0
    assert contents(rows) == whole


def test_other_choices_are_refused(tmp_path):
    line = '--kind castling --positions 10 --shard_size 5 --output rows '
    assert call(line, tmp_path)[0] == 0
    whole = contents(tmp_path/'rows')
    for other, name in (('--seed 1', "seed 0, not 1"),
                        ('--kind draws', "kind 'castling', not 'draws'"), ('--shard_size 6',
                                                                           'shard_size 5, not 6')):
        code, out, err = call(line + other, tmp_path)
        assert (code, out, err.count('\n')) == (2, '', 1), err
        assert err.startswith('rookworld_data: rows was made with ' + name)
    assert contents(tmp_path/'rows') == whole
    (tmp_path/'rows'/'manifest.json').write_text('{')
    assert call(line, tmp_path)[0] == 2
    (tmp_path/'rows'/'manifest.json').unlink()
    code, out, err = call(line, tmp_path)
    assert code == 2 and 'rows without a manifest.json' in err


def test_an_output_that_cannot_be_is_refused_first(tmp_path):
    (tmp_path/'file').write_text('')
    (tmp_path/'rows.parquet').mkdir()
    for output in ('file', 'file/rows', 'rows.parquet'):
        code, out, err = call(f'--kind openings --positions 10 --output {output}', tmp_path)
        assert (code, out, err.count('\n')) == (2, '', 1), err
    code, out, err = call('--kind first_moves --positions 5000 --output first', tmp_path)
    assert (code, err) == (2,
                           "rookworld_data: there are 4096 rows of kind 'first_moves', not 5000\n")
    assert not (tmp_path/'first').exists()


@pytest.mark.parametrize('kind', KINDS)
def test_each_kind_is_read_back(kind, tmp_path):
    assert call(f'--kind {kind} --positions 24 --shard_size 10 --output rows', tmp_path)[0] == 0
    rows = load_rows(tmp_path/'rows')
    assert len(rows) == 24 and {e.kind for e in rows} == {'A'}
    shards = [pq.read_table(f) for f in sorted((tmp_path/'rows').glob('*.parquet'))]
    assert [e.prompt() + e.completion()
            for e in rows] == [text for s in shards for text in s['text'].to_pylist()]
    assert {k for s in shards for k in s['kind'].to_pylist()} == {kind}
    counts = json.loads((tmp_path/'rows'/'manifest.json').read_text())['counts']
    expected = {
        'mates': {'mate': 24}, 'draws': {'draw': 24}, 'illegal': {'illegal': 24},
        'first_moves': {'legal': 20, 'illegal': 4}
    }
    assert sum(counts.values()) == 24 and counts == expected.get(kind, counts)


def test_what_the_engine_is_told():
    asked, config = [], DataConfig(positions=4, nodes=123, multipv=3, workers=2, timeout=7.0)
    with patch.object(synthetic, 'analyse_positions', lambda fens, *how: asked.append(how) or list(fens)):
        assert len([*synthetic._analysed(iter([SimpleNamespace(fen='a')]*4), config, {0})]) == 4
    assert asked == [(123, 3, 2, config.stockfish_path, config.cache, 7.0)]
