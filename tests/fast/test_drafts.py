"""An evaluation says the same whether or not the model is shown the true answers as drafts, and
asks it far less often."""
import pytest
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.fast.generate import generate
from rookworld_nb.lm.loader import load_model
from rookworld_nb.lm.model import GPT
from rookworld_nb.measure.evaluate import judge_rows

ROWS = [*load_rows('positions', 0.7, 3, 'eval', 48)]


@pytest.mark.parametrize('temperature, fewer', [(0.0, True), (1.0, False)])
def test_evaluation(monkeypatch, temperature, fewer):
    model, tokenizer = load_model('nano')
    # as they will be asked, so that the draws are the same
    rows, passes = sorted((e for e in ROWS if e.kind == 'A'), key=lambda e: len(e.prompt())), []
    for name in ('hidden', 'last_hidden'):
        way = getattr(GPT, name)
        monkeypatch.setattr(
            GPT, name,
            lambda self, *args, way=way, **how: passes.append(1) or way(self, *args, **how))
    plain = generate(model, tokenizer, [e.prompt() for e in rows], temperature=temperature,
                     seed=0).completions
    before = len(passes)
    judged = judge_rows(model, tokenizer, rows, temperature=temperature)
    assert judged.completion.tolist() == plain and (len(passes) - before < before / 3) == fewer


def test_both_tasks_in_a_batch():
    model, tokenizer = load_model('nano')
    judged = judge_rows(model, tokenizer, ROWS[:24], batch_size=9)
    assert judged.completion.tolist() == generate(model, tokenizer, [e.prompt() for e in ROWS[:24]],
                                                  temperature=0.0).completions
