"""A task with a mistake in it is refused in one sentence, before a run has a directory: where it is
registered, or where its prompts and its held-out examples meet."""
import json
import random
import re
from dataclasses import replace
from functools import partial
from itertools import islice
import numpy as np
import pytest
from rookworld_nb.chess.dataset import Example, load_rows
from rookworld_nb.chess.positions import split_of
from rookworld_nb.config import EvalConfig, PretrainConfig, TrainConfig
from rookworld_nb.grpo.mixture import unlabelled_mixture
from rookworld_nb.lm.loader import save_model
from rookworld_nb.lm.model import GPT, GPTConfig
from rookworld_nb.lm.tokenizer import ListTokenizer
from rookworld_nb.measure.exam import run_evaluation
from rookworld_nb.measure.measures import LOGGED
from rookworld_nb.measure.metrics import judge, row_class
from rookworld_nb.reward.reward_scorer import Score, score
from rookworld_nb.run.held_out import load_prompts
from rookworld_nb.run.pretrain import pretrain
from rookworld_nb.run.run_log import RunLog
from rookworld_nb.run.train import train
from rookworld_nb.task import TASKS, Aim, Task, TaskError, TextAnswer, TextQuestion, register


def truth(question): return TextAnswer(question.about[::-1])


def words(seed, split='train', source='words', letters='abcdef'):
    rng = random.Random(f'{seed} words')
    while True:
        question = TextQuestion('C', ''.join(rng.choices(letters, k=4)))
        example = Example(question, truth(question), source=source)
        if split in (None, split_of(example.position)): yield example


def some(n, *how): return [*islice(words('held out', *how), n)]


C = Task(letter='C', name='words', form='C: <word>', ask=partial(TextQuestion, 'C'),
         read=lambda text, strict: TextAnswer(text), truth=truth,
         cut=lambda row: (row[:7], row[7:]), prompts=lambda kinds, reserved: dict(words=words),
         held_out=lambda n: some(n, 'eval', ''))


@pytest.fixture(autouse=True)
def forgotten():
    yield
    TASKS.pop('C', None)
    assert {*TASKS} == {'P', 'A'} and TASKS['P'].name == 'policy'


MISTAKES = [
    (dict(letter='c'), "task c: letter must be one capital, not 'c'"),
    (dict(form='D: <word>'), "form must be .* beginning with 'C: ', not 'D: <word>'"),
    (dict(weights=dict(right=0.7)), "weights must be not negative, and together 0.6, not {'right': 0.7}"),
    (dict(weights=dict(right=0.9, wrong=-0.3)), 'weights must be not negative'),
    (dict(trivial=(lambda prompt: '', )), 'trivial must be a dict, not [(]<function'),
    (dict(trivial=dict(nothing=lambda prompt: None)), "trivial, 'nothing' must be a text for a prompt, not None"),
    (dict(aims=Aim('right', 'exact')), 'aims must be a tuple, .*not Aim'),
    (dict(aims=('exact', )), "aims must be made of Aim, not 'exact'"),
    (dict(aims=(Aim('right', 'exakt'), )), "aims must be metrics of the task: reward, format_valid, exact, not 'exakt'"),
    (dict(shown=('reward', 'found')), "shown must be metrics of the task: .*, not 'found'"),
    (dict(judge=lambda *given: dict(found=1.0)), "judge must be a dict of metrics of the task: reward, format_valid, exact, not {'found': 1.0}"),
    (dict(prompts=lambda kinds, reserved: dict(letters=words)), "prompts, 'letters' must be examples with source='letters', not 'words'"),
    (dict(prompts=lambda kinds, reserved: dict(words=partial(words, source=''))), "prompts, 'words' must be examples with source='words', not ''"),
    (dict(prompts=lambda kinds, reserved: dict(words=words('one'))), "prompts, 'words' must be a function of a seed, .*not <generator"),
    (dict(prompts=lambda kinds, reserved: {'four letters': partial(words, source='four letters')}), "prompts, 'four letters' must be a kind in one word, not 'four letters'"),
    (dict(prompts=lambda kinds, reserved: dict(words=lambda seed: iter(()))), "prompts, 'words' must be examples without end, not \\[\\]"),
    (dict(prompts=lambda kinds, reserved: dict(words=lambda seed: words(random.random()))), "prompts, 'words' must be the same examples for the same seed"),
    (dict(prompts=lambda kinds, reserved: words), 'prompts must be a dict with a function for each kind, not <function'),
    (dict(prompts=lambda seed: words(seed)), 'prompts fails: TypeError'),
    (dict(held_out=lambda n: words('held out')), 'held_out must be a list of examples, not <generator'),
    (dict(held_out=lambda n: []), 'held_out must be a list of examples, not \\[\\]'),
    (dict(held_out=lambda n: some(n, 'eval', 'words')), "held_out must be examples with source='', at least some of them, not 'words'"),
    (dict(held_out=lambda n: [replace(e, target=None) for e in some(n, 'eval', '')]), 'held_out must be examples with their right answer as target, not None'),
    (dict(ask=lambda text: text), "ask must be the question 'C: ....', with letter, fen and prompt.., not '....'"),
    (dict(read=lambda text, strict: len(text)), 'read must be an answer with text.., such as a TextAnswer, not 4'),
    (dict(read=lambda text, strict: TextAnswer(f' {text}')), "read must be TextAnswer.* for the right text '....', not TextAnswer.said=' "),
    (dict(read=lambda text: TextAnswer(text)), "read fails, for the right answer '....' to 'C: ....': TypeError"),
    (dict(truth=lambda question: len(question.about)), 'truth must be an answer with text.., such as a TextAnswer, not 4'),
    (dict(truth=lambda question: TextAnswer(question.about)), "truth must be the target of its example, TextAnswer.said='....'., not TextAnswer"),
    (dict(truth=lambda question: {}[question.about]), "truth fails, for 'C: ....': KeyError"),
    (dict(ask=lambda text: {}[text]), "ask fails, for 'C: ....': KeyError"),
    (dict(cut=lambda row: (row[:6], row[6:])), "cut must be .'C: ....', '....'., not "),
    (dict(shares=lambda *given: dict(right=1.0)), "shares must be two things, .*not {'right': 1.0}"),
    (dict(shares=lambda *given: (dict(right=1.0), 'the answer')), "shares must be two things, .*not [(]{'right': 1.0}, 'the answer'"),
    (dict(shares=lambda *given: (dict(right='1.0'), [])), "shares, 'right' must be a number from 0 to 1, not '1.0'"),
    (dict(sign='E'), 'in the line of a step, E is the sign of environment; give another sign'),
    (dict(shares=lambda *given: (dict(found=1.0), [])), "shares must be shares of the parts of weights: right, not {'found': 1.0}"),
    (dict(shares=lambda question, answer, truth: (dict(right=1.0 + (answer != truth)), [])), "shares, 'right' must be a number from 0 to 1, not 2.0"),
    (dict(read=lambda text, strict: TextAnswer(text) if text else None), "read must be an answer, or raise ValueError, for '', not None"),
    (dict(read=lambda text, strict: TextAnswer(text[0] + text[1:])), "read must be an answer, or raise ValueError, for '', not IndexError"),
    (dict(shares=lambda question, answer, truth: (dict(right=len(answer.text())/4), [])), "shares, 'right' must be a number from 0 to 1, not 2.0"),
    (dict(shares=lambda question, answer, truth: (dict(right=1/len(answer.text())), [])), "shares fails, for 'C: ....': ZeroDivisionError"),
    (dict(near=lambda text: 2), 'near must be a number from 0 to 1, not 2'),
]


@pytest.mark.parametrize('change, said', MISTAKES)
def test_a_mistake_is_found_where_the_task_is_registered(change, said):
    with pytest.raises(ValueError, match=f'^task [Cc]: .*{said.removeprefix("task c: ")}'):
        register(replace(C, **change))
    assert 'C' not in TASKS


def test_a_judge_of_your_own_needs_no_target():
    register(replace(C, judge=lambda *given: dict(exact=1.0), held_out=lambda n: [replace(e, target=None) for e in some(n, 'eval', '')]))


def late(field, wrong, letter='z'):
    "C, where a function goes wrong for words with this letter, of which none is asked when it is registered."
    right = getattr(C, field)
    def either(first, *more):
        asked = first if isinstance(first, str) else getattr(first, 'prompt', lambda: first.task.about)()
        return wrong(first, *more) if letter in asked else right(first, *more)
    return register(replace(C, **{field: either}))


def fails(*given): return {}['a key']


@pytest.mark.parametrize('field, wrong, said', [
    ('shares', lambda *given: (dict(right=7.0), []), "shares, 'right' must be a number from 0 to 1, not 7.0, for TextAnswer(said='abcd') to 'C: zzzz'"),
    ('shares', lambda *given: (dict(right=float('nan')), []), "shares, 'right' must be a number from 0 to 1, not nan, for "),
    ('shares', lambda *given: 0.5, 'shares must be two things, ({part: share}, [what is wrong]), not 0.5, for '),
    ('shares', fails, "shares fails, for TextAnswer(said='abcd') to 'C: zzzz': KeyError: 'a key'"),
    ('shares', lambda *given: int('x'), "shares fails, for TextAnswer(said='abcd') to 'C: zzzz': ValueError: invalid literal"),
    ('truth', fails, "truth fails, for 'C: zzzz': KeyError: 'a key'"),
    ('ask', fails, "ask fails, for 'C: zzzz': KeyError: 'a key'"),
])
def test_a_function_that_fails_later_is_named(field, wrong, said):
    "And nothing is paid: a share of 7, or of nan, was taken for the most that a wrong answer can earn."
    late(field, wrong)
    with pytest.raises(TaskError, match=f'^task C: {re.escape(said)}'): score('C: zzzz', 'abcd')
    assert score('C: abcd', 'dcba').total == 1 and score('C: abcd', 'abcd').total == 0.2


def test_a_reader_that_fails_is_named():
    late('read', fails)
    with pytest.raises(TaskError, match="^task C: read fails, for 'azzz' to 'C: abcd': KeyError: 'a key'"): score('C: abcd', 'azzz')


def test_a_text_without_an_answer():
    def read(text, strict):
        if len(text) > 4: raise ValueError('four letters are expected')
        return TextAnswer(text)
    register(replace(C, read=read, near=lambda text: len(text)/8))
    assert score('C: abcd', 'abcdef').total == pytest.approx(-0.3 + 0.5*0.4*6/8)
    with pytest.raises(TaskError, match="^task C: near must be a number from 0 to 1, not 1.125, for 'abcdefabc'"):
        score('C: abcd', 'abcdefabc')
    register(replace(C, read=read, salvage=lambda prompt, question, text: (TextAnswer(text[:4]), 4), shares=late_shares))
    assert score('C: abcd', 'abcdef').total == pytest.approx(-0.3 + 0.5*(0.4 + 0.6*0.3/0.8*60/62))
    with pytest.raises(TaskError, match="^task C: shares, 'right' must be a number from 0 to 1, not 7.0"): score('C: abcd', 'zbcdef')


def late_shares(question, answer, truth): return dict(right=7.0 if 'z' in answer.said else 0.5), []


@pytest.mark.parametrize('grade, said', [
    (lambda *given: 0.5, "grade must be a Score with a total from -0.3 to 1, not 0.5, for TextAnswer(said='abcd') to 'C: abcd'"),
    (lambda *given: Score(7.0, {}, 'exact'), 'grade must be a Score with a total from -0.3 to 1, not Score(total=7.0'),
    (lambda *given: Score(float('nan'), {}, 'exact'), 'grade must be a Score with a total from -0.3 to 1, not Score(total=nan'),
    (lambda *given: 1/0, "grade fails, for TextAnswer(said='abcd') to 'C: abcd': ZeroDivisionError: division by zero"),
])
def test_a_grade_of_your_own(grade, said):
    register(replace(C, grade=grade))
    with pytest.raises(TaskError, match=f'^task C: {re.escape(said)}'): score('C: abcd', 'abcd')
    register(replace(C, grade=lambda *given: Score(0.7, dict(right=0.7), 'nearly')))
    assert score('C: abcd', 'abcd').reason == 'nearly'


def test_shares_of_another_library_become_numbers():
    register(replace(C, shares=lambda *given: (dict(right=np.float32(0.5)), ['half of it'])))
    found = score('C: abcd', 'abcd')
    assert type(found.parts['right']) is float and json.dumps(found.parts) and found.total == pytest.approx(0.5)


def test_measures_and_prompts_that_fail_are_named():
    example = Example(TextQuestion('C', 'abcd'), TextAnswer('dcba'))
    register(replace(C, judge=lambda example, completion, engine: dict(exact=float(completion)) if completion[:1].isdigit() else dict(exact=0.0)))
    with pytest.raises(TaskError, match="^task C: judge fails, for '1b' to 'C: abcd': ValueError: could not"): judge(example, '1b')
    register(replace(C, row_class=fails))
    with pytest.raises(TaskError, match="^task C: row_class fails, for 'C: abcd': KeyError: 'a key'"): row_class(example)
    def soon(seed):
        yield from islice(words(seed), 3)
        fails()
    register(replace(C, prompts=lambda kinds, reserved: dict(words=soon)))
    with pytest.raises(TaskError, match="^task C: prompts, 'words', fails, for seed '0 0': KeyError: 'a key'"):
        unlabelled_mixture(('games', ), 0, letters='C').take('C', 5)


def test_a_letter_that_nobody_registered():
    with pytest.raises(ValueError, match="neither 'P: <fen>' nor .*: 'Z: hello' [(]nobody has registered 'Z'[)]"): score('Z: hello', 'a')


def test_right_answers_that_only_a_row_knows():
    def unanswered(seed): return (replace(example, target=None) for example in words(seed))
    task = register(replace(C, truth=None, held_out=None, prompts=lambda kinds, reserved: dict(words=unanswered)))
    assert TASKS['C'] is task


def test_a_letter_belongs_to_one_task():
    before = TASKS['P']
    with pytest.raises(ValueError, match='task P: the letter is that of policy, so words needs another'):
        register(replace(C, letter='P', form='P: <word>'))
    assert TASKS['P'] is before
    register(C)
    kept = register(replace(C, about='the same, said again'))
    with pytest.raises(ValueError, match='that of words, so others needs another'): register(replace(C, name='others'))
    with pytest.raises(ValueError, match='together 0.6'): register(replace(C, weights=dict(right=1.0)))
    assert TASKS['C'] is kept
    register(replace(C, metrics=(replace(LOGGED['exact'], name='found'), ), judge=lambda *given: dict(found=1.0)))


def small(tmp_path, **more):
    tokenizer = ListTokenizer(['C: ', *'abcdef'])
    save_model(
        GPT(
            GPTConfig(n_layer=1, n_embd=16, n_head=2, n_positions=20,
                      vocab_size=tokenizer.vocab_size)), tokenizer, tmp_path/'start')
    return TrainConfig(
        **dict(model=str(tmp_path/'start'), tasks='C:1', output_dir=str(tmp_path/'run'), max_steps=1,
             prompts_per_step=2, group_size=2, max_new_tokens=6, eval_prompts=4, check_every=0,
             warmup_steps=0, threads=1) | more)


def test_held_out_examples_may_have_a_source_where_one_has_none():
    register(replace(C, held_out=lambda n: some(n, 'eval', 'words') + some(1, 'eval', '')))
    assert TASKS['C'].held_out(2)[0].source == 'words'


def test_a_task_of_which_nothing_is_held_out(tmp_path):
    register(replace(C, held_out=None))
    config = small(tmp_path)
    (tmp_path/'rows.txt').write_text('\n'.join(e.prompt() + e.completion() for e in islice(words('rows'), 50)))
    for data, name in (('unlabelled:games', 'unlabelled:games'), (str(tmp_path/'rows.txt'), 'rows.txt')):
        with pytest.raises(ValueError, match=f'task C has no held_out, and .*{name} has no evaluation rows|{name} has no evaluation rows'):
            train(replace(config, data=data))
    assert not (tmp_path/'run').exists()


def test_a_run_of_one_task_is_asked_about_nothing_else():
    register(C)
    _, held_out = load_prompts(TrainConfig(data='unlabelled:games', tasks='C:1', eval_prompts=8))
    assert len(held_out) == 8 and {e.kind for e in held_out} == {'C'}
    _, held_out = load_prompts(TrainConfig(data='unlabelled:games', tasks='C:0.5 A:0.5', eval_prompts=8))
    assert {e.kind for e in held_out} >= {'C', 'A'}


def test_no_prompt_is_held_out_and_trained(tmp_path):
    register(replace(C, held_out=lambda n: some(n, 'train', '')))
    held_out = frozenset(e.position for e in some(900, 'train', ''))
    source = unlabelled_mixture(('games', ), 0, held_out, 'C')
    assert not {e.position for e in source.take('C', 500)} & held_out
    assert {e.position for e in unlabelled_mixture(('games', ), 0, letters='C').take('C', 500)} & held_out
    register(replace(C, prompts=lambda kinds, reserved: dict(words=partial(words, letters='ab')),
                     held_out=lambda n: [*islice(words('held out', 'train', '', 'ab'), 200)]))
    with pytest.raises(ValueError, match="prompts, 'words', must give more to ask: 1000 prompts in a row are held out"):
        train(small(tmp_path))
    (tmp_path/'rows.txt').write_text('\n'.join(e.prompt() + e.completion() for e in islice(words('rows', None), 200)))
    with pytest.raises(ValueError, match="task C: held_out gives 'C: ....', which is of the training split, and rows may hold it"):
        pretrain(
            PretrainConfig(init=str(tmp_path/'start'), data=str(tmp_path/'rows.txt'), tasks='C:1',
                           output_dir=str(tmp_path/'run'), max_steps=1, threads=1))
    assert not (tmp_path/'run').exists()


@pytest.mark.parametrize('make, said', [
    (lambda seed: islice(words(seed), 5), 'must give examples without end, and gave 5'),
    (lambda seed: (replace(e, source='words' * (n < 3)) for n, e in enumerate(words(seed))), "source='words', not a C example with source=''"),
])
def test_prompts_that_end_or_change(tmp_path, make, said):
    register(replace(C, prompts=lambda kinds, reserved: dict(words=make)))
    with pytest.raises(ValueError, match=f"task C: prompts, 'words', .*{said}"): train(small(tmp_path))
    assert not (tmp_path/'run').exists()


@pytest.mark.parametrize('change, said', [
    (dict(limit=lambda config: '8'), "limit must be a whole number of tokens from 1, or None, not '8'"),
    (dict(limit=lambda config: config.most), "limit fails: AttributeError: 'TrainConfig' object has no attribute 'most'"),
    (dict(limit=lambda config: 4), "limit must be 5 or more, not 4: the right answer '....' has 5 tokens with its end"),
    (dict(sampling=lambda config: dict(heat=1)), "sampling must be a dict of temperature, top_k, top_p, not {'heat': 1}"),
    (dict(sampling=lambda config: dict(top_p=0)), "sampling, 'top_p' must be above 0 and at most 1, not 0"),
    (dict(sampling=fails), "sampling fails: KeyError: 'a key'"),
    (dict(grade=lambda *given: Score(0.1, {}, 'never right')), "grade must pay more than 0.2 for a right answer, not 0.1, for '....' to 'C: ....'"),
    (dict(grade=lambda *given: 0.5), 'grade must be a Score with a total from -0.3 to 1, not 0.5, for '),
])
def test_a_task_that_cannot_be_trained(tmp_path, change, said):
    register(replace(C, **change))
    with pytest.raises(TaskError, match=f'^task C: {said}'): train(small(tmp_path))
    assert not (tmp_path/'run').exists()


def test_no_room_for_any_right_answer(tmp_path):
    register(C)
    with pytest.raises(TaskError, match='^task C: max_new_tokens must be 5 or more, not 4: the right answer'):
        train(small(tmp_path, max_new_tokens=4))
    register(replace(C, limit=lambda config: 5, grade=lambda *given: Score(0.21, {}, 'hardly')))
    assert train(small(tmp_path)).name == 'run'


def test_fewer_held_out_examples_than_asked_for(tmp_path):
    register(replace(C, held_out=lambda n: some(min(n, 5), 'eval', '')))
    with pytest.warns(UserWarning, match='task C: held_out gives 5 of the 6 examples that eval_prompts asks for'):
        _, held_out = load_prompts(small(tmp_path, eval_prompts=6, data='unlabelled:games'))
    assert len(held_out) == 5


def test_how_a_run_goes_on(tmp_path):
    register(C)
    out = train(small(tmp_path))
    def told(**change):
        config = replace(TrainConfig.from_json((out/'config.json').read_text('utf-8')), **change)
        with pytest.raises(RuntimeError) as caught, RunLog(out).kept(config): raise RuntimeError('no space left')
        return caught.value.__notes__[0]
    assert told().endswith(f"go on here, with rw.train(config, resume='{out}'): no command knows task C")
    assert told(reward_function='__main__:mine').endswith(f"resume='{out}', scorer=…): no command knows task C and the reward")
    assert told(tasks=None).endswith(f'go on with rookworld_train --resume {out}')
    with pytest.raises(ValueError, match=f"continue it with --resume {out}, in Python with resume='{out}', or choose another --output_dir"):
        train(small(tmp_path))


def test_rows_of_a_task_that_nobody_registered(tmp_path):
    (tmp_path/'rows.txt').write_text('C: abcddcba\n'*3)
    with pytest.raises(ValueError, match="3 of 3 rows cannot be read: 3 × C: is of no registered task; a command knows P and A only"):
        load_rows(tmp_path/'rows.txt')


def test_two_tasks_that_say_the_same_in_a_report():
    line = TASKS['P'].aims[0].line
    with pytest.raises(ValueError, match=re.escape(f'task C: aims, the line {line!r} is one of task P')):
        register(replace(C, aims=(Aim(line, 'exact'), )))
    assert 'C' not in TASKS


def test_a_vocabulary_that_knows_no_task_of_a_command(tmp_path):
    register(C)
    config = small(tmp_path)
    with pytest.raises(ValueError, match='the vocabulary of .*start has no token for the letter of task P: choose other tasks, or another model'):
        train(replace(config, tasks=None, data='unlabelled', max_new_tokens=60))
    assert not (tmp_path/'run').exists()
    del TASKS['C']     # as in a command
    for suite in (None, 'quick'):
        with pytest.raises(ValueError, match='start has a vocabulary of its own, without P, A; a task of your own is known where'):
            run_evaluation(EvalConfig(model=config.model, suite=suite))
