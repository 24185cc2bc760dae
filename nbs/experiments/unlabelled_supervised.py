"""The control of a default run: supervision on the right answers to the same A prompts, which the rules give for nothing. `python unlabelled_supervised.py OUT --seconds S [--rate 1e-4] [--seed 0]`
trains the shipped nano for S CPU-seconds, 64 rows a step, A kinds in equal shares, and writes OUT/checkpoints/step-N, which unlabelled_exam.py asks."""
import argparse
import time
from pathlib import Path
import torch
from rookworld_nb.chess.unlabelled import POSITIONS
from rookworld_nb.grpo.mixture import unlabelled_mixture
from rookworld_nb.lm.loader import load_model, save_model
from rookworld_nb.measure.probes import reserved_positions
from rookworld_nb.run.targets import TokenRows, completion_loss, tokenize


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('out', type=Path)
    parser.add_argument('--seconds', type=float, required=True)
    parser.add_argument('--rate', type=float, default=1e-4)
    parser.add_argument('--seed', type=int, default=0)
    told = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(told.seed)
    model, tokenizer = load_model('nano')
    source = unlabelled_mixture(tuple(POSITIONS), told.seed, reserved_positions())
    optimizer, step, began = torch.optim.AdamW(model.train().parameters(), told.rate, (0.9, 0.95), weight_decay=0.0), 0, time.process_time()
    while (done := (time.process_time() - began)/told.seconds) < 1:
        for group in optimizer.param_groups: group['lr'] = told.rate * min(1, (step + 1)/10) * max(0.05, 1 - done)
        rows = TokenRows(tokenize(e, tokenizer) for e in source.take('A', 64))
        loss = completion_loss(model, rows.batch(torch.arange(64)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 20 == 0: print(step, round(loss.item(), 4), f'{done:.0%}', flush=True)
    save_model(model.eval(), tokenizer, told.out/f'checkpoints/step-{step}')


if __name__ == '__main__': main()
