"""Where does the time of a default step go? `python step_profile.py` profiles ten steps of `rookworld_train`'s defaults
on one thread, after twelve that do not count, and writes profile.csv: operations of PyTorch, ms and calls a step."""
import csv
import re
from pathlib import Path
import torch
from torch.profiler import ProfilerActivity, profile
from rookworld_nb.config import TrainConfig
from rookworld_nb.grpo.step import Learner, train_step
from rookworld_nb.lm.loader import load_model
from rookworld_nb.run.held_out import load_prompts
from rookworld_nb.run.memory import keep_memory

STEPS = 10
GROUPS = {'matrix products with weights': r'linear_pointwise|::addmm|::mm$|::linear',
          'matrix products and softmax of attention': r'bmm|scaled_dot|flash|softmax|matmul',
          'layer norms and GELU': r'layer_norm|gelu',
          'AdamW and the norm of the gradient': r'foreach|adam|linalg_vector_norm|::norm',
          'copies and rows picked out': r'index|copy|::cat$|gather|scatter|select|embedding|clone|empty|view|reshape|pad|fill|zero|slice|transpose',
          'sums and products by element': r'::(add|mul|sub|div|sum|exp|neg|where|masked)_?'}


def main():
    torch.set_num_threads(1)
    keep_memory()
    config = TrainConfig()
    model, tokenizer = load_model(config.model)
    source, _ = load_prompts(config)
    learner, taken = Learner(model, tokenizer, config), dict.fromkeys([*GROUPS, 'other operations'], (0., 0))
    for step in range(1, 13): train_step(learner, source, step)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for step in range(13, 13 + STEPS): train_step(learner, source, step)
    for op in seen.key_averages():
        group = next((name for name, words in GROUPS.items() if re.search(words, op.key)), 'other operations')
        ms, calls = taken[group]
        taken[group] = ms + op.self_cpu_time_total/1000/STEPS, calls + op.count/STEPS
    with (Path(__file__).parent/'profile.csv').open('w') as f:
        out = csv.writer(f, lineterminator='\n')
        out.writerow(['operations', 'ms', 'calls'])
        out.writerows([name, round(ms, 2), round(calls)] for name, (ms, calls) in taken.items())


if __name__ == '__main__': main()
