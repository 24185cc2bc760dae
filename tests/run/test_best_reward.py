"The best reward of a run is one that it has had."
import json
from dataclasses import replace

import rookworld_nb as rw
from rookworld_nb.config import TINY


def test_of_a_reward_that_is_never_above_minus_one(tmp_path):
    out = rw.train(replace(TINY, check_every=0, output_dir=str(tmp_path/'run')), scorer=lambda prompt, text, e: -5 - len(text)/100)
    rows = [json.loads(line) for line in (out/'metrics.jsonl').read_text().splitlines()]
    means = [row['reward_mean'] for row in rows]
    assert max(means) < -5 and [row['best_reward'] for row in rows] == [max(means[:i]) for i in range(1, len(means) + 1)]
