"rookworld_train stopped by signals, and refused: exit codes, what is kept, and what it says."
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from unittest.mock import patch
import pytest
from rookworld_nb.apps import cli
from rookworld_nb.config import TrainConfig
from rookworld_nb.run import held_out, train
from runs import Started, call_unread, some_positions, wait_until

CHOICES = '--prompts_per_step 2 --group_size 2 --eval_prompts 4 --save_every 1000 --threads 1'.split(
)


@pytest.fixture(scope='module')
def data(tmp_path_factory): return some_positions(tmp_path_factory.mktemp('data'))


def start(*args, cwd, before=''):
    return Started('train', *CHOICES, '--model', 'nano', *args, cwd=cwd, before=before)


def steps(out):
    return [json.loads(l)['step'] for l in (out/'metrics.jsonl').read_text().splitlines()]


@pytest.mark.parametrize('number',
                         [signal.SIGINT,
                          pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_interrupted_after_a_step(number, data, tmp_path):
    process = start('--data', data, '--output_dir', 'run', '--max_steps', 1000, cwd=tmp_path)
    wait_until(lambda: (file := tmp_path/'run/metrics.jsonl').exists() and file.stat().st_size,
               process)
    process.send_signal(number)
    printed, err = process.communicate()
    done = steps(tmp_path/'run')
    assert process.returncode == 130, err
    assert err == f'stops after this step; once more stops at once and saves nothing\nrookworld_train: interrupted: saved at step {done[-1]}; kept in run: go on with rookworld_train --resume run\n'
    legend, _, *lines = printed.splitlines()
    assert legend.startswith('Reward: ') and len(lines) == len(done) and lines[0].startswith(
        'Step    1 | Loss: ')
    assert (tmp_path/f'run/checkpoints/step-{done[-1]}/state.json').exists()

    process = start('--resume', 'run', '--max_steps', done[-1] + 1, cwd=tmp_path)
    printed, err = process.communicate()
    assert process.returncode == 0, err
    assert steps(tmp_path/'run') == [*done, done[-1] + 1]


def test_interrupted_in_the_first_evaluation(data, tmp_path):
    ctrl_c = 'import signal, rookworld_nb.run.held_out as held_out\nheld_out.judge_rows = held_out.judge_texts = lambda *args, **kw: signal.raise_signal(signal.SIGINT)'
    process = start('--data', data, '--output_dir', 'run', cwd=tmp_path, before=ctrl_c)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert err == 'rookworld_train: interrupted; kept in run: go on with rookworld_train --resume run\n'
    assert (tmp_path/'run/config.json').exists() and not (tmp_path/'run/eval.jsonl').exists()


def test_the_terminal_goes_away(data, tmp_path, monkeypatch):
    """SIGHUP, and nothing can be written to the terminal any more: the step is finished and saved,
    as after Ctrl-C."""
    monkeypatch.chdir(tmp_path)
    pid, terminal = pty.fork()
    if not pid:
        code = 1
        signal.signal(signal.SIGHUP, signal.SIG_DFL)    # these tests may run under nohup
        try:
            code = cli.train_command(
                [*CHOICES, '--data',
                 str(data), '--output_dir', 'run', '--max_steps', '1000'])
        finally: os._exit(code)
    wait_until(lambda: select.select([terminal], [], [], 0.1)[0] and os.read(terminal, 10_000) is
               None or (file := tmp_path/'run/metrics.jsonl').exists() and file.stat().st_size)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    done = steps(tmp_path/'run')
    assert (tmp_path/f'run/checkpoints/step-{done[-1]}/state.json').exists() and done[-1] < 1000


def test_nobody_reads_what_is_printed(data, tmp_path):
    assert call_unread('train', *CHOICES, '--data', data, '--output_dir', 'run', '--max_steps', 2,
                       cwd=tmp_path) == (0, '')
    assert (tmp_path/'run/checkpoints/step-2').is_dir() and (tmp_path/'run/report.html').exists()
    assert [l[:11] for l in (tmp_path/'run/train.log').read_text().splitlines()][2:] == ['Step    1 |', 'Step    2 |']
    assert call_unread('train', '--help', 'all', cwd=tmp_path) == (0, '')
    assert call_unread('train', '--resume', 'nowhere', cwd=tmp_path) == (
        2, 'rookworld_train: nowhere is not a run directory: it has no config.json\n')


@pytest.mark.parametrize('case, says', [
    ('taken', 'taken already holds a run: continue it with --resume taken'),
    ('unwritable', 'cannot write to output directory file/run: Not a directory'),
    ('elsewhere', 'learning_rate 0.0001 -> 0.001'),
    ('not a run', 'is not a run directory: it has no config.json')])
def test_refused(case, says, data, tmp_path):
    (tmp_path/'taken').mkdir()
    (tmp_path/'taken/config.json').write_text(
        json.dumps(
            dict(model='nano', learning_rate=1e-4, prompts_per_step=2, group_size=2,
                 eval_prompts=4)))
    (tmp_path/'file').touch()
    args = {
        'taken': ['--output_dir', 'taken'], 'unwritable': ['--output_dir', 'file/run'],
        'not a run': ['--resume',
                      'file'], 'elsewhere': ['--resume', 'taken', '--learning_rate', '0.001']
    }[case]
    if '--output_dir' in args: args += ['--data', data]
    process = start(*args, cwd=tmp_path)
    _, err = process.communicate()
    assert process.returncode == 2, err
    assert err.startswith('rookworld_train: ') and says in err and err.count('\n') == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ['file', 'taken']


def test_interrupted_in_a_check(data, tmp_path):
    """Nothing was saved since the last checkpoint, so the check and one more step are finished
    first."""
    config, judge = TrainConfig(data=str(data), output_dir=str(tmp_path/'run'), prompts_per_step=2,
                                group_size=2, eval_prompts=4, save_every=1000, check_every=2,
                                max_steps=9, threads=1), held_out.judge_rows
    def interrupted(*how, **more):
        if (tmp_path/'run/metrics.jsonl').exists(): signal.raise_signal(signal.SIGINT)
        return judge(*how, **more)

    with patch.object(held_out, 'judge_rows',
                      interrupted), pytest.raises(KeyboardInterrupt, match='saved at step 3'):
        train.train(config)
    assert (tmp_path/'run/checkpoints/step-3/state.json').exists() and steps(
        tmp_path/'run') == [1, 2, 3]


def test_a_terminal_hears_at_once_what_is_being_done(tmp_path):
    """Loading, every step and the report have a clock that goes on; without a terminal there are
    lines only."""
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 40, 150, 0, 0))
    line = [
        sys.executable, '-m', 'rookworld_nb.apps.cli', 'train',
        *'--max_steps 1 --prompts_per_step 2 --group_size 2 --eval_prompts 2 --threads 1 --output_dir'
        .split(), tmp_path/'run'
    ]
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=terminal,
                          text=True) as run:
        os.close(terminal)
        heard = b''
        while True:
            try: heard += os.read(reader, 65536)
            except OSError: break      # nobody writes any more
        said = run.stdout.read()
    os.close(reader)
    assert run.returncode == 0, said
    places = [
        heard.index(words)
        for words in (b'Loading PyTorch', b'Loading the model', b'GRPO', b'Writing the report')
    ]
    assert places == sorted(places) and 'Loading' not in said and 'Step    1' in said


def test_the_end_is_short_and_with_verbose_it_is_whole(tmp_path):
    process = start('--output_dir', 'run', '--max_steps', 1, cwd=tmp_path)
    printed, err = process.communicate()
    assert process.returncode == 0, err
    process = start('--resume', 'run', '--max_steps', 1, '--verbose', cwd=tmp_path)
    whole, err = process.communicate()      # the run is over, so it is only told again
    assert process.returncode == 0 and not whole.startswith('Reward'), err
    assert 'What it should repair' in whole and 'What it should repair' not in printed
    sentences = printed[printed.index('\nA: '):printed.index('Of ')].split('\n\n')[0]
    assert len(sentences.strip().splitlines()) <= 3 and sentences in whole
    assert '--verbose' in printed and '\033' not in printed + whole    # nobody asked for colour


def test_a_rank_that_begins_with_something_else_is_named():
    with patch.object(train, 'everywhere', lambda f: ['a', 'a', 'b']), pytest.raises(ValueError, match='rank 2 begins with b, rank 0 with a'):
        train._same_origin(None, None)
