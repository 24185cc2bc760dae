"""A supervised run that is killed at random instants ends as if it never had been: `KILLS=10 pytest
tests/run/test_pretrain.py`."""
import importlib.resources
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch
import pyarrow.parquet as pq
import pytest
import torch
from rookworld_nb.config import PretrainConfig
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.lm.loader import load_model
from rookworld_nb.run import pretrain
from runs import SECONDS, Started, children, wait_until

KILLS = int(os.environ.get('KILLS', 1))
STEPS = 24
MINIATURE = '''
import time
from dataclasses import replace
from rookworld_nb.run import pretrain
from rookworld_nb.report import report
from rookworld_nb.lm.model import PRESETS
PRESETS['miniature'] = replace(PRESETS['nano'], n_layer=2, n_head=2, n_embd=32)
report.write_report = lambda run: run
class Stops(pretrain.RowStream):
    def batch(self, number):
        if number >= {end}: time.sleep(1000)
        return super().batch(number)
pretrain.RowStream = Stops
'''


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """A run that nobody disturbed, and how to make another, which will not get beyond a certain
    step."""
    folder = tmp_path_factory.mktemp('pretrain')
    table = pq.read_table(importlib.resources.files('rookworld_nb')/'assets'/'positions.parquet')
    for k in range(6):
        (folder/'rows').mkdir(exist_ok=True)
        pq.write_table(table.slice(200*k, 200), folder/'rows'/f'{k}.parquet')

    def start(name, end=STEPS):
        (folder/f'{name}.json').write_text(
            json.dumps(
                dict(data=str(folder/'rows'), output_dir=str(folder/name), preset='miniature',
                     device='cpu', threads=1, max_steps=STEPS, batch_size=8, block_rows=80,
                     workers=1, warmup_steps=3, decay_steps=12, target_spread=0.05, legal_share=0.1,
                     eval_weight=0.3, save_every=5, eval_every=9, eval_prompts=4)))
        how = (['--resume', folder/name] if
               (folder/name/'config.json').exists() else ['--config', folder/f'{name}.json'])
        return Started('pretrain', *how, cwd=folder, before=MINIATURE.format(end=end))
    finish(start('whole'))
    return folder, start


def finish(process):
    _, err = process.communicate()
    assert process.returncode == 0, err


def rows(run, name):
    return [{k: v
             for k, v in json.loads(l).items() if k != 'time_s'}
            for l in (run/f'{name}.jsonl').read_text().splitlines()]


def steps_written(run):
    try: return (run/'metrics.jsonl').read_bytes().count(b'\n')
    except FileNotFoundError: return 0


@pytest.mark.parametrize('kill', range(KILLS))
def test_killed_at_random_instants(whole, kill):
    """Two kills a run: some while a step is computed, some while a checkpoint or an evaluation is
    written."""
    folder, start = whole
    rng, run = random.Random(kill), folder/f'killed{kill}'
    for step in sorted(rng.sample(range(STEPS - 1), 2)):
        process = start(run.name, step + 5)
        wait_until(lambda: steps_written(run) >= step, process)
        time.sleep(rng.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err
    finish(start(run.name))
    for name in ('metrics', 'eval'): assert rows(run, name) == rows(folder/'whole', name)
    ours, theirs = (load_model(folder/name)[0].state_dict() for name in (run.name, 'whole'))
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)


def test_its_rows_end_with_it(whole):
    "The processes that make rows ahead do not outlive the one that they work for."
    folder, start = whole
    process = start('orphans', 5)
    wait_until((folder/'orphans'/'metrics.jsonl').exists, process)
    helpers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert helpers

    def alive():
        return [
            p for p in helpers
            if Path(f'/proc/{p}').exists() and ' Z ' not in Path(f'/proc/{p}/stat').read_text()
        ]
    wait_until(lambda: not alive())


@pytest.mark.slow
def test_nano_on_a_card_in_small(tmp_path):
    """nano_card.py prints the command that goes on from nano with the rows of its folder; on a card
    it is the same command, larger."""
    script, rows = Path(__file__).parents[2]/'nbs/experiments/2026-11-26-card/nano_card.py', tmp_path/'card'/'random'
    rows.mkdir(parents=True)
    pq.write_table(
        pq.read_table(importlib.resources.files('rookworld_nb')/'assets'/
                      'positions.parquet').slice(0, 300), rows/'rows-00000.parquet')
    env = (os.environ | dict(PYTHONPATH=os.pathsep.join([str(script.parents[3]), os.environ.get('PYTHONPATH', '')]), OMP_NUM_THREADS='1'))

    def run(*words):
        return subprocess.run([sys.executable, *map(str, words)], env=env, capture_output=True,
                              text=True, timeout=SECONDS, cwd=tmp_path, check=True).stdout
    name, *words = shlex.split(run(script, 'card', '--processes', 0))
    assert name == 'rookworld_pretrain' and words[:2] == ['--data', 'card/random,card/shipped'] and {'nano', 'bfloat16', '13313'} < set(words)
    small = '--max_steps 2 --decay_steps 1 --batch_size 8 --block_rows 64 --workers 1 --dtype float32 --eval_prompts 8 --device cpu --threads 1'.split(
    )
    run(
        '-c',
        'import sys; from rookworld_nb.apps.cli import pretrain_command; sys.exit(pretrain_command())',
        *words, *small)
    before, after = (load_model(name)[0].state_dict() for name in ('nano', tmp_path/'nano-next'))
    assert before.keys() == after.keys() and any(not torch.equal(before[k], after[k]) for k in before)
    told = json.loads((tmp_path/'nano-next'/'pretrain.json').read_text())
    assert (told['policy_rows'], told['env_rows'], told['files'],
            told['before']['steps']) == (8, 8, 25, 39675 + 13313)


def test_a_run_notes_its_directory(tmp_path):
    "Ranks that are started again ask there; without ranks nobody does."
    (tmp_path/'rows.txt').write_text('\n'.join(e.prompt() + e.completion() for e in load_rows('positions', limit=60)))
    with patch.object(pretrain, 'note_run') as noted:
        out = pretrain.pretrain(
            PretrainConfig(init='nano', data=str(tmp_path/'rows.txt'), output_dir=str(tmp_path/'run'), max_steps=1,
                           batch_size=4, threads=1))
    noted.assert_called_once_with(out)
