"""A task whose right answers only its rows know (`Task.truth` is None): every source of rewards pays them, and a run that
the task ends loses nothing."""
import itertools
from dataclasses import replace
import chess
import pytest
from rookworld_nb.chess.dataset import Example, load_rows
from rookworld_nb.config import PretrainConfig, TrainConfig
from rookworld_nb.reward.coherence import add_coherence
from rookworld_nb.reward.reward_scorer import Score, score
from rookworld_nb.reward.scoring import SOURCES, OwnScorer, Scorer
from rookworld_nb.run.checkpoint import list_checkpoints
from rookworld_nb.run.pretrain import pretrain
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


def test_an_answer_that_nobody_knows_is_missed_before_the_run_begins(tmp_path):
    "It was said in the first step, after the evaluation. The first four are held out."
    def endless(seed): return (Example(TextQuestion('K', f'{i}='), source='new') for i in itertools.count())
    register(replace(K, ask=lambda text: TextQuestion('K', text), prompts=lambda kinds, reserved: {'new': endless},
                     held_out=lambda n: [Example(TextQuestion('K', f'{i}='), TextAnswer(str(i % 10))) for i in range(n)]))
    with pytest.raises(TaskError, match="task K: nobody knows the right answer to 'K: 4='"):
        train(TrainConfig(data='unlabelled', tasks='K:1', eval_prompts=4, output_dir=str(tmp_path/'run')))
    assert not (tmp_path/'run').exists()


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


def test_supervision_that_a_task_ends_keeps_the_steps_before(tmp_path):
    def shares(*given): raise KeyError('late')
    register(replace(K, ask=lambda text: TextQuestion('K', text), shares=shares))
    (tmp_path/'k.txt').write_text(''.join(f'K: {i}={i % 10}\n' for i in range(200)))
    with pytest.raises(TaskError, match='shares fails'):
        pretrain(PretrainConfig(init='nano', data=str(tmp_path/'k.txt'), tasks='K:1', max_steps=6, eval_every=3, save_every=1000, batch_size=4,
                                eval_prompts=2, output_dir=str(tmp_path/'run')))
    assert [p.name for p in list_checkpoints(tmp_path/'run')] == ['step-3']


def test_a_reader_that_is_repaired_reads_the_rows_again(tmp_path, monkeypatch):
    "Notes of checked rows name the code of the package, and a task of one's own is no file of it."
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    (tmp_path/'k.txt').write_text(''.join(f'K: {i}={i % 10}\n' for i in range(50)))
    def loaded(): return len(load_rows(str(tmp_path/'k.txt'), max_bad_rows=1.0, cache=True))
    def read(text, strict):
        if text == '3': raise ValueError('no three')
        return TextAnswer(text)
    assert loaded() == 50
    register(replace(K, read=read))
    with pytest.warns(UserWarning, match='no three'): assert loaded() == 45
    register(K)
    assert loaded() == 50


def test_a_row_that_is_nested_too_deep_is_one_bad_row(tmp_path):
    good = '{"prompt": "K: 1=", "completion": "1"}'
    (tmp_path/'k.jsonl').write_text(f'{good}\n{"["*100_000}\n')
    with pytest.warns(UserWarning, match='1 of 2 rows left out'): assert len(load_rows(str(tmp_path/'k.jsonl'), max_bad_rows=1.0)) == 1
