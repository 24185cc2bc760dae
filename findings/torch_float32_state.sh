#!/usr/bin/env bash
# torch 2.13.0: Optimizer.load_state_dict rounds float32 state to the dtype of the parameter, so an optimizer's float32 copy of bfloat16 weights does not survive a resume.
#
# Expected: what state_dict gave comes back bit by bit; a run that is saved and resumed goes on as if it had never stopped.
# Seen: an optimizer that keeps float32 master weights beside bfloat16 parameters (small steps need them) gets them back as bfloat16. What was learned since the last rounding
#   is lost, and from there on steps below half a bfloat16 spacing do nothing: the resumed run stands still, and no error is raised. state_dict itself has the right dtype.
# Who meets it: whoever writes an optimizer for bfloat16 weights and checkpoints it with load_state_dict. Only a state called "step" is left alone.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$work/venv/bin/python" - <<'P'
import torch

class Descent(torch.optim.Optimizer):
    "Gradient descent on a float32 copy of each weight."
    def __init__(self, params, lr): super().__init__(params, {'lr': lr})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group['params']:
                copy = self.state[p].setdefault('copy', p.float())
                copy -= group['lr'] * p.grad
                p.copy_(copy)

def train(stop):
    "A weight of 1 after 100 steps of 0.0001, with or without a stop after 50."
    p = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    p.grad, optimizer = torch.ones_like(p), Descent([p], 1e-4)
    for step in range(100):
        if stop and step == 50:
            saved, optimizer = optimizer.state_dict(), Descent([p], 1e-4)
            optimizer.load_state_dict(saved)
            print('saved', saved['state'][0]['copy'].dtype, '| loaded', optimizer.state[p]['copy'].dtype)
        optimizer.step()
    return round(p.item(), 4), optimizer.state[p]['copy'].dtype

whole, resumed = train(False), train(True)
print('without a stop', whole, '| resumed', resumed)
assert whole == (.9883, torch.float32), whole
assert resumed == (.9961, torch.bfloat16), f'the behaviour has changed: {resumed}'
P
# Output seen on 2026-11-27, on a CPU:
# saved torch.float32 | loaded torch.bfloat16
# without a stop (0.9883, torch.float32) | resumed (0.9961, torch.bfloat16)
