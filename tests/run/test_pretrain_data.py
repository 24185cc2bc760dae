"Faults in the rows that a user brings to supervised training are found before the run has a directory."
import importlib.resources
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.config import PretrainConfig
from rookworld_nb.run.pretrain import pretrain
from rookworld_nb.run.targets import _from_positions, _is_labelled, note_unused

SHIPPED = importlib.resources.files('rookworld_nb')/'assets'/'positions.parquet'
MATED = 'rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3'
BAD = [dict(fen='no position'), dict(fen=None), dict(fen=MATED), dict(history=None), dict(history='e2e4+e7e5'),
       dict(history='e2e4 Qxf7+'), dict(phase=None)]


def shipped(n=200): return pq.read_table(SHIPPED).slice(0, n).to_pylist()


def written(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def few(tmp_path, data, **changes):
    return PretrainConfig(**dict(data=str(data), max_steps=1, warmup_steps=0, decay_steps=0, batch_size=4, block_rows=40,
                                 eval_prompts=20, workers=0, device='cpu', output_dir=str(tmp_path/'run')) | changes)


@pytest.mark.parametrize('changed', BAD)
def test_a_position_that_cannot_be_asked_about_is_left_out(changed, tmp_path):
    rows = shipped()
    for row in rows[::10]: row |= changed
    path = written(tmp_path/'own.parquet', rows)
    with pytest.warns(UserWarning, match=r'own.parquet: \d+ of 400 rows left out'):
        found = _from_positions([path], random.Random(1), 400, max_bad_rows=0.5)
    assert 300 < len(found) < 400 and all(e.prompt().count('+') == 3 for e in found)
    with pytest.raises(ValueError, match=r'own.parquet: \d+ of 400 rows cannot be read: '):
        _from_positions([path], random.Random(1), 400, max_bad_rows=0.0)


def test_a_history_may_be_a_list(tmp_path):
    lists = written(tmp_path/'list.parquet', [r | dict(history=r['history'].split()) for r in shipped()])
    texts = written(tmp_path/'text.parquet', shipped())
    assert _from_positions([lists], random.Random(1), 99) == _from_positions([texts], random.Random(1), 99)


def test_a_history_that_is_not_uci_is_a_bad_row(tmp_path):
    rows = shipped()
    rows[3] |= dict(history='e2e4 Qxf7+')
    path = written(tmp_path/'own.parquet', rows)
    with pytest.raises(ValueError, match=r"1 of 200 rows cannot be read: 1 × history has a move that is not UCI"):
        load_rows(path, 1.0, max_bad_rows=0.0)
    with pytest.warns(UserWarning, match='1 of 200 rows left out'): assert len(load_rows(path, 1.0, max_bad_rows=0.1)) == 199


def only_env(tmp_path):
    file = tmp_path/'env.txt'
    file.write_text('\n'.join(e.prompt() + e.completion() for e in load_rows('positions', 1.0, limit=300)[:]))
    return file


def half_bad(tmp_path):
    "The second file; its first rows are good."
    good, file, rows = [e.prompt() + e.completion() for e in load_rows('positions', 0.0, limit=300)[:]], tmp_path/'bad.txt', tmp_path/'rows.txt'
    rows.write_text('\n'.join(good[10:]))
    file.write_text('\n'.join(good[:10] + ['P: nothing']*40))
    return f'{rows},{file}'


def pointer(tmp_path):
    (file := tmp_path/'lfs.parquet').write_text('version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n')
    return file


def damaged(tmp_path):
    whole = bytearray((tmp_path/written(tmp_path/'damaged.parquet', shipped())).read_bytes())
    whole[-60:-8] = b'\xff'*52
    (tmp_path/'damaged.parquet').write_bytes(whole)
    return tmp_path/'damaged.parquet'


@pytest.mark.parametrize('make, changes, said', [
    (only_env, dict(env_ratio=0.5), 'has no training rows of task P'),
    (half_bad, dict(env_ratio=0.0), 'bad.txt: 40 of 50 rows cannot be read'),
    (lambda _: 'positions', dict(env_ratio=0.0, tokenizer='gpt2', eval_weight=0.5), 'need a vocabulary in which a move is one token'),
    (pointer, dict(env_ratio=1.0), 'lfs.parquet is a Git LFS pointer'),
    (damaged, dict(env_ratio=1.0), 'damaged.parquet cannot be read')], ids=lambda v: getattr(v, '__name__', None))
def test_what_is_wrong_is_said_before_there_is_a_run(make, changes, said, tmp_path):
    with pytest.raises(ValueError, match=said): pretrain(few(tmp_path, make(tmp_path), **changes))
    assert not (tmp_path/'run').exists()


def test_choices_that_act_on_labelled_positions_only(tmp_path):
    file = only_env(tmp_path)
    assert not _is_labelled(str(file)) and _is_labelled(written(tmp_path/'own.parquet', shipped()))
    with pytest.warns(UserWarning, match='from_positions has no effect with data .*env.txt: no parquet file'):
        note_unused(few(tmp_path, file, from_positions=0.7), [str(file)])
