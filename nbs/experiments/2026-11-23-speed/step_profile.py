"""Where does the time of a default step go? `python step_profile.py` makes the same twelve steps of `rookworld_train`'s
defaults on one thread with a clock and with a profiler, and writes profile.csv: operations of PyTorch, ms and calls a
step, of the last ten."""
import csv
import re
import time
from contextlib import nullcontext
from pathlib import Path
import torch
from torch.profiler import ProfilerActivity, profile
from rookworld_nb.config import TrainConfig
from rookworld_nb.grpo.step import Learner, train_step
from rookworld_nb.lm.loader import load_model
from rookworld_nb.run.checkpoint import seed_generators
from rookworld_nb.run.held_out import load_prompts
from rookworld_nb.run.memory import keep_memory

STEPS = 10
GROUPS = {'matrix products with weights': r'linear_pointwise|::addmm|::mm$|::linear',
          'matrix products and softmax of attention': r'bmm|scaled_dot|flash|softmax|matmul',
          'layer norms and GELU': r'layer_norm|gelu',
          'AdamW and the norm of the gradient': r'foreach|adam|linalg_vector_norm|::norm',
          'copies and rows picked out': r'index|copy|::cat$|gather|scatter|select|embedding|clone|empty|view|reshape|pad|fill|zero|slice|transpose',
          'sums and products by element': r'::(add|mul|sub|div|sum|exp|neg|where|masked)_?'}


def ten_steps(watch=None):
    "Seconds of ten steps from the start of a run, and what watched them."
    config = TrainConfig()
    model, tokenizer = load_model(config.model)
    seed_generators(config.seed)
    source, _ = load_prompts(config)
    learner = Learner(model, tokenizer, config)
    for step in (1, 2): train_step(learner, source, step)
    with watch or nullcontext():
        began = time.perf_counter()
        for step in range(3, 3 + STEPS): train_step(learner, source, step)
        return time.perf_counter() - began, watch


def main():
    torch.set_num_threads(1)
    keep_memory()
    seconds, _ = ten_steps()
    _, seen = ten_steps(profile(activities=[ProfilerActivity.CPU]))
    taken = dict.fromkeys([*GROUPS, 'other operations'], (0., 0))
    for op in seen.key_averages():
        group = next((name for name, words in GROUPS.items() if re.search(words, op.key)), 'other operations')
        ms, calls = taken[group]
        taken[group] = ms + op.self_cpu_time_total/1000/STEPS, calls + op.count/STEPS
    taken['whole step, no profiler'] = 1000*seconds/STEPS, 0
    with (Path(__file__).parent/'profile.csv').open('w') as f:
        out = csv.writer(f, lineterminator='\n')
        out.writerow(['operations', 'ms', 'calls'])
        out.writerows([name, round(ms, 2), round(calls)] for name, (ms, calls) in taken.items())


if __name__ == '__main__': main()
