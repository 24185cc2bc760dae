"""A killed run that is resumed (nbs/run/06_recovery.ipynb) leaves what an uninterrupted run leaves, bit for bit. Every run is a
process of its own, killed by a real SIGKILL; KILLS=30 for as many, at random instants too."""
import functools
import os
import random
import shutil
import signal
import time
from unittest.mock import patch
import numpy as np
import pytest
import torch
from rookworld_nb.run import checkpoint, train
from rookworld_nb.run.run_log import RunLog
from rookworld_nb.grpo import step as learning
from runs import begin, contents, die, end, in_child, some_positions, undisturbed

# these three: every kind of run, every place to die at
KILLS = range(int(os.environ['KILLS'])) if 'KILLS' in os.environ else (1, 3, 5)
# evaluations, half of the time of such runs: runs killed in an evaluation are the first tests here,
# and those of the night
MEASURED = 'KILLS' in os.environ
COMMON = '--model nano --max_steps 6 --prompts_per_step 2 --group_size 4 --env_ratio 0.5 --reward_source auto --learning_rate 5e-5 --kl_coef 0.6 --max_refills 4 --warmup_steps 2 --threads 1'.split(
)
CHOICES = [
    *COMMON,
    *'--max_refills 0 --save_every 3 --eval_every 4 --check_every 5 --eval_prompts 2'.split()
]
KINDS = { # whatever a run can remember from step to step
    'one pass': '--max_positions 12',
    'two passes, running mean': '''--inner_steps 2 --minibatches 2 --baseline ema --normalize_rewards --ema_warmup_steps 1 --reward_warmup_steps 4
        --kl_coef 0.05 --kl_controller ziegler --kl_target 0.05 --reference_refresh_steps 2 --max_positions 12''',
    'two passes, value head': '--inner_steps 2 --baseline value --kl_coef 0.05 --kl_controller '
                              'threshold --kl_target 0.01 --kl_in reward'
}


def killed(args, name, step, half=False):
    """Run the command, and die when rows of that step go to NAME.jsonl: after they are written, or
    in the middle of the last."""
    append = RunLog.append
    def dying(self, to, rows):
        rows = list(rows)
        append(self, to, rows)
        if to == name and rows[0]['step'] == step:
            if half: os.truncate(file := self.directory/f'{name}.jsonl', file.stat().st_size - 30)
            die()
    return in_child(args, patch.object(RunLog, 'append', dying))


@pytest.fixture(scope='module')
def given(tmp_path_factory):
    "The arguments of the run, and what it leaves when nobody disturbs it."
    return undisturbed(tmp_path_factory.mktemp('whole'), CHOICES)


def go_on(out, whole):
    assert in_child(['--resume', out]) == 0
    assert contents(out) == whole


def test_the_run_learns(given):
    "Or the other tests would show nothing."
    _, whole, _ = given
    rows = whole['metrics.jsonl']
    assert [r['step'] for r in rows] == [1, 2, 3, 4, 5, 6] and sum(r['grad_norm'] > 0
                                                                   for r in rows) >= 4
    assert sorted({r['step'] for r in whole['eval.jsonl']}) == [0, 4, 5, 6]


@pytest.mark.parametrize('name, step, half, rows, checkpoints', [
    ('metrics', 4, True, 3, ['step-3']),        # half of the row of step 4 is there
    ('eval', 4, True, 4, ['step-3', 'step-4']), # in the middle of the evaluation after step 4
    ('eval', 0, True, 0, []),                   # in the first evaluation
    *[('eval', 5, True, 5, ['step-3', 'step-4']), # in the check after step 5
      ('metrics', 2, True, 1, []),              # before the first checkpoint
      ('eval', 6, False, 6, ['step-4', 'step-6'])] * MEASURED]) # in the last evaluation
def test_killed(given, tmp_path, name, step, half, rows, checkpoints):
    args, whole, _ = given
    out = tmp_path/'run'
    assert killed([*args, out], name, step, half) == -signal.SIGKILL
    lines = (out/'metrics.jsonl').read_text().split('\n') if rows or name == 'metrics' else ['']
    assert len(lines) - 1 == rows and (lines[-1] != '') == (half and name == 'metrics')
    assert [p.name for p in checkpoint.list_checkpoints(out)
            ][-2:] == checkpoints and not (out/'comparison.json').exists()
    go_on(out, whole)


def test_killed_twice(given, tmp_path):
    "First when the row of step 4 is there and its checkpoint is not."
    args, whole, _ = given
    out = tmp_path/'run'
    assert killed([*args, out], 'metrics', 4) == -signal.SIGKILL
    assert killed(['--resume', out], 'completions', 5, half=True) == -signal.SIGKILL
    go_on(out, whole)


def test_killed_while_saving(given, tmp_path):
    "Everything written, nothing renamed."
    args, whole, _ = given
    out, write = tmp_path/'run', checkpoint._write_files
    def dying(folder, step, *rest):
        write(folder, step, *rest)
        if step == 6: die()

    assert in_child([*args, out], patch.object(checkpoint, '_write_files',
                                               dying)) == -signal.SIGKILL
    assert (out/'checkpoints/.step-6.tmp').exists()
    go_on(out, whole)


def test_the_generators_of_the_process_go_on(given, tmp_path):
    "Nothing of ours draws from them. A step that does goes on with the same numbers."
    args, _, _ = given
    step = train.train_step
    def lucky(*rest):
        row, samples = step(*rest)
        if rest[-1] == 5 and stop: die()
        return row | dict(luck=[
            random.random(),
            random.gauss(0, 1),
            float(np.random.rand()),
            float(np.random.randn()),
            torch.rand(1).item()
        ]), samples
    outs = tmp_path/'whole', tmp_path/'killed'
    for out, stop in zip(outs, (False, True)):
        assert in_child([*args, out], patch.object(train, 'train_step', lucky),
                        measured=False) == (-signal.SIGKILL if stop else 0)
    stop = False
    assert in_child(['--resume', outs[1]], patch.object(train, 'train_step', lucky),
                    measured=False) == 0
    assert contents(outs[0]) == contents(outs[1])


def test_a_complete_run_is_left_alone(given):
    _, whole, out = given
    before = {p: p.stat().st_mtime_ns for p in out.rglob('*.jsonl')}
    go_on(out, whole)
    assert {p: p.stat().st_mtime_ns for p in out.rglob('*.jsonl')} == before


# ---- random instants ----

@pytest.fixture(scope='module')
def whole_run(tmp_path_factory):
    """For each of KINDS: the arguments of the run, what it leaves when nobody disturbs it, and
    about how long it takes."""
    folder = tmp_path_factory.mktemp('kinds')
    data = some_positions(folder)
    @functools.cache
    def made(kind):
        args, out = [
            *COMMON, *'--save_every 2 --eval_every 3 --eval_prompts 2'.split(),
            *KINDS[kind].split(), '--data', data, '--output_dir'
        ], folder/kind.replace(' ', '_')
        started = time.monotonic()
        assert in_child([*args, out], measured=MEASURED) == 0
        return args, contents(out), time.monotonic() - started
    return made


def call_number(module, name, n):
    """A patch after which the process dies in the n-th call of a function, from 1; everything
    before it has happened."""
    work, calls = getattr(module, name), []
    def counted(*args, **kw):
        calls.append(name)
        if len(calls) == n: die()
        return work(*args, **kw)
    return patch.object(module, name, counted)


def kill_at_some_instant(args, seconds, rng):
    "SIGKILL from outside, after a random part of the run's time. False when the run was faster."
    pid = begin(args, measured=MEASURED)
    time.sleep(rng.uniform(0, seconds))
    os.kill(pid, signal.SIGKILL)
    return end(pid) == -signal.SIGKILL


def kill_while_saving(args, seconds, rng):
    """Between two of the operations that make a checkpoint: about 45 calls of fsync, of which 9 to
    11 belong to each of 4 checkpoints."""
    return in_child(args, call_number(checkpoint, 'fsync', rng.randint(1, 45)),
                    measured=MEASURED) == -signal.SIGKILL


def kill_after_rollout(args, seconds, rng):
    "Completions are sampled and scored, nothing has learned from them."
    return in_child(args, call_number(learning, 'make_targets', rng.randint(1, 6)),
                    measured=MEASURED) == -signal.SIGKILL


def kill_before_optimizer(args, seconds, rng):
    "The gradient is there, the weights have not moved; or, in a later pass, have moved once."
    return in_child(args, call_number(learning, '_optimizer_step', rng.randint(1, 6)),
                    measured=MEASURED) == -signal.SIGKILL


@pytest.mark.parametrize('number', KILLS)
def test_killed_anywhere(whole_run, tmp_path, number):
    "Killed once or twice, then left in peace."
    rng, kind = random.Random(number), list(KINDS)[number % 3]
    kill = ((kill_while_saving, kill_after_rollout,
             kill_before_optimizer)[(number // 2 + number // 6) % 3] if number %
            2 else kill_at_some_instant)
    args, whole, seconds = whole_run(kind)
    out = tmp_path/'run'
    command, done = lambda: ['--resume', out] if (out/'config.json').exists() else [*args, out], 0
    for attempt in range(20):
        done += kill(command(), seconds * 0.8**attempt, rng)
        if done > number % 2 or done and (out/'comparison.json').exists(): break
        if (out/'comparison.json').exists(): shutil.rmtree(out)       # was faster: again
    assert done
    state = (sorted(p.name for p in (out/'checkpoints').iterdir()) if
             (out/'checkpoints').exists() else [])
    print(f'{number} {kind}: {kill.__name__} {done}x, then {state}')
    assert in_child(command(), measured=MEASURED) == 0
    assert contents(out) == whole


@pytest.mark.parametrize('kind', KINDS)
def test_the_kinds_remember(whole_run, kind):
    "Each kind uses what it was made for; or its part of a checkpoint would not be tested."
    _, whole, _ = whole_run(kind)
    rows, saved = whole['metrics.jsonl'], {
        name.split('/')[-1]
        for name in whole if name.endswith('.safetensors')
    }
    assert sum(r['grad_norm'] > 0 for r in rows) >= 4 and {
        'model.safetensors', 'optimizer.safetensors', 'generators.safetensors'
    } <= saved
    if kind == 'one pass': assert sum(r['refills'] for r in rows) > 0
    else: assert len({r['kl_coef'] for r in rows}) > 2 and any(r['ratio_max'] > 1.001 for r in rows)
    assert ('value_head.safetensors' in saved) == (kind == 'two passes, value head')
    if kind == 'two passes, running mean':
        assert 'reference.safetensors' in saved and len(
            {r['baseline_reward']
             for r in rows}) > 2 and len({r['running_reward_std']
                                          for r in rows}) > 2
