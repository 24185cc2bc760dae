"""A task whose right answers only its rows know (`Task.truth` is None): every source of rewards pays them, and a run that
the task ends loses nothing."""
from dataclasses import replace
import chess
import pytest
from rookworld_nb.chess.dataset import Example
from rookworld_nb.config import TrainConfig
from rookworld_nb.reward.coherence import add_coherence
from rookworld_nb.reward.reward_scorer import Score, score
from rookworld_nb.reward.scoring import SOURCES, OwnScorer, Scorer
from rookworld_nb.run.checkpoint import list_checkpoints
from rookworld_nb.run.train import train
from rookworld_nb.task import TASKS, Task, TaskError, TextAnswer, TextQuestion, register


def cut(row):
    prompt, sign, answer = row.partition('=')
    return (prompt + sign, answer) if sign and row.startswith('K: ') else None


K = Task(letter='K', name='ends', form='K: <number>=', ask=lambda text: TextQuestion('K', text, chess.STARTING_FEN),
         read=lambda text, strict: TextAnswer(text), cut=cut)


@pytest.fixture(autouse=True)
def forgotten():
    register(K)
    yield
    del TASKS['K']


class Pool:
    "Engines that nobody may ask about K."
    restarts = 0
    def analyse(self, fens):
        assert not fens
        return []
    def values(self, asked): return []
    def close(self): pass


@pytest.mark.parametrize('source', SOURCES)
@pytest.mark.parametrize('coherence', [0., 0.8])
def test_a_right_row_is_paid(source, coherence):
    "With source rules every readable answer earned .2; with source engine Stockfish was asked about K."
    example = Example(K.ask('12='), TextAnswer('2'))
    found = Scorer(source, pool=Pool(), coherence=coherence).score([example], ['2', '3'])
    assert [s.total for s in found] == [1, 0.2]


def test_a_grade_without_a_receipt():
    "`Score.about` is empty by default."
    register(Task(letter='K', name='ends', form=K.form, ask=K.ask, read=K.read, cut=cut,
                  grade=lambda *given: Score(0.5, {'right': 0.5}, 'half')))
    half = score('K: 12=', '2', TextAnswer('2'))
    assert add_coherence(half, 'K: 12=', '2', 0.8) == half
    assert [s.total for s in Scorer('row', coherence=0.8).score([Example(K.ask('12='), TextAnswer('2'))], ['2', '3'])] == [0.5, 0.5]


@pytest.mark.parametrize('source', SOURCES)
def test_a_question_whose_answer_nobody_knows(source):
    "It was paid .2 for anything readable. Shares that need no right answer pay, and so does a reward of one's own."
    unknown = Example(K.ask('12='))
    with pytest.raises(TaskError, match="task K: nobody knows the right answer to 'K: 12='"):
        Scorer(source, pool=Pool()).score([unknown], ['2'])
    own = OwnScorer(lambda prompt, text, example: 0.7, 'mine', Scorer(source, pool=Pool()))
    assert [s.total for s in own.score([unknown], ['2'])] == [0.7]
    register(replace(K, shares=lambda question, answer, truth: ({'right': float(answer.said == '2')}, [])))
    assert [s.total for s in Scorer(source, pool=Pool()).score([unknown], ['2', '3'])] == pytest.approx([0.8, 0.2])


def test_a_task_that_fails_keeps_the_steps_before(tmp_path):
    limit = 10**9
    def shares(question, answer, truth):
        nonlocal limit
        limit -= 1
        if limit < 0: raise KeyError('late')
        return {'right': float(answer == truth)}, []
    register(Task(letter='K', name='ends', form=K.form, ask=lambda text: TextQuestion('K', text), read=K.read, cut=cut, shares=shares))
    (tmp_path/'k.txt').write_text(''.join(f'K: {i}={i % 10}\n' for i in range(200)))
    limit = 25
    with pytest.raises(TaskError, match='shares fails'):
        train(TrainConfig(data=str(tmp_path/'k.txt'), tasks='K:1', max_steps=12, prompts_per_step=1, group_size=2, eval_prompts=4,
                          check_every=0, log_completions=0, temperature=1.0, max_new_tokens=4, output_dir=str(tmp_path/'run')))
    steps = len((tmp_path/'run/metrics.jsonl').read_text().splitlines())
    assert steps > 2 and [p.name for p in list_checkpoints(tmp_path/'run')] == [f'step-{steps}']
