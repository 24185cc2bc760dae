#!/usr/bin/env bash
# torch 2.13.0: a learning rate given as a tensor is one tensor for all parameter groups, so a scheduler's rule for the last group rules them all.
#
# Expected: LambdaLR with one rule for each group (1.0 for the body, 0.1 for the head) sets lr 0.001 and 0.0001, whether lr was a float or a tensor
#   (a tensor is what torch.compile and CUDA graphs ask for).
# Seen: with a tensor both groups train at 0.0001, with the plain and with the fused AdamW; the groups hold the same object, and the scheduler fills it in place.
#   "lr" written into each group of its own is right.
# Who meets it: whoever gives layers their own learning rates or freezes a group by its schedule, and makes lr a tensor for speed: the body learns ten times too slowly, nothing says why.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$work/venv/bin/python" - <<'P'
import torch

def rates(lr, **choices):
    "Learning rates of two groups, and how far one step moved each weight."
    body, head = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = torch.optim.AdamW([{'params': [body]}, {'params': [head]}], lr=lr, **choices)
    torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 1., lambda step: .1])
    body.grad, head.grad = torch.ones(1), torch.ones(1)
    optimizer.step()
    return [round(float(g['lr']), 6) for g in optimizer.param_groups], [round(-p.item(), 6) for p in (body, head)]

found = {f'{kind}, {"fused" if fused else "plain"}': rates(lr, fused=fused) for fused in (False, True) for kind, lr in (('float', 1e-3), ('tensor', torch.tensor(1e-3)))}
for name, (lrs, moved) in found.items(): print(name.ljust(15), 'lr', lrs, 'moved', moved)
wrong = {name: lrs for name, (lrs, moved) in found.items() if lrs != [.001, .0001] or moved != [.001, .0001]}
assert wrong == {'tensor, plain': [.0001, .0001], 'tensor, fused': [.0001, .0001]}, f'the behaviour has changed: {found}'
P
# Output seen on 2026-11-27, on a CPU:
# float, plain    lr [0.001, 0.0001] moved [0.001, 0.0001]
# tensor, plain   lr [0.0001, 0.0001] moved [0.0001, 0.0001]
# float, fused    lr [0.001, 0.0001] moved [0.001, 0.0001]
# tensor, fused   lr [0.0001, 0.0001] moved [0.0001, 0.0001]
