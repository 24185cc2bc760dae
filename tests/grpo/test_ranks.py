"""Two processes make the run that one makes, to 1e-6; a killed one ends the run with one sentence, and any number of processes goes on with it.
Most processes here are forked, with the environment that torchrun would give them; some runs are torchrun's own. RANKS=all for every kind of run.
What torch and torchrun do was seen with torch 2.13.0 and gloo: after a restart its store has the old addresses; it kills 30 s after a signal; joining may wait for as long as a step."""
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
import pytest
import torch.distributed as dist
from unittest.mock import patch
from safetensors.numpy import load_file
from rookworld_nb.apps import cli
from rookworld_nb.grpo import ranks as grpo_ranks
from rookworld_nb.grpo.ranks import RankLost
from rookworld_nb.lm.loader import load_model
from rookworld_nb.lm.model import PRESETS
from rookworld_nb.run import pretrain, train
from runs import SECONDS, begin, clean, end, in_child, some_positions, unmeasured, wait_until

STEPS = 5
COMMON = [
    *'--model nano --max_steps 5 --group_size 4 --env_ratio 0.34 --learning_rate 5e-5 --kl_coef '
     '0.6 --max_refills 4 --warmup_steps 2 --threads 1'
    .split(), *'--max_positions 30 --max_new_tokens 40 --eval_prompts 2 --save_every 2'.split()
]
# three groups on two ranks, where a mean of means is no mean; or one group a step, which leaves a
# rank without work
KINDS = {
    'value head, KL in the reward': '--prompts_per_step 3 --baseline value --kl_coef 0.05 --kl_in '
                                    'reward --inner_steps 2'}
MORE = {
    'refills, reference': '--prompts_per_step 3 --kl_coef 0.05 --kl_controller ziegler '
                          '--kl_target 0.05 --reference_refresh_steps 2',
    'mean over tokens, minibatches': '--prompts_per_step 5 --minibatches 2 --loss_type dapo '
                                     '--kl_every 2 --entropy_coef 0.01 --advantage_scale batch',
    'running means, one prompt': '--prompts_per_step 1 --baseline ema --normalize_rewards '
                                 '--ema_warmup_steps 1 --top_k 20 --temperature 1.5 --env_temperature 1.5',
    'measured memory': '--prompts_per_step 3 --micro_batch_size auto',
    'small micro-batches': '--prompts_per_step 5 --micro_batch_size 4 --max_refills 0 --temperature 1.5 --env_temperature 1.5'
}
if 'RANKS' in os.environ: KINDS |= MORE


# ---- processes

@contextlib.contextmanager
def as_rank(r, n, port, err):
    with patch.dict(os.environ, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n), MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port)), \
            contextlib.redirect_stderr(open(err, 'w', buffering=1)), patch.object(cli, '_finish_run', print):
        yield


def begin_ranks(command, args, folder, prepared=contextlib.nullcontext, n=2):
    "Start a command as n ranks; what they say about errors goes to the files err-0, err-1, …"
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port, pids = s.getsockname()[1], []
    for r in range(n):
        pids.append(os.fork())
        if pids[-1]: continue
        code = 1
        try:
            with as_rank(r, n, port, folder/f'err-{r}'), prepared():
                code = command(list(map(str, args)))
        finally: os._exit(code)
    return pids


def ranks(*how, **more): return [end(pid) for pid in begin_ranks(*how, **more)]


def torchrun(*args, n=2, options=(), **more):
    "torchrun itself, as a process."
    return subprocess.Popen([
        sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node',
        str(n), *options, '-m', 'rookworld_nb.apps.cli', *map(str, args)
    ], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, **more)


def errors(folder): return [(folder/f'err-{r}').read_text() for r in (0, 1)]


# ---- what they leave

def rows(out): return [json.loads(line) for line in (out/'metrics.jsonl').read_text().splitlines()]
def weights(out, step): return load_file(out/'checkpoints'/f'step-{step}'/'model.safetensors')


@contextlib.contextmanager
def exactly():
    """Weights of 64 bits, so that nearly all rounding is gone (shares of clipped tokens are of 32),
    and whatever is left is a mistake; and no evaluations."""
    def load(*how):
        model, tokenizer = load_model(*how)
        return model.double(), tokenizer
    with patch.object(train, 'load_model', load), unmeasured(): yield


def check_rows(one, two, most=1e-6):
    """Rows agree, but for times and memory. The norm gathers the rounding of a batch; the largest
    ratio and the gap to sampling, before an update, are rounding and nothing else (in 64 bits all
    agree to 1e-8, see below)."""
    more = dict(grad_norm=10, ratio_max=50, sampling_gap_nats=50)
    assert [r['step'] for r in one] == [r['step'] for r in two]
    for a, b in zip(one, two):
        assert a.keys() == b.keys()
        for name in a:
            if name.startswith(('time_', 'memory_')): continue
            if isinstance(a[name], float):
                assert abs(a[name] - b[name]) <= most*more.get(name, 1), (a['step'], name, a[name],
                                                                          b[name])
            else: assert a[name] == b[name], (a['step'], name, a[name], b[name])


def check_weights(one, two, most=1e-6):
    assert one.keys() == two.keys()
    for name, a in one.items():
        assert abs(a - two[name]).max() <= most, (name, abs(a - two[name]).max())


def check_same(one, two, most=1e-6, step=STEPS):
    check_rows(rows(one), rows(two), most)
    check_weights(weights(one, step), weights(two, step), most)


# ---- GRPO

@pytest.fixture(scope='module')
def data(tmp_path_factory): return ['--data', some_positions(tmp_path_factory.mktemp('rows'))]


@pytest.mark.parametrize('command, own, says', [
    (cli.train_command, '--seed {}',
     'seed must be the same on all ranks: it is 0 on rank 0, and 1 on rank 1'),
    (cli.train_command, '--check_every {}',
     'check_every must be the same on all ranks: it is 0 on rank 0, and 1 on rank 1'),
    (cli.pretrain_command, '--seed {}', 'seed must be the same on all ranks')
])
def test_a_choice_of_its_own_is_refused(data, tmp_path, command, own, says):
    "Before anything is written; seed plus rank is a habit elsewhere."
    def of_rank(args): return command([*args, *own.format(os.environ['RANK']).split()])
    more = [] if command is cli.pretrain_command else COMMON
    assert ranks(of_rank, [*more, *data, '--max_steps', 2, '--output_dir', tmp_path/'run'],
                 tmp_path) == [2, 2], errors(tmp_path)
    assert says in errors(tmp_path)[0] and not (tmp_path/'run').exists()


@pytest.mark.parametrize('kind', KINDS)
def test_two_ranks_make_the_run_of_one(data, tmp_path, kind):
    args = [*COMMON, *KINDS[kind].split(), *data, '--max_steps', 3, '--output_dir']
    assert in_child([*args, tmp_path/'one'], exactly()) == 0
    assert ranks(cli.train_command, [*args, tmp_path/'two'], tmp_path,
                 exactly) == [0, 0], errors(tmp_path)
    check_same(tmp_path/'one', tmp_path/'two', 1e-8, 3)
    found = rows(tmp_path/'one')
    # or nothing was shown
    assert sum(r['grad_norm'] > 0.01 for r in found if not r['skipped']) >= 2
    assert (tmp_path/'two'/'completions.jsonl').read_text().count('\n') == (
        tmp_path/'one'/'completions.jsonl').read_text().count('\n')


def test_a_signal_to_one_rank_saves_the_run(data, tmp_path):
    "And one process goes on; then two go on with what one began."
    args = [
        *COMMON, *'--prompts_per_step 3 --max_refills 0 --save_every 100'.split(), *data,
        '--output_dir'
    ]
    pids = begin_ranks(cli.train_command, [*args, tmp_path/'run'], tmp_path, unmeasured)
    wait_until(lambda:
               (f := tmp_path/'run'/'metrics.jsonl').exists() and f.read_text().count('\n') >= 1)
    os.kill(pids[1], signal.SIGTERM)
    assert [end(pid) for pid in pids] == [130, 130]
    said = errors(tmp_path)
    assert said[0].count('rookworld_train: interrupted: saved at step') == 1 and said[1] == ''
    done = len(rows(tmp_path/'run'))
    assert (tmp_path/'run'/'checkpoints'/f'step-{done}').is_dir()
    if done + 1 < STEPS: assert in_child(['--resume', tmp_path/'run', '--max_steps', done + 1], measured=False) == 0
    assert ranks(cli.train_command, ['--resume', tmp_path/'run', '--max_steps', STEPS], tmp_path,
                 unmeasured) == [0, 0], errors(tmp_path)
    assert [r['step'] for r in rows(tmp_path/'run')] == [1, 2, 3, 4, 5]


@pytest.fixture(scope='module')
def stopped(data, tmp_path_factory):
    "A whole run of two ranks, and the same with nothing left but its first steps' checkpoint."
    folder = tmp_path_factory.mktemp('stopped')
    assert ranks(cli.train_command, [
        *COMMON, '--prompts_per_step', 4, '--max_steps', 4, *data, '--output_dir', folder/'run'
    ], folder, unmeasured) == [0, 0], errors(folder)
    shutil.copytree(folder/'run', folder/'back')
    shutil.rmtree(folder/'back'/'checkpoints'/'step-4')
    return folder/'run', folder/'back'


# one goes on with other runs of two below
@pytest.mark.parametrize('n', [2, 3, 1][:3 if 'RANKS' in os.environ else 2])
def test_any_number_goes_on_with_a_run_of_two(stopped, tmp_path, n):
    """Two write the bytes that they would have written without the stop. Others get the same
    answers and rewards, and weights that differ by rounding."""
    whole, back = stopped
    run = shutil.copytree(back, tmp_path/'run')
    assert ranks(cli.train_command, ['--resume', run], tmp_path, unmeasured, n=n) == [0]*n, errors(tmp_path)
    assert (run/'completions.jsonl').read_bytes() == (whole/'completions.jsonl').read_bytes()
    assert [(r['step'], r['reward_mean']) for r in rows(run)] == [(r['step'], r['reward_mean'])
                                                                  for r in rows(whole)]
    before, after, found = weights(whole, 2), weights(whole, 4), weights(run, 4)
    check_weights(after, found, 1e-5 if n != 2 else 0)
    off, moved = (sum(abs(after[k] - other[k]).sum() for k in after) for other in (found, before))
    assert off < 1e-3*moved     # 1e-5 was seen


@pytest.mark.skipif('RANKS' not in os.environ, reason='RANKS=all')
def test_a_run_that_is_not_well(data, tmp_path):
    "It goes back to the beginning, and gives up when that does not help: by the word of rank 0."
    args = [
        *COMMON, *'--prompts_per_step 3 --kl_every 1 --kl_act 1e-7 --max_recoveries 1'.split(),
        *data, '--output_dir'
    ]
    assert in_child([*args, tmp_path/'one'], exactly(), tmp_path/'err') == 1
    assert ranks(cli.train_command, [*args, tmp_path/'two'], tmp_path, exactly) == [1, 1]
    said = errors(tmp_path)
    assert said[0].count('rookworld_train: failed with HealthError') == 1 and said[1] == ''
    check_rows(rows(tmp_path/'one'), rows(tmp_path/'two'), 1e-8)
    one, two = ((tmp_path/name/'post_mortem.json').read_text() for name in ('one', 'two'))
    assert json.loads(one)['step'] == json.loads(two)['step'] and (
        tmp_path/'two'/'metrics-discarded.jsonl').exists()


REWARD = '''
import os, signal, time
class Length:
    "Longer is better; but in step 4 of the first attempt a rank may fail, or die, and all may be slow."
    def score(self, examples, completions, step):
        rank, again = os.environ.get('RANK', '0'), os.environ.get('TORCHELASTIC_RESTART_COUNT', '0') != '0'
        if step == 4 and not again:
            if 'SLOW' in os.environ: time.sleep(600)
            if rank == os.environ.get('DIES'): os.kill(os.getpid(), signal.SIGKILL)
            if rank == '1' and 'FAILS' in os.environ: raise RuntimeError('this is rank 1')
        return [len(set(text))/40 for text in completions]
'''


@pytest.fixture(scope='module')
def own(tmp_path_factory):
    "Arguments of a run with that reward, and where that run is when nobody disturbs it."
    folder = tmp_path_factory.mktemp('own')
    (folder/'length.py').write_text(REWARD)
    args = [
        *COMMON,
        *'--prompts_per_step 3 --learning_rate 1e-6 --save_every 100 --reward_function length:Length'
        .split(), '--data',
        some_positions(folder), '--output_dir'
    ]
    with pytest.MonkeyPatch.context() as there:
        there.chdir(folder)
        assert in_child([*args, folder/'whole'], measured=False) == 0
        yield args, folder/'whole', folder


@pytest.fixture(scope='module')
def of_two(own):
    "The same, made by two ranks."
    args, whole, folder = own
    assert ranks(cli.train_command, [*args, folder/'two'], folder,
                 unmeasured) == [0, 0], errors(folder)
    return folder/'two'


def check_bits(one, two):
    assert (one/'checkpoints'/f'step-{STEPS}'/
            'model.safetensors').read_bytes() == (two/'checkpoints'/f'step-{STEPS}'/
                                                  'model.safetensors').read_bytes()


@pytest.mark.parametrize('dies, n', [(1, 2), pytest.param(0, 3, marks=pytest.mark.slow)])
def test_torchrun_with_a_rank_that_is_killed(own, tmp_path, dies, n):
    """In the middle of step 4: one sentence by the lowest that lives. If rank 0 lives, one process
    goes on from step 3."""
    args, whole, folder = own
    _, said = (done := torchrun('train', *args, tmp_path/'run', n=n, cwd=folder, env=clean(DIES=str(dies)))).communicate(timeout=SECONDS)
    assert done.returncode == 1, said
    assert said.count('rookworld_train: ') == 1 and said.count(
        f'failed with {RankLost.__name__}: another process of this run has ended') == 1, said
    assert f'go on with rookworld_train --resume {tmp_path/"run"}' in said and 'Traceback' not in said.split(
        'rookworld_train: ')[0]
    assert (tmp_path/'run'/'checkpoints'/'step-3').is_dir() == (dies == 1)
    check_rows(rows(whole)[:3], rows(tmp_path/'run'))
    if dies == 0: return
    assert in_child(['--resume', tmp_path/'run'], measured=False) == 0
    check_same(whole, tmp_path/'run')


@pytest.mark.parametrize('named', [True, False][:2 if 'RANKS' in os.environ else 1])
def test_torchrun_starts_the_ranks_again(own, of_two, tmp_path, named):
    "They go on with their own run, and are found in spite of the old addresses."
    args, _, folder = own
    where = [tmp_path/'run'] if named else [tmp_path/'runs'/'mine-NNN']
    out, said = (done := torchrun('train', *args, *where, options=['--max-restarts', '1'],
                                  cwd=folder, env=clean(DIES='1'))).communicate(timeout=SECONDS)
    run = tmp_path/'run' if named else tmp_path/'runs'/'mine-001'
    assert done.returncode == 0, said
    assert f'{run}: goes on from step-3' in out and [r['step']
                                                     for r in rows(run)] == [1, 2, 3, 4, 5]
    assert named or [p.name for p in (tmp_path/'runs').iterdir()] == ['mine-001']
    check_bits(of_two, run)


def test_a_run_that_gave_up_is_not_begun_again(data, tmp_path, monkeypatch):
    (tmp_path/'post_mortem.json').touch()
    monkeypatch.setattr(train, 'earlier_run', lambda: str(tmp_path))
    assert in_child([*COMMON, *data], err=tmp_path/'err') == 2
    assert f'{tmp_path} stopped with post_mortem.json: another attempt would end as the one before' in (
        tmp_path/'err').read_text()


def test_torchrun_kills_in_a_long_step(own, of_two, tmp_path):
    "A cluster's preemption: the steps before are saved, and two processes go on."
    args, _, folder = own
    process = torchrun('train', *args, tmp_path/'run', options=['--shutdown-timeout', '8'],
                       cwd=folder, env=clean(SLOW='1'))
    wait_until(
        lambda: (f := tmp_path/'run'/'metrics.jsonl').exists() and f.read_text().count('\n') == 3,
        process)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=SECONDS)
    assert 'stops after this step; torchrun waits for 30 s, or for its --shutdown-timeout' in said and said.count(
        'step 3 is saved') == 1, said
    assert ranks(cli.train_command, ['--resume', tmp_path/'run'], tmp_path,
                 unmeasured) == [0, 0], errors(tmp_path)
    check_bits(of_two, tmp_path/'run')


def kill_in_the_fourth_step(pid, directory):
    "SIGTERM in a step that does not end; SIGKILL when what stood before it is saved."
    wait_until(lambda: (f := directory/'metrics.jsonl').exists() and f.read_text().count('\n') == 3)
    time.sleep(1)
    os.kill(pid, signal.SIGTERM)
    wait_until((directory/'checkpoints'/'step-3').is_dir)
    os.kill(pid, signal.SIGKILL)
    assert end(pid) == -signal.SIGKILL


def test_a_long_step_of_one_process(own, tmp_path, monkeypatch):
    args, whole, _ = own
    monkeypatch.setenv('SLOW', '1')
    pid = begin([*args, tmp_path/'run'], err=tmp_path/'err', measured=False)
    kill_in_the_fourth_step(pid, tmp_path/'run')
    monkeypatch.delenv('SLOW')
    assert in_child(['--resume', tmp_path/'run'], measured=False) == 0
    check_bits(whole, tmp_path/'run')


def test_a_run_that_is_on_one_machine_only(own, of_two, tmp_path):
    "Rank 1 does not find it; rank 0, whose user looks there, says so."
    def of_rank(args):
        return cli.train_command(
            [*args, str(of_two if os.environ['RANK'] == '0' else tmp_path/'elsewhere')])
    pids = begin_ranks(of_rank, ['--resume'], tmp_path)
    try:
        wait_until(
            lambda: all(
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) for pid in pids),
            seconds=60)
    finally:
        for pid in pids: os.kill(pid, signal.SIGKILL)
    assert [end(pid) for pid in pids] == [2, 2]
    assert errors(tmp_path) == [
        f'rookworld_train: rank 1: {tmp_path}/elsewhere is not a run directory: it has no config.json\n',
        ''
    ]


def test_who_does_not_come_is_not_waited_for(data, tmp_path):
    def of_rank(args):
        if os.environ['RANK'] == '1': return 0
        with patch.object(grpo_ranks, '_COMING', 3): return cli.train_command(args)
    assert ranks(of_rank, [*COMMON, *data, '--output_dir', tmp_path/'run'], tmp_path) == [1, 0]
    assert 'rookworld_train: failed with RuntimeError: rank 0 of 2 did not find the others at 127.0.0.1:' in errors(
        tmp_path)[0]
    assert not (tmp_path/'run').exists()


def test_an_error_on_one_rank_is_said_once(own, tmp_path, monkeypatch):
    "With a checkpoint of the step before; and two processes go on."
    args, whole, _ = own
    monkeypatch.setenv('FAILS', '1')
    assert ranks(cli.train_command, [*args, tmp_path/'run'], tmp_path, unmeasured) == [1, 1]
    said = errors(tmp_path)
    assert said[0].count(
        'rookworld_train: failed with RewardError: reward length:Length failed: RuntimeError: this is rank 1'
    ) == 1
    # the traceback stands where it arose
    assert 'rookworld_train: ' not in said[1] and 'this is rank 1' in said[1]
    assert (tmp_path/'run'/'checkpoints'/'step-3').is_dir()
    monkeypatch.delenv('FAILS')
    assert ranks(cli.train_command, ['--resume', tmp_path/'run'], tmp_path,
                 unmeasured) == [0, 0], errors(tmp_path)
    check_same(whole, tmp_path/'run')


def test_bad_usage_is_said_once(tmp_path):
    # an open group has ended in SIGABRT
    def joined_and_left(args): return 9 if cli.main(args) == 2 and dist.is_initialized() else 2
    assert ranks(joined_and_left, ['train', '--lr', '-1'], tmp_path) == [2, 2]
    assert errors(tmp_path) == ['rookworld_train: learning_rate must be above 0, not -1.0\n', '']
    assert ranks(cli.pretrain_command, ['--batch_size', '1', '--output_dir', tmp_path/'run'],
                 tmp_path) == [2, 2]
    said = errors(tmp_path)
    assert said == [
        'rookworld_pretrain: batch_size 1 is less than a row for each of 2 processes\n', ''
    ]


@pytest.mark.parametrize('command', [
    cli.eval_command, cli.data_command, cli.sweep_command, cli.compare_command, cli.report_command,
    cli.export_command, cli.uci_command
])
def test_a_command_that_is_one_process(tmp_path, command):
    "torchrun $(which rookworld_eval) would write one output twice."
    def alone(args): return command(args)
    assert ranks(alone, [], tmp_path) == [2, 2]
    said = errors(tmp_path)
    assert 'this command is one process, and WORLD_SIZE is 2' in said[0] and said[0].count(
        '\n') == 1 and said[1] == ''


# ---- supervised

@contextlib.contextmanager
def small_and_exact():
    def start(config, begin=pretrain.starting_model):
        model, tokenizer = begin(config)
        return model.double(), tokenizer
    preset = replace(PRESETS['nano'], n_layer=2, n_head=2, n_embd=32)
    with patch.dict(PRESETS,
                    small=preset), patch.object(pretrain, 'starting_model', start), patch.object(
                        pretrain, '_measure',
                        lambda *how: None), patch('rookworld_nb.report.report.write_report', print):
        yield


@pytest.mark.parametrize('optimizer, rate, workers',
                         [('muon', 0.01, 0),
                          ('adamw', 1e-3, 1)][:2 if 'RANKS' in os.environ else 1])
def test_supervised(tmp_path, optimizer, rate, workers):
    """Nine rows on two ranks, with weighted tokens and distributions; then a run that one process
    goes on with, from weights of 32 bits."""
    some_positions(tmp_path)
    args = [
        *f'--optimizer {optimizer} --learning_rate {rate} --workers {workers} --data {tmp_path}/positions.parquet'
        .split(),
        *'--preset small --device cpu --threads 1 --max_steps 5 --batch_size 9 --block_rows 18 '
         '--warmup_steps 2 --decay_steps 0 --target_spread 0.05'
        .split(),
        *'--legal_share 0.1 --eval_weight 0.3 --legal_weight 0.2 --eval_prompts 2 --no_specials --output_dir'
        .split()
    ]
    def run(name, n, *more): assert ranks(cli.pretrain_command, [*more, *args, tmp_path/name], tmp_path, small_and_exact, n=n) == [0]*n, errors(tmp_path)
    run('one', 1)
    run('two', 2)
    check_same(tmp_path/'one', tmp_path/'two', 1e-8)
    if workers: return
    run('mixed', 2, '--max_steps', 3)
    run('mixed', 1, '--resume', tmp_path/'mixed')
    check_same(tmp_path/'one', tmp_path/'mixed', 1e-6)


def test_a_long_supervised_step(tmp_path):
    "It is killed after a signal; the steps before are saved, and the run goes on bit for bit."
    some_positions(tmp_path)
    args = [*f'--learning_rate 0.01 --workers 0 --data {tmp_path}/positions.parquet --preset '
             f'small --device cpu --threads 1 --max_steps 5 --batch_size 9'.split(),
            *'--block_rows 18 --warmup_steps 2 --decay_steps 0 --eval_prompts 2 --no_specials '
             '--save_every 100 --output_dir'.split()]
    def run(*more): return ranks(cli.pretrain_command, more, tmp_path, small_and_exact, n=1)
    assert run(*args, tmp_path/'whole') == [0]
    @contextlib.contextmanager
    def slow():
        made = []
        def step(*how, make=pretrain.supervised_step):
            made.append(1)
            if len(made) == 4: time.sleep(600)
            return make(*how)
        with small_and_exact(), patch.object(pretrain, 'supervised_step', step): yield
    pid, = begin_ranks(cli.pretrain_command, [*args, tmp_path/'run'], tmp_path, slow, n=1)
    kill_in_the_fourth_step(pid, tmp_path/'run')
    assert run('--resume', tmp_path/'run') == [0], errors(tmp_path)
    check_same(tmp_path/'whole', tmp_path/'run')     # weights of 64 bits, saved with 32
