"""Commands in processes of their own: as a shell sees them, and runs that are killed, with what
they leave."""
import contextlib
import importlib.resources
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from multiprocessing.forkserver import ensure_running
from unittest.mock import patch
import pandas as pd
import torch
from rookworld_nb.apps import cli
from rookworld_nb.lm.loader import save_model
from rookworld_nb.lm.model import GPT, PRESETS
from rookworld_nb.lm.tokenizer import load_tokenizer
from rookworld_nb.run import held_out

POSITIONS = importlib.resources.files('rookworld_nb')/'assets'/'positions.parquet'

# that anything may take on a busy machine; nothing waits for so long that is not broken
SECONDS = 300

# once for all children: an optimizer has torch import its compiler
torch.optim.AdamW([torch.zeros(1)])


# ---- commands, as a shell sees them

# what the commands import once they know what to do
MODULES = 'run.checkpoint chess.engine measure.exam apps.export apps.match run.pretrain report.report sweep.sweep arms.compare chess.synthetic run.train apps.uci'.split(
)


def clean(**more):
    "The environment of a command that nobody has configured."
    return ({k: v
             for k, v in os.environ.items() if not k.startswith('ROOKWORLD_')}
            | {'OMP_NUM_THREADS': '1', 'HF_HUB_OFFLINE': '1'} | more)


ALONE = [sys.executable, '-m', 'rookworld_nb.apps.cli']

def call_alone(command, *args, cwd, **environ):
    """Run a command in a Python process that knows nothing yet: (exit code, stdout, stderr). Most
    of its time goes into imports."""
    done = subprocess.run([*ALONE, command, *map(str, args)], cwd=cwd, env=clean(**environ),
                          capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


def call_unread(command, *args, cwd):
    "The same with a closed pipe as standard output, as `| head -1` leaves it: (exit code, stderr)."
    process = subprocess.Popen([*ALONE, command, *map(str, args)], cwd=cwd, env=clean(), text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    process.stdout.close()
    err = process.stderr.read()
    return process.wait(SECONDS), err


def _behave(command, args, cwd, environ, before, folder):
    "What a forked process does: be the command."
    os.setsid()     # it can be killed with its engines
    for fd, name in enumerate((os.devnull, f'{folder}/out', f'{folder}/err')):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), fd)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    sys.argv = [f'rookworld_{command}', *args]
    exec(before, {})
    try: sys.exit(getattr(cli, f'{command}_command')())
    finally:
        threading._shutdown(
        ) # as any process that ends: pools close before their processes are waited for, which `multiprocessing` turns round


class Started:
    """A command in a process of its own, which looks like a `subprocess.Popen`. It is forked from a server that has imported what commands
    import and done nothing else: a tenth of a second instead of the three that the imports take. `before` is some Python that it runs first."""
    def __init__(self, command, *args, cwd, before='', **environ):
        self.folder = tempfile.TemporaryDirectory()
        # it may be killed before it has opened them
        for name in ('out', 'err'): open(os.path.join(self.folder.name, name), 'w').close()
        context = multiprocessing.get_context('forkserver')
        self.process = context.Process(
            target=_behave,
            args=(command, list(map(str,
                                    args)), str(cwd), clean(**environ), before, self.folder.name))
        context.set_forkserver_preload([*(f'rookworld_nb.{name}' for name in MODULES), 'runs'])
        path = os.pathsep.join(
            filter(None, [os.path.dirname(__file__),
                          os.environ.get('PYTHONPATH')]))
        with patch.dict(os.environ, clean(PYTHONPATH=path)): ensure_running()     # once
        self.process.start()
        self.pid = self.process.pid

    @property
    def returncode(self): return self.process.exitcode
    def poll(self): return self.process.exitcode
    def send_signal(self, number): os.kill(self.pid, number)

    def communicate(self, timeout=SECONDS):
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired(self.process.name, timeout)
        return [open(os.path.join(self.folder.name, name)).read() for name in ('out', 'err')]


def call(command, *args, cwd, **environ):
    "Run a command in a process of its own: (exit code, stdout, stderr)."
    process = Started(command, *args, cwd=cwd, **environ)
    out, err = process.communicate()
    return process.returncode, out, err


def wait_until(true, process=None, seconds=SECONDS):
    """Ask again and again: what `true()` says when it is no longer false. The process must not end
    before."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end, 'it did not come'
        time.sleep(0.02)
    return found


def children(pid):
    "Living processes that a process has started."
    found = []
    for p in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{p}/stat') as f:
                state, parent = f.read().rpartition(')')[2].split()[:2]
        except OSError: continue
        if int(parent) == pid and state != 'Z': found.append(int(p))
    return found


# ---- runs, and what they leave


def some_positions(folder, n=300):
    "A file with the first of the embedded positions."
    with POSITIONS.open('rb') as f:
        pd.read_parquet(f).head(n).to_parquet(folder/'positions.parquet')
    return str(folder/'positions.parquet')


def begin(args, prepared=None, err=None, measured=True):
    """Start the command, without its report, in a forked process (torch has not computed yet): its
    id. What it says about errors goes to the file `err`. It can do without evaluations."""
    pid = os.fork()
    if pid: return pid
    code = 1
    try:
        told = (contextlib.redirect_stderr(open(err, 'w', buffering=1)) if err else contextlib.nullcontext())
        with told, patch.object(cli, '_finish_run', print), contextlib.nullcontext(
        ) if measured else unmeasured(), prepared or contextlib.nullcontext():
            code = cli.train_command(list(map(str, args)))
    finally: os._exit(code)


def end(pid):
    "Wait for a process: its exit code, or minus the signal that killed it."
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(args, prepared=None, err=None, measured=True):
    return end(begin(args, prepared, err, measured))


def undisturbed(folder, choices, measured=True):
    "A whole run: its arguments but for the directory, what it leaves, and where."
    args = [*choices, '--data', some_positions(folder), '--output_dir']
    assert in_child([*args, folder/'run'], measured=measured) == 0
    return args, contents(folder/'run'), folder/'run'


@contextlib.contextmanager
def unmeasured():
    "Runs do without evaluations, which take half of a short one."
    with patch.object(held_out, 'evaluate_run',
                      lambda *args: {}), patch.object(held_out, '_compare_runs', lambda *args: '[]'):
        yield


def die(): os.kill(os.getpid(), signal.SIGKILL)


def contents(out):
    "All that a run wrote, times and memory left out."
    rows = {
        f.name: [{k: v
                  for k, v in json.loads(l).items() if not k.startswith(('time_', 'memory_'))}
                 for l in f.read_text().splitlines()]
        for f in out.glob('*.jsonl')
    }
    weights = {
        str(f.relative_to(out)): f.read_bytes()
        for f in out.glob('checkpoints/step-*/*.safetensors')
    }
    return (rows | weights | {
        'comparison': (out/'comparison.json').read_text(), 'files': sorted(p.name
                                                                           for p in out.iterdir())
    })


def make_model(folder, **shape):
    "A directory with a small untrained model."
    tokenizer = load_tokenizer('chess')
    save_model(
        GPT(
            replace(PRESETS['tiny'],
                    **(dict(vocab_size=tokenizer.vocab_size, n_positions=192) | shape))), tokenizer,
        folder)
    return folder
