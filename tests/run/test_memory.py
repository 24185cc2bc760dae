"micro_batch_size auto under real limits of memory, each set in a process of its own."
import contextlib
import json
import re
import resource
import signal
import subprocess
import sys
from unittest.mock import patch
import pytest
from rookworld_nb.run import memory, train
from runs import clean, contents, die, in_child, some_positions

CHOICES = '''--model nano --max_steps 3 --save_every 1 --prompts_per_step 8 --group_size 4 --env_ratio 0.5 --eval_prompts 2 --warmup_steps 2
    --max_new_tokens 60 --max_refills 0 --learning_rate 5e-5 --kl_coef 0.6 --log_completions 1 --threads 1'''.split(
)


@contextlib.contextmanager
def room_for_half():
    "Once its model is loaded, the process has room for some of its 32 completions and not for all."
    def limited(learner, source, *rest):
        def measure(n): return memory.update_memory(learner, source, n)
        whole = measure(32)   # differs from machine to machine, and under a limit
        for share in (0.9, 0.75, 0.6, 0.5, 0.4, 0.3):
            most = memory._status()['VmSize'] + int(share*whole*1e9)
            resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
            if memory.largest_that_fits(measure, 4, 32, memory.SHARE*share*whole)[0] < 32: break
        return memory.fit_into_memory(learner, source, *rest)
    with patch.object(train, 'fit_into_memory', limited): yield


@contextlib.contextmanager
def dies(at):
    "The process is killed before it saves this step."
    keep = train.save_run
    with patch.object(train, 'save_run', lambda out, step, *rest: die()
                      if step == at else keep(out, step, *rest)):
        yield


def test_prompts_that_the_rules_make(tmp_path):
    "The default has no rows to look at; looking at its prompts does not take them."
    args = [*CHOICES, '--data', 'unlabelled', '--check_every', 0, '--output_dir']
    for size in ('auto', 32):
        assert in_child([*args, tmp_path/str(size), '--micro_batch_size', size],
                        measured=False) == 0
    assert json.loads((tmp_path/'auto/memory_profiles.json').read_text())['chosen'] == 32
    assert contents(tmp_path/'auto')['completions.jsonl'] == contents(tmp_path/
                                                                      '32')['completions.jsonl']


def test_a_run_does_not_load_the_compiler(tmp_path):
    "PyTorch 2.13.0 (torch/optim/optimizer.py): an optimizer loads it, which takes a second and 75 MB; ours does not."
    code = ("import atexit, sys; from rookworld_nb.apps.cli import train_command; "
            "atexit.register(lambda: print(*[m for m in ('torch._dynamo', 'torch') if m in sys.modules])); train_command()")
    args = [*CHOICES, '--max_steps', '1', '--data', some_positions(tmp_path), '--output_dir', tmp_path/'run']
    done = subprocess.run([sys.executable, '-c', code, *map(str, args)], env=clean(), capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == 'torch', done.stderr


def test_a_run_that_measures_is_the_run_with_that_number(tmp_path):
    "Digit for digit, also when it is killed and goes on where there is more memory."
    args, auto, fixed = [*CHOICES, '--data', some_positions(tmp_path), '--output_dir'], tmp_path/'auto', tmp_path/'fixed'
    with room_for_half(), dies(2):
        assert in_child([*args, auto, '--micro_batch_size', 'auto'],
                        measured=False) == -signal.SIGKILL
    told, log = json.loads((auto/'memory_profiles.json').read_text()), (auto/'train.log').read_text()
    assert 4 < told['chosen'] < told['of'] == 32 and told['limit'] == 'address space (ulimit)'
    said = re.search(
        r'memory: ([\d.]+) GB free \(address space \(ulimit\)\), micro-batches of (\d+) of 32 '
        r'completions take at most 85% of it',
        log)
    # both are rounded, to two digits and to four
    assert int(said[2]) == told['chosen'] and abs(float(said[1]) - told['free_gb']) < 0.0051
    assert in_child(['--resume', auto], measured=False) == 0
    assert in_child([*args, fixed, '--micro_batch_size', told['chosen']], measured=False) == 0
    found, wanted = contents(auto), contents(fixed)
    assert {*found.pop('files')} - {*wanted.pop('files')} == {'memory_profiles.json'} and found == wanted
    assert (auto/'train.log').read_text().count('memory: ') == 1 and json.loads(
        (auto/'memory_profiles.json').read_text()) == told


def test_every_run_tells_its_memory(tmp_path):
    """Of each step; sizes are tried, and listed, only by a run that has to choose one. The process
    counts everywhere, tensors on a GPU where there is one: here the step is told that there is."""
    with patch.object(train, 'gpu_peak_gb', lambda device: 0.125):
        assert in_child([
            *CHOICES, '--data',
            some_positions(tmp_path), '--output_dir', tmp_path/'run'
        ], measured=False) == 0
    rows = [json.loads(line) for line in (tmp_path/'run/metrics.jsonl').read_text().splitlines()]
    assert [r['memory_gpu_gb'] for r in rows] == [0.125]*3 and all(0.1 < r['memory_gb'] < 100
                                                                   for r in rows)
    assert not (tmp_path/'run/memory_profiles.json').exists()


SCRIPT = '''
import resource, sys
limit, length = float(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (int(limit*1e9),)*2)
import torch
from rookworld_nb.config import TrainConfig
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.grpo.experience import PromptSource
from rookworld_nb.grpo.step import Learner
from rookworld_nb.lm.loader import load_model
from rookworld_nb.run.memory import SHARE, free_memory, largest_that_fits, update_memory
config = TrainConfig(prompts_per_step=1000, group_size=2, max_new_tokens=length)
source = PromptSource(load_rows('positions', env_ratio=0.5, split='train', limit=200))
learner = Learner(*load_model('nano'), config)
budget = SHARE*list(free_memory(torch.device('cpu')).values())[0]
size, found = largest_that_fits(lambda n: update_memory(learner, source, n), 2, 2000, budget)
more = update_memory(learner, source, (int(1.1*size)//2 + 1)*2)
print(limit, round(budget, 3), size, found, more)
assert len(found) <= 3 and all(gb <= budget for n, gb in found.items() if n <= size) and (more is None or more > budget)
'''

@pytest.mark.parametrize('limit', [1.5, *(pytest.param(gb, marks=pytest.mark.slow) for gb in (3, 6))])
def test_within_a_tenth_of_the_largest(limit, tmp_path):
    done = subprocess.run([sys.executable, '-c', SCRIPT,
                           str(limit), '100'], env=clean(), cwd=tmp_path, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout + done.stderr


SHAPES = '''
import os, sys
os.environ.update(dict(LRU_CACHE_CAPACITY=sys.argv[1], ONEDNN_PRIMITIVE_CACHE_CAPACITY=sys.argv[1]) if sys.argv[1:] else {})
import torch
from rookworld_nb.lm.products import linear, _for_onednn
torch.set_num_threads(1)
def held(): return int(open('/proc/self/statm').read().split()[1])*os.sysconf('SC_PAGE_SIZE')/1e6
x, weight = torch.randn(704, 192), torch.randn(900, 192)
with torch.no_grad():
    linear(x, weight)
    before = held()
    for n in range(100, 900): linear(x, weight[:n])
print(_for_onednn(x, weight), held() - before)
'''

def test_shapes_of_products_are_not_kept():
    "ideep and oneDNN (torch 2.13.0) keep 1,024 prepared products each: a run takes gigabytes."
    def grown(*told):
        asked = subprocess.run([sys.executable, '-c', SHAPES, *told], capture_output=True, text=True, check=True)
        by_onednn, mb = asked.stdout.split()
        if by_onednn == 'False': pytest.skip('no AVX-512: another library multiplies')
        return float(mb)
    assert grown() < 0.6*grown('1024')
