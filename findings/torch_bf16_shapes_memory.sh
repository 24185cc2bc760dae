#!/usr/bin/env bash
# torch 2.13.0, CPU build: each new number of rows through a bfloat16 nn.Linear is kept in two caches of 1,024 entries; limiting one of them changes little.
#
# Expected: a loop over inputs of different lengths needs the memory of the longest one.
# Seen: 1,500 numbers of rows (100 to 1,599) through one Linear(192, 576) leave the process 490 to 790 MB larger. oneDNN multiplies here, and prepares a product for each shape.
#   ideep keeps them (LRU_CACHE_CAPACITY), and so does oneDNN (ONEDNN_PRIMITIVE_CACHE_CAPACITY): with either limited to 8, more than 350 MB stay; with both, less than 120 MB.
#   It takes no longer then.
# Who meets it: whoever samples or evaluates on a CPU in bfloat16, where batches have many shapes. It looks like a leak, and ends after a thousand shapes.
# Exit status 77: this processor has no AVX-512; others were not asked.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat > "$work/grow.py" <<'P'
import time
import torch
torch.set_num_threads(1)

def held(): return int(open('/proc/self/statm').read().split()[1])*4096/1e6

layer, x = torch.nn.Linear(192, 576).to(torch.bfloat16), torch.randn(1600, 192, dtype=torch.bfloat16)
with torch.no_grad():
    layer(x)
    before, began = held(), time.process_time()
    for n in range(100, 1600): layer(x[:n])
print(round(held() - before), f'{time.process_time() - began:.1f}', torch.backends.cpu.get_cpu_capability())
P
grow() { read -r mb seconds kind < <(env "$@" "$work/venv/bin/python" "$work/grow.py"); echo "$(printf '%-60s' "${*//=8/}") $mb MB, $seconds CPU-seconds"; }
grow NONE=8; usual=$mb
[[ $kind = AVX512* ]] || { echo "this processor has $kind only"; exit 77; }
grow LRU_CACHE_CAPACITY=8; ideep=$mb
grow ONEDNN_PRIMITIVE_CACHE_CAPACITY=8; onednn=$mb
grow LRU_CACHE_CAPACITY=8 ONEDNN_PRIMITIVE_CACHE_CAPACITY=8; both=$mb
if (( usual < 350 || ideep < 350 || onednn < 350 || both > 120 )); then echo 'the behaviour has changed'; exit 1; fi
