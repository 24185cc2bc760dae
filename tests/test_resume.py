"A killed run that is resumed leaves what an uninterrupted run leaves, bit for bit. Every run is a process of its own, killed by a real SIGKILL."
import contextlib
import importlib.resources
import json
import os
import shutil
import signal
from pathlib import Path
from unittest.mock import patch
import pandas as pd
import pytest
import torch
from rookworld_nb import checkpoint, cli, train
from rookworld_nb.model import GPT, PRESETS

MODEL, POSITIONS = 'nano', importlib.resources.files('rookworld_nb')/'assets'/'positions.parquet'
CHOICES = '--max_steps 6 --save_every 3 --eval_every 4 --prompts_per_step 2 --group_size 4 --env_ratio 0.5 --eval_prompts 6 --warmup_steps 2 --threads 1'.split()


with torch.device('meta'): GPT(PRESETS['tiny'])   # has torch import what it imports late, once for all children; computes nothing


def in_child(args, dying=None):
    "Run the command, without its report, in a forked process (torch has not computed yet): exit code, or minus the signal that killed it."
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with patch.object(cli, '_finish_run', print), dying or contextlib.nullcontext(): code = cli.train_command(args)
        finally: os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die(): os.kill(os.getpid(), signal.SIGKILL)


def killed(args, name, step, half=False):
    "Run the command, and die when rows of that step go to NAME.jsonl: after they are written, or in the middle of the last."
    append = train.RunLog.append
    def dying(self, to, rows):
        rows = list(rows)
        append(self, to, rows)
        if to == name and rows[0]['step'] == step:
            if half: os.truncate(file := self.directory/f'{name}.jsonl', file.stat().st_size - 30)
            die()
    return in_child(args, patch.object(train.RunLog, 'append', dying))


def contents(out):
    "All that a run wrote, times left out."
    rows = {f.name: [{k: v for k, v in json.loads(l).items() if not k.startswith('time_')} for l in f.read_text().splitlines()] for f in out.glob('*.jsonl')}
    weights = {str(f.relative_to(out)): f.read_bytes() for f in out.glob('checkpoints/*/*.safetensors')}
    return rows | weights | {'comparison': (out/'comparison.json').read_text(), 'files': sorted(p.name for p in out.iterdir())}


@pytest.fixture(scope='module')
def given(tmp_path_factory):
    "The arguments of the run, and what it leaves when nobody disturbs it."
    folder = tmp_path_factory.mktemp('whole')
    with POSITIONS.open('rb') as f: pd.read_parquet(f).head(800).to_parquet(folder/'positions.parquet')
    args = [*CHOICES, '--model', MODEL, '--data', str(folder/'positions.parquet'), '--output_dir']
    assert in_child([*args, str(folder/'run')]) == 0
    return args, contents(folder/'run'), folder/'run'


def go_on(out, whole):
    assert in_child(['--resume', str(out)]) == 0
    assert contents(out) == whole


def test_the_run_learns(given):
    "Or the other tests would show nothing."
    _, whole, _ = given
    rows = whole['metrics.jsonl']
    assert [r['step'] for r in rows] == [1, 2, 3, 4, 5, 6] and sum(r['grad_norm'] > 0 for r in rows) >= 4
    assert sorted({r['step'] for r in whole['eval.jsonl']}) == [0, 4, 6]


@pytest.mark.parametrize('name, step, half, rows, checkpoints', [
    ('metrics', 4, True, 3, ['step-3']),        # half of the row of step 4 is there
    ('eval', 4, True, 4, ['step-3', 'step-4']), # in the middle of the evaluation after step 4
    ('metrics', 2, True, 1, []),                # before the first checkpoint
    ('eval', 0, True, 0, []),                   # in the first evaluation
    ('eval', 6, False, 6, ['step-4', 'step-6'])]) # in the last one
def test_killed(given, tmp_path, name, step, half, rows, checkpoints):
    args, whole, _ = given
    out = tmp_path/'run'
    assert killed([*args, str(out)], name, step, half) == -signal.SIGKILL
    lines = (out/'metrics.jsonl').read_text().split('\n') if rows or name == 'metrics' else ['']
    assert len(lines) - 1 == rows and (lines[-1] != '') == (half and name == 'metrics')
    assert [p.name for p in checkpoint.list_checkpoints(out)] == checkpoints and not (out/'comparison.json').exists()
    go_on(out, whole)


def test_killed_twice(given, tmp_path):
    "First when the row of step 4 is there and its checkpoint is not."
    args, whole, _ = given
    out = tmp_path/'run'
    assert killed([*args, str(out)], 'metrics', 4) == -signal.SIGKILL
    assert killed(['--resume', str(out)], 'completions', 5, half=True) == -signal.SIGKILL
    go_on(out, whole)


def test_killed_while_saving(given, tmp_path):
    "Everything written, nothing renamed."
    args, whole, _ = given
    out, write = tmp_path/'run', checkpoint._write_files
    def dying(folder, step, *rest):
        write(folder, step, *rest)
        if step == 6: die()
    assert in_child([*args, str(out)], patch.object(checkpoint, '_write_files', dying)) == -signal.SIGKILL
    assert (out/'checkpoints/.step-6.tmp').exists()
    go_on(out, whole)


def test_a_complete_run_is_left_alone(given):
    _, whole, out = given
    before = {p: p.stat().st_mtime_ns for p in out.rglob('*.jsonl')}
    go_on(out, whole)
    assert {p: p.stat().st_mtime_ns for p in out.rglob('*.jsonl')} == before


def test_more_steps(given, tmp_path):
    "A complete run can be made longer; what was done stays."
    _, whole, finished = given
    out = shutil.copytree(finished, tmp_path/'run')
    assert in_child(['--resume', str(out), '--max_steps', '7']) == 0
    longer = contents(out)
    assert longer['metrics.jsonl'][:6] == whole['metrics.jsonl'] and len(longer['metrics.jsonl']) == 7
    assert longer['eval.jsonl'][-1]['step'] == 7 and json.loads((out/'config.json').read_text())['max_steps'] == 7
