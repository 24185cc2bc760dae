"A supervised run that is killed at random instants ends as if it never had been: `KILLS=10 pytest tests/test_pretrain.py`."
import importlib.resources
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
import pyarrow.parquet as pq
import pytest
import torch
from rookworld_nb.lm.loader import load_model

KILLS = int(os.environ.get('KILLS', 1))
RUN = '''
import sys, json, torch
from dataclasses import replace
from pathlib import Path
from rookworld_nb.config import PretrainConfig
from rookworld_nb.lm.model import PRESETS
from rookworld_nb.run.pretrain import pretrain
if __name__ == '__main__':
    PRESETS['miniature'] = replace(PRESETS['nano'], n_layer=2, n_head=2, n_embd=32)
    config = PretrainConfig.from_json(sys.argv[1])
    pretrain(config, resume=Path(config.output_dir) if (Path(config.output_dir)/'config.json').exists() else None)
'''


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    "A run that nobody disturbed, and how to make another."
    folder = tmp_path_factory.mktemp('pretrain')
    table = pq.read_table(importlib.resources.files('rookworld_nb')/'assets'/'positions.parquet')
    for k in range(6):
        (folder/'rows').mkdir(exist_ok=True)
        pq.write_table(table.slice(200*k, 200), folder/'rows'/f'{k}.parquet')
    (folder/'run.py').write_text(RUN)

    def start(name):
        config = dict(data=str(folder/'rows'), output_dir=str(folder/name), preset='miniature', device='cpu', threads=1, max_steps=120,
            batch_size=8, block_rows=80, workers=1, warmup_steps=5, decay_steps=40, target_spread=0.05, legal_share=0.1, eval_weight=0.3,
            save_every=10, eval_every=50, eval_prompts=4)
        return subprocess.Popen([sys.executable, str(folder/'run.py'), json.dumps(config)], stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True, env=os.environ | {'OMP_NUM_THREADS': '1'})
    process = start('whole')
    assert process.wait() == 0, process.stderr.read()
    return folder, start


def rows(run, name):
    return [{k: v for k, v in json.loads(l).items() if k != 'time_s'} for l in (run/f'{name}.jsonl').read_text().splitlines()]


def steps_written(run):
    try: return (run/'metrics.jsonl').read_bytes().count(b'\n')
    except FileNotFoundError: return 0


@pytest.mark.parametrize('kill', range(KILLS))
def test_killed_at_random_instants(whole, kill):
    "Three kills a run: some while a step is computed, some while a checkpoint or an evaluation is written."
    folder, start = whole
    rng, run = random.Random(kill), folder/f'killed{kill}'
    for step in sorted(rng.sample(range(119), 3)):
        process = start(run.name)
        while steps_written(run) < step and process.poll() is None: time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, process.stderr.read()
    process = start(run.name)
    assert process.wait() == 0, process.stderr.read()
    for name in ('metrics', 'eval'): assert rows(run, name) == rows(folder/'whole', name)
    ours, theirs = (load_model(folder/name)[0].state_dict() for name in (run.name, 'whole'))
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)


def children(pid):
    "Processes whose parent this is."
    found = []
    for stat in Path('/proc').glob('[0-9]*/stat'):
        try: words = stat.read_text().rsplit(')', 1)[1].split()
        except OSError: continue
        if words[1] == str(pid) and words[0] != 'Z': found.append(int(stat.parent.name))
    return found


def test_its_rows_end_with_it(whole):
    "The processes that make rows ahead do not outlive the one that they work for."
    folder, start = whole
    process, helpers, deadline = start('orphans'), [], time.time() + 60
    while not (folder/'orphans'/'metrics.jsonl').exists() and time.time() < deadline: time.sleep(0.1)
    helpers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert helpers
    def alive(): return [p for p in helpers if Path(f'/proc/{p}').exists() and ' Z ' not in Path(f'/proc/{p}/stat').read_text()]
    deadline = time.time() + 20
    while alive() and time.time() < deadline: time.sleep(0.2)
    assert not alive()
