"Runs of the command in processes of their own, for the tests that kill them, and what they leave."
import contextlib
import importlib.resources
import json
import os
import signal
from unittest.mock import patch
import pandas as pd
import torch
from rookworld_nb.apps import cli
from rookworld_nb.lm.model import GPT, PRESETS

POSITIONS = importlib.resources.files('rookworld_nb')/'assets'/'positions.parquet'

with torch.device('meta'): GPT(PRESETS['tiny'])   # has torch import what it imports late, once for all children; computes nothing


def some_positions(folder):
    "A file with the first of the embedded positions."
    with POSITIONS.open('rb') as f: pd.read_parquet(f).head(800).to_parquet(folder/'positions.parquet')
    return str(folder/'positions.parquet')


def begin(args, prepared=None, err=None):
    "Start the command, without its report, in a forked process (torch has not computed yet): its id. What it says about errors goes to the file `err`."
    pid = os.fork()
    if pid: return pid
    code = 1
    try:
        told = contextlib.redirect_stderr(open(err, 'w', buffering=1)) if err else contextlib.nullcontext()
        with told, patch.object(cli, '_finish_run', print), prepared or contextlib.nullcontext(): code = cli.train_command(list(map(str, args)))
    finally: os._exit(code)


def end(pid):
    "Wait for a process: its exit code, or minus the signal that killed it."
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(args, prepared=None, err=None): return end(begin(args, prepared, err))


def undisturbed(folder, choices):
    "A whole run: its arguments but for the directory, what it leaves, and where."
    args = [*choices, '--data', some_positions(folder), '--output_dir']
    assert in_child([*args, folder/'run']) == 0
    return args, contents(folder/'run'), folder/'run'


def die(): os.kill(os.getpid(), signal.SIGKILL)


def contents(out):
    "All that a run wrote, times and memory left out."
    rows = {f.name: [{k: v for k, v in json.loads(l).items() if not k.startswith(('time_', 'memory_'))} for l in f.read_text().splitlines()] for f in out.glob('*.jsonl')}
    weights = {str(f.relative_to(out)): f.read_bytes() for f in out.glob('checkpoints/step-*/*.safetensors')}
    return rows | weights | {'comparison': (out/'comparison.json').read_text(), 'files': sorted(p.name for p in out.iterdir())}
