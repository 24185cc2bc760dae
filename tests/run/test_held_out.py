"""Which rows a run reads, and whose answers before the first step are known."""
from unittest.mock import patch
import pytest
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.config import TrainConfig
from rookworld_nb.lm.loader import load_model
from rookworld_nb.run import held_out


def test_rows_that_may_be_unreadable(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    rows = [e.prompt() + e.completion() for e in load_rows('positions', env_ratio=0.5, limit=300)]
    (tmp_path/'rows.txt').write_text('\n'.join([*rows, *['P: nothing']*30]))
    def read(share):
        return held_out.load_prompts(
            TrainConfig(data=str(tmp_path/'rows.txt'), reward_source='auto', env_ratio=0.5, eval_prompts=4, max_bad_rows=share))
    with pytest.warns(UserWarning, match='30 of 330 rows left out'): read(0.2)
    with pytest.raises(ValueError, match='30 of 330 rows cannot be read'): read(0.01)


def test_known_answers_are_those_of_exact_weights():
    "The shipped answers were written in float32."
    model, tokenizer = load_model('nano')
    rows = load_rows('positions', env_ratio=0.5, split='eval', limit=2)[:]
    greedy = dict.fromkeys('PA', dict(temperature=0.0, top_k=0, top_p=1.0))
    with patch.object(held_out, 'shipped_answers', return_value=None) as known, patch.object(held_out, 'judge_rows') as asked:
        for dtype, step, calls in (('float32', 0, 1), ('float32', 1, 1), ('bfloat16', 0, 1)):
            held_out._asker(model, tokenizer, TrainConfig(dtype=dtype), step)(rows, greedy)
            assert known.call_count == calls
    assert asked.call_count == 3
