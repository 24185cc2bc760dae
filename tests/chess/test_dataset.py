"""Many text rows, loaded, checked, deduplicated, split and mixed in little memory. ROWS=2000000 for
the real size."""
import json
import os
import subprocess
import sys
from itertools import count, islice
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.positions import split_of
from rookworld_nb.measure.suites import read_big_bench

ROWS = int(os.environ.get('ROWS', 20_000))
PEAK_GB = 1.5
pytestmark = pytest.mark.skipif(not Path('/proc/self/status').exists(),
                                reason='peak memory is read from /proc')

LOAD = '''
import json, re, sys, time
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.grpo.experience import PromptSource, task_counts
started = time.perf_counter()
rows = load_rows(sys.argv[1], split='train')
loaded = time.perf_counter() - started
source = PromptSource(rows)
batches = [source.take(kind, n) for step in range(1, 101) for kind, n in task_counts(step, 10, 0.2).items()]
taken = [e for batch in batches for e in batch]
peak = re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())
print(json.dumps(dict(rows=len(rows), a=sum(e.kind == 'A' for e in taken), distinct=len({e.prompt() for e in taken}), peak_gb=int(peak[1]) / 1e6, seconds=loaded)))
'''


def templates():
    "The parts of some real rows around their clocks: before, after, position."
    found = []
    for e in load_rows('positions', env_ratio=0.5, limit=400):
        board, rest = e.fen.rsplit(' ', 2)[0], e.prompt().removeprefix(f'{e.kind}: {e.fen}')
        found.append((f'{e.kind}: {board} ', rest + e.completion('padded'), e.fen))
    return found


def texts(n):
    "n rows with distinct prompts, and how many of them are for training."
    parts = templates()
    clocks = (f'{half} {full}' for full in count(1) for half in range(100))
    rows = ((before + clock + after, fen) for clock in clocks for before, after, fen in parts)
    return islice(rows, n)


def write(path, rows):
    "A text file, or a parquet file with a column 'text'; returns the number of training rows."
    split, training, chunks = {}, 0, []
    while block := list(islice(rows, 10_000)):
        chunks.append(pa.array([text for text, _ in block]))
        for _, fen in block: training += split.setdefault(fen, split_of(fen)) == 'train'
    if path.suffix == '.parquet': pq.write_table(pa.table({'text': pa.chunked_array(chunks)}), path)
    else:
        with open(path, 'w') as out:
            for chunk in chunks: out.writelines(f'{text}\n' for text in chunk.to_pylist())
    return training


@pytest.mark.parametrize('suffix', ['.txt', '.parquet'])
def test_peak_memory(suffix, tmp_path):
    path = tmp_path/f'rows{suffix}'
    training = write(path, texts(ROWS))
    done = subprocess.run([sys.executable, '-c', LOAD, path], capture_output=True, text=True,
                          env=os.environ | {'HF_HUB_OFFLINE': '1'})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(suffix, ROWS, found)
    assert (found['rows'], found['a'], found['distinct']) == (training, 200, 1000)
    assert found['peak_gb'] <= PEAK_GB


def test_json_that_is_nested_too_deeply_is_refused_in_a_sentence(tmp_path):
    "Rows, the manifest of a directory, and a task of puzzles."
    deep = '['*100_000
    (tmp_path/'rows.json').write_text(deep)
    with pytest.raises(ValueError, match='rows.json cannot be read: nested too deeply'): load_rows(tmp_path/'rows.json')
    (tmp_path/'set').mkdir()
    (tmp_path/'set'/'manifest.json').write_text(deep)
    with pytest.raises(ValueError, match='set cannot be read: nested too deeply'): load_rows(tmp_path/'set')
    (tmp_path/'task.json').write_text('{"examples": ' + deep)
    with pytest.raises(ValueError, match='task.json is no BIG-bench task'): read_big_bench(tmp_path/'task.json')
