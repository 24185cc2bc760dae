#!/usr/bin/env bash
# torch 2.13.0: making the first optimizer of a process imports torch.compile's front end, also where nothing is compiled.
#
# Expected: torch.optim.AdamW([parameter]) makes a small object, and a program that never calls torch.compile never loads the compiler.
# Seen: add_param_group is wrapped by a decorator that imports torch._dynamo at its first call (so are zero_grad, state_dict and load_state_dict), and
#   step imports it, too. More than 700 modules are loaded, which took about a second and 75 MB here. SGD does the same.
#   A subclass with the functions that the decorators wrap (inspect.unwrap) learns the same, bit for bit, and loads none of them.
# Who meets it: whoever measures start-up time or memory of a small training job, or starts many processes, each with its optimizer: `import torch` is
#   blamed, because nothing points at the optimizer.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat > "$work/first.py" <<'P'
import inspect, sys, time, torch
from torch.optim import Optimizer

class Plain(torch.optim.AdamW):
    add_param_group, zero_grad, state_dict, load_state_dict = (
        inspect.unwrap(getattr(Optimizer, name)) for name in ('add_param_group', 'zero_grad', 'state_dict', 'load_state_dict'))
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))

kinds = dict(AdamW=torch.optim.AdamW, SGD=torch.optim.SGD, unwrapped=Plain)
def held(): return int(open('/proc/self/statm').read().split()[1])*4096/1e6

torch.manual_seed(0)
weight, modules, memory, began = torch.nn.Parameter(torch.randn(5)), len(sys.modules), held(), time.perf_counter()
optimizer = kinds[sys.argv[1]]([weight], lr=.1)
seconds, compiler = time.perf_counter() - began, 'torch._dynamo' in sys.modules
print(f'{seconds:.2f} s, {held() - memory:.0f} MB, {len(sys.modules) - modules} modules', file=sys.stderr)
for _ in range(3):
    optimizer.zero_grad()
    (weight**3).sum().backward()
    optimizer.step()
print(compiler, 'torch._dynamo' in sys.modules, len(sys.modules) - modules > 700, *(x.hex() for x in weight.tolist()))
P
seen() { "$work/venv/bin/python" "$work/first.py" "$1"; }
for kind in AdamW SGD unwrapped; do
  echo "$kind:"
  seen "$kind" | tee "$work/$kind"
done
test "$(cut -d' ' -f1-3 "$work/AdamW")" = 'True True True'
test "$(cut -d' ' -f1-3 "$work/SGD")" = 'True True True'
test "$(cut -d' ' -f1-3 "$work/unwrapped")" = 'False False False'
test "$(cut -d' ' -f4- "$work/AdamW")" = "$(cut -d' ' -f4- "$work/unwrapped")"    # the same weights
# Output seen on 2026-11-28, on a CPU:
# AdamW:
# 1.47 s, 74 MB, 823 modules
# True True True 0x1.3d27060000000p+0 -0x1.2c0bf00000000p-1 -0x1.3c78fc0000000p+1 0x1.1c65940000000p-2 -0x1.619bbc0000000p+0
# SGD:
# 1.30 s, 74 MB, 823 modules
# True True True 0x1.033d2a0000000p-1 -0x1.8bd47a0000000p-2 -0x1.85c20a0000000p+4 0x1.6c2e020000000p-2 -0x1.a9d50c0000000p+1
# unwrapped:
# 0.00 s, 0 MB, 0 modules
# False False False 0x1.3d27060000000p+0 -0x1.2c0bf00000000p-1 -0x1.3c78fc0000000p+1 0x1.1c65940000000p-2 -0x1.619bbc0000000p+0
