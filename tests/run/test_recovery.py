"What begins again when a run goes on with other choices."
from types import SimpleNamespace
from rookworld_nb.config import TrainConfig
from rookworld_nb.run import recovery

SAME = dict(data='rows', model='weights')


def test_evaluations_begin_again_where_they_cannot_be_compared(tmp_path):
    def otherwise(*changed, was=SAME, known=(), **choices):
        state = dict(origin=was, config=dict.fromkeys(known), step=3)
        return recovery._evaluates_otherwise(tmp_path, TrainConfig(**choices), state, dict.fromkeys(changed), SAME)
    assert not otherwise() and not otherwise('learning_rate')
    assert not otherwise('data')                               # the same rows under another name
    assert otherwise('temperature') and otherwise(was=SAME | dict(data='others'))
    # an early version had one limit for all tasks
    assert otherwise(max_new_tokens=64) and not otherwise(max_new_tokens=64, known=['env_max_new_tokens'])
    (tmp_path/'eval-step-2.jsonl').touch()
    assert not otherwise()
    (tmp_path/'eval-step-3.jsonl').touch()                     # begun again after this checkpoint
    assert otherwise()


def test_the_state_of_a_choice_begins_again_with_the_choice():
    learner = SimpleNamespace(kl=SimpleNamespace(state_dict=lambda: 'new'),
                              baseline_moments=SimpleNamespace(state_dict=lambda: 'new'))
    for choice, part in dict(kl_coef='kl', kl_controller='kl', normalize_rewards='baseline_moments',
                             ema_warmup_steps='baseline_moments').items():
        assert recovery._anew({choice: ''}, learner) == {part: 'new'}
    assert recovery._anew(dict(learning_rate=''), learner) == {}
