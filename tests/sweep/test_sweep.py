"""rookworld_sweep with real runs and with other programs: a worker that is killed, a sweep that is
killed, and what is refused."""
import contextlib
import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import pandas as pd
import pytest
from rookworld_nb.apps.cli import read_config
from rookworld_nb.config import SweepConfig, TrainConfig
from rookworld_nb.sweep.space import draw
from rookworld_nb.sweep.sweep import Sweep, _write_page
from rookworld_nb.config import command_line
from rookworld_nb.sweep.study import end_trial, next_trial, trials_table
from runs import SECONDS, Started, children, some_positions, wait_until

SPACE = '''
objective = "sampled all reward"
[base]
data = "positions.parquet"
max_steps = 2
prompts_per_step = 2
group_size = 2
eval_prompts = 2
max_new_tokens = 20
max_refills = 0
[space]
learning_rate = [1e-5, 1e-4]
loss_type = ["grpo", "dr_grpo"]
'''


@pytest.fixture
def folder(tmp_path):
    some_positions(tmp_path)
    (tmp_path/'tiny.toml').write_text(SPACE)
    return tmp_path


def start(*args, cwd, before=''): return Started('sweep', *args, cwd=cwd, before=before)


def record(folder):
    with contextlib.chdir(folder):
        return trials_table(
            Sweep(SweepConfig(space='tiny.toml', sampler='grid')).study,
            ['learning_rate', 'loss_type'])


ENDLESS = '''
from rookworld_nb.apps import cli
cli._TRIAL = """
import json, sys, time
from pathlib import Path
from rookworld_nb.sweep.sweep import end_with_parent
end_with_parent()
out = Path(json.loads(Path(sys.argv[-1]).read_text())['output_dir'])
(out/'metrics.jsonl').write_text(json.dumps(dict(step=1, reward_mean=0.5)) + chr(10))
time.sleep(1000)
"""
'''

@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='looks for processes in /proc')
def test_a_killed_worker_and_a_killed_sweep(folder):
    "In the middle of two runs that have no end; then the same command with real runs."
    (folder/'tiny.toml').write_text(SPACE.replace('[1e-5, 1e-4]', '[1e-4]'))
    out = folder/'sweeps/tiny'
    line = ['tiny.toml', '--sampler', 'grid', '--workers', '2']
    process = start(*line, cwd=folder, before=ENDLESS)
    wait_until(lambda: len([f for f in out.glob('trial-*/metrics.jsonl') if f.stat().st_size]) == 2,
               process)
    workers = children(process.pid)
    assert len(workers) == 2
    runs = [run for w in workers for run in children(w)]
    assert len(runs) == 2
    os.kill(workers[0], signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    # nobody outlives the sweep
    wait_until(lambda: not any(os.path.exists(f'/proc/{p}/fd/0') for p in [*workers, *runs]))

    process = start(*line, cwd=folder)
    printed, err = process.communicate()
    assert process.returncode == 0, err
    table = record(folder)
    killed = table[table.outcome == 'killed']
    assert len(killed) == 2 and killed.again.all(), table
    assert 'its worker was killed' in killed.reason.tolist()
    assert (table.outcome == 'finished').sum() == 2 and len(table) == 2 + len(killed), table
    done = table[table.outcome == 'finished']
    assert len(done[['learning_rate', 'loss_type']].drop_duplicates()) == 2
    # kept
    for name in killed.trial: assert (out/f'trial-{name:04}/metrics.jsonl').exists()
    for name in done.trial:
        assert len((out/f'trial-{name:04}/metrics.jsonl').read_text().splitlines()) == 2

    page = (out/'report.html').read_text()
    assert not re.findall(r'<script|<link|<iframe|<img|@import|javascript:|https?:|src=|url\(',
                          page)
    for name in table.trial: assert f'trial-{name:04}' in page
    for link in re.findall(r'href="([^"]*)"', page): assert (out/link).is_file()
    assert ' of 2 runs succeeded' in page
    assert printed.endswith('Report: sweeps/tiny/report.html\n') and 'queued again' in printed

    # complete: nothing runs
    process = start(*line, cwd=folder)
    assert process.communicate()[0] == 'Report: sweeps/tiny/report.html\n'
    assert len(record(folder)) == len(table)


@pytest.mark.skipif(sys.platform != 'linux', reason='looks for processes in /proc')
def test_a_killed_worker_is_replaced(folder):
    run = '''
import json, sys, time
from pathlib import Path
while Path('waits').exists(): time.sleep(0.02)
out = Path(json.loads(Path(sys.argv[-1]).read_text())['output_dir'])
(out/'metrics.jsonl').write_text(json.dumps(dict(step=1, reward_mean=0.5)) + '\\n')
(out/'comparison.json').write_text(json.dumps([dict(metric='reward', task='P', slice='all', decoding='sampled', difference=.1, low=-.2, high=.5, n=1)]))
'''
    (folder/'waits').touch()
    (folder/'tiny.toml').write_text('objective = "sampled P reward"\n[space]\nseed = [0, 1]\n')
    code = (
        'import json, sys; from rookworld_nb.config import SweepConfig; from rookworld_nb.sweep.sweep import sweep; '
        'sweep(SweepConfig(space="tiny.toml", sampler="grid"), json.loads(sys.argv[1]))')
    process = subprocess.Popen([
        sys.executable, '-c', code,
        json.dumps([sys.executable, '-c', run])
    ], cwd=folder)
    wait_until(lambda: (folder/'sweeps/tiny/trial-0000/trial.log').exists(), process)
    for worker in children(process.pid): os.kill(worker, signal.SIGKILL)
    (folder/'waits').unlink()
    assert process.wait(SECONDS) == 0
    table = pd.read_csv(folder/'sweeps/tiny/trials.csv')
    assert table.outcome.tolist() == ['killed', 'finished', 'finished'
                                      ] and table.seed.tolist() == [0, 1, 0]
    assert table.loc[1:, ['gain', 'low', 'high']].round(9).values.tolist() == [[.1, -.2, .5]]*2


def test_a_stopped_sweep_saves_its_runs_and_goes_on(folder):
    (folder/'tiny.toml').write_text(SPACE.replace('max_steps = 2', 'max_steps = 500')
        .replace('learning_rate = [1e-5, 1e-4]', 'learning_rate = [1e-4]'))
    process = start('tiny.toml', '--sampler', 'grid', '--trials', 1, cwd=folder)
    run = folder/'sweeps/tiny/trial-0000'
    wait_until(lambda: (run/'metrics.jsonl').exists() and (run/'metrics.jsonl').stat().st_size,
               process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert 'rookworld_sweep: interrupted; 0 of 1 trials have ended in sweeps/tiny: the same command goes on' in err
    assert list((run/'checkpoints').glob('step-*')), 'the run in progress saves its step'
    table = record(folder)
    assert table.outcome.tolist() == [
        'killed'
    ] and table.again.all() and table.reason[0].startswith('the sweep was stopped at step ')


def test_a_failed_run_is_data(folder):
    (folder/'tiny.toml').write_text(SPACE.replace('data = "positions.parquet"', '')
        .replace('loss_type = ["grpo", "dr_grpo"]', 'data = ["nowhere.parquet"]'))
    process = start('tiny.toml', '--trials', 1, '--sampler', 'random', cwd=folder)
    _, err = process.communicate()
    assert process.returncode == 0, err
    table = pd.read_csv(folder/'sweeps/tiny/trials.csv')
    assert table.outcome.tolist() == ['failed'] and 'nowhere.parquet' in table.reason[0]
    assert '0 of 1 runs succeeded' in (folder/'sweeps/tiny/report.html').read_text()


@pytest.mark.parametrize('change, says', [
    ('learning_rate = [1e-5, 1e-4] -> learningrate = [1e-5]',
     "TrainConfig has no field 'learningrate'; did you mean learning_rate?"),
    ('learning_rate = [1e-5, 1e-4] -> learning_rate = [-1.0]',
     'learning_rate must be above 0, not -1.0'),
    ('"grpo", "dr_grpo" -> "ppo"', 'loss_type must be one of grpo'),
    ('max_steps = 2 -> max_steps = "2"', "max_steps must be a whole number, not '2'"),
    ('sampled all reward -> reward', "objective must be 'DECODING TASK METRIC'")
])
def test_refused(change, says, folder):
    before, after = change.split(' -> ')
    (folder/'tiny.toml').write_text(SPACE.replace(before, after))
    process = start('tiny.toml', cwd=folder)
    _, err = process.communicate()
    assert process.returncode == 2 and err.startswith(
        'rookworld_sweep: tiny.toml: ') and says in err and err.count('\n') == 1, err
    assert not (folder/'sweeps').exists()


WALK = '''
import os, sys, time
from pathlib import Path
stone = sys.argv[1]
with open('path', 'a') as f: print(stone, file=f)
Path('pid').write_text(str(os.getpid()))
while stone == 'second' and Path('waits').exists(): time.sleep(0.02)
'''


@pytest.mark.skipif(sys.platform != 'linux', reason='looks for processes in /proc')
@pytest.mark.parametrize('how',
                         [signal.SIGKILL,
                          pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_another_program_is_walked_in_order(how, tmp_path):
    """Stopped or killed in the middle, its program ends with it; the same command goes on there,
    and not behind the rest."""
    (tmp_path/'walk.py').write_text(WALK)
    (tmp_path/'walk.toml').write_text(
        'program = "python walk.py {stone}"\n[space]\nstone = ["first", "second", "third"]\n')
    (tmp_path/'waits').touch()
    def path(): return (tmp_path/'path').read_text().split() if (tmp_path/'path').exists() else []
    process = start('walk.toml', '--sampler', 'grid', cwd=tmp_path)
    wait_until(lambda: path() == ['first', 'second'], process)
    program = int(wait_until(lambda: (tmp_path/'pid').read_text(), process))
    process.send_signal(how)
    _, err = process.communicate()
    if how == signal.SIGTERM:
        assert process.returncode == 130 and '1 of 3 trials have ended in sweeps/walk: the same command goes on' in err, err
    # who does not react is killed after 30
    wait_until(lambda: not os.path.exists(f'/proc/{program}/fd/0'), seconds=20)
    (tmp_path/'waits').unlink()
    process = start('walk.toml', '--sampler', 'grid', cwd=tmp_path)
    printed, err = process.communicate()
    assert process.returncode == 0 and printed.endswith('Report: sweeps/walk/report.html\n'), err
    assert path() == ['first', 'second', 'second', 'third']
    table = pd.read_csv(tmp_path/'sweeps/walk/trials.csv')
    assert table.columns.tolist() == ['trial', 'outcome', 'reason', 'success', 'again', 'stone']
    assert table.outcome.tolist() == [
        'finished', 'killed', 'finished', 'finished'
    ] and table.again.tolist() == [False, True, False, False], table
    assert table.reason[1] in ('the sweep was stopped', 'its worker was killed')
    assert '3 of 3 trials finished' in (tmp_path/'sweeps/walk/report.html').read_text()


def test_a_program_that_fails_is_tried_again(tmp_path):
    "By the same command, when somebody has repaired it; another program is another study."
    (tmp_path/'twice.toml').write_text('program = "python mine.py {n}"\n[space]\nn = [1, 2]\n')
    def run():
        process = start('twice.toml', '--sampler', 'grid', cwd=tmp_path)
        return *process.communicate(), process.returncode

    (tmp_path/'mine.py').write_text(
        'import sys\nprint("well")\nif sys.argv[1] == "1": sys.exit("one is a lonely number")\n')
    printed, err, code = run()
    assert code == 0 and printed.splitlines()[:2] == [
        'Trial    0 | 1 | failed | one is a lonely number', 'Trial    1 | 2 | finished'
    ], err
    (tmp_path/'mine.py').write_text('print("well")\n')
    assert run()[0].splitlines()[0] == 'Trial    2 | 1 | finished'
    (tmp_path/'twice.toml').write_text('program = "python yours.py {n}"\n[space]\nn = [1, 2]\n')
    assert 'study twice was started with another program: choose another --study' in run()[1]


@pytest.mark.parametrize('lines, args, says', [
    ('', [], 'sampler must be grid for a program, which has no gain, not tpe'),
    ('', ['--sampler', 'grid', '--prune'], 'prune must be false for a program'),
    ('objective = "sampled all reward"', ['--sampler', 'grid'
                                          ], 'objective must be left out for a program'),
    ('base = {seed = 1}', ['--sampler', 'grid'], 'program must name {seed}')
])
def test_refused_with_a_program(lines, args, says, tmp_path):
    (tmp_path/
     'walk.toml').write_text(f'program = "walk {{stone}}"\n{lines}\n[space]\nstone = ["first"]\n')
    process = start('walk.toml', *args, cwd=tmp_path)
    _, err = process.communicate()
    assert process.returncode == 2 and err.startswith(
        'rookworld_sweep: ') and says in err and err.count('\n') == 1, err
    assert not (tmp_path/'sweeps').exists()


@pytest.mark.parametrize('varied', [
    'learning_rate = [1e-5, 1e-4]\nkl_coef = [0.1, 0.2]', 'loss_type = ["grpo", "dapo"]',
    'learning_rate = [1e-5, 1e-4]\nloss_type = ["grpo", "dapo"]',
    'seed = [0, 1]\nmax_steps = [2, 3]'
])
def test_the_best_configurations_of_numbers_words_and_both(varied, tmp_path):
    "Each is shown as the command that makes it again."
    (tmp_path/'s.toml').write_text(f'objective = "last 1 rewards"\n[space]\n{varied}\n')
    with contextlib.chdir(tmp_path):
        sweep = Sweep(SweepConfig(space='s.toml', sampler='grid'))
        while found := next_trial(sweep):
            trial, directory, lock = found
            values = draw(trial, sweep.space)
            (directory/'trial.json').write_text(TrainConfig(**values).to_json())
            with lock: end_trial(sweep, trial.number, 'finished', '', trial.number/10, success=True)
        page = html.unescape(_write_page(sweep).read_text())
    best = page.partition('Best configurations')[2].partition('Importance')[0]
    for name, value in values.items():
        assert name == 'seed' or f'--{name} {value}' in best or value == TrainConfig.__dataclass_fields__[
            name].default, best
    runs = len(sweep.points) if 'seed' in varied else 1
    assert best.count('rookworld_train') == len(sweep.points) // (
        2 if runs > 1 else 1) and 'cannot be read' not in best and '.0 of' not in best


def test_the_command_of_a_configuration_makes_it_again():
    choices = TrainConfig(learning_rate=3e-4, dynamic_sampling=False, normalize_rewards=True,
                          max_positions=None, reward_weights='regret=0.5 evals=0.1', clip_low=0.1,
                          threads=1)
    assert read_config(TrainConfig,
                       shlex.split(command_line(choices))[1:], 'rookworld_train', {})[0] == choices
